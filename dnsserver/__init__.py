"""Names, messages and servers: answers DNS queries from what ``locator`` knows."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("topodns")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
