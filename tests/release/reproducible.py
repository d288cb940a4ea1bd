# SPDX-License-Identifier: Apache-2.0

"""``make reproducible``: two clones make one release, and what is in it works.

``make test`` leaves it out: it takes minutes. The image has bases of this machine's files. The addresses are examples.
"""

from __future__ import annotations

import email
import hashlib
import json
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import dns.message
import dns.query
import pytest
import yaml
from packaging.metadata import Metadata

from dnsserver import __version__
from tests.kit import helm
from tests.kit.container import needs_mounts
from tests.kit.files import copy_of_the_project
from tests.kit.in_memory import cluster_text
from tests.kit.made_once import CACHE
from tests.kit.programs import environment, ready
from tests.kit.small_cluster import WEB, WEB_AND_MANY
from tests.kit.this_machine import ROOT, free_port, needs_tool
from tests.kit.waiting import PATIENCE
from tests.release.releasable import SET, releasable
from tests.release.release import SUMS

FOLDERS = ("one", "another/longer")  # where the two clones are
IMAGE = f"{SET.image}:{__version__}"


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """What ``make release`` makes in two clones, at a time, with the Go programs that were built here before."""
    for tool in ("buildah", "cargo", "git", "go"):
        needs_tool(tool)
    needs_mounts()
    CACHE.mkdir(exist_ok=True)
    clones = [tmp_path_factory.mktemp("clone") / folder for folder in FOLDERS]
    for clone in clones:
        copy_of_the_project(clone).joinpath(".cache").symlink_to(CACHE)
        releasable(clone)
    command = (sys.executable, "-m", "tests.release.release", "--base", "machine")
    with ExitStack() as stack:
        running = [
            stack.enter_context(Popen(command, cwd=clone, text=True, stdout=PIPE, stderr=PIPE)) for clone in clones
        ]
        for made, clone in zip(running, clones, strict=True):
            out, err = made.communicate()
            assert made.returncode == 0, out + err
            assert out == (clone / "dist" / SUMS).read_text()
    return [clone / "dist" for clone in clones]


@pytest.fixture
def dist(releases: Sequence[Path]) -> Path:
    """A release."""
    return releases[0]


def test_two_clones_make_one_release(releases: Sequence[Path]) -> None:
    """Whoever makes it again gets the same octets: the checksums of one are those of the other."""
    first, second = ((dist / SUMS).read_text() for dist in releases)
    assert first == second


def test_it_has_these_files(dist: Path) -> None:
    """Each with its checksum, as sha256sum reads them."""
    (wheel,) = (path.name for path in dist.glob("*.whl"))
    assert wheel.startswith(f"topodns-{__version__}-cp311-abi3-manylinux_2_")
    version = f"topodns-{__version__}"
    endings = ("cdx.json", "oci.tar", "tar.gz", "tgz")
    names = {*(f"{version}.{ending}" for ending in endings), "install.yaml", "topodns.1", wheel}
    assert {path.name for path in dist.iterdir()} == {*names, SUMS}
    sums = dict(reversed(line.split("  ")) for line in (dist / SUMS).read_text().splitlines())
    assert sums == {name: hashlib.sha256((dist / name).read_bytes()).hexdigest() for name in names}


def metadata_of(wheel: zipfile.ZipFile) -> str:
    return wheel.read(f"topodns-{__version__}.dist-info/METADATA").decode()


@pytest.fixture
def wheel(dist: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel."""
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_the_wheel_has_the_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """All their files, as this repository has them, and the native code."""
    kept = [ROOT / name for name in ("dnsserver", "locator")]
    ours = {path.relative_to(ROOT) for folder in kept for path in folder.rglob("*") if path.is_file()}
    ours = {path for path in ours if path.suffix not in (".pyc", ".so")} | {Path("dnsserver/net/native.abi3.so")}
    info = f"topodns-{__version__}.dist-info"
    found = {Path(name) for name in wheel.namelist() if not name.endswith("/")}
    assert {path for path in found if path.parts[0] != info} == ours
    assert {Path("dnsserver/py.typed"), Path("locator/py.typed")} <= ours


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    """Its metadata is valid, and has the addresses; its page on PyPI needs no other page of this repository."""
    text = metadata_of(wheel)
    said = Metadata.from_email(text.encode(), validate=True)
    assert (str(said.version), said.license_expression) == (__version__, "Apache-2.0")
    assert said.project_urls == {"Homepage": SET.home, "Source": SET.source, "Documentation": SET.documentation}
    assert said.description_content_type == "text/markdown"
    assert "](docs/" not in email.message_from_string(text).get_payload()
    assert not said.provides_extra


def test_the_sdist_makes_that_wheel(dist: Path, wheel: zipfile.ZipFile) -> None:
    """It has all that the wheel has but compiled code, what compiles that, and no tests."""
    with tarfile.open(dist / f"topodns-{__version__}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    built = {name for name in wheel.namelist() if name.startswith(("dnsserver/", "locator/")) and name[-1] != "/"}
    assert built - names == {"dnsserver/net/native.abi3.so"}
    assert {"LICENSE", "README.md", "native/crates.lock", "native/lock.sh", "native/src/lib.rs", "setup.py"} <= names
    assert not [name for name in names if name.startswith(("tests", "bench", "examples"))]


@pytest.fixture(scope="module")
def topodns(releases: Sequence[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``topodns`` in a fresh virtual environment, which has nothing but the wheel; libraries come from elsewhere."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    (wheel,) = releases[0].glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin" / "python"))
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    return folder / "bin" / "topodns"


LIBRARIES = {"PYTHONPATH": sysconfig.get_path("purelib")}


def test_the_installed_wheel_answers(topodns: Path, tmp_path: Path) -> None:
    """It is complete: the program, its native code, and a real query."""
    env = environment(LIBRARIES)
    said = subprocess.run(
        [topodns, "version"], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert said.splitlines()[0] == f"topodns {__version__}"
    assert said.splitlines()[-1] == f"native code {__version__}"
    (tmp_path / "cluster.yaml").write_text(cluster_text(WEB_AND_MANY))
    port = free_port()
    command = [str(topodns), "serve", "--snapshot=cluster.yaml", f"--listen=127.0.0.1:{port}", "--http=off"]
    with ready(command, tmp_path, name="serve", env=env):
        reply = dns.query.udp(dns.message.make_query(WEB, "A"), "127.0.0.1", port=port, timeout=PATIENCE)
        assert {record.to_text() for record in reply.answer[0]} == {"10.0.0.1", "10.0.0.2"}


def test_who_imports_it_sees_its_types(topodns: Path, tmp_path: Path) -> None:
    """A type checker reads those of the installed packages, which ``py.typed`` allows."""
    (tmp_path / "uses.py").write_text(
        "from dnsserver import __version__\nfrom locator.model import Node\nreveal_type((__version__, Node))\n"
    )
    command = (sys.executable, "-m", "mypy", "--python-executable", str(topodns.parent / "python"), "uses.py")
    env = environment({"MYPYPATH": ""})
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "locator.model.Node" in ran.stdout


def test_the_chart_installs_the_image(dist: Path) -> None:
    """Of this version, from the registry; and it is the same chart as here otherwise."""
    chart = dist / f"topodns-{__version__}.tgz"
    objects = helm.rendered(helm.EVERYTHING, chart=chart)
    assert images_of(objects) == {IMAGE}
    elsewhere = {**helm.EVERYTHING, "image": {"repository": SET.image}, "metrics": {**helm.ON, "rules": False}}
    assert helm.rendered(elsewhere, chart=chart) == helm.rendered(elsewhere)
    about = yaml.safe_load(helm.run("show", "chart", str(chart)))
    assert (about["version"], about["home"], about["sources"]) == (__version__, SET.home, [SET.source])


def test_the_manifest_installs_the_image(dist: Path) -> None:
    """Of this version, from the registry, for Pods of each kind."""
    objects = [item for item in yaml.safe_load_all((dist / "install.yaml").read_text()) if item]
    assert {"Namespace", "Deployment", "Service", "CustomResourceDefinition"} <= {item["kind"] for item in objects}
    assert images_of(objects) == {IMAGE}


def images_of(objects: Any) -> set[str]:
    """Return the images of all containers."""
    if isinstance(objects, list):
        return set().union(*map(images_of, objects))
    if not isinstance(objects, Mapping):
        return set()
    found = {objects["image"]} if isinstance(objects.get("image"), str) else set()
    return found.union(*map(images_of, objects.values()))


def test_the_image_says_where_it_comes_from(dist: Path) -> None:
    """By its name in the layout, and by labels."""
    with tarfile.open(dist / f"topodns-{__version__}.oci.tar") as layout:

        def read(digest: str) -> Any:
            file = layout.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert file is not None
            return json.load(file)

        index = layout.extractfile("index.json")
        assert index is not None
        (image,) = json.load(index)["manifests"]
        config = read(read(image["digest"])["config"]["digest"])
    assert image["annotations"] == {"org.opencontainers.image.ref.name": IMAGE}
    said = {key.rpartition(".")[2]: value for key, value in config["config"]["Labels"].items()}
    assert len(said.pop("revision")) == 40
    assert (
        said.items()
        >= {
            "documentation": SET.documentation,
            "licenses": "Apache-2.0",
            "source": SET.source,
            "title": "topodns",
            "url": SET.home,
            "version": __version__,
        }.items()
    )


def test_the_bill_of_materials_is_that_of_the_release(dist: Path) -> None:
    """Its subject is this version, and has the addresses."""
    subject = json.loads((dist / f"topodns-{__version__}.cdx.json").read_text())["metadata"]["component"]
    assert (subject["name"], subject["version"]) == ("topodns", __version__)
    assert {SET.home, SET.source, SET.documentation} <= {link["url"] for link in subject["externalReferences"]}
