# SPDX-License-Identifier: Apache-2.0

"""The webhook's own certificate, in a Secret that replicas share."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import trio

from locator.cluster.certificates.issuing import Pair, certificates_in, facts_of, issue, new_authority
from locator.cluster.certificates.secret import (
    CA_INSTALLED_SECONDS,
    CA_LIFETIME_SECONDS,
    CA_WARNED_SECONDS,
    CONFIGURATIONS,
    CertificateSecret,
)
from locator.cluster.certificates.serving import ServingCertificate
from locator.cluster.responses import Refused
from locator.model import Health
from tests.kit.certificates import NAME, shakes_hands
from tests.kit.waiting import until_in_trio

Item = dict[str, Any]
DAY = 86400.0
LIFE = 90 * DAY
SERVICE = {"service": {"namespace": "topodns", "name": "topodns-webhook"}}
SECRET = "/api/v1/namespaces/topodns/secrets/cert"


class FakeApi:
    """An API server with a Secret and a webhook configuration; ``meddle`` is called before each write."""

    def __init__(self, *clients: Item, secret: Item | None = None) -> None:
        self.version = 1
        self.objects: dict[str, Item] = {
            f"{CONFIGURATIONS}/hooks": self._stored({"webhooks": [{"clientConfig": c} for c in clients or (SERVICE,)]})
        }
        if secret is not None:
            self.objects[SECRET] = self._stored({"data": secret})
        self.writes: list[tuple[str, str]] = []
        self.meddle: Callable[[str], None] = lambda path: None

    def _stored(self, item: Item) -> Item:
        self.version += 1
        return {**item, "metadata": {"resourceVersion": str(self.version)}}

    def request(self, method: str, path: str, *, body: Any = None, media: str = "", **_: Any) -> bytes:
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
        if method != "GET":
            self.meddle(path)
        present = self.objects.get(path)
        if (present is None) != (method == "POST"):
            raise Refused(404 if present is None else 409, "NotFound" if present is None else "AlreadyExists", path)
        if method != "GET":
            self.objects[path] = self._stored(self._changed(method, present or {}, body))
            self.writes.append((method, path))
        return json.dumps(self.objects[path]).encode()

    def _changed(self, method: str, present: Item, body: Any) -> Item:
        encoded = json.loads(json.dumps(body, default=lambda value: base64.b64encode(value).decode()))
        if isinstance(encoded, dict):
            version = encoded.get("metadata", {}).get("resourceVersion")
            if method == "PATCH" and version != present["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict", "changed meanwhile")
            return {**present, "data": {**present.get("data", {}), **encoded["data"]}}
        version, *steps = encoded
        if version["value"] != present["metadata"]["resourceVersion"]:
            raise Refused(409, "Conflict", "changed meanwhile")
        changed = json.loads(json.dumps(present))
        for step in steps:
            changed["webhooks"][int(step["path"].split("/")[2])]["clientConfig"]["caBundle"] = step["value"]
        return dict(changed)

    def secret(self) -> tuple[Pair, bytes]:
        """Return the pair and the CAs in the Secret."""
        data = {key: base64.b64decode(value) for key, value in self.objects[SECRET]["data"].items()}
        return Pair(data["tls.crt"], data["tls.key"]), data["ca.crt"]

    def bundles(self) -> list[bytes]:
        """Return the CAs in the configuration, by webhook."""
        hooks = self.objects[f"{CONFIGURATIONS}/hooks"]["webhooks"]
        return [base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in hooks]


def kept(
    age: float = 0.0, names: Sequence[str] = (NAME,), *, life: float | None = CA_LIFETIME_SECONDS
) -> tuple[bytes, Item]:
    """Return a CA, and the data of a Secret with a certificate by it, both of this age; without *life* without its key.

    Without the key, as the first versions of topodns left it, the CA ends with the certificate.
    """
    authority = new_authority(time.time() - age, life or LIFE)
    pair = issue(authority, names, time.time() - age, LIFE)
    data = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
    if life is not None:
        data["ca.key"] = authority.key
    return authority.certificate, {key: base64.b64encode(value).decode() for key, value in data.items()}


def installed(data: Item) -> FakeApi:
    """Return an API server with a Secret, whose CAs the configuration has."""
    return FakeApi({**SERVICE, "caBundle": data["ca.crt"]}, secret=data)


def keeping(
    api: FakeApi, serving: ServingCertificate, *, settle: float = 0.0, lifetime: float = LIFE
) -> CertificateSecret:
    anything: Any = api
    return CertificateSecret(
        anything, ("topodns", "cert"), "hooks", serving, lifetime=lifetime, look=0.01, settle=settle
    )


def run_until(holds: Callable[[], object], *secrets: CertificateSecret) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for secret in secrets:
                nursery.start_soon(secret.run)
            await until_in_trio(holds)
            nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param(None, id="no-secret"),
        pytest.param({}, id="empty"),
        pytest.param({"tls.crt": "eA==", "tls.key": "eA==", "ca.crt": "eA=="}, id="nonsense"),
        pytest.param(kept(names=["another"])[1], id="for-another-name"),
        pytest.param({**kept()[1], "tls.key": kept()[1]["tls.key"]}, id="another-key"),
        pytest.param({**kept()[1], "ca.crt": ""}, id="no-CA"),
        pytest.param({**kept()[1], "ca.crt": kept()[1]["ca.crt"]}, id="another-CA"),
        pytest.param(kept(age=-LIFE)[1], id="by-a-clock-that-was-ahead"),
        pytest.param(kept(age=LIFE * 0.7)[1], id="past-two-thirds"),
        pytest.param(kept(age=LIFE * 2)[1], id="over"),
    ],
)
def test_a_certificate_that_is_missing_or_due_is_issued(secret: Item | None) -> None:
    """One write of the Secret, one of the configuration; then it is served."""
    api, serving = FakeApi(secret=secret), ServingCertificate()
    one = keeping(api, serving)
    assert not one.health().ok
    run_until(lambda: serving.pair is not None, one)
    assert [path for _, path in api.writes] == [SECRET, f"{CONFIGURATIONS}/hooks"]
    assert one.health() == Health(True)
    assert all(shakes_hands(serving, bundle) for bundle in api.bundles())


def test_several_webhooks_and_ways_to_call_them() -> None:
    """The certificate is for all of them: Services, host names and addresses."""
    service = {"service": {"namespace": "ns", "name": "one"}}
    hooks = (service, {"url": "https://127.0.0.1:8443/x"}, {"url": "https://hooks.example/x"})
    api, serving = FakeApi(*hooks), ServingCertificate()
    run_until(lambda: serving.pair is not None, keeping(api, serving))
    assert all(shakes_hands(serving, api.bundles()[2], name) for name in ("one.ns.svc", "127.0.0.1", "hooks.example"))
    assert len(set(api.bundles())) == 1


def test_renewal_keeps_the_ca_of_the_certificate_before() -> None:
    """A CA that ends too soon is replaced, first in the configuration, and the old one stays there."""
    old, data = kept(age=LIFE * 0.6, life=2 * LIFE)
    api, first, second = FakeApi(secret=data), ServingCertificate(), ServingCertificate()
    run_until(lambda: first.pair is not None and second.pair is not None, keeping(api, first), keeping(api, second))
    before = first.pair
    slow, quick = keeping(api, first, settle=3600.0, lifetime=4 * LIFE), keeping(api, second, lifetime=4 * LIFE)
    run_until(lambda: second.pair != before, slow, quick)
    assert first.pair == before, "its CA has not settled"
    (bundle,) = api.bundles()
    assert len(certificates_in(bundle)) == 2
    assert all(shakes_hands(serving, bundle) for serving in (first, second))
    assert shakes_hands(first, old) and not shakes_hands(second, old)


def test_renewal_by_the_same_ca_needs_no_right() -> None:
    """Nothing but the Secret's pair is written, and every replica serves the new certificate at once."""
    authority, data = kept(age=LIFE * 0.7)
    bundle = authority + kept()[0]
    data["ca.crt"] = base64.b64encode(bundle).decode()
    api, servings = installed(data), [ServingCertificate(), ServingCertificate()]
    api.meddle = forbid
    secrets = [keeping(api, serving, settle=3600.0) for serving in servings]
    run_until(lambda: all(serving.pair for serving in servings), *secrets)
    assert api.writes == [("PATCH", SECRET)] and api.secret()[1] == bundle
    assert all(shakes_hands(serving, authority) for serving in servings)
    assert all(one.health() == Health(True) for one in secrets)
    ends = time.time() + CA_LIFETIME_SECONDS - LIFE * 0.7
    assert all(one.ca_ends == pytest.approx(ends, abs=60) for one in secrets)


def forbid(path: str) -> None:
    """Refuse to write the configuration, as an API server does to whoever lacks the right."""
    if path != SECRET:
        raise Refused(403, "Forbidden", "no")


def test_without_the_right_the_webhook_says_who_lets_it_be_trusted(caplog: pytest.LogCaptureFixture) -> None:
    """It serves, and is ready. When somebody has run that command, it is trusted, without being told."""
    api, serving = FakeApi(secret={}), ServingCertificate()
    api.meddle = forbid
    one, installing = keeping(api, serving), keeping(api, ServingCertificate())
    command = "topodns webhook --install-ca --tls-secret topodns/cert --webhook-configuration hooks"

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await until_in_trio(lambda: command in one.health().text)
            assert one.health().ok and one.ca_ends == 0.0 and serving.pair is not None
            with pytest.raises(Refused, match="403"):
                installing.install_ca()
            assert api.bundles() == [b""]
            api.meddle = lambda path: None
            installing.install_ca()
            api.meddle = forbid
            await until_in_trio(lambda: one.health().text == "ok")
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert one.ca_ends > time.time() + CA_INSTALLED_SECONDS and caplog.text.count(command) == 1
    assert all(shakes_hands(serving, bundle) for bundle in api.bundles())


def test_without_the_right_no_certificate_is_served_that_nobody_trusts() -> None:
    """When the CA ended too soon, the replica goes on with what it serves until somebody installs the next one."""
    _, data = kept(age=LIFE * 0.6, life=2 * LIFE)
    api, serving = installed(data), ServingCertificate()
    api.meddle = forbid
    run_until(lambda: serving.pair is not None, keeping(api, serving))
    before, later = serving.pair, keeping(api, serving, lifetime=4 * LIFE)
    run_until(lambda: "--install-ca" in later.health().text, later)
    assert api.secret()[0] != before and serving.pair == before
    api.meddle = lambda path: None
    later.install_ca()
    api.meddle = forbid
    run_until(lambda: serving.pair != before, later)
    assert all(shakes_hands(serving, bundle) for bundle in api.bundles())


def test_the_end_of_the_ca_is_told_a_year_before() -> None:
    """The webhook does not renew what it may not install; the certificate goes on."""
    _, data = kept(life=CA_WARNED_SECONDS - DAY)
    api, serving = installed(data), ServingCertificate()
    one = keeping(api, serving)
    run_until(lambda: "the CA ends at 20" in one.health().text, one)
    assert one.health().ok and "topodns webhook --install-ca" in one.health().text and api.writes == []


@pytest.mark.parametrize(
    ("secret", "old"),
    [
        pytest.param({}, 0, id="empty"),
        pytest.param(kept(life=None)[1], 1, id="a-CA-without-its-key"),
        pytest.param(kept(life=CA_INSTALLED_SECONDS - DAY)[1], 1, id="a-CA-that-is-old"),
        pytest.param(kept(life=CA_INSTALLED_SECONDS + DAY)[1], None, id="a-CA-that-is-good"),
    ],
)
def test_an_installation_leaves_a_ca_for_years(secret: Item, old: int | None) -> None:
    """Whatever is there; to do it again changes nothing. A CA that others may serve by stays beside the new one."""
    api = FakeApi(secret=secret)
    for _ in range(2):
        keeping(api, ServingCertificate()).install_ca()
    expected = [("PATCH", SECRET), ("PATCH", f"{CONFIGURATIONS}/hooks")]
    assert api.writes == (expected if old is not None else expected[1:])
    (bundle,) = api.bundles()
    assert bundle == api.secret()[1] and len(certificates_in(bundle)) == 1 + (old or 0)
    assert facts_of(bundle).ends > time.time() + CA_INSTALLED_SECONDS
    serving = ServingCertificate()
    serving.use(api.secret()[0])
    assert shakes_hands(serving, bundle)


@pytest.mark.parametrize("conflicts", [2, 100], ids=["some", "no-end"])
def test_an_installation_tries_again_when_others_write(conflicts: int) -> None:
    """As replicas do, which see the empty Secret at the same time."""
    api, left = FakeApi(secret={}), [None] * conflicts

    def meddle(path: str) -> None:
        if left:
            left.pop()
            raise Refused(409, "Conflict", "changed meanwhile")

    api.meddle = meddle
    with nullcontext() if conflicts == 2 else pytest.raises(Refused, match="409"):
        keeping(api, ServingCertificate()).install_ca()
    assert (api.bundles() != [b""]) == (conflicts == 2)


@pytest.mark.parametrize("secret", [None, kept(age=LIFE * 0.7)[1]], ids=["created", "renewed"])
def test_of_two_replicas_that_write_at_once_one_wins(secret: Item | None) -> None:
    """The other takes over what it finds."""
    api, servings = FakeApi(secret=secret), [ServingCertificate(), ServingCertificate()]
    meanwhile = [kept()[1]]

    def meddle(path: str) -> None:
        if path == SECRET and meanwhile:
            api.objects[SECRET] = {"data": meanwhile.pop(), "metadata": {"resourceVersion": "999"}}

    api.meddle = meddle
    run_until(lambda: all(serving.pair for serving in servings), *(keeping(api, one) for one in servings))
    assert SECRET not in [path for _, path in api.writes]
    assert {serving.pair for serving in servings} == {api.secret()[0]}
    assert all(shakes_hands(serving, api.bundles()[0]) for serving in servings)


def test_a_ca_that_somebody_removes_is_put_back() -> None:
    """Such as who applies the manifest of the configuration again."""
    api, serving = FakeApi(), ServingCertificate()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeping(api, serving).run)
            await until_in_trio(lambda: serving.pair is not None)
            bundles = api.bundles()
            api.objects[f"{CONFIGURATIONS}/hooks"]["webhooks"][0]["clientConfig"]["caBundle"] = ""
            await until_in_trio(lambda: api.bundles() == bundles)
            nursery.cancel_scope.cancel()

    trio.run(main)


def refuse(path: str) -> None:
    raise Refused(422, "Invalid", "not this")


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        pytest.param(lambda api: api.objects.clear(), "404", id="no-configuration"),
        pytest.param(
            lambda api: api.objects[f"{CONFIGURATIONS}/hooks"].update(webhooks=[]), "no webhooks", id="no-webhooks"
        ),
        pytest.param(lambda api: setattr(api, "meddle", refuse), "422 Invalid: not this", id="refused"),
    ],
)
def test_what_is_wrong_is_said_and_tried_again(
    break_it: Callable[[FakeApi], None], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    api, serving = FakeApi(), ServingCertificate()
    right = dict(api.objects), dict(api.objects[f"{CONFIGURATIONS}/hooks"])
    break_it(api)
    one = keeping(api, serving)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await until_in_trio(lambda: said in one.health().text)
            assert not one.health().ok
            api.meddle = lambda path: None
            api.objects = {**right[0], f"{CONFIGURATIONS}/hooks": right[1]}
            await until_in_trio(lambda: one.health().ok)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert said in caplog.text
