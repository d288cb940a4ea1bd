# SPDX-License-Identifier: Apache-2.0

"""Probes by HTTPS, of servers with every kind of certificate, and of what is no such server."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from locator.cluster.certificates import issuing
from locator.cluster.leading import probe
from locator.health.targets import ProbeTarget
from tests.kit.probed_servers import Handler, hangs, listening, request_of, says, status

DAY = 86400.0
SHORT = 0.3  # seconds, in the place of ANSWER_SECONDS where a test waits for their end
HEALTHY = status("200 OK")
SILENT = f"no answer within {SHORT} s"


def issued(names: Sequence[str], *, begins: float = -1, lasts: float = 1) -> issuing.Pair:
    """Return a certificate by a CA that nobody trusts; the times are in days."""
    now = time.time() + begins * DAY
    return issuing.issue(issuing.new_authority(now, 2 * lasts * DAY), names, now, lasts * DAY)


def self_signed(bits: int) -> issuing.Pair:
    """Return a certificate by its own RSA key."""
    key, now = rsa.generate_private_key(65537, bits), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lb.example")])
    found = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return issuing.Pair(
        found.sign(key, hashes.SHA256()).public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    )


def context_of(pair: issuing.Pair, folder: Path, **options: Any) -> ssl.SSLContext:
    path = folder / "pair.pem"
    path.write_bytes(pair.key + pair.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.load_cert_chain(path)
    for name, value in options.items():
        setattr(context, name, value)
    return context


def over_tls(handler: Handler, context: ssl.SSLContext) -> Handler:
    async def handle(stream: trio.abc.Stream) -> None:
        await handler(trio.SSLStream(stream, context, server_side=True, https_compatible=True))

    return handle


def probed(handler: Handler, *, address: str = "127.0.0.1", path: str = "/healthz") -> str | None:
    async def main() -> str | None:
        async with listening(handler) as port:
            return await probe.failure_of(ProbeTarget("a/b", address, port, path, tls=True), probe.Lookups())

    return trio.run(main)


CERTIFICATES: dict[str, Callable[[], issuing.Pair]] = {
    "of-nobody": lambda: issued(["127.0.0.1"], lasts=9),
    "expired": lambda: issued(["127.0.0.1"], begins=-9),
    "not-yet-valid": lambda: issued(["127.0.0.1"], begins=5, lasts=9),
    "for-another-name": lambda: issued(["other.example"], lasts=9),
    "self-signed": lambda: self_signed(2048),
    "short-key": lambda: self_signed(1024),
}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["tls-1.2", "tls-1.3"])
@pytest.mark.parametrize("name", CERTIFICATES)
def test_any_certificate_will_do(tmp_path: Path, name: str, version: ssl.TLSVersion) -> None:
    """Whom a load balancer may be taken for is the business of its clients."""
    context = context_of(CERTIFICATES[name](), tmp_path, maximum_version=version)
    assert probed(over_tls(HEALTHY, context)) == ""


@pytest.mark.parametrize(
    ("handler", "expected"),
    [(status("399 x"), ""), (status("301 Moved"), ""), (status("400 x"), "HTTP status 400"),
     (status("503 x"), "HTTP status 503"), (says(), "the connection was closed without an answer"),
     (says(b"\x00\xff\r\n\r\n"), "the answer is no HTTP"), (says(then=hangs), SILENT)],
    ids=["399", "301", "400", "503", "closes", "garbage", "silent"],
)  # fmt: skip
def test_what_is_answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, handler: Handler, expected: str) -> None:
    """As by HTTP: 200 to 399 is healthy."""
    if expected == SILENT:
        monkeypatch.setattr(probe, "ANSWER_SECONDS", SHORT)
    assert probed(over_tls(handler, context_of(self_signed(2048), tmp_path))) == expected


async def hangs_in_the_handshake(stream: trio.abc.Stream) -> None:
    await stream.receive_some()  # the ClientHello
    await trio.sleep_forever()


async def refuses(stream: trio.abc.Stream) -> None:
    await stream.receive_some()
    await stream.send_all(b"\x15\x03\x03\x00\x02\x02\x28")  # alert: fatal, handshake_failure


async def closes_in_the_handshake(stream: trio.abc.Stream) -> None:
    await stream.receive_some()


async def speaks_http(stream: trio.abc.Stream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def repeats_garbage(stream: trio.abc.Stream) -> None:
    while True:
        await stream.send_all(b"\x16\x03\x03\x40\x00" + b"x" * 0x4000)


@pytest.mark.parametrize(
    ("handler", "words"),
    [(hangs_in_the_handshake, SILENT), (hangs, SILENT), (refuses, "TLS: "), (closes_in_the_handshake, "TLS: "),
     (speaks_http, "TLS: wrong version number"), (repeats_garbage, "TLS: ")],
    ids=["hangs-in-the-handshake", "hangs", "refuses", "closes", "plain-http", "garbage-without-end"],
)  # fmt: skip
def test_what_is_no_https(monkeypatch: pytest.MonkeyPatch, handler: Handler, words: str) -> None:
    """A handshake that does not end, or fails, is a failure; its reason is in plain words, without numbers."""
    if words == SILENT:
        monkeypatch.setattr(probe, "ANSWER_SECONDS", SHORT)
    found = probed(handler)
    assert found is not None and found.startswith(words) and found == found.strip()
    assert not any(sign in found for sign in "[]_()")


@pytest.mark.parametrize(
    ("address", "sent"), [("127.0.0.1", None), ("localhost", "localhost")], ids=["address", "host-name"]
)
def test_what_is_sent(tmp_path: Path, address: str, sent: str | None) -> None:
    """Of a host name, TLS has the name, so that a load balancer of many finds the right one; of an address, none."""
    names: list[str | None] = []
    requests: list[bytes] = []
    context = context_of(self_signed(2048), tmp_path)
    context.sni_callback = lambda _, name, __: names.append(name)

    async def handler(stream: trio.abc.Stream) -> None:
        requests.append(await request_of(stream))
        await stream.send_all(b"HTTP/1.1 204 No Content\r\n\r\n")

    assert probed(over_tls(handler, context), address=address, path="/healthz?deep=1") == ""
    assert names == [sent]
    first, host, *_ = requests[0].split(b"\r\n")
    assert first == b"GET /healthz?deep=1 HTTP/1.1"
    assert host.lower().startswith(b"host: " + address.encode() + b":")
