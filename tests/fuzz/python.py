# SPDX-License-Identifier: Apache-2.0

"""The half of ``make fuzz`` that follows Python's paths: libFuzzer with the responder, as a program of its own."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["dnsserver", "locator"]):
    from tests.fuzz.inputs import Target


def main() -> None:
    """Obey libFuzzer's arguments, of which the first is a program that does the same. Ends the process."""
    atheris.Setup(sys.argv[1:], Target())
    atheris.Fuzz()


if __name__ == "__main__":
    main()
