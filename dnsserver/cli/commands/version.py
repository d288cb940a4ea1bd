# SPDX-License-Identifier: Apache-2.0

"""``topodns version``: prints the versions that a bug report should name."""

from __future__ import annotations

import platform
from argparse import Namespace
from importlib.metadata import version

from dnsserver import __version__
from dnsserver.cli.errors import EXIT_DONE, PRINTING_STATUSES
from dnsserver.cli.output import write
from dnsserver.cli.parser import CommandParser, Example

EXAMPLES = (Example("What a bug report should name:", "topodns version"),)
STATUSES = PRINTING_STATUSES
LIBRARIES = (
    *("dnslib", "trio", "kubernetes", "msgspec", "cachetools", "cryptography"),
    *("PyYAML", "h11", "starlette", "Jinja2", "prometheus-client"),
)


def add_arguments(parser: CommandParser) -> None:
    """Add none: ``version`` takes no arguments."""


def run(_: Namespace) -> int:
    """Print the versions."""
    write(versions())
    return EXIT_DONE


def versions() -> str:
    """Return a line with the version of each: topodns, Python, the libraries and the native code."""
    lines = [f"topodns {__version__}", f"python {platform.python_version()}"]
    lines += [f"{library} {version(library)}" for library in LIBRARIES]
    lines.append(f"native code {_native_version()}")
    return "".join(f"{line}\n" for line in lines)


def _native_version() -> str:
    """Return the version of the native code, which repeats remembered answers, or why it is not used."""
    try:
        import dnsserver.net.native as native
    except ModuleNotFoundError:
        return "not installed"
    except ImportError as error:
        return f"not used: {error}"
    return native.VERSION if __version__ == native.VERSION else f"{native.VERSION}, not used: expected {__version__}"
