# SPDX-License-Identifier: Apache-2.0

"""The API client and a real API server: credentials, what it reads and writes, and what it is refused."""

from __future__ import annotations

import json
import ssl
import sys
from pathlib import Path

import pytest
import yaml

from locator.api.deltas import Replace
from locator.cluster import api_client, credentials
from locator.cluster.api_client import ApiClient, Readiness
from locator.cluster.credentials import BadCluster
from locator.cluster.responses import Refused, Unreachable
from locator.model import Namespace, Service, ServicePolicy
from tests.kit.kube import ControlPlane, config_of


def written(path: Path, config: object) -> str:
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return str(path)


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


def test_what_tells_clusters_apart(pod: Path, control_plane: ControlPlane, tmp_path: Path) -> None:
    """Address and authority together identify a cluster: many have their API server at 10.96.0.1."""
    one, two = config_of(), config_of("https://127.0.0.1:2")
    first = ApiClient(kubeconfig=written(tmp_path / "1", one))
    second = ApiClient(kubeconfig=written(tmp_path / "2", two))
    one["clusters"][0]["cluster"]["certificate-authority"] = str(pod / "ca.crt")
    third = ApiClient(kubeconfig=written(tmp_path / "3", one))
    assert len({first.identity, second.identity, third.identity}) == 3
    assert third.identity == ApiClient(kubeconfig=written(tmp_path / "4", one)).identity


PLUGIN = """
import json, pathlib, sys
runs = pathlib.Path(sys.argv[1])
runs.write_text(runs.read_text() + "." if runs.exists() else ".")
status = json.loads(pathlib.Path(sys.argv[2]).read_text())
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


@pytest.mark.parametrize("field", ["token", "tokenFile"])
def test_a_renewed_token_is_read_after_a_401(tmp_path: Path, control_plane: ControlPlane, field: str) -> None:
    """From the kubeconfig, and from the file that it names."""
    config, file = yaml.safe_load(control_plane.kubeconfig.read_text()), tmp_path / "token"

    def write(token: str) -> str:
        file.write_text(token)
        config["users"][0]["user"] = {field: token if field == "token" else str(file)}
        return written(tmp_path / "config", config)

    cluster = ApiClient(kubeconfig=write("expired"))
    with pytest.raises(Refused, match="401 Unauthorized"):
        cluster.request("GET", "/api/v1/services")
    write(token_of(control_plane))
    assert cluster.request("GET", "/api/v1/services")


def test_a_plugin_gives_the_credentials(tmp_path: Path, control_plane: ControlPlane) -> None:
    """The client runs it for the first request and after each 401, and logs none of its output."""
    runs, says = tmp_path / "runs", tmp_path / "says"
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    arguments = ["-c", PLUGIN, str(runs), str(says)]
    plugin = {"command": sys.executable, "apiVersion": "client.authentication.k8s.io/v1", "args": arguments}
    config["users"][0]["user"] = {"exec": plugin}
    path = written(tmp_path / "config", config)
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


def test_an_authority_that_vouches_for_another(tmp_path: Path, control_plane: ControlPlane) -> None:
    """TLS fails; the text says that it was TLS, and why."""
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["certificate-authority"] = str(another_authority(tmp_path))
    with pytest.raises(Unreachable, match=r"TLS: .*certificate"):
        ApiClient(kubeconfig=written(tmp_path / "config", config)).request("GET", "/version")


def another_authority(folder: Path) -> Path:
    """Return a file with the first certificate of this machine's own store."""
    context = ssl.create_default_context()
    if not (certificates := context.get_ca_certs(binary_form=True)):
        pytest.skip("this machine trusts nobody")
    path = folder / "another.crt"
    path.write_text(ssl.DER_cert_to_PEM_cert(certificates[0]))
    return path


def test_a_real_api_server_says_that_it_is_ready(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Also to a client without any right of its own."""
    path = control_plane.kubeconfig_with(tmp_path / "config", token=control_plane.token("default", "default"))
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
