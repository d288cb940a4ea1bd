# SPDX-License-Identifier: Apache-2.0

"""The API client: how it finds a cluster, its errors, and how it splits answers into lines."""

from __future__ import annotations

import base64
import errno
import http.client
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import urllib3
import yaml
from hypothesis import given
from hypothesis import strategies as st
from urllib3.exceptions import ProtocolError

from locator.cluster import api_client
from locator.cluster.api_client import ApiClient, Readiness
from locator.cluster.certificates import issuing
from locator.cluster.credentials import BadCluster
from locator.cluster.responses import Stream, Unreachable, resource_attributes, unreachable
from locator.model import Service
from tests.kit.kube import Item as Config
from tests.kit.kube import config_of
from tests.kit.this_machine import free_port
from tests.kit.waiting import PATIENCE


@pytest.fixture
def no_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Run on a user's machine, outside a pod, with an empty home; return the home."""
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def written(path: Path, config: object) -> str:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return str(path)


# Where the cluster is


def test_a_kubeconfig_is_found_as_kubectl_finds_it(no_pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag, else ``$KUBECONFIG``, whose files are merged, else ``~/.kube/config``."""
    written(no_pod / ".kube" / "config", config_of("https://home:1"))
    assert ApiClient().host == "https://home:1"
    one = config_of("https://one:1")
    one["contexts"][0]["context"]["namespace"] = "shop"
    two = {
        "contexts": [{"name": "other", "context": {"cluster": "d"}}],
        "clusters": [{"name": "d", "cluster": {"server": "https://two:2"}}],
    }
    paths = f"{written(no_pod / 'one', one)}:{written(no_pod / 'two', two)}:{no_pod / 'none'}"
    monkeypatch.setenv("KUBECONFIG", paths)
    assert (ApiClient().host, ApiClient().namespace) == ("https://one:1", "shop")
    assert (ApiClient(context="other").host, ApiClient(context="other").namespace) == ("https://two:2", "default")
    assert ApiClient(kubeconfig=written(no_pod / "three", config_of("https://three:3"))).host == "https://three:3"


def test_files_that_a_kubeconfig_names_are_looked_for_beside_it(no_pod: Path) -> None:
    """Relative paths in a kubeconfig are relative to its folder, as for kubectl."""
    (no_pod / "cluster").mkdir()
    (no_pod / "cluster" / "token").write_text("t")
    ApiClient(kubeconfig=written(no_pod / "cluster" / "config", config_of(tokenFile="token")))


def lacking(config: Config, *path: Any) -> Config:
    inner: Any = config
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return config


def with_cluster(key: str, value: str) -> Config:
    config = config_of()
    config["clusters"][0]["cluster"][key] = value
    return config


BROKEN = [
    pytest.param("a: [", "line 1: not YAML (", id="no YAML"),
    pytest.param("", "empty", id="empty"),
    pytest.param("hello", "no clusters, contexts and users found, expected a kubeconfig; 'kubectl config", id="a text"),
    pytest.param("[1]", "expected a kubeconfig", id="a list"),
    pytest.param({"clusters": 5}, "expected a kubeconfig", id="another shape"),
    pytest.param({"contexts": ["main"], "current-context": "main"}, "contexts: there is none", id="contexts of texts"),
    pytest.param("\x00", "expected a kubeconfig", id="no text"),
    pytest.param({"kind": "Config"}, "contexts: there is none, expected a kubeconfig", id="nothing in it"),
    pytest.param(lacking(config_of(), "current-context"),
                 "one of main (--context chooses one, too, or PATH#CONTEXT in --cluster and --federate)",
                 id="no context chosen"),
    pytest.param({**config_of(), "current-context": "old"}, "'old', expected one of main", id="unknown context"),
    pytest.param(lacking(config_of(), "contexts", 0, "context"), "'main': no cluster found", id="an empty context"),
    pytest.param(lacking(config_of(), "clusters", 0), "cluster: no cluster 'c' found", id="no such cluster"),
    pytest.param(lacking(config_of(), "users", 0), "context 'main': user: no user 'u' found", id="no such user"),
    pytest.param(config_of(None), "cluster 'c': server: None found, expected https://HOST:PORT", id="no server"),
    pytest.param(config_of("api:6443"), "'api:6443' found, expected https://HOST:PORT", id="no URL"),
    pytest.param(config_of(tokenFile="/no/such/file"), ": /no/such/file: No such file or directory", id="no token"),
    pytest.param(config_of("https://"), "server: 'https://' found, expected https://HOST:PORT", id="no host"),
    pytest.param(config_of("https://127.0.0.1:99999"), "expected https://HOST:PORT", id="no such port"),
    pytest.param(config_of(exec="aws"), "user 'u': exec: 'aws' found, expected a command", id="exec of a text"),
    pytest.param(with_cluster("proxy-url", "nonsense"), "context 'main': ", id="no proxy"),
    pytest.param(with_cluster("certificate-authority-data", "%"),
                 "'main': certificate-authority-data: no base64, expected that of a file in PEM", id="no base64"),
    pytest.param(with_cluster("certificate-authority-data", "QUJD"), "'main': certificate-authority-data: [X509: ",
                 id="no authority"),
    pytest.param(config_of(**{"client-certificate-data": "QUJD", "client-key-data": "QUJD"}),
                 "context 'main': client-certificate-data: [SSL] PEM lib (", id="no certificate"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "words"), BROKEN)
def test_a_broken_kubeconfig_says_what_is_wrong(no_pod: Path, config: object, words: str) -> None:
    """The error is one line that begins with the file's name."""
    path = written(no_pod / "config", config)
    with pytest.raises(BadCluster) as caught:
        ApiClient(kubeconfig=path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert words in text
    assert "\n" not in text


def test_a_kubeconfig_that_is_missing_is_named(no_pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing file; if none was named, it says how to name one."""
    with pytest.raises(BadCluster, match=r"/none: no such file, expected a kubeconfig$"):
        ApiClient(kubeconfig=str(no_pod / "none"))
    with pytest.raises(BadCluster, match=r"\.kube/config: no such file, .*\$KUBECONFIG"):
        ApiClient()
    monkeypatch.setenv("KUBECONFIG", "/a:/b")
    with pytest.raises(BadCluster, match=r"^/a:/b: no such file"):
        ApiClient()


def test_authorities_must_be_certificates(no_pod: Path) -> None:
    """A certificate authority file without a certificate is an error at the start, not in OpenSSL's words later."""
    config = config_of()
    authority = config["clusters"][0]["cluster"]["certificate-authority"] = written(no_pod / "ca.crt", "none")
    with pytest.raises(BadCluster, match=r"context 'main': /.*ca.crt: .*expected certificates"):
        ApiClient(kubeconfig=written(no_pod / "config", config))
    Path(authority).unlink()
    with pytest.raises(BadCluster, match=r"context 'main': .*ca.crt"):
        ApiClient(kubeconfig=written(no_pod / "config", config))


# Credentials


@contextmanager
def serving_tls(pair: issuing.Pair, folder: Path, port: int = 0) -> Iterator[int]:
    """Answer each HTTPS request with an empty object, a connection each; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(written(folder / "pair.pem", (pair.key + pair.certificate).decode()))
    with socket.create_server(("127.0.0.1", port)) as listener:

        def serve() -> None:
            with suppress(OSError):  # the end
                while True:
                    connection, _ = listener.accept()
                    with suppress(OSError), context.wrap_socket(connection, server_side=True) as stream:
                        stream.recv(65536)
                        stream.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


def test_an_authority_is_taken_up_that_takes_the_place_of_another(no_pod: Path) -> None:
    """Clusters change their certificate authority; a pod's ``ca.crt``, or a file that a kubeconfig names, follows."""
    now = time.time()
    old, new = (issuing.new_authority(now - 60, 9e5) for _ in range(2))
    config = config_of()
    config["clusters"][0]["cluster"]["certificate-authority"] = written(no_pod / "ca.crt", old.certificate.decode())
    with serving_tls(issuing.issue(old, ["127.0.0.1"], now, 9e5), no_pod) as port:
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        cluster = ApiClient(kubeconfig=written(no_pod / "config", config))
        assert cluster.request("GET", "/version") == b"{}"
    with serving_tls(issuing.issue(new, ["127.0.0.1"], now, 9e5), no_pod, port):
        with pytest.raises(Unreachable, match="expected a certificate by the certificate-authority"):
            cluster.request("GET", "/version")
        written(no_pod / "ca.crt", new.certificate.decode())
        assert cluster.request("GET", "/version") == b"{}"


def test_certificates_in_a_kubeconfig_leave_no_files(no_pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are renewed for ever, and a pod's ``/tmp`` is small. The kubeconfig itself stays as it is."""
    monkeypatch.setattr(tempfile, "tempdir", str(no_pod / "tmp"))
    (no_pod / "tmp").mkdir()
    now = time.time()
    authority = issuing.new_authority(now - 60, 9e5)

    def renewed(port: int) -> str:
        mine = issuing.issue(authority, ["me"], now, 9e5)
        user = {"client-certificate-data": encoded(mine.certificate), "client-key-data": encoded(mine.key)}
        cluster = {"certificate-authority-data": encoded(authority.certificate)}
        return written(no_pod / "config", config_of(f"https://127.0.0.1:{port}", cluster, **user))

    with serving_tls(issuing.issue(authority, ["127.0.0.1"], now, 9e5), no_pod) as port:
        cluster = ApiClient(kubeconfig=renewed(port))
        for _ in range(3):
            assert cluster.request("GET", "/version") == b"{}"
            assert not list((no_pod / "tmp").iterdir())
            kubeconfig = Path(renewed(port)).read_text()
            trio.run(cluster.reconfigure)
            assert (no_pod / "config").read_text() == kubeconfig


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def test_a_plugin_that_is_missing_is_named(no_pod: Path) -> None:
    """A missing plugin does not end a server: it may be there at the next try."""
    plugin = {"command": "/no/such/plugin", "apiVersion": "client.authentication.k8s.io/v1"}
    cluster = ApiClient(kubeconfig=written(no_pod / "config", config_of(exec=plugin)))
    with pytest.raises(Unreachable, match="context 'main': exec '/no/such/plugin'"):
        cluster.request("GET", "/api/v1/services")


# Reaching it


def test_nobody_is_there(no_pod: Path) -> None:
    """A refused connection is Unreachable; the port is free."""
    port = free_port()
    cluster = ApiClient(kubeconfig=written(no_pod / "config", config_of(f"https://127.0.0.1:{port}")))
    with pytest.raises(Unreachable, match=f"^https://127.0.0.1:{port}: Connection refused$") as caught:
        cluster.request("GET", "/version")
    assert caught.value.reason == "unreachable"
    with pytest.raises(Unreachable, match=r"^https://127\.0\.0\.1"):
        api_client.list_once(cluster, [Service])


@contextmanager
def answering(answer: bytes, *, hangs: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """Listen for one connection, read from it, answer and close; yield the address, and what was read.

    With *hangs*, the other end has to close.
    """
    read: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                read.append(connection.recv(65536))
                connection.sendall(answer)
                if hangs:
                    connection.settimeout(PATIENCE)
                    connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", read
        thread.join()


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"", "https://127.0.0.1:"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "TLS")],
    ids=["hangs-up", "speaks-no-tls"],
)
def test_someone_else_is_there(no_pod: Path, answer: bytes, words: str) -> None:
    """If another program listens at the address, the client raises Unreachable and nothing else."""
    with answering(answer) as (host, _), pytest.raises(Unreachable, match=words):
        ApiClient(kubeconfig=written(no_pod / "config", config_of(f"https://{host}"))).request("GET", "/version")


@pytest.mark.parametrize(
    ("answer", "silence", "lines"),
    [
        (b"", 0.1, []),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\none\ntw\r\n", 1.0, [[b"one"]]),
    ],
    ids=["from-the-start", "in-a-watch"],
)
def test_an_api_server_that_is_silent(no_pod: Path, answer: bytes, silence: float, lines: list[list[bytes]]) -> None:
    """The connection is open, and carries nothing any more, as behind a firewall that dropped it."""
    with answering(answer, hangs=True) as (host, _):
        client = ApiClient(kubeconfig=written(no_pod / "config", config_of(f"http://{host}", token="t")))
        received = list[list[bytes]]()
        with pytest.raises(Unreachable, match=f"silent for {silence:g} s") as caught:
            received.extend(client.open("/api/v1/services", {"watch": "1"}, silence=silence))
    assert (caught.value.reason, received) == ("silent", lines)


UNREACHABLE = [
    (urllib3.exceptions.NameResolutionError("h", None, socket.gaierror(-2, "Name or service not known")),  # type: ignore[arg-type]
     "cannot be resolved"),
    (ProtocolError("Connection aborted.", http.client.RemoteDisconnected("Remote end closed the connection")),
     "https://h: Remote end closed the connection"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "words"), UNREACHABLE, ids=["no-address", "hangs-up"])
def test_an_error_of_the_library_is_worded_for_people(error: Exception, words: str) -> None:
    """The text is that of the cause."""
    assert words in str(unreachable("https://h", error, 1, begun=False))


@pytest.mark.parametrize(
    ("answer", "readiness"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Readiness.READY, id="ok"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", Readiness.AWAY, id="cut"),
        pytest.param(b"HTTP/1.1 401 Unauthorized\r\n\r\n", Readiness.RESPONDS, id="401"),
        pytest.param(b"HTTP/1.1 403 Forbidden\r\n\r\n", Readiness.RESPONDS, id="403"),
        pytest.param(b"HTTP/1.1 429 Too Many Requests\r\n\r\n", Readiness.AWAY, id="429"),
        pytest.param(b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Readiness.AWAY, id="503"),
        pytest.param(b"", Readiness.AWAY, id="hangs up"),
    ],
)
@pytest.mark.parametrize(
    "user", [{"token": "t"}, {"exec": {"command": "/no/such/plugin", "apiVersion": "v1"}}], ids=["token", "plugin"]
)
def test_whether_an_api_server_is_ready(no_pod: Path, answer: bytes, readiness: Readiness, user: Config) -> None:
    """Asking takes no new credentials: who asks once a second must not run a plugin each time."""
    with answering(answer) as (host, read):
        client = ApiClient(kubeconfig=written(no_pod / "config", config_of(f"http://{host}", **user)))
        assert client.readiness() is readiness
    assert read[0].startswith(b"GET /readyz HTTP/1.1")
    assert client.readiness() is Readiness.AWAY


# Rights


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/api/v1/pods", {}, ("list", "", "pods", "")),
        ("GET", "/api/v1/pods", {"watch": "1"}, ("watch", "", "pods", "")),
        ("GET", "/api/v1/namespaces", {}, ("list", "", "namespaces", "")),
        ("GET", "/api/v1/namespaces/shop", {}, ("get", "", "namespaces", "")),
        ("GET", "/api/v1/namespaces/shop/pods", {}, ("list", "", "pods", "shop")),
        ("PUT", "/api/v1/namespaces/shop/pods/a/status", {}, ("update", "", "pods/status", "shop")),
        ("POST", "/apis/events.k8s.io/v1/namespaces/a/events", {}, ("create", "events.k8s.io", "events", "a")),
        ("PATCH", "/apis/topodns.io/v1/namespaces/a/podlocators/b", {}, ("patch", "topodns.io", "podlocators", "a")),
        ("DELETE", "/apis/topodns.io/v1alpha1/podlocators", {}, ("delete", "topodns.io", "podlocators", "")),
        ("GET", "/apis/discovery.k8s.io/v1/endpointslices", {}, ("list", "discovery.k8s.io", "endpointslices", "")),
        ("GET", "/version", {}, ("get", "", "", "")),
    ],
)  # fmt: skip
def test_requests_in_the_words_of_rbac(
    method: str, path: str, query: dict[str, str], expected: tuple[str, ...]
) -> None:
    """A request is described by verb, group, resource and namespace, as in a rule."""
    assert resource_attributes(method, path, query) == expected


# Lines


class InvalidChunk(ValueError):
    pass


class Response:
    """A response in pieces; a piece that is an exception is raised."""

    def __init__(self, pieces: Sequence[bytes | Exception]) -> None:
        self.pieces = pieces
        self.closed = False

    def stream(self, size: int, *, decode_content: bool) -> Iterator[bytes]:
        assert size > 0 and decode_content
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def close(self) -> None:
        self.closed = True

    def shutdown(self) -> None:
        raise ValueError("it is over")


@given(
    lines=st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line)),
    rest=st.binary().filter(lambda rest: b"\n" not in rest),
    cuts=st.lists(st.integers(0, 200)),
)
def test_lines_come_whole_however_an_answer_is_cut(lines: list[bytes], rest: bytes, cuts: list[int]) -> None:
    """Each line comes once and in order; octets after the last newline are no line."""
    whole = b"".join(line + b"\n" for line in lines) + rest
    places = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    pieces = [whole[start:end] for start, end in pairwise(places)]
    with closing(Stream(Response(pieces), "https://h", 1)) as stream:
        assert [line for batch in stream for line in batch] == lines
    with closing(Stream(Response(pieces), "https://h", 1)) as stream:
        assert stream.read() == whole


@pytest.mark.parametrize(
    ("error", "word", "text"),
    [
        pytest.param(ProtocolError("broken", OSError(104, "reset")), "cut", "broke off", id="reset"),
        pytest.param(ProtocolError("broken", InvalidChunk()), "cut", "broke off", id="within a length"),
        pytest.param(urllib3.exceptions.ReadTimeoutError(None, "u", "m"), "silent", "silent for 7 s", id="silent"),  # type: ignore[arg-type]
        pytest.param(TimeoutError(errno.ETIMEDOUT, "timed out"), "cut", "broke off", id="given up by the kernel"),
        pytest.param(ssl.SSLEOFError(8, "EOF occurred"), "cut", "broke off", id="within TLS"),
        pytest.param(AttributeError("no _sslobj"), "cut", "broke off", id="ended by another thread"),
    ],
)
def test_an_answer_that_breaks_off(error: Exception, word: str, text: str) -> None:
    """The client returns the whole lines, then raises the reason."""
    response = Response([b"one\ntw", error])
    stream = Stream(response, "https://h", 7)
    batches = iter(stream)
    assert next(batches) == [b"one"]
    with pytest.raises(Unreachable, match=text) as caught:
        next(batches)
    assert caught.value.reason == word
    assert response.closed
    stream.end()


def test_a_line_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, whatever the other end sends."""
    monkeypatch.setattr("locator.cluster.responses.MAX_WATCH_LINE", 100)
    with pytest.raises(Unreachable, match="a line of more than"):
        list(Stream(Response([b"x" * 60, b"x" * 60, b"\n"]), "https://h", 1))
