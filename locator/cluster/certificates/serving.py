"""The certificate that new TLS connections get; it can be replaced while connections are open."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from locator.cluster.certificates.issuing import BadCertificate, Facts, Pair, facts_of


class ServingCertificate:
    """A TLS server's context, and the certificate in it. Without a certificate, every handshake fails."""

    def __init__(self) -> None:
        self.context = _context()
        """For listeners."""
        self.pair: Pair | None = None
        """The certificate in use, None before the first."""
        self.ends = 0.0
        """Until when it is valid (Unix time), 0 before the first."""

    def use(self, pair: Pair) -> None:
        """Give new connections another certificate. Raises BadCertificate, and then leaves everything as it is.

        Only the thread that makes the connections may call it.
        """
        ends = check(pair).ends  # a context that refuses a pair may be left without any
        _load(self.context, pair)
        self.pair, self.ends = pair, ends


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
        words = {"KEY_VALUES_MISMATCH": "the key is not that of the certificate"}
        raise BadCertificate(words.get(error.reason, f"no private key found ({error.reason}), expected PEM")) from None
    except OSError as error:
        raise BadCertificate(f"no place for a temporary file: {error.strerror}") from None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])  # API servers ask webhooks for nothing else
    return context
