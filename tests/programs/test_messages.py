# SPDX-License-Identifier: Apache-2.0

"""What a newcomer meets: each message says what was found, what was expected, and which command fixes it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
import yaml

from dnsserver.programs.from_settings import store_of
from dnsserver.programs.server_log import DELAY_SECONDS, log_delay
from locator.cluster.publisher import Publisher
from tests.kit.certificates import issued
from tests.kit.commands_in_process import Run
from tests.kit.in_memory import settings_of
from tests.kit.kube import config_of
from tests.kit.other_server import Response, kubeconfig, other_server
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import Server, run

DONE, FAILED, WRONG = 0, 1, 2
EXAMPLE = str(ROOT / "examples" / "cluster.yaml")
AS_KUBECTL = "expected a Kubernetes object or list, as 'kubectl get ... -o yaml' or '-o json' prints it"
DUMP = "'kubectl get namespaces,nodes,pods,services,endpointslices -A -o yaml' prints them"
KINDS = (
    "Namespace, Node, Pod, PodLocator, Service, ServicePolicy, EndpointSlice, ServiceExport, ServiceImport, "
    "ServiceHealth, Endpoints"
)
OWN_CONFIG = "; 'kubectl config view --raw' prints the one that kubectl uses"
ADDRESS = "ADDRESS:PORT such as 127.0.0.1:1053, with an IPv6 address in brackets: [::1]:1053"
CLIENTS = "an address, a prefix, pod/NAME, node/NAME or labels such as topology.kubernetes.io/zone=a"
NAMES = "svc/NAME, NAMESPACE/NAME or a domain name such as SERVICE.NAMESPACE"

# What somebody types where there is no cluster yet; {file} is a file with the content, {folder} its folder.
BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 10)}]\n" for n in range(12))
TYPED: dict[str, tuple[list[str], str | None, str]] = {
    # what: (arguments, content, message)
    "endless-settings": (
        ["check", "--config", "/dev/zero"], None, "/dev/zero: more than 16 MiB, expected a configuration file"),
    "settings-with-many-aliases": (
        ["check", "--config", "{file}"], BOMB, "{file}: line 8: not YAML (too many aliases: they add more than 64 MiB"),
    "settings-in-two-documents": (
        ["check", "--config", "{file}"], "ttl: 5\n---\nttl: 6\n", "{file}: 2 documents found, expected one"),
    "endless-dump": (
        ["check", "--snapshot", "/dev/zero"], None, "/dev/zero: a device or socket found, expected a file"),
    "unknown-command": (["foo"], None, "foo: unknown command; there are "),
    "flag-before-the-command": (
        ["--snapshot", "x", "check"], None,
        "--snapshot: a flag found, expected a command before all flags; see 'topodns --help'"),
    "misspelt-command": (["chekc"], None, "chekc: unknown command, did you mean check?; see 'topodns --help'"),
    "unknown-flag": (["check", "--foo"], None, "--foo: unknown flag; see 'topodns check --help'"),
    "flag-of-others": (["serve", "-n", "shop"], None, "-n: a flag of explain"),
    "no-value": (
        ["check", "--snapshot"], None, "--snapshot: no value found, expected PATH; see 'topodns check --help'"),
    "no-value-of-a-short-flag": (
        ["check", "-n"], None, "--serve-namespace: no value found, expected NAME; see 'topodns check --help'"),
    "no-value-of-a-choice": (
        ["check", "-o"], None, "-o: no value found, expected text, json or yaml; see 'topodns check --help'"),
    "choice": (["check", "-o", "xml"], None, "-o: 'xml', expected text, json or yaml; see 'topodns check --help'"),
    "no-kubeconfig": (
        ["check"], None,
        "/nonexistent/.kube/config: no such file, expected a kubeconfig (--kubeconfig or $KUBECONFIG names another); "
        "--snapshot reads a dump instead\n"),
    "no-kubeconfig-for-what-reads-no-dump": (
        ["controller"], None,
        "/nonexistent/.kube/config: no such file, expected a kubeconfig (--kubeconfig or $KUBECONFIG names another)\n"),
    "no-kubeconfig-for-a-federation": (
        ["controller", "--federate", "fed.example={file}#main"], "",
        "/nonexistent/.kube/config: no such file, expected a kubeconfig (--kubeconfig or $KUBECONFIG names another); "
        "without an own cluster, name the federation API's: --kubeconfig {file} --context main\n"),
    "no-such-kubeconfig": (
        ["serve", "--kubeconfig", "{folder}/none"], None, "{folder}/none: no such file, expected a kubeconfig\n"),
    "kubeconfig-of-a-word": (
        ["check", "--kubeconfig", "{file}"], "foo",
        "{file}: no clusters, contexts and users found, expected a kubeconfig" + OWN_CONFIG),
    "empty-kubeconfig": (
        ["check", "--kubeconfig", "{file}"], "", "{file}: empty, expected a kubeconfig" + OWN_CONFIG),
    "kubeconfig-that-is-no-yaml": (["check", "--kubeconfig", "{file}"], "a: [", "{file}: line 1: not YAML ("),
    "kubeconfig-that-is-a-folder": (
        ["check", "--kubeconfig", "{folder}"], None, "{folder}: Is a directory, expected a kubeconfig" + OWN_CONFIG),
    "kubeconfig-that-is-a-dump": (
        ["check", "--kubeconfig", "{file}"], "{apiVersion: v1, kind: Pod, metadata: {name: x}}",
        "{file}: kind: Pod found, expected Config, as in a kubeconfig" + OWN_CONFIG),
    "kubeconfig-without-contexts": (
        ["check", "--kubeconfig", "{file}"], "{apiVersion: v1, kind: Config}",
        "{file}: contexts: there is none, expected a kubeconfig with clusters, contexts and users"),
    "unknown-context": (
        ["check", "--kubeconfig", "{file}", "--context", "prd"], yaml.safe_dump(config_of(context="prod")),
        "{file}: contexts: no context 'prd', expected one of prod"),
    "port": (
        ["serve", "--listen", "127.0.0.1:99999"], None,
        f"--listen: '127.0.0.1:99999': '99999' is not a port from 0 to 65535, expected {ADDRESS}"),
    "host-name-to-listen-at": (
        ["serve", "--listen", "localhost:53"], None,
        f"--listen: 'localhost:53': 'localhost' is no IP address, expected {ADDRESS}"),
    "port-alone": (["serve", "--listen", ":53"], None, f"--listen: ':53': no address, expected {ADDRESS}"),
    "number-alone": (["serve", "--http", "9153"], None, f"--http: '9153', expected {ADDRESS}, or off"),
    "upstream": (
        ["serve", "--upstream", "192.0.2.1:0"], None,
        "--upstream: '192.0.2.1:0': '0' is not a port from 1 to 65535, expected ADDRESS or ADDRESS:PORT, or off"),
    "address-of-another-machine": (
        ["serve", "--snapshot", EXAMPLE, "--listen", "192.0.2.1:0"], None,
        "--listen 192.0.2.1:0: udp: Cannot assign requested address, expected an address of this machine, as "
        "'ip address' shows them, or 0.0.0.0 or [::] for all"),
    "empty-dump": (
        ["check", "--snapshot", "{file}"], "", "{file}: empty, expected Kubernetes objects; " + DUMP),
    "folder-without-dumps": (
        ["check", "--snapshot", "{folder}"], None,
        "{folder}: nothing to read, expected a name that ends in .yaml, .yml, .json"),
    "no-such-dump": (
        ["check", "--snapshot", "{folder}/none"], None,
        "{folder}/none: No such file or directory, expected a file or folder"),
    "dump-that-is-an-error": (
        ["check", "--snapshot", "{file}"], "error: the server doesn't have a resource type",
        "{file}: a message of kubectl found (error: the server doesn't have a resource type), " + AS_KUBECTL),
    "dump-that-is-other-json": (
        ["check", "--snapshot", "{file}"], '{"a": 1}', "{file}: document 1: no kind, " + AS_KUBECTL),
    "dump-that-is-a-list-of-others": (
        ["check", "--snapshot", "{file}"], "[1, 2]", "{file}: document 1: a list found, " + AS_KUBECTL),
    "dump-of-other-kinds": (
        ["check", "--snapshot", "{file}"], "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}",
        "{file}: no object that topodns reads, expected some of " + KINDS + "; " + DUMP),
    "dump-of-nothing": (
        ["check", "--snapshot", "{file}"], "kind: List\napiVersion: v1\nitems: []\n",
        "{file}: no object that topodns reads, expected some of " + KINDS + "; " + DUMP),
    "dump-that-is-a-kubeconfig": (
        ["check", "--snapshot", "{file}"], yaml.safe_dump(config_of()),
        "{file}: a kubeconfig found, expected a dump; --kubeconfig {file} reads its cluster"),
    "dump-and-kubeconfig": (
        ["check", "--snapshot", "x", "--kubeconfig", "y"], None,
        "--kubeconfig: given together with --snapshot, expected only one of them"),
    "no-name": (
        ["explain", "--client", "10.0.0.1"], None,
        f"NAME: missing, expected {NAMES}; see 'topodns explain --help'"),
    "no-client": (
        ["explain", "web.shop"], None, f"--client: missing, expected {CLIENTS}; see 'topodns explain --help'"),
    "client-that-is-a-host-name": (
        ["explain", "web.shop", "--client", "web.example.com", "--snapshot", EXAMPLE], None,
        f"--client: 'web.example.com' is no IP address, expected {CLIENTS}"),
    "name-with-a-slash": (
        ["explain", "shop/Memcached", "--client", "10.0.0.1", "--snapshot", EXAMPLE], None,
        f"NAME: 'shop/Memcached', expected {NAMES}"),
    "folder-for-a-type": (
        ["explain", "memcached.shop", "dump", "--client", "10.0.0.1", "--snapshot", EXAMPLE], None,
        "TYPE: 'dump' is not a record type, expected a record type such as A, AAAA or SRV, or a PATH with a dot or a "
        "slash"),
    "type-behind-a-path": (
        ["explain", "memcached.shop", EXAMPLE, "SRV", "--client", "10.0.0.1"], None,
        "PATH: 'SRV' found behind another PATH or TYPE, expected one TYPE, before all PATHs"),
    "two-namespaces-of-a-service": (
        ["simulate", EXAMPLE, "--service", "svc/memcached", "-n", "shop", "-n", "default"], None,
        "-n: several namespaces found, expected one for svc/NAME, or NAMESPACE/NAME"),
    "path-beside-a-context": (
        ["check", "{file}", "--context", "x"], "x", "--context: given together with --snapshot, expected only one"),
    "name-that-is-a-url": (
        ["explain", "http://memcached.shop", "--client", "10.0.0.1", "--snapshot", EXAMPLE], None,
        f"NAME: 'http://memcached.shop' is a URL, expected {NAMES}"),
    "pod-without-a-namespace": (
        ["explain", "memcached.shop", "--client", "pod/foo", "--snapshot", EXAMPLE], None,
        "--client: no Pod default/foo; -n names another namespace"),
    "no-shell": (["completion"], None, "SHELL: missing, expected bash, zsh or fish"),
    "no-such-configuration": (
        ["check", "--config", "{folder}/none"], None,
        "{folder}/none: No such file or directory, expected a configuration file"),
    "configuration-that-is-a-word": (
        ["check", "--config", "{file}"], "foo", "{file}: a text found, expected settings as KEY: VALUE"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "content", "message"), TYPED.values(), ids=TYPED)
def test_what_somebody_types(
    topodns: Run, tmp_path: Path, arguments: list[str], content: str | None, message: str
) -> None:
    """One line; status 2 but for what the machine lacks."""
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    folder = tmp_path / "folder"
    folder.mkdir()

    def named(text: str) -> str:
        return text.replace("{file}", str(file)).replace("{folder}", str(folder))

    ran = topodns(*map(named, arguments))
    assert (ran.status, ran.out) == (FAILED if "this machine" in message else WRONG, "")
    assert ran.err.startswith(f"topodns: {named(message)}") and ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flag", "protocol", "kind"),
    [("listen", "udp", socket.SOCK_DGRAM), ("listen", "tcp", socket.SOCK_STREAM), ("http", "tcp", socket.SOCK_STREAM)],
    ids=["udp", "tcp", "http"],
)
def test_a_port_that_is_in_use(flag: str, protocol: str, kind: socket.SocketKind) -> None:
    """Mostly by a server that somebody has started before: the message says how to find it."""
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = {"listen": "127.0.0.1:0", "http": "off", flag: at}
        ran = run("serve", "--snapshot", EXAMPLE, *(f"--{name}={value}" for name, value in flags.items()))
    expected = "expected a free address and port; 'ss -lntup' shows which program has it"
    assert ran.returncode == FAILED and "Traceback" not in ran.stderr
    assert ran.stderr.splitlines()[-1] == f"topodns: --{flag} {at}: {protocol}: port in use, {expected}"


def status(code: int, reason: str, message: str) -> Callable[[], Response]:
    """Return a response as API servers refuse a request."""
    body = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}
    return lambda: Response(code, json.dumps(body).encode())


def page(code: int, text: str) -> Callable[[], Response]:
    return lambda: Response(code, text.encode(), "text/html")


FORBIDDEN = 'namespaces is forbidden: User "joe" cannot list resource "namespaces" in API group "" at the cluster scope'
TRIED = "; 'kubectl --kubeconfig {kubeconfig} cluster-info' shows whether it responds to kubectl"
WHOAMI = "; 'kubectl --kubeconfig {kubeconfig} auth whoami' shows as whom the API server takes you"
SERVERS: dict[str, tuple[str, Callable[[], Response], str]] = {
    # what is there: (how the kubeconfig begins the address, what it answers, message)
    "expired-token": (
        "http", status(401, "Unauthorized", "Unauthorized"),
        "http://{at}: 401 Unauthorized: Namespace: Unauthorized; the credentials are missing, wrong or expired"
        + WHOAMI),
    "no-right": (
        "http", status(403, "Forbidden", FORBIDDEN),
        f"http://{{at}}: 403 Forbidden: Namespace: {FORBIDDEN}; a ClusterRole lacks the rule "
        'apiGroups: [""], resources: ["namespaces"], verbs: ["list", "watch"]' + WHOAMI),
    "no-credentials": (
        "http", status(403, "Forbidden", FORBIDDEN.replace("joe", "system:anonymous")),
        f"http://{{at}}: 403 Forbidden: Namespace: {FORBIDDEN.replace('joe', 'system:anonymous')}; the request had no "
        "credentials, expected a token or a client certificate" + WHOAMI),
    "web-server-without-the-page": (
        "http", page(404, "<html>\n none</html>"),
        "http://{at}: 404 Not Found: Namespace: <html> none</html>: the API server has no /api/v1/namespaces; is this "
        "the API server of a cluster?" + TRIED),
    "web-server-with-a-page": (
        "http", page(200, "<html>hello</html>"),
        "Namespace: http://{at}: unreadable page of the list, expected JSON as an API server sends it" + TRIED),
    "login-page": (
        "http", page(302, ""),
        "http://{at}: 302 Found: Namespace: a redirect found, expected the answer of an API server; is this its "
        "address?" + TRIED),
    "broken-server": ("http", page(500, ""), "http://{at}: 500 Internal Server Error: Namespace" + TRIED),
    "http-for-https": (
        "https", page(200, ""),
        "https://{at}: TLS: WRONG_VERSION_NUMBER, expected a server that speaks TLS: something else listens there"
        + TRIED),
}  # fmt: skip


@pytest.mark.parametrize(("scheme", "respond", "message"), SERVERS.values(), ids=SERVERS)
def test_what_is_no_api_server_that_lets_us_in(
    topodns: Run, tmp_path: Path, scheme: str, respond: Callable[[], Response], message: str
) -> None:
    """The message names the address, what came, and the command of kubectl that meets the same."""
    with other_server(respond) as at:
        path = kubeconfig(tmp_path, f"{scheme}://{at}")
        ran = topodns("check", "--kubeconfig", str(path))
    expected = message.replace("{at}", at).replace("{kubeconfig}", str(path))
    assert (ran.status, ran.out, ran.err) == (FAILED, "", f"topodns: {expected}\n")


@pytest.mark.parametrize(
    ("name", "knows_authority", "words"),
    [
        ("127.0.0.1", False, "TLS: "),
        ("localhost", True, "TLS: Hostname mismatch, certificate is not valid for 'localhost', expected one that the "
                            "kubeconfig's server, or its tls-server-name, names; 'kubectl "),
    ],
    ids=["authority", "name"],
)  # fmt: skip
def test_certificates(topodns: Run, tmp_path: Path, name: str, knows_authority: bool, words: str) -> None:
    """One that nobody vouches for, and one for another name: the message says where the right one is configured."""
    authority, pair = issued(["127.0.0.1"], time.time(), 3600.0)
    (tmp_path / "tls").write_bytes(pair.key + pair.certificate)
    (tmp_path / "ca").write_bytes(authority)
    with other_server(page(200, ""), tls=tmp_path / "tls") as at:
        url = f"https://{name}:{at.rpartition(':')[2]}"
        path = tmp_path / "config"
        path.write_text(yaml.safe_dump(config_of(url, {"certificate-authority": "ca"} if knows_authority else {})))
        ran = topodns("check", "--kubeconfig", str(path))
    assert ran.status == FAILED and ran.err.startswith(f"topodns: {url}: {words}")
    assert knows_authority or ", expected a certificate by the certificate-authority of the kubeconfig; " in ran.err


@pytest.mark.parametrize(
    ("command", "url", "words"),
    [
        ("check", "https://127.0.0.1:1", "https://127.0.0.1:1: Connection refused"),
        ("explain web.shop --client 10.0.0.1", "https://127.0.0.1:1", "https://127.0.0.1:1: Connection refused"),
        ("check", "https://nobody.invalid:6443", "https://nobody.invalid:6443: the host name cannot be resolved, "
                                                 "expected one that DNS knows"),
    ],
    ids=["nobody-listens", "nobody-listens-to-explain", "unknown-host"],
)  # fmt: skip
def test_nobody_is_there(topodns: Run, tmp_path: Path, command: str, url: str, words: str) -> None:
    """An API server that does not respond is no kind's fault: the message begins with its address."""
    path = tmp_path / "a kubeconfig"
    path.write_text(yaml.safe_dump(config_of(url)))
    ran = topodns(*command.split(), "--kubeconfig", str(path), "--context", "main")
    tried = f"'kubectl --kubeconfig '{path}' --context main cluster-info' shows whether it responds to kubectl"
    assert (ran.status, ran.err) == (FAILED, f"topodns: {words}; {tried}\n")


@pytest.mark.parametrize(
    ("problems", "warned"), [({"b", "a", ""}, ["a; b"]), (set[str](), []), ({""}, [])], ids=["two", "none", "empty"]
)
def test_serve_says_why_it_is_not_ready(
    caplog: pytest.LogCaptureFixture, problems: set[str], warned: list[str]
) -> None:
    """Once, after a few seconds, in one line for all kinds; not while a large cluster is only being read."""

    async def main() -> None:
        publisher = Publisher(store_of(settings_of()), on_programmed=lambda seconds: None)
        with trio.fail_after(2 * DELAY_SECONDS):
            await log_delay(publisher, lambda: problems, "; try this")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    end = "topodns goes on trying, and answers SERVFAIL until then; try this"
    assert caplog.messages == [f"not ready after 5 s: {text}; {end}" for text in warned]


def test_serve_without_an_api_server(tmp_path: Path) -> None:
    """One line for all kinds when nothing responds, and another one, with what to do, when it lasts."""
    path = kubeconfig(tmp_path, "https://127.0.0.1:1")
    server = Server(["serve", "--kubeconfig", str(path), "--listen", "127.0.0.1:0", "--http", "off"])
    try:
        server.wait_for("not ready after 5 s: ")
    finally:
        assert server.end() == DONE
    warnings = [line.partition(" WARNING ")[2] for line in server.lines if " WARNING " in line]
    problem = "https://127.0.0.1:1: Connection refused"
    shown = f"'kubectl --kubeconfig {path} cluster-info' shows whether it responds to kubectl"
    lasting = f"not ready after 5 s: {problem}; topodns goes on trying, and answers SERVFAIL until then; {shown}"
    assert warnings == [problem, lasting]
