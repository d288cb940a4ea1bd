# SPDX-License-Identifier: Apache-2.0

"""Builds images with buildah, without a registry.

The base images are made of this machine's files: those of Python's Debian packages, and the certificates and settings
by which pip reaches its index from here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.kit import go_programs, programs
from tests.kit.this_machine import lacking, needs_tool

BUILDING = 1800.0  # seconds; some forty if the libraries download fast, and nothing else runs
# What the Dockerfile asks of its base: Python with venv, sh, rm, cp; and of the image that builds the native code.
PACKAGES = ("python3-venv", "dash", "coreutils")
RUST_PACKAGES = ("gcc", "libc6-dev", "dash", "coreutils", "sed")
PIP = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
LINKS = ("/bin", "/sbin", "/lib", "/lib64")  # links into /usr on many machines


class Buildah:
    """buildah, with images of its own, which it keeps in a folder."""

    def __init__(self, folder: Path) -> None:
        """Skips the test if this machine has no buildah."""
        self._folder = folder
        self._command = (
            needs_tool("buildah"),
            *("--root", str(folder / "storage"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"),
        )

    def build(self, tag: str, source: Path, *arguments: str, date: int = 0) -> str:
        """Build a folder with a Dockerfile, and return the image's digest.

        Files and image get one *date*, in seconds since 1970, and nothing is taken from earlier builds, so that two
        builds are one.
        """
        build = ("bud", "--quiet", "--layers=false", f"--timestamp={date}", "--isolation", "chroot", "--tag", tag)
        return self.run(*build, *arguments, str(source)).strip()

    def bases_of_this_machine(self) -> Sequence[str]:
        """Build what takes the place of the Dockerfile's bases, and return the arguments of ``build`` that name it.

        Skips the test if this machine cannot build images.
        """
        needs_tool("dpkg-query")
        needs_mounts()
        cargo, homes = _cargo()
        settings_of_rust = {**homes, "PATH": f"{Path(cargo).parent}:/usr/sbin:/usr/bin:/sbin:/bin"}
        rust_packages = RUST_PACKAGES if homes else (*RUST_PACKAGES, _package_of(cargo))
        for name, packages, variables in (("base", PACKAGES, {}), ("rust", rust_packages, settings_of_rust)):
            root = self._folder / name
            _base(root, packages)
            if variables:
                (root / "usr/bin/cc").symlink_to("gcc")  # on a machine, update-alternatives makes it
            lines = ("FROM scratch", "COPY . /", *(f"ENV {key}={value}" for key, value in variables.items()))
            (self._folder / "Base").write_text("\n".join(lines))
            self.build(name, root, "--file", str(self._folder / "Base"))
            shutil.rmtree(root)
        mounts = (f"--volume={home}:{home}" for home in homes.values())
        return (*mounts, "--build-arg", "BASE=localhost/base", "--build-arg", "RUST=localhost/rust")

    def run(self, *arguments: str) -> str:
        """Return what a command prints. Raises BuildError."""
        command = [*self._command, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILDING, check=False)
        except subprocess.TimeoutExpired as error:
            raise go_programs.BuildError(str(error)) from None
        if done.returncode:
            raise go_programs.BuildError(f"{' '.join(command)}:\n{programs.tail(done.stdout + done.stderr)}")
        return done.stdout


def needs_mounts() -> None:
    """Skip the test if this machine cannot build images from bases of its own."""
    if subprocess.run([needs_tool("unshare"), "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this sandbox does not allow mounts, which building an image needs")


def _cargo() -> tuple[str, Mapping[str, Path]]:
    """Return the path of cargo, and the folders of a toolchain that is no Debian package, by the variables for them."""
    cargo = needs_tool("cargo")
    if Path(cargo).is_relative_to("/usr"):
        return os.path.realpath(cargo), {}
    rustup = Path(os.environ.get("RUSTUP_HOME", Path.home() / ".rustup"))
    return cargo, {"CARGO_HOME": Path(cargo).parent.parent, "RUSTUP_HOME": rustup}


def _package_of(path: str) -> str:
    """Return the package that a file belongs to."""
    found = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True, check=True).stdout
    return found.partition(":")[0]


def _base(root: Path, packages: Sequence[str]) -> None:
    """Copy the packages' files below *root*."""
    listed = subprocess.run(
        ["dpkg-query", "--listfiles", *_closure(packages)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    # A package may list /bin if that is a link to /usr/bin here.
    paths = {os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) for path in listed}
    for path in sorted({*paths, *PIP, *LINKS}):
        target = root / path.lstrip("/")
        if os.path.islink(path) or os.path.isfile(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=path in PIP)
    (root / "tmp").mkdir(mode=0o1777)


def _closure(packages: Iterable[str]) -> Sequence[str]:
    """Return *packages* and their installed dependencies; skip the test if a package is missing."""
    rows = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${Package}\t${Provides}\t${Pre-Depends},${Depends}\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    depends: dict[str, list[str]] = {}
    providers: dict[str, str] = {}
    for package, provides, needs in (row.split("\t") for row in rows):
        depends[package] = _names(needs)
        providers.update(dict.fromkeys(_names(provides), package))
    for package in packages:
        if package not in depends:
            lacking(f"the package {package} is not installed here")
    closure: set[str] = set()
    wanted = set(packages)
    while wanted:
        closure |= wanted
        needed = {providers.get(name, name) for package in wanted for name in depends[package]}
        wanted = needed & depends.keys() - closure
    return sorted(closure)


def _names(relation: str) -> list[str]:
    """Return the packages in a field such as ``Depends``, including alternatives."""
    return re.findall(r"(?:^|[,|])\s*([a-z0-9][-+.a-z0-9]*)", relation)
