# SPDX-License-Identifier: Apache-2.0

"""Go programs that tests build once and keep in ``.cache/``.

Without ``go``, ``this_machine.needs_tool`` skips the test, or fails it in CI.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.kit.made_once import made_once
from tests.kit.programs import tail
from tests.kit.this_machine import lacking, needs_tool

BUILDING = 3600.0  # seconds that a build may take; the control plane takes 5 minutes on two cores

GO = (1, 26)  # as in controlplane/go.mod
KUBERNETES = "v1.36.3"  # as in controlplane/go.mod and kubeproxy/go.mod
COREDNS = "v1.14.7"
EXTERNAL_DNS = "v0.21.0"  # v0.22.0 needs modules that not every proxy has
HELM = "v4.3.1"
MCS_API = "v0.5.2"  # as in CoreDNS' go.mod
PROMETHEUS = "v0.316.0"
PROMETHEUS_OPERATOR = "v0.85.0"
# Lines of external-dns that name a provider other than CoreDNS'.
_OTHER_PROVIDER = re.compile(
    r'^\t(?:"sigs\.k8s\.io/external-dns/provider/(?!coredns")\w+"|\t\w+\.Provider\w+: +(?!coredns\.)\w+\.\w+,)\n', re.M
)
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "private-key")

_VERSION = " ".join(
    f"-X {package}.gitVersion={KUBERNETES}"
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
)


class BuildError(Exception):
    """A program cannot be built; the text ends with the compiler's output."""


def control_plane() -> Path:
    """Return the folder that holds etcd, kube-apiserver, kube-controller-manager and kubectl."""
    source = Path(__file__).parent / "controlplane"

    def build(go: str, folder: Path) -> None:
        program = folder / "controlplane"
        command = (go, "build", "-trimpath", "-ldflags", f"-s -w {_VERSION}", "-o", str(program), ".")
        _compile(command, cwd=source)
        for name in CONTROL_PLANE:
            (folder / name).symlink_to(program.name)

    return _built("controlplane", [path.read_bytes() for path in sorted(source.iterdir())], build)


def kube_proxy() -> Path:
    """Return the path of a program that chooses endpoints as kube-proxy does (``oracle.kube_proxy``)."""
    return _module("kubeproxy", ".")


def etcdutl() -> Path:
    """Return the path of etcdutl, which restores a snapshot of etcd."""
    # Its module only names this package: ``go install`` refuses the go.mod that etcdutl has.
    return _module("etcdutl", "go.etcd.io/etcd/etcdutl/v3")


def coredns() -> Path:
    """Return the path of CoreDNS."""
    return _installed("github.com/coredns/coredns", COREDNS)


def external_dns() -> Path:
    """Return the path of external-dns with CoreDNS' provider alone: those of all clouds take minutes and 2 GB."""

    def build(go: str, folder: Path) -> None:
        source = folder / "source"
        shutil.copytree(_downloaded(go, "sigs.k8s.io/external-dns", EXTERNAL_DNS, folder), source)
        subprocess.run(["chmod", "-R", "u+w", source], check=True)  # the copy of a module is read-only, too
        providers = source / "provider" / "factory" / "provider.go"
        providers.write_text(_OTHER_PROVIDER.sub("", providers.read_text()))
        _compile((go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(folder / "external-dns"), "."), cwd=source)
        shutil.rmtree(source)

    return _built("external-dns", [EXTERNAL_DNS.encode(), _OTHER_PROVIDER.pattern.encode()], build) / "external-dns"


def helm() -> Path:
    """Return the path of Helm."""
    return _installed("helm.sh/helm/v4/cmd/helm", HELM)


def promtool() -> Path:
    """Return the path of promtool, which checks rules and metrics. It is built without service discovery."""
    return _installed("github.com/prometheus/prometheus/cmd/promtool", PROMETHEUS, "-tags", "remove_all_sd")


def mcs_crds() -> Path:
    """Return the folder that holds the CRDs of the Multi-Cluster Services API (KEP-1645)."""
    return _fetched("mcs-crds", "sigs.k8s.io/mcs-api", MCS_API, "config/crd")


def dns_endpoints_crd() -> Path:
    """Return the CRD of DNSEndpoints, of external-dns."""
    fetched = _fetched("dns-endpoints-crd", "sigs.k8s.io/external-dns", EXTERNAL_DNS, "config/crd/standard")
    return fetched / "dnsendpoints.externaldns.k8s.io.yaml"


def monitoring_crds() -> Path:
    """Return the folder that holds the CRDs of the Prometheus Operator."""
    module = "github.com/prometheus-operator/prometheus-operator"
    return _fetched("monitoring-crds", module, PROMETHEUS_OPERATOR, "example/prometheus-operator-crd")


def _installed(package: str, version: str, *flags: str) -> Path:
    """Return the path of the program that ``go install`` makes of a package."""
    name = package.rpartition("/")[2]

    def build(go: str, folder: Path) -> None:
        command = (go, "install", "-ldflags", "-s -w", *flags, f"{package}@{version}")
        _compile(command, cwd=folder, env={"GOBIN": str(folder)})

    return _built(name, [version.encode()], build) / name


def _module(name: str, package: str) -> Path:
    """Return the path of the program that is made of a *package* by the module in the folder *name*."""
    source = Path(__file__).parent / name

    def build(go: str, folder: Path) -> None:
        _compile((go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(folder / name), package), cwd=source)

    return _built(name, [path.read_bytes() for path in sorted(source.iterdir())], build) / name


def _fetched(name: str, module: str, version: str, where: str) -> Path:
    """Return a folder with the YAML files of a folder of a module."""

    def fetch(go: str, folder: Path) -> None:
        for file in (_downloaded(go, module, version, folder) / where).glob("*.yaml"):
            (folder / file.name).write_bytes(file.read_bytes())

    return _built(name, [version.encode()], fetch)


def _downloaded(go: str, module: str, version: str, folder: Path) -> Path:
    """Return the folder with the source of a module. Nobody may write there."""
    downloaded = json.loads(_compile((go, "mod", "download", "-json", f"{module}@{version}"), cwd=folder))
    return Path(downloaded["Dir"])


def _built(name: str, inputs: Sequence[bytes], build: Callable[[str, Path], None]) -> Path:
    """Return the folder that *build* fills from *inputs* with this machine's Go, now or earlier."""
    go = needs_tool("go")
    version = subprocess.run([go, "version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < GO:
        lacking(f"{version.strip()} is too old, {'.'.join(map(str, GO))} is needed")
    return made_once(name, [version.encode(), *inputs], lambda folder: build(go, folder))


def _compile(command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run Go, and return its standard output."""
    settings = {**os.environ, "GOWORK": "off", **(env or {})}
    done = subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=BUILDING, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}: exit status {done.returncode}\n{tail(done.stdout + done.stderr)}")
    return done.stdout
