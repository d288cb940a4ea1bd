# SPDX-License-Identifier: Apache-2.0

"""``topodns check``: reports problems in a cluster."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES
from dnsserver.cli.log_format import say
from dnsserver.cli.parser import CommandParser, Example, add_output_format
from dnsserver.cli.settings_flags import ONE_NAMESPACE, add_settings, settings_of
from dnsserver.spelling import suggestion
from locator.ip import Network, network_text
from locator.labels import valid_label_key, valid_label_value
from locator.printable import shell_words

if TYPE_CHECKING:
    from dnsserver.cli.cluster import ReadClusters
    from dnsserver.settings.settings import Settings
    from locator.model import Finding
    from locator.places.subnet_proposals import RegionalZone

NO_CIDRS = "The pods are in no pod CIDR. With these flags, topodns locates a new pod before it has seen it:"

EXAMPLES = (
    Example("Check the cluster of the current kubeconfig:", "topodns check"),
    Example("Check one namespace of the cluster in another context:", "topodns check --context staging -n shop"),
    Example(
        "Let a pipeline fail for warnings, too, and give the findings to a program:",
        "topodns check --snapshot cluster.yaml --fail-on warning -o json",
    ),
    Example(
        "Check what kubectl prints, without a file:",
        "kubectl get namespaces,nodes,pods,services,endpointslices -A -o yaml | topodns check --snapshot -",
    ),
)
STATUSES = {
    **STATUSES,
    EXIT_DONE: "no finding is as severe as --fail-on says",
    EXIT_FAILED: "a finding is as severe as --fail-on says, or the API server cannot be reached, or refuses",
}


def add_arguments(parser: CommandParser) -> None:
    """Add the output format and the settings."""
    add_output_format(parser)
    add_settings(parser, "check", common=("fail_on", "serve_namespace"), also=ONE_NAMESPACE)


def run(arguments: Namespace) -> int:
    """Print all findings. The exit status is 1 if one of them is as severe as --fail-on."""
    settings = settings_of(arguments)
    from dnsserver.cli.cluster import check_clusters
    from dnsserver.cli.report import report
    from dnsserver.programs.server_log import read_text
    from locator.places.subnet_proposals import proposed_subnets
    from locator.state.snapshot import book_of

    reading, findings = check_clusters(settings)
    findings += _of_clients(settings, reading, findings)
    namespaces = reading.clusters.publisher.store.namespaces()
    for name in settings.serve_namespace:
        if name not in namespaces:  # nothing is looked at there
            hint = suggestion(name, namespaces)
            say(f"--namespace: no namespace {name}{hint}")
    remarks: list[str] = []
    if arguments.output == "text":
        remarks += _subnet_flags(proposed_subnets(book_of(reading.own)))
        remarks += [
            read_text(found.counts, name and f"cluster {name}")
            for name, found in reading.read.items()
            if found.counts is not None
        ]
    return report(findings, arguments.output, fail_on=settings.fail_on, remarks=remarks)


def _of_clients(settings: Settings, reading: ReadClusters, findings: Sequence[Finding]) -> list[Finding]:
    """Return what is wrong for the pods of the own cluster as clients, nothing if a dump lacks what decides that."""
    from dnsserver.cli.progress import shown_progress
    from dnsserver.programs.from_settings import authority_of
    from dnsserver.tools.simulation.unmet import unmet_findings
    from dnsserver.tools.simulation.world import AskingPods, world_of
    from locator.findings import ClusterCode
    from locator.model import OWN, Pod

    if any(finding.code == ClusterCode.KindMissing.name and not finding.cluster for finding in findings):
        return []
    own, clients = reading.own, AskingPods()
    with shown_progress() as report:
        report("working out who gets what")
        for pod in reading.read[OWN].objects().get(Pod, ()):
            if pod.asks:
                clients.add(settings.cluster_name, pod, own.addresses)
        world = world_of(own, clients, authority_of(settings), settings.cluster_name)
        return [*map(reading.publishers[OWN].with_file, unmet_findings(world, findings))]


def _subnet_flags(proposals: Mapping[Network, RegionalZone]) -> list[str]:
    """Return lines with a flag for each network."""
    labels = {
        network_text(network): ",".join(
            f"{key}={value}"
            for key, value in zone.labels.items()
            if valid_label_key(key) and value and valid_label_value(value)  # a dump may hold what no cluster does
        )
        for network, zone in proposals.items()
    }
    flags = [shell_words("--subnet", f"{network}={text}") for network, text in labels.items() if text]
    return [NO_CIDRS, *flags] if flags else []
