"""A real CoreDNS beside us, fed by a real API server."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests import tools
from tests.tools import Daemon, free_port


class CoreDNS(NamedTuple):
    """A running CoreDNS at ``127.0.0.1``, for both UDP and TCP."""

    port: int
    daemon: Daemon


@contextmanager
def running_coredns(folder: Path, block: str, *, name: str = "coredns") -> Iterator[CoreDNS]:
    """Run CoreDNS with the plugins of *block* on the wildcard address, from when it is ready until the block ends.

    Raises ``tools.NotReadyError`` with what it printed if it does not become ready.
    """
    program = tools.coredns()
    port, ready = free_port(address="0.0.0.0"), free_port()
    corefile = folder / f"{name}.Corefile"
    corefile.write_text(f".:{port} {{\nerrors\nready 127.0.0.1:{ready}\n{block}\n}}\n")
    daemon = Daemon.start([str(program), "-conf", str(corefile)], folder, name=name)
    try:
        daemon.until(lambda: _is_ready(ready))
        yield CoreDNS(port, daemon)
    finally:
        daemon.end()


def kubernetes_block(kubeconfig: Path, *options: str, zones: Sequence[str]) -> str:
    """Return the block of the plugin ``kubernetes`` for *zones*, with its options."""
    lines = [f"kubeconfig {kubeconfig}", *options]
    return f"kubernetes {' '.join(zones)} {{\n" + "\n".join(lines) + "\n}"


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
