# SPDX-License-Identifier: Apache-2.0

"""``docs/tutorial-cluster.md`` and ``docs/rollback.md``: their commands, on a real API server with a real CoreDNS.

The test plays what is missing there: Docker and kind, the kubelets, which also mount the Corefile and start programs,
and the network between pods. All else is real: the Deployments, the Services' endpoints, CoreDNS, topodns with the
rights of its ServiceAccount.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import pytest
import yaml

from dnsserver.tools.corefile.stub_blocks import COREDNS, FALLBACK_PORT
from tests.kit.api_objects import ZONE, Item, deployment, item, node, service
from tests.kit.coredns import kubernetes_block
from tests.kit.forwarders import started
from tests.kit.kube import ControlPlane
from tests.kit.kubelet import Kubelet
from tests.kit.live_server import addresses
from tests.kit.page_commands import Entry, commands, section
from tests.kit.programs import Daemon
from tests.kit.shells import Shell
from tests.kit.this_machine import ROOT, free_port
from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE, until

TUTORIAL, ROLLBACK = ROOT / "docs" / "tutorial-cluster.md", ROOT / "docs" / "rollback.md"
OTHERS = (ROOT / "docs" / "troubleshooting.md", ROOT / "docs" / "upgrade.md")
NAME = "cache.shop.svc.cluster.local"
CLIENTS = {"client-a": "127.0.61.1", "client-b": "127.0.62.1"}  # addresses from which this machine can ask
ADDRESSES = {**CLIENTS, "coredns-": "10.244.1.100"}  # of pods, by how their names begin
# Its pod runs where its address is.
DNS = {"k8s-app": "kube-dns"}
DNS_DEPLOYMENT = deployment("coredns", where="kube-system", labels=DNS, on={ZONE: "zone-a"})
SHOWN = "10.96.0.53"  # the pages' address of topodns
NEAR = {"client-a": ["10.244.1.2", "10.244.1.3"], "client-b": ["10.244.2.2", "10.244.2.3"]}
ALL = {client: [*NEAR["client-a"], *NEAR["client-b"]] for client in NEAR}
# What runs elsewhere than on the API server: on this machine, in a pod, in the server that another test asks, in Helm.
PLAYED = (
    *("kind ", "docker ", "kubectl -n topodns port-forward ", "kubectl -n topodns exec ", "curl "),
    *("kubectl -n topodns logs ", "dig ", "helm "),
    "kubectl --context ",  # of another cluster
)  # fmt: skip
# As of kubeadm, without what asks other servers, or listens for probes.
COREFILE = """\
.:53 {
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    cache 30 {
        disable success cluster.local
        disable denial cluster.local
    }
    reload
    loadbalance
}
"""


def kind_nodes() -> list[dict[str, object]]:
    """Return the nodes of the cluster that kind makes: workers, for no pod runs on the control plane."""
    nodes = yaml.safe_load((ROOT / "examples" / "tutorial" / "kind.yaml").read_text())["nodes"]
    return [
        node(f"kind-{number}", one["labels"], cidrs=[f"10.244.{number}.0/24"], addresses=[f"172.18.0.{number + 2}"])
        for number, one in enumerate(nodes)
    ]


@contextmanager
def running_pods(
    plane: ControlPlane, namespaces: Sequence[str], nodes: Sequence[Item], *, addresses: Mapping[str, str]
) -> Iterator[None]:
    """Run the pods of some namespaces until the block ends."""
    ended = threading.Event()
    kubelet = Kubelet(plane.api, nodes, addresses)

    def work() -> None:
        while not ended.wait(0.1):
            for name in namespaces:
                kubelet.look_after(name)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE)


class Cluster:
    """The cluster, and the laptop from which its owner runs commands."""

    def __init__(self, plane: ControlPlane, shell: Shell, stack: ExitStack) -> None:
        self.plane, self.shell, self._stack = plane, shell, stack
        self.topodns: Server | None = None
        self._coredns: Daemon | None = None
        self._port, self._topodns_port = free_port(), free_port()
        self._to = SHOWN
        self._restarted = 0  # the latest second in which it can have been

    def follow(self, entry: Entry) -> None:
        """Do what a command of a page says; it must print what the page shows."""
        command, *_ = words = entry.command.split(" ", 2)
        if entry.command.startswith(PLAYED):
            return
        if command == "ask":
            expected = {words[1]: entry.output.split()}
            until(lambda: self.everybody_gets(expected), lambda: f"{entry}, but {self.ask(words[1])}")
            return
        restart = entry.command.endswith("rollout restart deployment coredns")
        if restart:  # kubectl refuses a second one within a second
            until(lambda: int(time.time()) > self._restarted, "the next second")
            self._restarted = int(time.time()) + 1
        printed = self.shell.run(entry.command.replace(SHOWN, self._to))
        if "get service topodns" in entry.command:
            (self._to,) = printed
        elif entry.output:  # endpoints are listed in the order in which their pods came
            assert sorted(printed) == sorted(entry.output.splitlines()), entry
        if entry.command.endswith("rollout status deployment topodns"):
            self.start_topodns()
        if restart:
            self.start_coredns()

    def ask(self, client: str, *, timeout: float = PATIENCE) -> list[str]:
        """Return the addresses that a client gets from CoreDNS, in order of their numbers."""
        query = dns.message.make_query(NAME, "A")
        source = CLIENTS[client]
        return sorted(addresses(dns.query.udp(query, "127.0.0.1", port=self._port, source=source, timeout=timeout)))

    def everybody_gets(self, expected: Mapping[str, Sequence[str]]) -> bool:
        """Whether each client gets what is expected, again and again."""
        return all(self.ask(client) == sorted(near) for _ in range(3) for client, near in expected.items())

    def start_topodns(self) -> None:
        """Start the program of the pods, as their ServiceAccount."""
        config = self.plane.kubeconfig_with(self.shell.folder / "pod", token=self.plane.token("topodns", "topodns"))
        flags = [f"--listen=127.0.0.1:{self._topodns_port}", "--http=127.0.0.1:0", "--trusted-forwarder=127.0.0.1/32"]
        self.topodns = Server(["serve", "--kubeconfig", str(config), *flags])
        self._stack.callback(self.topodns.end, signal.SIGKILL)
        self.topodns.started()

    def stop_topodns(self) -> None:
        """Stop the program when the last pod has gone."""
        until(lambda: not self.plane.api.items("Pod", "topodns"), "pods of topodns are gone")
        assert self.topodns is not None
        self.topodns.end()

    def start_coredns(self) -> None:
        """Start CoreDNS with the Corefile of today."""
        if self._coredns is not None:
            self._coredns.process.kill()  # it would take 5 s to end
            self._coredns.process.wait()
        path = "/api/v1/namespaces/kube-system/configmaps/coredns"
        corefile = self.plane.api.request("GET", path)["data"]["Corefile"]
        for found, placed in (
            (r":53 ", f":{self._port} "),
            (str(FALLBACK_PORT), str(free_port())),
            (re.escape(self._to), f"127.0.0.1:{self._topodns_port}"),
            (r"kubernetes ([^{\n]+) \{", rf"kubernetes \1 {{\n        kubeconfig {self.plane.kubeconfig}"),
            (r"kubernetes (\S+)\n", lambda match: kubernetes_block(self.plane.kubeconfig, zones=[match[1]]) + "\n"),
        ):
            corefile = re.sub(found, placed, corefile)
        running = started(COREDNS, self.shell.folder, corefile, self._is_answered)
        self._coredns = self._stack.enter_context(running)

    def _is_answered(self) -> bool:
        try:
            return bool(self.ask("client-a", timeout=0.2))
        except (dns.exception.Timeout, OSError):
            return False


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster as kind makes it, with CoreDNS."""
    control_plane.settle()
    nodes = kind_nodes()
    dns = service("kube-dns", where="kube-system", cluster_ips=(), selector=DNS)
    corefile = item("ConfigMap", "coredns", "kube-system", data={"Corefile": COREFILE})
    shell = Shell.with_kubeconfig(tmp_path_factory.mktemp("tutorial"), control_plane.kubeconfig)
    namespaces = ("shop", "topodns", "kube-system")
    with running_pods(control_plane, namespaces, nodes[1:], addresses=ADDRESSES), ExitStack() as stack:
        control_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([*nodes, dns, DNS_DEPLOYMENT, corefile]))
        made = Cluster(control_plane, shell, stack)
        made.start_coredns()
        yield made
        for one in (dns, DNS_DEPLOYMENT, corefile):
            control_plane.kubectl("delete", "-f", "-", stdin=yaml.safe_dump(one))
        control_plane.kubectl("delete", "--ignore-not-found", "-f", "examples/tutorial/shop.yaml")
        control_plane.api.delete(*nodes)


def below(page: Path, heading: str) -> Sequence[Entry]:
    """Return the commands of a page below a heading."""
    return [*commands(section(page, heading))]


def follow(cluster: Cluster, page: Path, heading: str) -> None:
    for entry in below(page, heading):
        cluster.follow(entry)


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    """The cluster when the Service asks for nearness, after the first four sections of the tutorial."""
    for heading in (
        "1. A cluster with two zones",
        "2. Install topodns",
        "3. Let CoreDNS ask topodns for one namespace",
        "4. Keep traffic in the zone",
    ):
        follow(cluster, TUTORIAL, heading)
    assert cluster.everybody_gets(NEAR)
    return cluster


def test_every_command_is_followed() -> None:
    """The tests below know each section that has commands."""
    known = Path(__file__).read_text()
    for page in (TUTORIAL, ROLLBACK):
        headings = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)
        assert [heading for heading in headings if below(page, heading) and f'"{heading}"' not in known] == []


def test_the_laptop_has_the_function_that_is_played() -> None:
    """``ask`` prints the addresses of the name, in order."""
    (block,) = re.findall(r"```sh\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    assert f'print(*sorted(socket.gethostbyname_ex("{NAME}")[2]))' in block


def test_5_look_at_what_it_does(installed: Cluster) -> None:
    """Answers count as some, before the annotation, and as same after it."""
    assert below(TUTORIAL, "5. Look at what it does")
    assert installed.topodns is not None
    counted = installed.topodns.metrics()
    for answer in ("some", "same"):
        assert counted["topodns_answer_zones_total", answer, "zone-a"] >= 1


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.stem)
def test_commands_of_other_pages(installed: Cluster, page: Path, tmp_path: Path) -> None:
    """They work in such a cluster."""
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    shell = installed.shell._replace(folder=tmp_path)
    ran = [shell.run(entry.command) for entry in commands(page.read_text()) if not entry.command.startswith(PLAYED)]
    assert ran


def test_one_service_without_its_constraint(installed: Cluster) -> None:
    """All clients get all endpoints."""
    follow(installed, ROLLBACK, "One Service")
    until(lambda: installed.everybody_gets(ALL), "all endpoints")
    installed.follow(below(TUTORIAL, "4. Keep traffic in the zone")[0])
    until(lambda: installed.everybody_gets(NEAR), "near endpoints")


def test_nobody_waits_for_a_topodns_that_is_scaled_to_0(installed: Cluster) -> None:
    """CoreDNS answers by itself, and each query is answered at any time."""
    away, back = below(ROLLBACK, "topodns, with fallback")
    installed.follow(away)
    installed.stop_topodns()
    assert installed.everybody_gets(ALL)
    installed.follow(back)
    installed.start_topodns()
    until(lambda: installed.everybody_gets(NEAR), "near endpoints")


def test_the_saved_corefile_takes_topodns_out(installed: Cluster) -> None:
    """Without topodns, and without its fallback."""
    follow(installed, ROLLBACK, "topodns, without fallback")
    assert installed.everybody_gets(ALL)
    again = below(TUTORIAL, "3. Let CoreDNS ask topodns for one namespace")
    for entry in again[1:-1]:  # Corefile.before stays
        installed.follow(entry)
    assert installed.everybody_gets(NEAR)


def test_a_rollout_is_undone(installed: Cluster) -> None:
    """The Deployment has its image again."""

    def image() -> str:
        (deployment,) = installed.plane.api.items("Deployment", "topodns")
        return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])

    before = image()
    installed.shell.run("kubectl -n topodns set image deployment topodns topodns=topodns:worse")
    assert image() != before
    follow(installed, ROLLBACK, "A new version")
    assert image() == before


def test_the_slices_of_a_service_lose_the_label_of_the_webhook(installed: Cluster) -> None:
    """And with it the hints, which the webhook sets for labelled slices alone."""
    labels = {"topodns.io/hints": "true"}
    storefront = service("storefront", cluster_ips=(), labels=labels, selector={"app": "cache"})
    api = installed.plane.api

    def labelled() -> bool:
        slices = api.items("EndpointSlice", "shop", labels="kubernetes.io/service-name=storefront")
        return bool(slices) and all("topodns.io/hints" in one["metadata"]["labels"] for one in slices)

    api.create(storefront)
    until(labelled, "labelled slices")
    follow(installed, ROLLBACK, "Everything for cluster IPs")
    until(lambda: not labelled(), "slices without the label")
    api.delete(storefront)


def test_6_and_7_widen_and_take_out(installed: Cluster) -> None:
    """topodns answers for the whole cluster, and then is gone."""
    follow(installed, TUTORIAL, "6. Widen it")
    follow(installed, TUTORIAL, "7. Take it out")
    assert not [one for one in installed.plane.api.items("Namespace") if one["metadata"]["name"] in ("topodns", "shop")]
