# SPDX-License-Identifier: Apache-2.0

"""Prints what the image is made of, as CycloneDX: ``make sbom``."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from dnsserver import __version__
from tests.kit.requirements import crates, in_the_image
from tests.kit.this_machine import ROOT

CYCLONEDX = (sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible", "--short-PURLs")


def document() -> str:
    """Return the bill: the Python libraries, with their hashes, and the crates of the native code."""
    pinned = "".join(pin.lines for pin in in_the_image())
    command = (*CYCLONEDX, "--pyproject", str(ROOT / "pyproject.toml"), "-")
    bill = json.loads(subprocess.run(command, input=pinned, capture_output=True, text=True, check=True).stdout)
    bill["metadata"]["component"]["version"] = __version__  # pyproject.toml takes it from the code
    bill["components"] += components()
    return json.dumps(bill, indent=2) + "\n"


def components() -> list[dict[str, Any]]:
    """Return the crates from which cargo builds the native code, with their hashes."""
    native = ROOT / "native"
    subprocess.run([native / "lock.sh"], check=True)
    command = ("cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", str(native / "Cargo.toml"))
    packages = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["packages"]
    checksums = {(crate.name, crate.version): crate.checksum for crate in crates()}
    return [
        {
            "type": "library",
            "bom-ref": f"crate:{package['name']}@{package['version']}",
            "name": package["name"],
            "version": package["version"],
            "purl": f"pkg:cargo/{package['name']}@{package['version']}",
            "hashes": [{"alg": "SHA-256", "content": checksums[package["name"], package["version"]]}],
            **({"licenses": [{"expression": package["license"].replace("/", " OR ")}]} if package["license"] else {}),
        }
        for package in packages
        if package["source"] is not None  # else it is our own
    ]


if __name__ == "__main__":
    print(document(), end="")
