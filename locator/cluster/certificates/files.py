# SPDX-License-Identifier: Apache-2.0

"""A certificate and its key from files (``--tls-cert``, ``--tls-key``), read again when they change."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import trio

from locator.cluster.certificates.issuing import BadCertificate, Pair
from locator.cluster.certificates.serving import ServingCertificate
from locator.model import Health

log = logging.getLogger("topodns")

LOOK_SECONDS = 1.0  # between two looks at the files; looking costs two system calls

Signature = tuple[tuple[int, int, int], ...]


class CertificateFiles:
    """Gives the pair in two files to *serving*, and each later one."""

    def __init__(self, certificate: str, key: str, serving: ServingCertificate) -> None:
        self._paths = Path(certificate), Path(key)
        self._serving = serving
        self._signature: Signature | None = None

    def load(self) -> None:
        """Read the files. Raises BadCertificate, whose text begins with the file's name."""
        self._signature = self._look()
        certificate, key = map(_content, self._paths)
        try:
            self._serving.use(Pair(certificate, key))
        except BadCertificate as error:
            raise BadCertificate(f"{self._paths[0]}, {self._paths[1]}: {error}") from None

    async def run(self) -> None:
        """Read the files again when they change, for ever. Keeps the last pair if the new one cannot be used."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            if self._look() == self._signature:
                continue
            try:
                self.load()
                log.info("%s: read again", self._paths[0])
            except BadCertificate as error:
                log.warning("%s; keeping the previous certificate", error)

    def health(self) -> Health:
        """Return whether API servers would accept the certificate now, as far as its dates go."""
        problem = self._serving.problem(time.time())
        return Health(not problem, problem or "ok")

    def _look(self) -> Signature | None:
        try:
            return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in map(os.stat, self._paths))
        except OSError:
            return None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadCertificate(f"{path}: {error.strerror}, expected a file in PEM") from None
