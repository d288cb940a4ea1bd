# SPDX-License-Identifier: Apache-2.0

"""A real Kubernetes control plane: etcd, the API server, the controllers, and kubectl.

There is no kubelet. A test creates Nodes, and Pods with a ``nodeName``, and writes their status with
``Api.patch_status``, as a kubelet would. The real controllers do the rest, such as writing EndpointSlices.
"""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import signal
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.kit import go_programs
from tests.kit.programs import Daemon, environment
from tests.kit.this_machine import free_port
from tests.kit.waiting import PATIENCE, until

Item = dict[str, Any]

STARTING = 90.0  # seconds; a cold API server takes 8 on two cores, and more on a loaded machine
SERVICE_RANGES = "10.96.0.0/16,fd00:96::/112"
# The API server's address in its own EndpointSlice, where loopback is not allowed; for documentation (RFC 5737).
ADVERTISED = "198.51.100.1"
TOKEN = "of-the-tests"
# All controllers, but no kubelet renews a node's lease here, and tests set the pod CIDRs.
ALL = "*,-node-lifecycle-controller,-node-ipam-controller"
DUMPED = "namespaces,nodes,pods,services,endpointslices"  # as in the README
THREADS = 8  # requests at a time

# kind -> the path of its API, its resource, whether it is namespaced
KINDS = {
    "Namespace": ("/api/v1", "namespaces", False),
    "Node": ("/api/v1", "nodes", False),
    "Pod": ("/api/v1", "pods", True),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "Secret": ("/api/v1", "secrets", True),
    "Service": ("/api/v1", "services", True),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices", True),
    "Endpoints": ("/api/v1", "endpoints", True),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases", True),
    "Event": ("/api/v1", "events", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "ReplicaSet": ("/apis/apps/v1", "replicasets", True),
    "StatefulSet": ("/apis/apps/v1", "statefulsets", True),
    "DaemonSet": ("/apis/apps/v1", "daemonsets", True),
    "Job": ("/apis/batch/v1", "jobs", True),
    "ReplicationController": ("/api/v1", "replicationcontrollers", True),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v2", "horizontalpodautoscalers", True),
    "ResourceQuota": ("/api/v1", "resourcequotas", True),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "MutatingWebhookConfiguration": (
        "/apis/admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        False,
    ),
    "PodLocator": ("/apis/topodns.io/v1alpha1", "podlocators", True),
    "ServicePolicy": ("/apis/topodns.io/v1alpha1", "servicepolicies", True),
    "ServiceExport": ("/apis/multicluster.x-k8s.io/v1beta1", "serviceexports", True),
    "ServiceImport": ("/apis/multicluster.x-k8s.io/v1beta1", "serviceimports", True),
    "ServiceHealth": ("/apis/topodns.io/v1alpha1", "servicehealths", False),
    "DNSEndpoint": ("/apis/externaldns.k8s.io/v1alpha1", "dnsendpoints", True),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False),
}


class ApiError(Exception):
    """The API server refused a request; ``status`` is its HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """A client of the API server: JSON over HTTPS, one connection for each thread."""

    def __init__(self, port: int, authority: Path, token: str = TOKEN) -> None:
        self._port, self._token = port, token
        self._context = ssl.create_default_context(cafile=str(authority))
        self._local = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []

    def request(self, method: str, path: str, body: object = None, *, media: str = "application/json") -> Any:
        """Return the response, decoded if it is JSON. Raises ``ApiError`` if the API server refuses."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": media}
        data = None if body is None else json.dumps(body).encode()
        try:
            response, text = self._once(method, path, data, headers)
        except (http.client.RemoteDisconnected, ConnectionError, ssl.SSLEOFError):  # the server closed it as idle
            response, text = self._once(method, path, data, headers)
        if response.status >= 400:
            raise ApiError(response.status, f"{method} {path}: {text}")
        return json.loads(text) if response.headers.get_content_type() == "application/json" else text

    def _once(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, str]:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._context, timeout=PATIENCE)
            self._local.connection = connection
            self._connections.append(connection)
        try:
            connection.request(method, path, data, dict(headers))
            response = connection.getresponse()
            return response, response.read().decode()
        except Exception:
            connection.close()  # the next request opens it again
            raise

    def path(self, kind: str, namespace: str | None = None, name: str | None = None, *, sub: str = "") -> str:
        """Return the path of one object, or of all of a kind; *sub* is a subresource."""
        base, resource, namespaced = KINDS[kind]
        where = f"/namespaces/{namespace}" if namespaced and namespace else ""
        return "/".join(part for part in (f"{base}{where}", resource, name, sub) if part)

    def path_of(self, item: Item, *, sub: str = "") -> str:
        """Return the path of an object."""
        return self.path(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"], sub=sub)

    def create(self, *items: Item) -> None:
        """Create objects, one kind after the other, and write the ``status`` of Pods and Nodes as a kubelet would."""
        for kind in dict.fromkeys(item["kind"] for item in items):
            self._in_parallel(self._create, [item for item in items if item["kind"] == kind])

    def _create(self, item: Item) -> None:
        self.request("POST", self.path(item["kind"], item["metadata"].get("namespace")), item)
        if item["kind"] in ("Pod", "Node") and item.get("status"):
            self.patch_status(item, item["status"])

    def patch(self, item: Item, change: Mapping[str, Any], *, sub: str = "") -> Item:
        """Merge *change* into an object (RFC 7396); return the changed object."""
        changed: Item = self.request("PATCH", self.path_of(item, sub=sub), change, media="application/merge-patch+json")
        return changed

    def patch_status(self, item: Item, status: Mapping[str, Any]) -> Item:
        """Merge *status* into an object's status."""
        return self.patch(item, {"status": dict(status)}, sub="status")

    def run_pod(self, pod: Item, node: str, address: str, *, ready: bool = True) -> None:
        """Do what a scheduler and a kubelet do: give a pod a node, unless it has one, and report that it runs."""
        if "nodeName" not in pod["spec"]:
            target = {"metadata": {"name": pod["metadata"]["name"]}, "target": {"name": node}}
            self.request("POST", self.path_of(pod, sub="binding"), target)
        conditions = [{"type": kind, "status": str(ready)} for kind in ("Ready", "ContainersReady")]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        self.patch_status(pod, status)

    def delete(self, *items: Item) -> None:
        """Delete objects, one kind after the other; pods without a grace period."""
        # Not all kinds at once: a namespace deletes its objects with it, and deleting those again is a 404.
        for kind in dict.fromkeys(item["kind"] for item in items):
            self._in_parallel(self._delete, [item for item in items if item["kind"] == kind])

    def _delete(self, item: Item) -> None:
        self.request("DELETE", self.path_of(item), {"gracePeriodSeconds": 0})

    def items(self, kind: str, namespace: str | None = None, *, labels: str = "") -> list[Item]:
        """Return the objects of a kind, of all namespaces or one, with a label selector or without."""
        selected = f"?labelSelector={labels}" if labels else ""
        items: list[Item] = self.request("GET", self.path(kind, namespace) + selected)["items"]
        return items

    @staticmethod
    def _in_parallel(do: Any, items: Iterable[Item]) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(do, items):
                pass

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections:
            connection.close()


class ControlPlane:
    """A running control plane; tests can kill, restart, stop and continue its API server."""

    def __init__(
        self, folder: Path, programs: Path, stack: ExitStack, *flags: str, tokens: str = "", controllers: str = ALL
    ) -> None:
        self.folder = folder
        """Certificates, etcd's data, and the output of each program."""
        self.programs = programs
        self.kubeconfig = folder / "kubeconfig"
        self.port = free_port()
        self._stack, self._flags, self._controllers = stack, flags, controllers
        self._programs: dict[str, Daemon] = {}  # by name; the last one started
        self._etcd, self._peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._certificate = folder / "certificates" / "apiserver.crt"
        self._key, self._tokens = folder / "tokens.key", folder / "tokens.csv"
        private_key = subprocess.run([programs / "private-key"], capture_output=True, check=True).stdout
        self._key.write_bytes(private_key)
        self._tokens.write_text(f'{TOKEN},tests,1,"system:masters"\n{tokens}')
        self.kubeconfig.write_text(self._config(TOKEN, self.port))
        stack.callback(self._end)
        self._start_etcd()
        self.start()
        self._start_controllers()

    def _start_etcd(self) -> None:
        self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={self._peer}",
            f"--initial-advertise-peer-urls={self._peer}",
            f"--initial-cluster=default={self._peer}",
            "--log-level=warn",
        )

    def _start_controllers(self) -> None:
        if not self._controllers:
            return
        controllers = self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={self._controllers}",
            f"--service-account-private-key-file={self._key}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        )
        # The API server writes the slice and a controller the account: once both exist, both programs work.
        for kind in ("EndpointSlice", "ServiceAccount") if self._controllers == ALL else ():
            controllers.until(lambda kind=kind: self.api.items(kind, "default"), within=STARTING)

    def start(self, *flags: str) -> None:
        """Start the API server, or start it again on the same etcd, with *flags* beside the usual ones."""
        server = self._run(
            "kube-apiserver",
            f"--etcd-servers={self._etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--advertise-address={ADVERTISED}",
            f"--cert-dir={self._certificate.parent}",
            f"--token-auth-file={self._tokens}",
            "--authorization-mode=RBAC",
            f"--service-account-key-file={self._key}",
            f"--service-account-signing-key-file={self._key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--disable-admission-plugins=ServiceAccount",  # pods need no tokens: no kubelet runs them
            f"--service-cluster-ip-range={SERVICE_RANGES}",
            "--max-requests-inflight=0",
            "--max-mutating-requests-inflight=0",
            "--enable-priority-and-fairness=false",
            *self._flags,
            *flags,
        )
        # The API server writes the key after the certificate: when the key exists, the certificate is complete.
        server.until(self._certificate.with_suffix(".key").exists, within=STARTING)
        self.api = Api(self.port, self._certificate)
        self._stack.callback(self.api.close)
        server.until(lambda: _says_ok(self.api), within=STARTING)

    def kill(self) -> None:
        """Kill the API server: connections break without notice."""
        self.api.close()
        self._kill("kube-apiserver")

    def rebuild(self) -> None:
        """Kill the whole control plane, and start it on an empty etcd: same address, certificates and tokens."""
        self._kill_all()
        shutil.rmtree(self.folder / "etcd")
        self._start_etcd()
        self.start()
        self._start_controllers()

    def save_etcd(self, snapshot: Path) -> None:
        """Write a snapshot of etcd, as ``etcdctl snapshot save`` does: by its Maintenance API, as JSON."""
        with urllib.request.urlopen(f"{self._etcd}/v3/maintenance/snapshot", b"{}", PATIENCE) as response:
            parts = [json.loads(line)["result"].get("blob", "") for line in response]
        snapshot.write_bytes(b"".join(map(base64.b64decode, parts)))

    def restore_etcd(self, snapshot: Path, *, politely: bool = False) -> None:
        """End the whole control plane, restore etcd from *snapshot*, and start all again at the same addresses.

        *politely*: the API server gets SIGTERM, and ends its watches; otherwise it is killed.
        """
        self.api.close()
        if politely:
            self._programs["kube-apiserver"].end()
        self._kill_all()
        shutil.rmtree(self.folder / "etcd")
        command = [go_programs.etcdutl(), "snapshot", "restore", snapshot, f"--data-dir={self.folder / 'etcd'}"]
        cluster = (f"--initial-cluster=default={self._peer}", f"--initial-advertise-peer-urls={self._peer}")
        subprocess.run([*command, *cluster], check=True, capture_output=True, timeout=PATIENCE)
        self._start_etcd()
        self.start()
        self._start_controllers()

    def stop(self) -> None:
        """Stop the API server with SIGSTOP: connections stay open, but it sends nothing."""
        self._programs["kube-apiserver"].process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Continue the API server after ``stop``."""
        self._programs["kube-apiserver"].process.send_signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        """The process of the API server."""
        return self._programs["kube-apiserver"].process.pid

    @property
    def is_killed(self) -> bool:
        """Whether the API server does not run: ``start`` starts it again."""
        return self._programs["kube-apiserver"].process.poll() is not None

    def _run(self, program: str, *arguments: str) -> Daemon:
        daemon = Daemon.start([str(self.programs / program), *arguments], self.folder, name=program)
        self._programs[program] = daemon
        return daemon

    def _kill(self, program: str) -> None:
        daemon = self._programs[program]
        daemon.process.kill()
        daemon.process.wait()

    def _kill_all(self) -> None:
        for name in ("kube-controller-manager", "kube-apiserver", "etcd"):
            if name in self._programs:
                self._kill(name)

    def _end(self) -> None:
        """End the controllers before the API server, which would wait for them, and etcd last."""
        for program in ("kube-controller-manager", "kube-apiserver", "etcd"):
            if program in self._programs:
                self._programs[program].process.send_signal(signal.SIGCONT)  # a stopped process does not end
                self._programs[program].end()

    def token(self, namespace: str, account: str) -> str:
        """Return a token for a ServiceAccount by a TokenRequest."""
        body = {"spec": {"expirationSeconds": 3600}}
        path = self.api.path("ServiceAccount", namespace, account, sub="token")
        answer = self.api.request(
            "POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", **body}
        )
        return str(answer["status"]["token"])

    def api_of(self, token: str) -> Api:
        """Return a client with another token; it is closed with the control plane."""
        api = Api(self.port, self._certificate, token)
        self._stack.callback(api.close)
        return api

    def kubeconfig_with(self, path: Path, *, token: str = TOKEN, port: int | None = None) -> Path:
        """Write a kubeconfig with another token, or for another port of 127.0.0.1; return *path*."""
        path.write_text(self._config(token, port or self.port))
        return path

    def settle(self, *names: str) -> None:
        """Wait until the namespaces that earlier tests deleted are gone: all of them, or those of these names."""

        def ending() -> list[str]:
            found = [item["metadata"] for item in self.api.items("Namespace")]
            deleted = [metadata["name"] for metadata in found if "deletionTimestamp" in metadata]
            return [name for name in deleted if not names or name in names]

        until(lambda: not ending(), lambda: f"deleted namespaces are gone: {ending()}", within=STARTING)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Return kubectl's standard output. Raises ``AssertionError`` with its standard error if it fails."""
        done = subprocess.run(
            [self.programs / "kubectl", "--kubeconfig", self.kubeconfig, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=environment({"HOME": str(self.kubeconfig.parent)}),
            timeout=3 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def dump(self, kinds: str = DUMPED) -> str:
        """Return a dump of the cluster by kubectl, as ``--snapshot`` reads it."""
        return self.kubectl("get", kinds, "-A", "-o", "yaml")

    def _config(self, token: str, port: int) -> str:
        cluster = {"certificate-authority": str(self._certificate)}
        return yaml.safe_dump(config_of(f"https://127.0.0.1:{port}", cluster, context="tests", token=token))


def config_of(
    server: object = "https://127.0.0.1:1", cluster: Item | None = None, *, context: str = "main", **user: Any
) -> Item:
    """Return a kubeconfig with one *context*; *cluster* holds the fields beside the server's address."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {"token": "t"}}],
        "contexts": [{"name": context, "context": {"cluster": "c", "user": "u"}}],
        "current-context": context,
    }


@contextmanager
def running_control_plane(
    folder: Path, *flags: str, tokens: str = "", controllers: str = ALL
) -> Iterator[ControlPlane]:
    """Run a control plane, with its files in *folder*, until the block ends.

    *flags* are for its API server, and *tokens* lines of its token file. *controllers* are the names of those that run,
    empty for none. Raises ``waiting.NotReadyError``, with the last lines of output, if it does not start.
    """
    programs = go_programs.control_plane()
    with ExitStack() as stack:
        yield ControlPlane(folder, programs, stack, *flags, tokens=tokens, controllers=controllers)


@contextmanager
def multicluster_api(plane: ControlPlane) -> Iterator[None]:
    """Serve the kinds of the Multi-Cluster Services API (KEP-1645) until the block ends."""
    crds = str(go_programs.mcs_crds())
    plane.kubectl("apply", "-f", crds)
    plane.kubectl("wait", "--for=condition=Established", "crd", "serviceimports.multicluster.x-k8s.io")
    yield
    plane.kubectl("delete", "-f", crds)


@contextmanager
def monitoring_api(plane: ControlPlane) -> Iterator[None]:
    """Serve the kinds of the Prometheus Operator that the manifests use until the block ends."""
    kinds = ("podmonitors", "prometheusrules", "servicemonitors")
    crds = [go_programs.monitoring_crds() / f"monitoring.coreos.com_{kind}.yaml" for kind in kinds]
    files = [part for crd in crds for part in ("-f", str(crd))]
    plane.kubectl("apply", "--server-side", *files)
    plane.kubectl("wait", "--for=condition=Established", *files)
    yield
    plane.kubectl("delete", *files)


def _says_ok(api: Api) -> bool:
    try:
        return bool(api.request("GET", "/readyz") == "ok")
    except (OSError, http.client.HTTPException, ApiError):  # it does not listen yet, or is not ready
        return False
