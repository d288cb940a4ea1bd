# SPDX-License-Identifier: Apache-2.0

"""``docs/clusters.md``: its commands are run as they stand there, with the example's dumps and on real clusters."""

from __future__ import annotations

import base64
import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.kit import kustomize
from tests.kit.api_objects import endpoint, endpoint_slice, namespace, node, service
from tests.kit.kube import ControlPlane
from tests.kit.kustomize import NAMESPACE, READER, SERVER, object_of, objects_of
from tests.kit.live_server import serving_live
from tests.kit.mounted_secret import mount
from tests.kit.page_commands import Entry, entries
from tests.kit.shells import Shell
from tests.kit.this_machine import ROOT, needs_tool
from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE, until

PAGE = ROOT / "docs" / "clusters.md"
BLOCKS = re.findall(r"```(console|sh)\n(.*?)```", PAGE.read_text(), re.DOTALL)
(PUBLIC,) = re.findall(r"```yaml\n# public.yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
DIG = "alias ask='dig @127.0.0.1 -p 1053 +short'"
OWN, OTHER, THIRD = "europe", "us-central", "us-east"


ENTRIES = [
    entry for language, block in BLOCKS for entry in ([Entry(block, "", "")] if language == "sh" else entries(block))
]


# With dumps


def test_answers_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it shows of its servers and of topodns is printed; the order of all that are equally near changes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "public.yaml").write_text(PUBLIC)
    shell, started = Shell.with_topodns(tmp_path), 0
    here = {".venv/bin/": ""}
    with ExitStack() as running:
        for entry in ENTRIES:
            command = entry.command
            if command.startswith(".venv/bin/topodns serve"):
                running.close()
                server = Server([*shlex.split(command)[1:], "--listen=127.0.0.1:0", "--http=off"]).started()
                running.callback(lambda server=server: server.end(signal.SIGKILL))
                here["ask "] = f"dig @127.0.0.1 -p {server.port} +short "  # as the page defines it
                started += 1
            elif command.startswith("ask "):
                follow = partial(shell.follow, entry, here, in_order=entry.comment.endswith(": nearest"))
                until(lambda follow=follow: succeeds(follow), lambda entry=entry: f"{entry}")
            elif command.startswith(("cp ", "sed ", "echo ")):
                shell.run(command)
                if command.startswith("echo "):  # the page breaks a dump by it
                    server.wait_for("keeping the previous version")
            elif "topodns " in command and entry.output and not command.startswith("kubectl "):
                shell.follow(entry, here)
    assert started == 4
    assert [entry.command for entry in ENTRIES if entry.command.startswith("alias")] == [DIG]


def succeeds(check: Callable[[], object]) -> bool:
    try:
        check()
    except AssertionError:
        return False
    return True


def dig(server: Server, *words: str) -> list[str]:
    """Return the lines that dig prints."""
    command = [needs_tool("dig"), f"@{server.host}", "-p", str(server.port), "+short", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout.splitlines()


# On real clusters

SPACE = "shop"
NAME = f"web.{SPACE}.fed.example.com"


def run_of_page(shell: Shell, pattern: str) -> None:
    """Run the one command of the page that a pattern matches; it must print what the page shows."""
    (entry,) = (entry for entry in ENTRIES if re.fullmatch(pattern, entry.command))
    printed = shell.run(entry.command)
    assert not entry.output or printed == entry.output.splitlines()


def mint(shell: Shell) -> None:
    """Make a kubeconfig as the page says."""
    (script,) = (entry.command for entry in ENTRIES if entry.command.startswith("cluster="))
    shell.run(script)


def in_cluster(number: int) -> list[kustomize.Item]:
    """Return a node, an exported Service with a load balancer, and its slice, which no controller touches."""
    annotations = {"topodns.io/federated": "true"}
    return [
        node(f"page-{number}", {}, cidrs=[f"10.8{number}.0.0/24"]),
        service("web", where=SPACE, cluster_ips=(), annotations=annotations, type="LoadBalancer"),
        endpoint_slice("web", 1, [endpoint(f"10.8{number}.0.5", nodeName=f"page-{number}")], where=SPACE),
    ]


def balanced(plane: ControlPlane, address: str) -> None:
    """Give the Service of a cluster the address of a load balancer, as a cloud does."""
    status = {"loadBalancer": {"ingress": [{"ip": address}]}}
    plane.api.patch_status(service("web", where=SPACE), status)


@pytest.fixture(scope="module")
def planes(control_plane: ControlPlane, frail_control_plane: ControlPlane) -> Iterator[Mapping[str, ControlPlane]]:
    """Two clusters with what a Deployment of topodns and of the Service would make there."""
    found = {OWN: control_plane, OTHER: frail_control_plane}
    with kustomize.installed(control_plane, objects_of("clusters")):
        for number, plane in enumerate(found.values(), 1):
            plane.api.create(namespace(SPACE), *in_cluster(number))
            balanced(plane, f"203.0.113.{number}")
        yield found
        for number, plane in enumerate(found.values(), 1):
            plane.api.delete(in_cluster(number)[0], namespace(SPACE))
        frail_control_plane.kubectl("delete", "--ignore-not-found", "-k", str(ROOT / "manifests" / "remote"))


@pytest.fixture(scope="module")
def shell(planes: Mapping[str, ControlPlane], tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A machine from which both clusters can be reached, with the manifests beside it."""
    folder = tmp_path_factory.mktemp("page")
    merged: dict[str, object] = {"apiVersion": "v1", "kind": "Config"}
    for name, plane in planes.items():
        config = yaml.safe_load(plane.kubeconfig.read_text())
        for section, key in (("clusters", "cluster"), ("users", "user")):
            entries = merged.setdefault(section, [])
            entries += [{"name": name, key: config[section][0][key]}]
        merged.setdefault("contexts", []).append({"name": name, "context": {"cluster": name, "user": name}})
    (folder / "config").write_text(yaml.safe_dump(merged))
    return Shell.with_kubeconfig(folder, folder / "config")


@pytest.fixture(scope="module")
def kubeconfig(shell: Shell) -> Path:
    """The kubeconfig of the other cluster, made as the page says."""
    apply_remote(shell)
    mint(shell)
    return shell.folder / f"{OTHER}.kubeconfig"


def apply_remote(shell: Shell) -> None:
    (command,) = {entry.command for entry in ENTRIES if entry.command.endswith("apply -k manifests/remote")}
    shell.run(command)


def test_the_kubeconfig_can_read_and_no_more(shell: Shell, kubeconfig: Path) -> None:
    """It lists what topodns needs, but neither reads Secrets nor writes."""
    run_of_page(shell, "kubectl .* auth can-i .*")
    for refused in ("get secrets", "create services", "get pods"):
        with pytest.raises(AssertionError):
            shell.run(f"kubectl --kubeconfig {kubeconfig} auth can-i {refused} --all-namespaces")


def test_the_token_ends_and_can_be_revoked(kubeconfig: Path) -> None:
    """It ends after what the page says, and is bound to the Secret that the page deletes."""
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    assert claims["exp"] - claims["iat"] == 30 * 86400
    assert claims["kubernetes.io"]["secret"]["name"] == f"{READER}-token"


def mounted(planes: Mapping[str, ControlPlane], folder: Path) -> Path:
    """Mount the Secret as a kubelet does by the overlay; return the folder."""
    spec = object_of("clusters", "Deployment", SERVER)["spec"]["template"]["spec"]
    (volume,) = (volume["projected"] for volume in spec["volumes"] if "projected" in volume)
    (source,) = volume["sources"]
    assert source["secret"].keys() == {"name"}  # all of it
    api = planes[OWN].api
    secret = api.request("GET", api.path("Secret", NAMESPACE, source["secret"]["name"]))
    mount(folder, {key: base64.b64decode(value).decode() for key, value in secret["data"].items()})
    return folder


def test_clusters_come_and_go_and_get_new_tokens_without_a_restart(
    shell: Shell, kubeconfig: Path, planes: Mapping[str, ControlPlane], tmp_path: Path
) -> None:
    """topodns follows the mounted Secret. Nothing of the other clusters leaves the answers meanwhile."""
    (shell.folder / f"{THIRD}.kubeconfig").write_text(kubeconfig.read_text())
    run_of_page(shell, "kubectl .* create secret generic clusters .*")
    (clusters := tmp_path / "clusters").mkdir()
    flags = {"cluster-name": OWN, "federation": "fed.example.com", "cluster-dir": str(mounted(planes, clusters))}
    with serving_live(tmp_path, planes[OWN].kubeconfig, flags=flags) as server:

        def state() -> str:
            return server.get("/readyz?verbose")[1]

        until(lambda: {*dig(server, NAME)} == {"203.0.113.1", "203.0.113.2"}, lambda: dig(server, NAME))
        until(lambda: f"[+]cluster {THIRD} ok" in state(), state)
        run_of_page(shell, "kubectl .* patch secret clusters .*--type json .*")
        mounted(planes, clusters)
        until(lambda: THIRD not in state(), state)
        run_of_page(shell, f'kubectl .* patch secret clusters .*{THIRD}.kubeconfig": .*')
        mounted(planes, clusters)
        until(lambda: f"[+]cluster {THIRD} ok" in state(), state)
        assert {*dig(server, NAME)} == {"203.0.113.1", "203.0.113.2"}
        run_of_page(shell, "kubectl .* patch secret clusters .*--type json .*")
        mounted(planes, clusters)
        run_of_page(shell, "kubectl .* delete secret .*")
        planes[OTHER].kill()  # a watch goes on with the token that it began with
        planes[OTHER].start()
        server.wait_for(f"cluster {OTHER}: Service: 401 Unauthorized")
        assert {*dig(server, NAME)} == {"203.0.113.1", "203.0.113.2"}
        apply_remote(shell)
        mint(shell)
        run_of_page(shell, f'kubectl .* patch secret clusters .*{OTHER}.kubeconfig": .*')
        mounted(planes, clusters)
        balanced(planes[OTHER], "203.0.113.9")
        until(lambda: {*dig(server, NAME)} == {"203.0.113.1", "203.0.113.9"}, lambda: dig(server, NAME), within=10)
        until(lambda: f"[+]cluster {OTHER} ok" in state(), state)
