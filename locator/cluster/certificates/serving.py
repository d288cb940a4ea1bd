# SPDX-License-Identifier: Apache-2.0

"""The certificate that new TLS connections get; it can be replaced while connections are open."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from locator.cluster.certificates.issuing import BadCertificate, Facts, Pair, facts_of
from locator.times import time_text


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


def check(pair: Pair) -> Facts:
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
