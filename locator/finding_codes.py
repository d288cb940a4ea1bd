# SPDX-License-Identifier: Apache-2.0

"""The causes of findings in a cluster: one code for each, with its severity and its cure.

Codes are stable, so that scripts and dashboards need not parse messages.
``make docs`` generates ``docs/findings.md`` from this table.
"""

from __future__ import annotations

from enum import Enum, unique

from locator.model import ERROR, INFO, WARNING, EndpointSlice, Finding, Namespaced
from locator.printable import MAX_TEXT, cut, filled


class FindingCode(Enum):
    """The cause of a finding. The name of the member is the code.

    ``cause`` says what is wrong and its effect, ``cure`` how to fix it, both in Markdown. ``command`` is a command
    for the cure, empty if no command helps.
    """

    def __init__(self, severity: str, cause: str, cure: str, command: str = "") -> None:
        self.severity = severity
        self.cause = cause
        self.cure = cure
        self.command = command

    def finding(
        self,
        kind: str = "",
        namespace: str = "",
        name: str = "",
        *,
        field: str = "",
        message: str,
        expected: str = "",
        line: int | None = None,
        file: str = "",
        severity: str | None = None,
    ) -> Finding:
        """Return a finding with this cause about an object, a line of a file, or neither.

        Others wrote parts of its texts, so these are made printable, and cut, before anybody shows or keeps them.
        *severity* is the code's own unless given: the same cause may do less harm in one place than in another.
        """
        field, message, expected = cut(field), cut(message, MAX_TEXT), cut(expected, MAX_TEXT)
        return Finding(
            self.name, severity or self.severity, kind, namespace, name, field, message, expected, line, file
        )

    def command_for(self, finding: Finding) -> str:
        """Return the command, for a shell, with the names of the object that a finding is about."""
        words = {"NAMESPACE": finding.namespace, "NAME": finding.name, "KIND": finding.kind.lower()}
        return filled(self.command if finding.namespace else self.command.replace("-n NAMESPACE ", ""), words)

    def about(
        self, item: Namespaced, field: str, message: str, expected: str = "", *, severity: str | None = None
    ) -> Finding:
        """Return a finding with this cause about a known object."""
        kind = item.kind if isinstance(item, EndpointSlice) else type(item).__name__
        return self.finding(
            kind, item.namespace, item.name, field=field, message=message, expected=expected, severity=severity
        )


@unique
class ClusterCode(FindingCode):
    """The causes that ``topodns check`` reports for a cluster or a dump."""

    InvalidTopologyKeys = (
        ERROR,
        "The annotation `topodns.io/topology-keys` of a Service, or its `spec.topologyKeys`, breaks a rule. topodns"
        " ignores the constraint: every client gets all ready endpoints.",
        "Write at most 16 label keys, separated by commas, none of them twice, and `*` only at the end. Remove"
        " `externalTrafficPolicy: Local` if the Service has it.",
        "kubectl -n NAMESPACE annotate service NAME --overwrite topodns.io/topology-keys='kubernetes.io/hostname,*'",
    )
    InvalidServicePolicy = (
        ERROR,
        "A ServicePolicy breaks a rule, or the policies that select a Service break one together. topodns answers the"
        " Services that it selects without a constraint. A policy with an empty or unreadable selector selects no"
        " Service.",
        "Give the policy a `spec.serviceSelector` that is not empty, a label key as `spec.topology.key`, and one of"
        " `Required`, `Preferred` and `Ignored` as `spec.topology.mode`. All policies of one Service may name 16 keys"
        " together, and a headless Service that they select must not have `externalTrafficPolicy: Local`.",
        "kubectl -n NAMESPACE edit servicepolicy NAME",
    )
    UnreadableObject = (
        ERROR,
        "An object, or a field of it, is not what the Kubernetes API defines: it has no name, a value has the wrong"
        " type, or an address is no address. topodns ignores the field, or the object if it cannot be used without it."
        " It is a warning where a dump has octets that are no text in UTF-8: each counts as an unknown character.",
        "Correct the field, in the cluster or in the dump. The API server shows what it holds:",
        "kubectl -n NAMESPACE get KIND NAME -o yaml",
    )
    KeyOnNoNode = (
        ERROR,
        "A topology key is the label of no node, so it never finds an endpoint. It is probably misspelled: the finding"
        " names the nearest label that nodes have. It is an error where clients may get nothing: the keys do not end"
        " with `*`, or a ServicePolicy requires the key. Otherwise it is a warning: clients get endpoints as if the key"
        " were not there. The label may also be missing on all nodes: `trafficDistribution` and hints need"
        " `topology.kubernetes.io/zone`. A label with an empty value is no label.",
        "Write the key as the nodes have it, or label the nodes:",
        "kubectl get nodes --show-labels",
    )
    PolicyWithoutMode = (
        WARNING,
        "A ServicePolicy has no `spec.topology.mode`, so it does nothing. Probably the mode was forgotten.",
        "Write `Required`, `Preferred`, or `Ignored` if the policy should do nothing:",
        'kubectl -n NAMESPACE patch servicepolicy NAME --type merge -p \'{"spec":{"topology":{"mode":"Preferred"}}}\'',
    )
    PolicySelectsNothing = (
        WARNING,
        "The selector of a ServicePolicy matches no Service in the namespace of the policy. The policy does nothing.",
        "Compare the selector with the labels of the Services:",
        "kubectl -n NAMESPACE get services --show-labels",
    )
    EmptyTopologyKeys = (
        WARNING,
        "The annotation `topodns.io/topology-keys` of a Service is empty. It counts as absent: a later source decides,"
        " such as `spec.trafficDistribution`, or none.",
        "Write the keys, or remove the annotation:",
        "kubectl -n NAMESPACE annotate service NAME topodns.io/topology-keys-",
    )
    UnknownAnnotation = (
        WARNING,
        "A Service has an annotation or a label that begins with `topodns.io/` and that topodns does not know, or one"
        " whose value means nothing to it. topodns ignores it. It is probably misspelled, or an annotation was written"
        " as a label or the other way round. The finding names the nearest one that topodns knows.",
        "Write it as the finding expects it, and remove the wrong one (a label with `kubectl label`):",
        "kubectl -n NAMESPACE annotate service NAME ANNOTATION-",
    )
    InvalidMinEndpoints = (
        WARNING,
        "The annotation `topodns.io/min-endpoints` is not a whole number from 1 to 999999999. It counts as 1.",
        "Write a number:",
        "kubectl -n NAMESPACE annotate service NAME --overwrite topodns.io/min-endpoints=3",
    )
    InvalidHealth = (
        WARNING,
        "The annotation `topodns.io/health` is not `tcp`, `tcp:PORT` or `http:PORT/PATH`, or its port is none of the"
        " Service's own TCP ports. It counts as none. Or the load balancer has an address that is never probed, such as"
        " a link-local one: then the finding names the address.",
        "Write a port of the Service (`spec.ports[].port`, or `spec.healthCheckNodePort`) without leading zeros, and a"
        " path of at most 1,000 characters, in which all but visible ASCII characters are percent-encoded:",
        "kubectl -n NAMESPACE annotate service NAME --overwrite topodns.io/health=http:8080/healthz",
    )
    ConstraintWithoutEffect = (
        WARNING,
        "Somebody asks for near endpoints, but DNS cannot choose among them. A Service that is not headless has one"
        " address for all clients, so its annotation or `spec.topologyKeys` does nothing, nor does a ServicePolicy that"
        " selects no headless Service. If a Service publishes addresses that are not ready, ServicePolicies,"
        " `spec.trafficDistribution` and hints do not narrow its answers, so that its peers find each other.",
        "Make the Service headless (`clusterIP: None`, which Kubernetes accepts only for a new Service). Or let"
        " kube-proxy choose by the constraint: run `topodns webhook`, and label the Service `topodns.io/hints=true`. Or"
        " remove the constraint. If its peers should find only near peers, ask for that with the Service's own"
        " annotation `topodns.io/topology-keys`.",
        "kubectl -n NAMESPACE annotate service NAME topodns.io/topology-keys-",
    )
    SourceNotHeard = (
        INFO,
        "A Service asks for near endpoints in several places, and only the first of them counts: ServicePolicies, then"
        " the annotation `topodns.io/topology-keys`, then `spec.topologyKeys`. If the Service publishes addresses that"
        " are not ready, ServicePolicies come after its own annotation and field.",
        "Nothing, if that is meant. Otherwise remove the source that should not count. `topodns explain` shows which"
        " one is heard:",
        "kubectl topodns explain svc/NAME -n NAMESPACE --client node/NODE",
    )
    KeyOnNoEndpoint = (
        ERROR,
        "A Service's constraint is hard, and its ready endpoints have none of the labels that it demands, or lack one"
        " that a ServicePolicy requires. Nodes have these labels, but not those of the endpoints. Nobody gets an"
        " endpoint.",
        "Compare the nodes of the pods with the labels of the nodes:",
        "kubectl -n NAMESPACE get pods -o wide",
    )
    EndpointsInOneDomain = (
        INFO,
        "A Service asks for near endpoints, but all its ready endpoints have the same value of the first key. So"
        " clients elsewhere have none that is near.",
        "Spread the pods, for example with `topologySpreadConstraints`:",
        "kubectl -n NAMESPACE get pods -o wide",
    )
    SingleEndpoint = (
        INFO,
        "A Service asks for near endpoints, but has a single ready one.",
        "Run more replicas, if clients in other places should have a near endpoint:",
        "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME",
    )
    AnswerTooLarge = (
        WARNING,
        "A headless Service has more endpoints than a DNS message holds: 64 KiB, which is about 4090 A, 2330 AAAA or"
        " 1150 SRV records with short names. Even over TCP, the answer is truncated, so clients see only a part of the"
        " endpoints: each client always the same part, other clients other parts.",
        "Ask by topology, so that a client gets fewer endpoints, give the Service fewer, or split it into several"
        " Services. Clients that need A records alone can do without SRV records, which are larger.",
        "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME",
    )
    HintsIncomplete = (
        WARNING,
        "Some ready endpoints of a headless Service have hints, and some have none: their node has no zone, or somebody"
        " has set the hints of one slice alone. Then hints count for nobody: kube-proxy uses all endpoints, and topodns"
        " goes by `spec.trafficDistribution`, or gives all of them.",
        "If nodes of the endpoints that the finding names have no zone, label them: Kubernetes then renews the hints."
        " If they have one, whoever sets hints must set them in all slices. Or ask for near endpoints with the"
        " annotation `topodns.io/topology-keys`, which needs no hints:",
        "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME -o yaml",
    )
    AutoWithoutHints = (
        INFO,
        "The annotation `service.kubernetes.io/topology-mode: Auto` of a headless Service asks Kubernetes for hints,"
        " and no ready endpoint has one. Kubernetes gives none while there are fewer endpoints than zones, or where it"
        " cannot spread them by the CPUs of the zones. So every client gets every endpoint.",
        "Ask for near endpoints with `spec.trafficDistribution`, without that annotation, or with"
        " `topodns.io/topology-keys`:",
        "kubectl -n NAMESPACE annotate service NAME topodns.io/topology-keys='topology.kubernetes.io/zone,*'",
    )
    HintsElsewhere = (
        INFO,
        "Hints name other zones than those that the endpoints are in, so that clients get endpoints of other zones:"
        " Kubernetes balances so with the topology mode Auto, or a node got another zone after the slice was written,"
        " or somebody else sets the hints.",
        "Ask for near endpoints with `spec.trafficDistribution: PreferSameZone` in place of the topology mode, or with"
        " `topodns.io/topology-keys`. Hints that are out of date are renewed when the pods are:",
        "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME -o yaml",
    )
    TwinWithoutConstraint = (
        INFO,
        "A headless Service asks for no near endpoints, but another Service with the same pods does. Charts often ask"
        " on the Service with the cluster IP, while clients use the headless one: these get every endpoint.",
        "Nothing, if clients do not use the headless Service, or should find all pods. Otherwise give it the same"
        " constraint:",
        "kubectl -n NAMESPACE annotate service NAME topodns.io/topology-keys='topology.kubernetes.io/zone,*'",
    )
    NoTrustedForwarder = (
        WARNING,
        "topodns knows no endpoint of the cluster's DNS Service, and no `--trusted-forwarder` is given. If a"
        " DNS server names a client, topodns ignores that and answers for the place where the DNS server itself runs.",
        "Name the Service of the DNS server with `--forwarder-service NAMESPACE/NAME`, or its addresses with"
        " `--trusted-forwarder CIDR`. A dump must contain the Service and its EndpointSlices:",
        "kubectl -n kube-system get endpointslices -l kubernetes.io/service-name=kube-dns",
    )
    NodeWithoutZone = (
        WARNING,
        "A node has no label `topology.kubernetes.io/zone`, or an empty one, but other nodes have one. A constraint by"
        " zone never matches clients or endpoints on this node.",
        "Label the node, if your cloud provider does not. For a virtual node, such as Fargate's, tell topodns by"
        " `--subnet` in which zone the network of its pods is:",
        "kubectl label node NAME topology.kubernetes.io/zone=ZONE",
    )
    ZoneInTwoRegions = (
        WARNING,
        "Nodes of two regions have the same value of `topology.kubernetes.io/zone`. A constraint by zone takes them for"
        " near: clients get endpoints of the other region as if they were in their zone.",
        "Correct the label of the node, if it is wrong. Where clouds or data centers share names of zones, give the"
        " zones names that are unique in the cluster:",
        "kubectl get nodes -L topology.kubernetes.io/region,topology.kubernetes.io/zone",
    )
    EndpointWithoutLocation = (
        WARNING,
        "topodns does not know where an endpoint of a headless Service with a constraint is. Its EndpointSlice names no"
        " zone, and no node or pod that is known, and nothing says where its address is. Only clients that get all"
        " endpoints of the Service get this one.",
        "If the cluster is read from a dump, dump the Nodes, too. With `--client-source podlocators`, check that"
        " `topodns controller` runs. If the slice is written by hand, set `nodeName`, `targetRef` or `zone` of the"
        " endpoint, or tell topodns by `--subnet` where its address is:",
        "kubectl -n NAMESPACE edit endpointslice NAME",
    )
    PodCidrDistrusted = (
        WARNING,
        "The pod CIDR of a node does not say where a pod is: a running pod, or a ready endpoint that Kubernetes keeps,"
        " has an address in it and is on another node, or several nodes have the same CIDR. topodns does not locate"
        " clients by a CIDR that is contradicted so, and by none at all once more are contradicted than confirmed. For"
        " a CIDR that several nodes have, it uses only the labels that these nodes share.",
        "While topodns watches Pods, it locates pods by their own addresses: nothing has to be done. Some network"
        " plugins, such as Calico with its own IPAM, do not use `spec.podCIDRs`; do not run topodns with"
        " `--client-source nodes` there. To compare the pod CIDRs of the nodes:",
        "kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDRS:.spec.podCIDRs",
    )
    SliceWithoutService = (
        WARNING,
        "An EndpointSlice has no label `kubernetes.io/service-name`, or the label names a Service that its namespace"
        " does not have. No answer contains its endpoints. With `--multicluster`, also a slice whose label"
        " `multicluster.kubernetes.io/service-name` names a ServiceImport that its namespace does not have.",
        "Correct the label, or delete the slice if its Service is gone:",
        "kubectl -n NAMESPACE delete endpointslice NAME",
    )
    KindMissing = (
        ERROR,
        "A dump has Services, but neither EndpointSlices nor Endpoints: no headless name in it has an answer, although"
        " it may have one in the cluster. Or it has no Nodes, so that topodns knows the zone of nobody. `kubectl get"
        " all` prints neither. Or it has EndpointSlices, but no Services: no name exists. topodns reports nothing that"
        " follows from it, such as a missing forwarder.",
        "Dump the missing kinds, too. `--snapshot` reads several files:",
        "kubectl get namespaces,nodes,pods,services,endpointslices -A -o yaml > cluster.yaml",
    )
    SliceLeftBehind = (
        WARNING,
        "A Service has a selector, and beside the slices of its selector one that Kubernetes' EndpointSliceMirroring"
        " controller keeps. Its pods are gone: the Service was without a selector for a while, and the slice was left"
        " behind (kubernetes/kubernetes#105987). Answers contain its addresses, and kube-proxy sends clients there.",
        "Delete the slice:",
        "kubectl -n NAMESPACE delete endpointslice NAME --ignore-not-found",
    )
    ServiceImportWithoutSlices = (
        WARNING,
        "No EndpointSlice has the label `multicluster.kubernetes.io/service-name` with the name of a ServiceImport of"
        " type Headless, so the name does not exist in DNS. The MCS controller has imported no slice.",
        "Look at the ServiceImport, at the MCS controller, and at the slices that it has imported:",
        "kubectl -n NAMESPACE get endpointslices -l multicluster.kubernetes.io/service-name=NAME",
    )
    ImportWithoutCluster = (
        WARNING,
        "An EndpointSlice was imported from a cluster that the status of its ServiceImport does not list. Probably the"
        " cluster has left the cluster set, or exports the Service no more, and its slice was left behind. Answers"
        " contain its endpoints all the same, as CoreDNS' do.",
        "Delete the slice, if its cluster is gone. Otherwise ask the MCS controller why `status.clusters` of the"
        " ServiceImport does not list it. To see from which clusters there are slices:",
        "kubectl -n NAMESPACE get endpointslices -L multicluster.kubernetes.io/source-cluster",
    )
    NameWithoutAddress = (
        INFO,
        "A Service or a ServiceImport is neither headless nor has an address, so its name exists but has no records. An"
        " API server gives each Service an address. A rendered chart has none yet. Some MCS implementations write none"
        " into a ServiceImport of type ClusterSetIP, for example Submariner without Globalnet.",
        "Nothing, if the file was never in a cluster. Otherwise look at what should write the address: `spec.clusterIP`"
        " of the Service, `spec.ips` of the ServiceImport:",
        "kubectl -n NAMESPACE get KIND NAME -o yaml",
    )
    EndpointsTruncated = (
        WARNING,
        "A dump has an Endpoints object and no EndpointSlice of a Service. Kubernetes has cut the object off at 1,000"
        " endpoints (`endpoints.kubernetes.io/over-capacity: truncated`). No answer contains the others.",
        "Dump the EndpointSlices of the Service, too:",
        "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME -o yaml",
    )
    LoadBalancerWithoutAddress = (
        WARNING,
        "A cluster exports a Service to others, but the Service has no load balancer with an address, and the pods of"
        " some clusters do not reach its endpoints (`--flat-network`). Clients there, and outside of all clusters, get"
        " nothing of this cluster.",
        "Make the Service one of type LoadBalancer, and see that the cloud gives it an address. A headless"
        " Service cannot have that type: export one with a cluster IP in its place. If the pods of all"
        " clusters reach each other, say so with `--flat-network`:",
        "kubectl -n NAMESPACE get service NAME -o wide",
    )
    HostNameWithoutUpstream = (
        WARNING,
        "The load balancer of an exported Service has a host name, and topodns knows no name server that resolves it."
        " The load balancer is in no answer.",
        "Name a resolver with `--upstream ADDR`:",
        "kubectl -n NAMESPACE get service NAME -o jsonpath='{.status.loadBalancer.ingress}'",
    )
    ExternalNameExported = (
        WARNING,
        "A cluster exports a Service of type ExternalName. Such a Service is an alias without endpoints of its own, so"
        " this cluster contributes nothing to the federated name.",
        "Export the Service that has the endpoints, or take the export back: delete the ServiceExport, or remove the"
        " annotation:",
        "kubectl -n NAMESPACE annotate service NAME topodns.io/federated-",
    )
    FederatedConstraintsDiffer = (
        WARNING,
        "A Service asks for other topology keys than the Service of its name in another cluster. A client gets a"
        " federated name by the constraint of its own cluster's Service; all other clients by that of the oldest"
        " Service that has a valid one.",
        "Give the Service the same annotation in all clusters, if it is not meant so:",
        "kubectl -n NAMESPACE annotate service NAME --overwrite topodns.io/topology-keys='topodns.io/cluster,*'",
    )
    ExportsDisagree = (
        WARNING,
        "Two clusters export one name, and the Services differ: one is headless and the other is not, or a port of one"
        " name has another number or protocol. Clients that are led to another cluster, for example by a spare, dial a"
        " port that is not there, and names of pods exist for some clients only.",
        "Give the Service the same form in all clusters, or export one of the two under another name:",
        "kubectl -n NAMESPACE get service NAME -o jsonpath='{.spec.clusterIP} {.spec.ports}'",
    )
    ExportedInOneCluster = (
        INFO,
        "One of several clusters exports a Service, and no other does. Its federated name leads to this cluster alone.",
        "Nothing, if that is meant. Otherwise export it in the other clusters, too, by a ServiceExport or by this"
        " annotation:",
        "kubectl -n NAMESPACE annotate service NAME topodns.io/federated=true",
    )
    ExportWithoutService = (
        WARNING,
        "A ServiceExport names a Service that its namespace does not have. Nothing is exported.",
        "Create the Service, or delete the ServiceExport:",
        "kubectl -n NAMESPACE get services",
    )
    FlatNetworkOverlaps = (
        WARNING,
        "Two clusters that `--flat-network` joins have addresses in the same block. Pods of the one cannot reach those"
        " addresses of the other, and topodns takes clients with these addresses for those of the own cluster. Or"
        " endpoints that were imported from two clusters (`--multicluster`) have the same address: a client reaches"
        " one of them, whichever it was answered.",
        "Leave one of the clusters out of `--flat-network` or of the cluster set, or give them different pod CIDRs. To"
        " compare them:",
        "kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDRS:.spec.podCIDRs",
    )
    ClusterUnreachable = (
        WARNING,
        "The API server of another cluster (`--cluster`) cannot be reached, or refuses to list what topodns reads."
        " Federated names have no entries of that cluster, and its clients are unknown. A running server keeps its last"
        " view for `--cluster-max-age`.",
        "Look at the address and the credentials in the kubeconfig, and at the ClusterRole in that cluster:",
        "kubectl --kubeconfig PATH auth can-i list endpointslices --all-namespaces",
    )
    ObjectTwice = (
        WARNING,
        "The files of `--snapshot` contain the same object twice, and the two differ. The later one counts.",
        "Remove the older one, or name the files in order, the newest last. Or dump the cluster anew, into one file:",
        "kubectl get namespaces,nodes,pods,services,endpointslices -A -o yaml > cluster.yaml",
    )
    PassedOver = (
        INFO,
        "Something in a folder that `--snapshot` names was not read: a file whose name ends in something else; a file,"
        " or documents in one, without a Kubernetes object; a hidden folder, `lost+found`, or a folder that was read"
        " already; a link that leads nowhere; a pipe, socket or device. The finding has the number of documents, and"
        " the line of the first. Or an object of a kind that topodns reads states an API group that does not have this"
        " kind.",
        "Nothing, if nothing of the cluster is in it. Otherwise unpack or rename the file, or name it with"
        " `--snapshot`. Correct the `apiVersion` of the object:",
        "kubectl api-resources",
    )
