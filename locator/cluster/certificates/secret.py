"""The webhook's own certificate, which all replicas share by a Secret.

Each replica looks at the Secret and the MutatingWebhookConfiguration every few seconds, and does what is missing:

1. If the Secret has no certificate that fits, or one that has passed two thirds of its life or has not begun, the
   replica issues another. The write requires the version of the Secret that it read, so of two replicas one wins, and
   the other takes over what it finds.
2. If the configuration does not hold the CAs in the Secret, the replica puts them there.
3. It serves the certificate in the Secret.

API servers take a moment to notice new CAs. So a replica that has a certificate serves the next one only a while after
the configuration has its CA. The CA of the certificate before stays in the Secret and in the configuration, for
replicas that still serve that one.
"""

from __future__ import annotations

import http
import logging
import random
import time
import urllib.parse
from typing import Any, NamedTuple

import msgspec
import trio
from msgspec import Struct, field
from msgspec.json import Decoder

from locator.backoff import Backoff
from locator.cluster.api_client import ApiClient
from locator.cluster.certificates.issuing import BadCertificate, Pair, certificates_in, facts_of, is_issued_by, issue
from locator.cluster.certificates.serving import ServingCertificate, check
from locator.cluster.responses import Refused, Unreachable
from locator.model import Health

log = logging.getLogger("topodns")

LIFETIME_SECONDS = 90 * 86400.0
RENEW_AFTER = 2 / 3  # of the lifetime; a month is left for whatever prevents it
LOOK_SECONDS = 10.0  # between two looks; two replicas send less than one request a second
SETTLE_SECONDS = 60.0  # from new CAs in the configuration until their certificate is served: API servers need a second

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class _Meta(Struct, frozen=True):
    version: str = field(name="resourceVersion", default="")


class _Data(Struct, frozen=True):
    certificate: bytes = field(name="tls.crt", default=b"")  # msgspec decodes the base64
    key: bytes = field(name="tls.key", default=b"")
    authorities: bytes = field(name="ca.crt", default=b"")


class _Secret(Struct, frozen=True):
    metadata: _Meta = _Meta()
    data: _Data | None = None


class _Service(Struct, frozen=True):
    namespace: str
    name: str


class _Client(Struct, rename="camel", frozen=True):
    service: _Service | None = None
    url: str = ""
    ca_bundle: bytes = b""


class _Webhook(Struct, rename="camel", frozen=True):
    client_config: _Client = _Client()


class _Configuration(Struct, frozen=True):
    metadata: _Meta
    webhooks: tuple[_Webhook, ...] = ()


_SECRETS, _CONFIGURATIONS = Decoder(_Secret), Decoder(_Configuration)


class _Stored(NamedTuple):
    """What a Secret holds: the pair, and the CAs, that of the pair first."""

    pair: Pair
    authorities: bytes


class CertificateSecret:
    """Keeps a certificate in *secret* (namespace and name) and its CAs in *configuration*, for *serving*."""

    def __init__(
        self,
        client: ApiClient,
        secret: tuple[str, str],
        configuration: str,
        serving: ServingCertificate,
        *,
        lifetime: float = LIFETIME_SECONDS,
        look: float = LOOK_SECONDS,
        settle: float = SETTLE_SECONDS,
    ) -> None:
        self._client = client
        self._secret = secret
        self._configuration = configuration
        self._serving = serving
        self._lifetime, self._look, self._settle = lifetime, look, settle
        self._threads = trio.CapacityLimiter(1)
        self._served = b""  # the CA of the certificate that is served
        self._settling: tuple[bytes, float] = b"", 0.0  # the CAs that the configuration has, and since when
        self._problem = "not read yet"
        self._backoff = Backoff()

    def health(self) -> Health:
        """Return whether there is a valid certificate, and what is wrong."""
        problem = self._serving.problem(time.time())
        return Health(not problem, "; ".join(filter(None, (problem, self._problem))) or "ok")

    async def run(self) -> None:
        """Look and do what is missing, for ever. Failures are logged, shown as health, and tried again."""
        while True:
            try:
                self._serve(await trio.to_thread.run_sync(self._put_right, limiter=self._threads))
            except Exception as error:  # boundary: one look
                if isinstance(error, Refused) and error.status == http.HTTPStatus.CONFLICT:
                    await trio.sleep(random.random())  # another replica was faster
                    continue
                self._fail(error)
            else:
                self._backoff, self._problem = Backoff(), ""
            await trio.sleep(self._backoff.delay(random.random()) or self._look * (1 + random.random() / 5))

    def _fail(self, error: Exception) -> None:
        known = isinstance(error, (Refused, Unreachable, BadCertificate))
        problem = str(error) or repr(error)
        if problem != self._problem:
            log.warning("certificate: %s", problem, exc_info=None if known else error)
        self._problem, self._backoff = problem, self._backoff.failed()

    def _serve(self, stored: _Stored) -> None:
        """Serve a certificate whose CA is in the configuration, at once or when it has settled."""
        if self._serving.pair == stored.pair:
            return
        authorities, since = self._settling
        if authorities != stored.authorities:
            authorities, since = self._settling = stored.authorities, trio.current_time()
        if self._serving.pair is None or trio.current_time() - since >= self._settle:
            self._serving.use(stored.pair)
            self._served = certificates_in(stored.authorities)[0]
            ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._serving.ends))
            log.info("certificate: new connections get the one that is valid until %s", ends)

    def _put_right(self) -> _Stored:
        """Do what is missing, in a thread; return what the Secret holds. Raises Refused, Unreachable, BadCertificate.

        The configuration is read first: then the Secret cannot be older than what the configuration holds.
        """
        configuration = self._read_configuration()
        names = self._names_in(configuration)
        secret = self._read_secret()
        stored = None if secret is None else _stored(secret)
        if stored is None or self._is_due(stored, names):
            stored = self._renew(secret, stored, names)
        self._put_authorities(configuration, stored.authorities)
        return stored

    def _read_configuration(self) -> _Configuration:
        try:
            raw = self._client.request("GET", f"{CONFIGURATIONS}/{self._configuration}")
            return _CONFIGURATIONS.decode(raw)
        except msgspec.DecodeError as error:
            raise BadCertificate(f"MutatingWebhookConfiguration {self._configuration}: {error}") from None

    def _names_in(self, configuration: _Configuration) -> frozenset[str]:
        """Return the host names by which API servers call the webhook. Raises BadCertificate if there is none."""
        clients = [webhook.client_config for webhook in configuration.webhooks]
        urls = {urllib.parse.urlsplit(client.url).hostname or "" for client in clients}
        services = {f"{client.service.name}.{client.service.namespace}.svc" for client in clients if client.service}
        if not (names := (urls | services) - {""}):
            raise BadCertificate(
                f"MutatingWebhookConfiguration {self._configuration}: no webhooks found, expected some"
            )
        return frozenset(names)

    def _read_secret(self) -> _Secret | None:
        """Return the Secret, None if there is none."""
        try:
            return _SECRETS.decode(self._client.request("GET", self._path(self._secret[1])))
        except msgspec.DecodeError:  # what somebody put there is no certificate
            raise BadCertificate(f"Secret {'/'.join(self._secret)}: unreadable, expected certificates") from None
        except Refused as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            return None

    def _is_due(self, stored: _Stored, names: frozenset[str]) -> bool:
        facts, now = facts_of(stored.pair.certificate), time.time()
        fresh = facts.begins <= now < facts.ends - self._lifetime * (1 - RENEW_AFTER)  # else a clock was wrong, or is
        return not (fresh and names <= facts.names)

    def _renew(self, secret: _Secret | None, stored: _Stored | None, names: frozenset[str]) -> _Stored:
        """Issue a certificate and write it to the Secret; return it."""
        namespace, name = self._secret
        authority, pair = issue(names, time.time(), self._lifetime)
        before = certificates_in(stored.authorities)[:1] if stored is not None else []
        authorities = b"".join(dict.fromkeys((authority, *before, self._served)))
        data = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authorities}
        if secret is None:
            meta = {"namespace": namespace, "name": name}
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}
            self._client.request("POST", self._path(), body=body)
        else:
            change = {"metadata": {"resourceVersion": secret.metadata.version}, "data": data}
            self._client.request("PATCH", self._path(name), body=change, media="application/merge-patch+json")
        log.info("certificate: issued one for %s", ", ".join(sorted(names)))
        return _Stored(pair, authorities)

    def _put_authorities(self, configuration: _Configuration, authorities: bytes) -> None:
        """Put the CAs into all webhooks of the configuration, unless they are there."""
        patch: list[dict[str, Any]] = [
            {"op": "add", "path": f"/webhooks/{position}/clientConfig/caBundle", "value": authorities}
            for position, webhook in enumerate(configuration.webhooks)
            if webhook.client_config.ca_bundle != authorities
        ]
        if patch:
            # An older version is refused with 409. A failed "test" would look like an invalid patch.
            version = {"op": "replace", "path": "/metadata/resourceVersion", "value": configuration.metadata.version}
            path, media = f"{CONFIGURATIONS}/{self._configuration}", "application/json-patch+json"
            self._client.request("PATCH", path, body=[version, *patch], media=media)
            log.info("certificate: put its CA into MutatingWebhookConfiguration %s", self._configuration)

    def _path(self, name: str = "") -> str:
        path = f"/api/v1/namespaces/{self._secret[0]}/secrets"
        return f"{path}/{name}" if name else path


def _stored(secret: _Secret) -> _Stored | None:
    """Return what a Secret holds, None if that cannot be served."""
    data = secret.data or _Data()
    pair = Pair(data.certificate, data.key)
    try:
        check(pair)
    except BadCertificate:
        return None
    if not certificates_in(data.authorities) or not is_issued_by(data.authorities, pair.certificate):
        return None
    return _Stored(pair, data.authorities)
