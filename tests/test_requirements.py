"""What topodns is made of: each library is pinned by its hashes, and a bill of materials names it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import audit, bill_of_materials
from tests.requirements import CONSTRAINTS, REQUIREMENTS, in_the_image, pins
from tests.this_machine import ROOT, needs_tool

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUNTIME = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
EVERYTHING = [*RUNTIME, *(line for extra in PROJECT["project"]["optional-dependencies"].values() for line in extra)]


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


def test_both_files_agree() -> None:
    """Developers have what users have."""
    assert {(pin.name, pin.version, pin.hashes) for pin in pins(REQUIREMENTS)} <= {
        (pin.name, pin.version, pin.hashes) for pin in pins(CONSTRAINTS)
    }


def test_the_bill_of_materials() -> None:
    """It is valid CycloneDX, and names what the image has: libraries and crates."""
    needs_tool("cargo")
    text = bill_of_materials.document()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    named = {component["purl"].partition("@")[0] for component in json.loads(text)["components"]}
    assert {f"pkg:pypi/{pin.name}" for pin in in_the_image()} | {"pkg:cargo/pyo3", "pkg:cargo/libc"} <= named


VULNERABLE = {"id": "PYSEC-1", "fix_versions": ["2"], "description": "bad"}


def audited(**said: object) -> str:
    """Return what pip-audit prints about one library."""
    return json.dumps({"dependencies": [{"name": "a", "version": "1", **said}]})


AUDITS = [
    # id, what pip-audit prints to standard output and error, the status, the last line
    ("fine", audited(vulns=[]), "", 0, "1 of 1 libraries audited"),
    ("vulnerable", audited(vulns=[VULNERABLE]), "", 1, "a 1: PYSEC-1, mended in 2: bad"),
    ("no database", audited(skip_reason="not found"), "", 0, "the database has none of them"),
    ("no network", "", "Traceback\nConnectionError: no route", 0, "not audited: ConnectionError: no route"),
]


@pytest.mark.parametrize(("out", "err", "status", "line"), [row[1:] for row in AUDITS], ids=[row[0] for row in AUDITS])
def test_an_audit(
    out: str, err: str, status: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A known vulnerability fails; what cannot be asked is said, and fails nothing."""
    done = SimpleNamespace(stdout=out, stderr=err)
    monkeypatch.setattr(audit, "subprocess", SimpleNamespace(run=lambda *command, **options: done))
    assert audit.main() == status
    assert line in capsys.readouterr().out
