# SPDX-License-Identifier: Apache-2.0

"""Plays the day on a real server: brings it from moment to moment, at any pace."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from examples.demo import cluster
from examples.demo.asking import Asker
from examples.demo.crowd import crowd
from examples.demo.day import DAY, Moment, queries
from examples.demo.server import Server, ServerError

ANY_PORT = "127.0.0.1:0"
SEEN = 20.0  # seconds until the server must have read a dump that changed; it takes half of one
PAUSE = 0.02  # seconds between two looks at what the server has read
TOPOLOGY = f"/api/v1/topology?keys={cluster.ZONE}"


def example() -> list[cluster.Item]:
    """Return the objects of the example cluster with a crowd in it."""
    return [*cluster.example(), *crowd()]


class Stage:
    """A server of the example cluster with a crowd, on which moments are played."""

    def __init__(self, server: Server, path: Path) -> None:
        """Use a *server* of the dump at *path*, which is the ``example`` as yet."""
        self.server = server
        self._path = path
        self._example = example()
        self._ready = cluster.ready_by_zone(self._example)
        self._clients = cluster.clients(self._example)
        self._asker = Asker(server.dns)

    def reach(self, name: str) -> None:
        """Play the day up to the end of the moment of this name, without any pause."""
        names = [moment.name for moment in DAY]
        for moment in DAY[: names.index(name) + 1]:
            self.play(moment, pace=0.0)

    def play(self, moment: Moment, *, pace: float = 1.0, most: int | None = None) -> None:
        """Bring the cluster into a moment's state, and ask what is asked in it. Raises ServerError.

        A second of the day takes *pace* seconds; with 0.0, each query follows the last reply. *most* is how many
        queries are asked at most.
        """
        try:
            self._change(moment)
            began = time.monotonic()
            for due, query in islice(queries(moment, self._clients), most):
                wait = began + due * pace - time.monotonic()
                if pace and wait > 0:
                    time.sleep(wait)
                self._asker.ask(query)
        except OSError as error:
            raise ServerError(f"topodns no longer answers: {error}") from error

    def close(self) -> None:
        """Stop asking, for good."""
        self._asker.close()

    def _change(self, moment: Moment) -> None:
        """Write the dump of a moment, and wait until the server answers from it."""
        items = cluster.changed(self._example, lost=moment.lost, ready=moment.ready)
        ready = cluster.ready_by_zone(items)
        if ready == self._ready:
            return
        cluster.write(items, self._path)
        self._ready = ready
        self.server.read_again()
        deadline = time.monotonic() + SEEN
        while self._seen() != ready:
            if time.monotonic() > deadline:
                raise ServerError(f"topodns did not read {self._path} again")
            time.sleep(PAUSE)

    def _seen(self) -> dict[str, int]:
        """Return how many endpoints of each zone are ready as far as the server knows."""
        domains = self.server.get_json(TOPOLOGY)["domains"]
        return {domain["value"]: domain["endpoints"] for domain in domains if domain["value"] is not None}


@contextmanager
def staged(*, listen: str = ANY_PORT, http: str = ANY_PORT) -> Iterator[Stage]:
    """Run a server of the example cluster with a crowd until the block ends. Raises ServerError."""
    with tempfile.TemporaryDirectory(prefix="topodns-demo-") as folder:
        path = Path(folder, "cluster.yaml")
        cluster.write(example(), path)
        server = Server(path, listen=listen, http=http)
        try:
            stage = Stage(server, path)
            try:
                yield stage
            finally:
                stage.close()
        finally:
            server.end()
