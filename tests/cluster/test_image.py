# SPDX-License-Identifier: Apache-2.0

"""The image: built from the Dockerfile, and run with no more rights than a restricted pod has."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dns.message
import dns.query
import dns.rdatatype
import pytest
import yaml
from packaging.utils import canonicalize_name

from dnsserver import __version__
from tests.kit import helm
from tests.kit.container import Buildah
from tests.kit.in_memory import cluster_text
from tests.kit.kube import TOKEN, ControlPlane, config_of
from tests.kit.kustomize import EVERYTHING, NAMESPACE, SERVER, container_of, object_of, objects_of
from tests.kit.page_commands import commands, entries
from tests.kit.programs import ready
from tests.kit.requirements import in_the_image
from tests.kit.small_cluster import WEB, WEB_AND_MANY
from tests.kit.this_machine import ROOT, free_port, needs_tool
from tests.kit.waiting import PATIENCE, until

(INSTALLED, ASKED) = (
    [*entries(block)]
    for block in re.findall(r"```console\n(.*?)```", (ROOT / "docs" / "install.md").read_text(), re.DOTALL)
    if "rollout status" in block or "port-forward" in block
)
(BUILT,) = re.findall(r"or: buildah bud -t (\S+) \.", INSTALLED[0].comment)
CAPABILITIES = {"CapInh", "CapPrm", "CapEff", "CapAmb"}
# The mounts are the container's own. Its root is read-only; /mnt is a folder of the test's.
MOUNTED = """
set -eu
root=$1 folder=$2; shift 2
mkdir -p "$root/dev" "$root/mnt"
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount --bind "$folder" "$root/mnt"
mount -o remount,bind,ro "$root/mnt"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done
shift
mount -o remount,bind,ro "$root"
exec "$@"
"""
# Keeps what chroot itself needs; the container loses that with root's user id, and cannot get it back.
NO_RIGHTS = ("setpriv", "--bounding-set=-all,+sys_chroot,+setuid,+setgid", "--inh-caps=-all", "--no-new-privs")


class Image:
    """The image of the Dockerfile: its configuration, and its files below ``root``."""

    def __init__(self, folder: Path, tag: str) -> None:
        """Build it in *folder*, with a tag. Skips the test if this machine cannot build images or run them."""
        for name in ("setpriv", "chroot"):
            needs_tool(name)
        buildah = Buildah(folder)
        self._run = buildah.run  # what pushes the image uses it, too
        self.digest = buildah.build(tag, ROOT, *buildah.bases_of_this_machine())
        container = buildah.run("from", "--pull-never", tag).strip()
        self.root = Path(buildah.run("mount", container).strip())
        inspected = json.loads(buildah.run("inspect", "--type", "image", tag))
        self.config: dict[str, Any] = inspected["OCIv1"]["config"]

    def command(
        self,
        folder: Path,
        *arguments: str,
        mounts: Mapping[str, Path] | None = None,
        env: Sequence[str] = (),
        user: str = "",
    ) -> list[str]:
        """Return the command that runs the image's program in a container, with *folder* at ``/mnt``.

        *mounts* are more folders, by their path in the container; *env* is more environment, as ``NAME=VALUE``.

        As for a restricted pod with a read-only root, it runs as the image's user, or as *user* (``UID:GID``), without
        capabilities and without a way to get any. It shares the machine's network, so that a test can send queries.
        """
        more = [part for path, source in (mounts or {}).items() for part in (str(source), path)]
        mounted = ("unshare", "--mount", "sh", "-c", MOUNTED, "sh", str(self.root), str(folder), *more, "--")
        rooted = (needs_tool("chroot"), "--groups=", f"--userspec={user or self.config['User']}", str(self.root))
        environment = ("env", "-i", *self.config["Env"], *env)
        return [*mounted, *NO_RIGHTS, *environment, *rooted, *self.config["Entrypoint"], *arguments]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Build the image once; remove it afterwards."""
    folder = tmp_path_factory.mktemp("image")
    yield Image(folder, BUILT)
    shutil.rmtree(folder)


def run_in(image: Image, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = image.command(folder, *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_the_image_says_who_it_is_and_what_it_offers(image: Image) -> None:
    """The user is a number, as runAsNonRoot needs; ports and user match the manifests."""
    for deployment in objects_of(EVERYTHING, "Deployment"):
        spec = deployment["spec"]["template"]["spec"]
        ports = {f"{port['containerPort']}/{port['protocol'].lower()}" for port in spec["containers"][0]["ports"]}
        assert ports <= image.config["ExposedPorts"].keys()
        given = spec["securityContext"]
        assert image.config["User"] == f"{given['runAsUser']}:{given['runAsGroup']}"


def test_what_is_installed_is_what_is_pinned(image: Image) -> None:
    """The libraries of the bill of materials, each in its version; pip is gone."""
    found = (
        path.name.removesuffix(".dist-info").split("-", 1)
        for path in image.root.glob("opt/topodns/lib/python3*/site-packages/*.dist-info")
    )
    installed = {canonicalize_name(name): version for name, version in found}
    assert installed.pop("topodns") == __version__
    assert len(installed) > 10
    assert not {"pip", "setuptools"} & installed.keys()
    assert {pin.name: pin.version for pin in in_the_image()} == installed


def test_what_the_image_leaves_out_is_never_imported() -> None:
    """The image lacks the listed libraries and files, our code imports none of them, and it imports all others."""
    listed = dict(re.findall(r'(UNUSED_\w+)="([^"]*)"', (ROOT / "Dockerfile").read_text()))
    installed = Path(sysconfig.get_path("purelib"))
    removed = {path for pattern in listed["UNUSED_FILES"].split() for path in installed.glob(pattern)}
    for library in listed["UNUSED_LIBRARIES"].split():
        removed |= located(library)
    for lost in (
        "kubernetes/aio",
        "kubernetes/client/api",
        "kubernetes/client/models/v2_metric_spec.py",
        "aiohttp/__init__.py",
    ):
        assert installed / lost in removed
    imports = {
        ast.unparse(node)
        for package in ("dnsserver", "locator")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))  # those within functions, too
        if isinstance(node, ast.Import)
        or (isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "_typeshed"))  # no modules at all
    }
    shown = "print(*(getattr(module, '__file__', None) for module in sys.modules.values()), sep='\\n')"
    program = "\n".join((*sorted(imports), "import sys", shown))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = {Path(line) for line in ran.stdout.splitlines()}
    assert installed / "kubernetes/client/api_client.py" in loaded
    assert not [path for path in loaded if removed & {path, *path.parents}]
    idle = [pin.name for pin in in_the_image() if loaded.isdisjoint(located(pin.name))]
    assert idle == []


def located(library: str) -> set[Path]:
    """Return the paths of a library's files."""
    return {Path(str(file.locate())) for file in importlib.metadata.files(library) or ()}


def test_its_size_is_what_the_page_says(image: Image) -> None:
    """What it adds to its base, to within a tenth: libraries differ between versions of Python."""
    (said,) = re.findall(r"It adds (\d+) MB to its base", (ROOT / "docs" / "install.md").read_text())
    size = sum(path.lstat().st_size for path in (image.root / "opt/topodns").rglob("*"))
    assert size / 1e6 == pytest.approx(int(said), rel=0.1)


def test_it_has_the_native_code(image: Image, tmp_path: Path) -> None:
    """The image always has it: an image is built once, and run often."""
    assert run_in(image, tmp_path, "version").stdout.splitlines()[-1] == f"native code {__version__}"


def test_the_commands_of_the_deployments_are_there(image: Image, tmp_path: Path) -> None:
    """One image serves all Deployments."""
    for command in ("serve", "controller", "webhook"):
        ran = run_in(image, tmp_path, command, "--help")
        assert ran.returncode == 0, ran.stderr
        assert f"usage: topodns {command}" in ran.stdout


def test_it_answers_without_any_right(image: Image, tmp_path: Path) -> None:
    """Without root, without capabilities, and with a read-only root; it ends in order, as a kubelet stops it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "cluster.yaml").write_text(cluster_text(WEB_AND_MANY))
    shared.chmod(0o755)
    port = free_port()
    command = image.command(shared, "serve", "--snapshot=/mnt/cluster.yaml", f"--listen=127.0.0.1:{port}", "--http=off")
    with ready(command, tmp_path, name="container") as daemon:
        for ask in (dns.query.udp, dns.query.tcp):
            reply = ask(dns.message.make_query(WEB, "A"), "127.0.0.1", port=port, timeout=PATIENCE)
            assert {record.to_text() for record in reply.answer[0]} == {"10.0.0.1", "10.0.0.2"}
        proc = Path("/proc", str(daemon.process.pid))
        said, mounted = (proc / "status").read_text(), (proc / "mountinfo").read_text()
    status = {name: text.split() for name, text in re.findall(r"^(\w+):\t(.*)$", said, re.MULTILINE)}
    assert status["Uid"] == status["Gid"] == ["65532"] * 4
    assert status["Groups"] == []
    assert all(int(status[name][0], 16) == 0 for name in CAPABILITIES)
    assert status["NoNewPrivs"] == ["1"]
    mounts = [line.split() for line in mounted.splitlines()]
    assert {mount[4]: mount[5].split(",")[0] for mount in mounts}["/"] == "ro"


def test_the_command_of_the_page_for_containers(image: Image, tmp_path: Path) -> None:
    """``docker run`` of ``docs/install.md`` publishes the port that it listens on, and mounts what it serves."""
    (command,) = (
        shlex.split(entry.command)
        for entry in commands((ROOT / "docs" / "install.md").read_text())
        if entry.command.startswith("docker run ")
    )
    name = command.index(f"topodns:{__version__}")
    docker, arguments, port = command[:name], command[name + 1 :], free_port()
    assert docker.count("-p") == 2 and {"1053:1053/udp", "1053:1053/tcp"} < {*docker}
    assert "0.0.0.0:1053" in arguments
    (source, target) = re.findall(r"\$PWD/(\S+):(\S+):ro", " ".join(docker))[0]
    run = image.command(
        tmp_path,
        *(word.replace(":1053", f":{port}") for word in arguments),
        mounts={target: ROOT / source},
        env=["TOPODNS_HTTP=off"],
    )
    with ready(run, tmp_path, name="container"):
        asked = dns.message.make_query("memcached.shop.svc.cluster.local", "A")
        assert len(dns.query.udp(asked, "127.0.0.1", port=port, timeout=PATIENCE).answer[0]) > 1


PLUGIN = """
import json
status = {"token": TOKEN}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""
BY_PLUGIN = {
    "exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "python3",
        "args": ["-c", PLUGIN.replace("TOKEN", repr(TOKEN))],
        "interactiveMode": "Never",
    }
}
KUBERNETES = "kubernetes.default.svc.cluster.local"  # the Service that every cluster has


def live(folder: Path, plane: ControlPlane, user: Mapping[str, object]) -> Path:
    """Return a folder for the container, with a kubeconfig of the control plane."""
    cluster = yaml.safe_load(plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    shared = folder / "shared"
    shared.mkdir()
    shutil.copy(cluster["certificate-authority"], shared / "authority.crt")
    # By its file: the client would write what stands in the kubeconfig itself into a temporary one, and here is none.
    config = config_of(cluster["server"], {"certificate-authority": "authority.crt"}, **user)
    (shared / "kubeconfig").write_text(yaml.safe_dump(config))
    shared.chmod(0o755)
    return shared


def test_a_container_asks_a_live_cluster(image: Image, tmp_path: Path, control_plane: ControlPlane) -> None:
    """The image's Kubernetes client can read a cluster with credentials by a plugin."""
    shared = live(tmp_path, control_plane, BY_PLUGIN)
    ran = run_in(image, shared, "explain", KUBERNETES, "--client=192.0.2.1", "--kubeconfig=/mnt/kubeconfig")
    assert ran.returncode == 0, ran.stderr
    assert "10.96.0.1" in ran.stdout


@pytest.mark.parametrize("user", ["", "1000669999:0"], ids=["its user", "as in OpenShift"])
def test_a_container_follows_a_live_cluster(
    image: Image, tmp_path: Path, control_plane: ControlPlane, user: str
) -> None:
    """``serve`` in the image watches, answers, serves its metrics, and keeps what it knows in an emptyDir.

    So it does as a user whom the image does not know.
    """
    shared, state = live(tmp_path, control_plane, {"token": TOKEN}), tmp_path / "state"
    port, http = free_port(), free_port()
    state.mkdir()
    state.chmod(0o777)  # as the kubelet makes one
    flags = ("--kubeconfig=/mnt/kubeconfig", f"--listen=127.0.0.1:{port}", f"--http=127.0.0.1:{http}")
    mounts = {"/var/lib/topodns": state}
    run = image.command(shared, "serve", *flags, "--state-dir=/var/lib/topodns", mounts=mounts, user=user)
    with ready(run, tmp_path, name="container"):
        reply = dns.query.udp(dns.message.make_query(KUBERNETES, "A"), "127.0.0.1", port=port, timeout=PATIENCE)
        assert [record.to_text() for record in reply.answer[0]] == ["10.96.0.1"]
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=PATIENCE) as metrics:
            assert b'topodns_synced{kind="Service"} 1.0' in metrics.read()
    wanted = (user or image.config["User"]).partition(":")[0]
    assert {str(path.stat().st_uid) for path in state.iterdir()} == {wanted}


# -- as the page installs it

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # where pods have their token


def test_the_page_builds_what_it_installs() -> None:
    """What is built, loaded, and applied by kubectl or by Helm has one name: with the version of topodns as its tag."""
    tag = f"topodns:{__version__}"
    build, load, apply, _ = (entry.command for entry in INSTALLED)
    assert build == f"docker build -t {tag} ."
    assert f"docker.io/library/{tag}" == BUILT, "what every runtime means by a name without a registry"
    assert load == f"kind load docker-image {tag}"
    assert apply == "kubectl apply -k manifests/overlays/coredns-stub"
    assert INSTALLED[2].comment == "or: helm install topodns manifests/chart -n topodns --create-namespace"
    for objects in (objects_of("coredns-stub"), helm.rendered({})):
        assert [container_of(item)["image"] for item in objects if item["kind"] == "Deployment"] == [tag]


@pytest.fixture
def applied(control_plane: ControlPlane) -> Iterator[list[dict[str, Any]]]:
    """Apply what docs/install.md applies; return the pods that the controllers make of it."""
    control_plane.settle()
    overlay = str(ROOT / INSTALLED[2].command.split()[-1])
    control_plane.kubectl("apply", "-k", overlay)
    replicas = object_of("coredns-stub", "Deployment", SERVER)["spec"]["replicas"]
    until(lambda: len(control_plane.api.items("Pod", NAMESPACE)) == replicas, f"{replicas} pods")
    yield [{**pod, "kind": "Pod"} for pod in control_plane.api.items("Pod", NAMESPACE)]
    control_plane.kubectl("delete", "-k", overlay)


def test_the_page_is_followed_until_topodns_answers(
    image: Image, applied: list[dict[str, Any]], control_plane: ControlPlane, tmp_path: Path
) -> None:
    """The image that was built runs with the arguments, folders and rights of a pod that was applied.

    There is no kubelet: the test mounts the folders and the token, reports that pods are ready, and forwards the port.
    """
    spec = applied[0]["spec"]
    (container,) = spec["containers"]
    account, port = tmp_path / "account", free_port()
    account.mkdir()
    (account / "token").write_text(control_plane.token(NAMESPACE, spec["serviceAccountName"]))
    (account / "namespace").write_text(NAMESPACE)
    cluster = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    shutil.copy(cluster["certificate-authority"], account / "ca.crt")
    mounts = {ACCOUNT: account}
    for mount in container["volumeMounts"]:
        mounts[mount["mountPath"]] = folder = tmp_path / mount["name"]
        folder.mkdir()
        shutil.chown(folder, spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"])
    env = (
        "KUBERNETES_SERVICE_HOST=127.0.0.1",
        f"KUBERNETES_SERVICE_PORT={control_plane.port}",
        f"TOPODNS_LISTEN=127.0.0.1:{port}",
        "TOPODNS_HTTP=127.0.0.1:0",
        "TOPODNS_SHUTDOWN_DELAY=0",
    )
    with ready(image.command(tmp_path, *container["args"], mounts=mounts, env=env), tmp_path, name="pod"):
        for pod in applied:
            control_plane.api.patch_status(pod, {"conditions": [{"type": "Ready", "status": "True"}]})
        control_plane.kubectl(*INSTALLED[3].command.split()[1:])  # waits until the rollout is complete
        forward, dig = ASKED
        assert forward.command == f"kubectl -n {NAMESPACE} port-forward deployment/{SERVER} 1053"
        command = dig.command.replace(" 1053 ", f" {port} ").split()
        said = subprocess.run([needs_tool(command[0]), *command[1:]], capture_output=True, text=True, check=True)
        assert said.stdout == dig.output
