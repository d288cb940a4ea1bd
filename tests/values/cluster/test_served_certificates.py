# SPDX-License-Identifier: Apache-2.0

"""A certificate that is issued and served, and one from files that change."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from locator.cluster.certificates.issuing import BadCertificate, Pair, facts_of
from locator.cluster.certificates.serving import CertificateFiles, ServingCertificate
from tests.kit.certificates import NAME, issued, shakes_hands, with_an_extension_twice
from tests.kit.waiting import until_in_trio

DAY = 86400.0
LIFE = 90 * DAY


@pytest.mark.parametrize("names", [[NAME], [NAME, "127.0.0.1", "fd00::1"], [f"{'n' * 63}.{'s' * 63}.svc"]])
def test_an_issued_certificate_is_accepted(names: Sequence[str]) -> None:
    """For its names, by those who trust its CA, and by nobody else."""
    authority, pair = issued(names, time.time(), LIFE)
    other, _ = issued(names, time.time(), LIFE)
    serving = ServingCertificate()
    serving.use(pair)
    assert all(shakes_hands(serving, authority, name) for name in names)
    assert not shakes_hands(serving, authority, "another.topodns.svc")
    assert not shakes_hands(serving, other, names[0])
    assert shakes_hands(serving, other + authority, names[0]), "a bundle may hold both"
    assert facts_of(pair.certificate).names == set(names)
    assert serving.ends == pytest.approx(time.time() + LIFE, abs=60)


GOOD = issued([NAME], time.time(), LIFE)[1]
OTHER = issued([NAME], time.time(), LIFE)[1]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        pytest.param(Pair(b"", b""), "no certificate found", id="nothing"),
        pytest.param(Pair(b"-----BEGIN CERTIFICATE-----\nx\n", GOOD.key), "no certificate found", id="cut"),
        pytest.param(with_an_extension_twice(), "Duplicate 2.5.29.17 extension", id="an-extension-twice"),
        pytest.param(Pair(GOOD.certificate, b""), "no private key found, or one with a password", id="no-key"),
        pytest.param(Pair(GOOD.certificate, OTHER.key), "the key is not that of the certificate", id="another-key"),
    ],
)
def test_what_cannot_be_used_changes_nothing(pair: Pair, message: str) -> None:
    authority, right = issued([NAME], time.time(), LIFE)
    serving = ServingCertificate()
    serving.use(right)
    with pytest.raises(BadCertificate, match=message):
        serving.use(pair)
    assert serving.pair == right and shakes_hands(serving, authority)


def test_where_no_temporary_file_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The TLS library reads files alone: a root that is read-only needs a writable /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(BadCertificate, match="no place for a temporary file: No such file or directory"):
        ServingCertificate().use(GOOD)


def test_without_a_certificate_no_handshake_succeeds() -> None:
    assert not shakes_hands(ServingCertificate(), issued([NAME], time.time(), LIFE)[0])


def test_files_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A new pair is served as soon as it is whole; a broken one is logged, and the old one stays."""
    monkeypatch.setattr("locator.cluster.certificates.serving.LOOK_SECONDS", 0.05)
    caplog.set_level("INFO")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    (first, pair), (second, later) = issued([NAME], time.time(), LIFE), issued([NAME], time.time(), LIFE)
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    serving = ServingCertificate()
    files = CertificateFiles(str(certificate), str(key), serving)
    files.load()
    assert shakes_hands(serving, first)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(files.run)
            certificate.write_bytes(later.certificate)
            await until_in_trio(lambda: "keeping the previous certificate" in caplog.text)
            assert "the key is not that of the certificate" in caplog.text
            assert shakes_hands(serving, first)
            key.write_bytes(later.key)
            await until_in_trio(lambda: shakes_hands(serving, second))
            key.unlink()
            await until_in_trio(lambda: "No such file" in caplog.text)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert shakes_hands(serving, second)


@pytest.mark.parametrize(
    ("age", "said"),
    [(0.0, "ok"), (2 * LIFE, "the certificate ended at 20"), (-LIFE, "the certificate begins at 20")],
    ids=["valid", "over", "not-yet"],
)
def test_files_with_a_certificate_that_clients_refuse_now(tmp_path: Path, age: float, said: str) -> None:
    """They are served, since only the clients' clocks count, but the webhook is not ready, and says why."""
    pair, serving = issued([NAME], time.time() - age, LIFE)[1], ServingCertificate()
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    (tmp_path / "tls.key").write_bytes(pair.key)
    files = CertificateFiles(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"), serving)
    files.load()
    assert serving.pair == pair
    assert files.health().ok == (said == "ok") and files.health().text.startswith(said)


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key"])
def test_files_that_are_not_there(tmp_path: Path, missing: str) -> None:
    for name, content in (("tls.crt", GOOD.certificate), ("tls.key", GOOD.key)):
        if name != missing:
            (tmp_path / name).write_bytes(content)
    files = CertificateFiles(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"), ServingCertificate())
    with pytest.raises(BadCertificate, match=rf"{missing}: No such file or directory, expected a file in PEM"):
        files.load()
