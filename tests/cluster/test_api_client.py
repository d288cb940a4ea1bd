# SPDX-License-Identifier: Apache-2.0

"""The API client: how it finds and reaches a cluster, its errors, and how it splits answers into lines."""

from __future__ import annotations

import errno
import http.client
import json
import socket
import ssl
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from hypothesis import given
from hypothesis import strategies as st
from urllib3.exceptions import ProtocolError

from locator.api.deltas import Replace
from locator.cluster import api_client, credentials
from locator.cluster.api_client import (
    ApiClient,
    Readiness,
)
from locator.cluster.credentials import (
    BadCluster,
)
from locator.cluster.responses import (
    Refused,
    Stream,
    Unreachable,
    resource_attributes,
    unreachable,
)
from locator.model import Namespace, Service, ServicePolicy
from tests.kit.kube import ControlPlane, config_of
from tests.kit.kube import Item as Config
from tests.kit.this_machine import free_port


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
                 "one of main (--context chooses one, too, or PATH#CONTEXT in --cluster)", id="no context chosen"),
    pytest.param({**config_of(), "current-context": "old"}, "'old', expected one of main", id="unknown context"),
    pytest.param(lacking(config_of(), "contexts", 0, "context"), "'main': no cluster found", id="an empty context"),
    pytest.param(lacking(config_of(), "clusters", 0), "cluster: no cluster 'c' found", id="no such cluster"),
    pytest.param(lacking(config_of(), "users", 0), "context 'main': user: no user 'u' found", id="no such user"),
    pytest.param(config_of(None), "cluster 'c': server: None found, expected https://HOST:PORT", id="no server"),
    pytest.param(config_of("api:6443"), "'api:6443' found, expected https://HOST:PORT", id="no URL"),
    pytest.param(config_of(tokenFile="/no/such/file"), "/no/such/file", id="no token file"),
    pytest.param(config_of("https://"), "server: 'https://' found, expected https://HOST:PORT", id="no host"),
    pytest.param(config_of("https://127.0.0.1:99999"), "expected https://HOST:PORT", id="no such port"),
    pytest.param(config_of(exec="aws"), "user 'u': exec: 'aws' found, expected a command", id="exec of a text"),
    pytest.param(with_cluster("proxy-url", "nonsense"), "context 'main': ", id="no proxy"),
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
    with pytest.raises(BadCluster, match=r"ca.crt: .*expected certificates"):
        ApiClient(kubeconfig=written(no_pod / "config", config))
    Path(authority).unlink()
    with pytest.raises(BadCluster, match=r"context 'main': .*ca.crt"):
        ApiClient(kubeconfig=written(no_pod / "config", config))


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, control_plane: ControlPlane) -> Path:
    """Run as in a pod, whose API server is the real one; return the folder of its service account."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(control_plane.port))
    monkeypatch.setattr(credentials, "ACCOUNT", tmp_path)
    authority = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority"]
    (tmp_path / "ca.crt").write_bytes(Path(authority).read_bytes())
    (tmp_path / "token").write_text(token_of(control_plane) + "\n")
    (tmp_path / "namespace").write_text("topodns")
    return tmp_path


def token_of(plane: ControlPlane) -> str:
    token: str = yaml.safe_load(plane.kubeconfig.read_text())["users"][0]["user"]["token"]
    return token


def test_in_a_pod_its_service_account_is_used(pod: Path, control_plane: ControlPlane) -> None:
    """After a 401, the client reads a rotated token again at once."""
    cluster = ApiClient()
    assert cluster.host == f"https://127.0.0.1:{control_plane.port}"
    assert cluster.namespace == "topodns"
    assert json.loads(cluster.request("GET", "/version"))["major"] == "1"
    (pod / "token").write_text("expired")
    expired = ApiClient()
    with pytest.raises(Refused, match="401 Unauthorized"):
        expired.request("GET", "/api/v1/services")
    (pod / "token").write_text(token_of(control_plane))
    assert expired.request("GET", "/api/v1/services")


def test_in_a_pod_without_a_service_account(pod: Path) -> None:
    """As with ``automountServiceAccountToken: false``: an error; a token that vanishes later means no contact."""
    (pod / "token").write_text("expired")
    cluster = ApiClient()
    (pod / "token").unlink()
    with pytest.raises(BadCluster, match="expected the service account of a pod"):
        ApiClient()
    with pytest.raises(Unreachable, match=r"no credentials: .*expected the service account of a pod"):
        cluster.request("GET", "/api/v1/services")


def test_a_flag_beats_the_pod(pod: Path, control_plane: ControlPlane) -> None:
    """``--kubeconfig`` has precedence over the pod's service account."""
    assert ApiClient(kubeconfig=str(control_plane.kubeconfig)).namespace == "default"


def test_what_tells_clusters_apart(pod: Path, control_plane: ControlPlane, no_pod: Path) -> None:
    """Address and authority together identify a cluster: many have their API server at 10.96.0.1."""
    one, two = config_of(), config_of("https://127.0.0.1:2")
    first, second = ApiClient(kubeconfig=written(no_pod / "1", one)), ApiClient(kubeconfig=written(no_pod / "2", two))
    one["clusters"][0]["cluster"]["certificate-authority"] = str(pod / "ca.crt")
    third = ApiClient(kubeconfig=written(no_pod / "3", one))
    assert len({first.identity, second.identity, third.identity}) == 3
    assert third.identity == ApiClient(kubeconfig=written(no_pod / "4", one)).identity


# Credentials


PLUGIN = """
import json, pathlib, sys
runs = pathlib.Path(sys.argv[1])
runs.write_text(runs.read_text() + "." if runs.exists() else ".")
status = json.loads(pathlib.Path(sys.argv[2]).read_text())
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


@pytest.mark.parametrize("field", ["token", "tokenFile"])
def test_a_renewed_token_is_read_after_a_401(no_pod: Path, control_plane: ControlPlane, field: str) -> None:
    """From the kubeconfig, and from the file that it names."""
    config, file = yaml.safe_load(control_plane.kubeconfig.read_text()), no_pod / "token"

    def write(token: str) -> str:
        file.write_text(token)
        config["users"][0]["user"] = {field: token if field == "token" else str(file)}
        return written(no_pod / "config", config)

    cluster = ApiClient(kubeconfig=write("expired"))
    with pytest.raises(Refused, match="401 Unauthorized"):
        cluster.request("GET", "/api/v1/services")
    write(token_of(control_plane))
    assert cluster.request("GET", "/api/v1/services")


def test_a_plugin_gives_the_credentials(no_pod: Path, control_plane: ControlPlane) -> None:
    """The client runs it for the first request and after each 401, and logs none of its output."""
    runs, says = no_pod / "runs", no_pod / "says"
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    arguments = ["-c", PLUGIN, str(runs), str(says)]
    plugin = {"command": sys.executable, "apiVersion": "client.authentication.k8s.io/v1", "args": arguments}
    config["users"][0]["user"] = {"exec": plugin}
    path = written(no_pod / "config", config)
    before = Path(path).read_text()
    cluster = ApiClient(kubeconfig=path)
    assert not runs.exists()
    written(says, json.dumps({"token": token_of(control_plane)}))
    assert cluster.request("GET", "/api/v1/services")
    assert cluster.request("GET", "/api/v1/services")
    assert runs.read_text() == "."
    assert Path(path).read_text() == before
    written(says, json.dumps({"expirationTimestamp": "never"}))
    with pytest.raises(Unreachable, match=r"no credentials: .*neither token nor certificate"):
        ApiClient(kubeconfig=path).request("GET", "/api/v1/services")
    says.unlink()
    with pytest.raises(Unreachable, match=r"no credentials: context 'tests': exec .*returned 1"):
        ApiClient(kubeconfig=path).request("GET", "/api/v1/services")


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


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(b"", "https://127.0.0.1:", id="hangs up"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "TLS", id="speaks no TLS"),
    ],
)
def test_someone_else_is_there(no_pod: Path, answer: bytes, words: str) -> None:
    """If another program listens at the address, the client raises Unreachable and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        host = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(Unreachable, match=words):
            ApiClient(kubeconfig=written(no_pod / "config", config_of(host))).request("GET", "/version")
        thread.join()


def test_an_authority_that_vouches_for_another(no_pod: Path, control_plane: ControlPlane) -> None:
    """TLS fails; the text says that it was TLS, and why."""
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["certificate-authority"] = str(another_authority(no_pod))
    with pytest.raises(Unreachable, match=r"TLS: .*certificate"):
        ApiClient(kubeconfig=written(no_pod / "config", config)).request("GET", "/version")


def another_authority(folder: Path) -> Path:
    """Return a file with the first certificate of this machine's own store."""
    context = ssl.create_default_context()
    if not (certificates := context.get_ca_certs(binary_form=True)):
        pytest.skip("this machine trusts nobody")
    path = folder / "another.crt"
    path.write_text(ssl.DER_cert_to_PEM_cert(certificates[0]))
    return path


def test_a_host_that_has_no_address() -> None:
    """The client words the library's errors for people."""
    error = urllib3.exceptions.NameResolutionError("h", None, socket.gaierror(-2, "Name or service not known"))  # type: ignore[arg-type]
    assert "cannot be resolved" in str(unreachable("https://h", error, 1, begun=False))


def test_a_server_that_hangs_up_without_an_answer() -> None:
    """The text is that of the cause, not of the library's tuple around it."""
    error = ProtocolError("Connection aborted.", http.client.RemoteDisconnected("Remote end closed the connection"))
    assert str(unreachable("https://h", error, 1, begun=False)) == "https://h: Remote end closed the connection"


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
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(65536).startswith(b"GET /readyz HTTP/1.1")
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        config = config_of(f"http://127.0.0.1:{listener.getsockname()[1]}", **user)
        client = ApiClient(kubeconfig=written(no_pod / "config", config))
        assert client.readiness() is readiness
        thread.join()
    assert client.readiness() is Readiness.AWAY


def test_a_real_api_server_says_that_it_is_ready(control_plane: ControlPlane, no_pod: Path) -> None:
    """Also to a client without any right of its own."""
    path = control_plane.kubeconfig_with(no_pod / "config", token=control_plane.token("default", "default"))
    assert ApiClient(kubeconfig=str(path)).readiness() is Readiness.READY


def test_what_a_cluster_holds_is_read_once(control_plane: ControlPlane) -> None:
    """Reading a cluster once returns an optional kind as empty if the API lacks it."""
    control_plane.settle()  # what is wrong in other tests' objects is found, too, as long as they are there
    cluster = ApiClient(kubeconfig=str(control_plane.kubeconfig))
    batch = api_client.list_once(cluster, [Namespace, Service, ServicePolicy])
    objects = [obj for change in batch.deltas if isinstance(change, Replace) for obj in change.objects]
    assert {"default", "kube-system"} <= {obj.name for obj in objects if isinstance(obj, Namespace)}
    assert "default/kubernetes" in {obj.key for obj in objects if isinstance(obj, Service)}
    assert len(batch.deltas) == 3 and not batch.findings


def test_a_request_writes_and_is_refused_in_words(control_plane: ControlPlane) -> None:
    """Bodies are JSON of any media type; an error repeats the API server's message."""
    cluster = ApiClient(kubeconfig=str(control_plane.kubeconfig))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "written"}, "data": {"a": "1"}}
    path = "/api/v1/namespaces/default/configmaps"
    cluster.request("POST", path, body=body)
    with pytest.raises(Refused, match='409 AlreadyExists: configmaps "written" already exists') as caught:
        cluster.request("POST", path, body=body)
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")
    merge = "application/merge-patch+json"
    patched = cluster.request("PATCH", f"{path}/written", body={"data": {"a": "2"}}, media=merge)
    assert json.loads(patched)["data"] == {"a": "2"}
    cluster.request("DELETE", f"{path}/written", query={"propagationPolicy": "Background"})
    with pytest.raises(Refused, match="404 NotFound"):
        cluster.request("GET", f"{path}/written")


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
