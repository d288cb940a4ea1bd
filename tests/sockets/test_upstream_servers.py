# SPDX-License-Identifier: Apache-2.0

"""Which servers topodns asks about names outside the zones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dnsserver.net.upstream import NoServers, servers_in
from dnsserver.programs import from_settings
from tests.kit.in_memory import settings_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nameserver 10.96.0.10\n", ["10.96.0.10:53"]),
        ("# kubelet's\nsearch shop.svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n", ["10.96.0.10:53"]),
        ("nameserver 192.0.2.1\nnameserver 2001:db8::1\n", ["192.0.2.1:53", "[2001:db8::1]:53"]),
        ("nameserver fe80::1%eth0\nnameserver 192.0.2.1\n", ["192.0.2.1:53"]),
        ("", "no nameservers"),
        ("search example.org\n", "no nameservers"),
        ("nameserver fe80::1%eth0\n", "only link-local"),
        ("nameserver localhost\n", "localhost"),
        (b"nameserver \xff\n", "decode"),
        (None, "cannot open"),
    ],
)  # fmt: skip
def test_a_pods_resolv_conf_names_its_servers(
    tmp_path: Path, text: str | bytes | None, expected: list[str] | str
) -> None:
    """resolv.conf(5), as kubelet and dockerd write it; an error names file and reason."""
    path = tmp_path / "resolv.conf"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    if isinstance(expected, list):
        assert [str(server) for server in servers_in(str(path))] == expected
        return
    with pytest.raises(NoServers) as raised:
        servers_in(str(path))
    assert str(path) in str(raised.value) and expected in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "pod", "text", "expected"),
    [
        ({}, False, "nameserver 10.96.0.10\n", []),
        ({}, True, "nameserver 10.96.0.10\n", ["10.96.0.10:53"]),
        ({}, True, "", []),
        ({"upstream": False}, True, "nameserver 10.96.0.10\n", []),
        ({"upstream": ["192.0.2.1", "[2001:db8::1]:5353"]}, True, "", ["192.0.2.1:53", "[2001:db8::1]:5353"]),
    ],
    ids=["no pod", "pod", "pod without servers", "off", "given"],
)
def test_who_is_asked(
    flags: dict[str, Any], pod: bool, text: str, expected: list[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """--upstream; otherwise, in a pod, the servers of its resolv.conf, or none with a warning; else none."""
    (tmp_path / "resolv.conf").write_text(text)
    monkeypatch.setattr(from_settings, "RESOLV_CONF", str(tmp_path / "resolv.conf"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    settings = settings_of(flags)
    assert [str(server) for server in from_settings.upstream_of(settings)] == expected
    assert from_settings.authority_of(settings).has_upstream == bool(expected)
    assert ("--upstream" in caplog.text) == (pod and not flags and not expected)
