# SPDX-License-Identifier: Apache-2.0

"""The certificate that new TLS connections get; it can be replaced while connections are open.

It may come from files (``--tls-cert``, ``--tls-key``), which are read again when they change.
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
import time
from pathlib import Path

import trio

from locator.cluster.certificates.issuing import BadCertificate, CertificateFacts, Pair, facts_of
from locator.cluster.file_version import version_of
from locator.model import Health
from locator.times import time_text

log = logging.getLogger("topodns")

LOOK_SECONDS = 1.0  # between two looks at the files; looking costs two system calls

Signature = tuple[tuple[int, ...], ...]


class ServingCertificate:
    """A TLS server's context, and the certificate in it. Without a certificate, every handshake fails."""

    def __init__(self) -> None:
        self.context = _context()
        """For listeners."""
        self.pair: Pair | None = None
        """The certificate in use, None before the first."""
        self.ends = 0.0
        """Until when it is valid (Unix time), 0 before the first."""
        self._begins = 0.0

    def problem(self, now: float) -> str:
        """Return why clients would refuse the certificate at *now* (Unix time), empty if they would not."""
        if self.pair is None:
            return "no certificate yet"
        if now >= self.ends:
            return f"the certificate ended at {utc(self.ends)}"
        return f"the certificate begins at {utc(self._begins)}" if now < self._begins else ""

    def use(self, pair: Pair) -> None:
        """Give new connections another certificate. Raises BadCertificate, and then leaves everything as it is.

        Only the thread that makes the connections may call it.
        """
        facts = check(pair)  # a context that refuses a pair may be left without any
        _load(self.context, pair)
        self.pair, self.ends, self._begins = pair, facts.ends, facts.begins


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
            return tuple(version_of(os.stat(path)) for path in self._paths)
        except OSError:
            return None


def check(pair: Pair) -> CertificateFacts:
    """Return what a certificate says. Raises BadCertificate if it, or its key, cannot be used."""
    facts = facts_of(pair.certificate)
    _load(_context(), pair)
    return facts


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    """Put a pair into a context. Raises BadCertificate."""
    try:
        with tempfile.TemporaryDirectory() as folder:  # the library reads files alone; nobody else can read this one
            file = Path(folder, "pair.pem")
            file.touch(mode=0o600)
            file.write_bytes(pair.key + b"\n" + pair.certificate)
            context.load_cert_chain(file, password="")  # without a password, it would ask on the terminal
    except ssl.SSLError as error:
        if error.reason is None:  # the library tells neither from the other
            raise BadCertificate("no private key found, or one with a password, expected PEM without one") from None
        words = {"KEY_VALUES_MISMATCH": "the key is not that of the certificate", "EE_KEY_TOO_SMALL": "too short a key"}
        raise BadCertificate(words.get(error.reason, f"certificate and key cannot be used: {error.reason}")) from None
    except OSError as error:
        raise BadCertificate(f"no place for a temporary file: {error.strerror}") from None


def utc(moment: float) -> str:
    """Return a moment (Unix time) as people read it."""
    return time_text(moment, "seconds")


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # each costs the server more than the client
    context.set_alpn_protocols(["http/1.1"])  # API servers ask webhooks for nothing else
    return context


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadCertificate(f"{path}: {error.strerror}, expected a file in PEM") from None
