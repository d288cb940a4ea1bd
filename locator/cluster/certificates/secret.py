# SPDX-License-Identifier: Apache-2.0

"""The webhook's own certificate, which all replicas share by a Secret, with the CA that issues it and the CA's key.

Each replica looks at the Secret and the MutatingWebhookConfiguration every few seconds, and does what is missing:

1. If the Secret has no certificate that fits, or one that has passed two thirds of its life or has not begun, the
   replica issues another by the CA in the Secret, or by a new CA if that one ends too soon. The write requires the
   version of the Secret that it read, so of two replicas one wins, and the other takes over what it finds.
2. If the configuration does not hold the CAs in the Secret, the replica puts them there, if it has the right to.
3. It serves the certificate in the Secret.

Whoever may write the configuration can let the API server send every write anywhere, so whatever runs for long should
not have that right. ``install_ca`` does 1 and 2 once, for somebody who has it, and renews the CA long before its end.

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
from locator.cluster.certificates.issuing import (
    BadCertificate,
    Pair,
    certificates_in,
    facts_of,
    is_issued_by,
    issue,
    new_authority,
)
from locator.cluster.certificates.serving import ServingCertificate, check, utc
from locator.cluster.responses import Refused, Unreachable
from locator.model import Health
from locator.printable import shell_words

log = logging.getLogger("topodns")

LIFETIME_SECONDS = 90 * 86400.0
RENEW_AFTER = 2 / 3  # of the lifetime; a month is left for whatever prevents it
CA_LIFETIME_SECONDS = 10 * 365 * 86400.0  # API servers trust it for the webhook alone, and whoever installs renews it
CA_INSTALLED_SECONDS = CA_LIFETIME_SECONDS / 2  # that a CA must still be valid when somebody installs
CA_WARNED_SECONDS = 365 * 86400.0  # before the end of the CA, so that an installation can be planned
CONFLICTS = 5  # that an installation tolerates: replicas and other installations write in between
LOOK_SECONDS = 10.0  # between two looks; two replicas send less than one request a second
SETTLE_SECONDS = 60.0  # from new CAs in the configuration until their certificate is served: API servers need a second

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class _Meta(Struct, frozen=True):
    version: str = field(name="resourceVersion", default="")


class _Data(Struct, frozen=True):
    certificate: bytes = field(name="tls.crt", default=b"")  # msgspec decodes the base64
    key: bytes = field(name="tls.key", default=b"")
    authorities: bytes = field(name="ca.crt", default=b"")
    authority_key: bytes = field(name="ca.key", default=b"")


class _Secret(Struct, frozen=True):
    metadata: _Meta = _Meta()
    data: _Data | None = None


class _ServiceReference(Struct, frozen=True):
    namespace: str
    name: str


class _Client(Struct, rename="camel", frozen=True):
    service: _ServiceReference | None = None
    url: str = ""
    ca_bundle: bytes = b""


class _Webhook(Struct, rename="camel", frozen=True):
    client_config: _Client = _Client()


class _Configuration(Struct, frozen=True):
    metadata: _Meta
    webhooks: tuple[_Webhook, ...] = ()


_SECRETS, _CONFIGURATIONS = Decoder(_Secret), Decoder(_Configuration)


class _Stored(NamedTuple):
    """What a Secret holds: the pair, the CAs, that of the pair first, and that one with its key, None without a key."""

    pair: Pair
    authorities: bytes
    authority: Pair | None


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
        self.ca_ends = 0.0
        """When the CA of the certificate ends (Unix time), 0 while the configuration is not known to hold it."""
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
                stored, refusal = await trio.to_thread.run_sync(self._put_right, limiter=self._threads)
                self._serve(stored, is_trusted=refusal is None)
            except Exception as error:  # boundary: one look
                if isinstance(error, Refused) and error.status == http.HTTPStatus.CONFLICT:
                    await trio.sleep(random.random())  # another replica was faster
                    continue
                self._fail(error)
            else:
                self._note(stored, refusal)
            await trio.sleep(self._backoff.delay(random.random()) or self._look * (1 + random.random() / 5))

    def install_ca(self) -> None:
        """Put into the Secret and the configuration what is missing there, once, with a CA that is valid for years.

        Raises Refused, Unreachable, BadCertificate.
        """
        for tried in range(1, CONFLICTS + 2):
            try:
                _, refusal = self._put_right(for_years=True)
            except Refused as error:
                if error.status != http.HTTPStatus.CONFLICT or tried > CONFLICTS:
                    raise
                continue
            if refusal is not None:
                raise refusal
            log.info("certificate: MutatingWebhookConfiguration %s holds its CA", self._configuration)
            return

    def _fail(self, error: Exception) -> None:
        known = isinstance(error, (Refused, Unreachable, BadCertificate))
        self._say(str(error) or repr(error), None if known else error)
        self._backoff = self._backoff.failed()

    def _note(self, stored: _Stored, refusal: Refused | None) -> None:
        """Note what is left to do after a look that succeeded, but for the *refusal* to write the configuration."""
        ends = facts_of(stored.authorities).ends
        what = ""
        if refusal is not None:
            what = f"MutatingWebhookConfiguration {self._configuration}: does not hold the CA of the certificate, and "
            what += f"this account may not put it there ({refusal.status} {refusal.reason})"
        elif time.time() > ends - CA_WARNED_SECONDS:
            what = f"the CA ends at {utc(ends)}"
        objects = ("--tls-secret", "/".join(self._secret), "--webhook-configuration", self._configuration)
        command = shell_words("topodns", "webhook", "--install-ca", *objects)
        self._say(f"{what}. Run as somebody who may: {command}" if what else "")
        if refusal is None and not self.ca_ends:
            log.info("certificate: MutatingWebhookConfiguration %s holds its CA", self._configuration)
        self.ca_ends = ends if refusal is None else 0.0
        self._backoff = Backoff() if refusal is None else self._backoff.failed()

    def _say(self, problem: str, error: Exception | None = None) -> None:
        """Log a problem, empty for none, unless it is the one that there was."""
        if problem and problem != self._problem:
            log.warning("certificate: %s", problem, exc_info=error)
        self._problem = problem

    def _serve(self, stored: _Stored, *, is_trusted: bool) -> None:
        """Serve a certificate: the first at once, a later one when the configuration's new CAs have settled."""
        if self._serving.pair == stored.pair or not (is_trusted or self._serving.pair is None):
            return
        authorities, since = self._settling
        if authorities != stored.authorities:
            authorities, since = self._settling = stored.authorities, trio.current_time()
        if self._serving.pair is None or trio.current_time() - since >= self._settle:
            self._serving.use(stored.pair)
            self._served = certificates_in(stored.authorities)[0]
            log.info("certificate: new connections get the one that is valid until %s", utc(self._serving.ends))

    def _put_right(self, *, for_years: bool = False) -> tuple[_Stored, Refused | None]:
        """Do what is missing, in a thread; return what the Secret holds. Raises Refused, Unreachable, BadCertificate.

        Also return why the configuration does not hold the CAs, if the account may not write it. With *for_years*, a
        CA that ends within years, or whose key is not in the Secret, is missing, too.

        The configuration is read first: then the Secret cannot be older than what the configuration holds.
        """
        configuration = self._read_configuration()
        names = self._names_in(configuration)
        secret = self._read_secret()
        stored = None if secret is None else _stored(secret)
        must_last = CA_INSTALLED_SECONDS if for_years else self._lifetime
        authority = None if stored is None else _lasting(stored.authority, must_last)
        if stored is None or self._is_due(stored, names) or (for_years and authority is None):
            stored = self._renew(secret, stored, authority, names)
        try:
            self._put_authorities(configuration, stored.authorities)
        except Refused as error:
            if error.status != http.HTTPStatus.FORBIDDEN:
                raise
            return stored, error
        return stored, None

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

    def _renew(
        self, secret: _Secret | None, stored: _Stored | None, authority: Pair | None, names: frozenset[str]
    ) -> _Stored:
        """Issue a certificate by *authority*, a new CA if None, and write it to the Secret; return it."""
        namespace, name = self._secret
        if stored is not None and authority is not None:
            authorities = stored.authorities
        else:
            authority = new_authority(time.time(), CA_LIFETIME_SECONDS)
            before = certificates_in(stored.authorities)[:1] if stored is not None else []
            authorities = b"".join(dict.fromkeys((authority.certificate, *before, self._served)))
        pair = issue(authority, names, time.time(), self._lifetime)
        data = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authorities, "ca.key": authority.key}
        if secret is None:
            meta = {"namespace": namespace, "name": name}
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}
            self._client.request("POST", self._path(), body=body)
        else:
            change = {"metadata": {"resourceVersion": secret.metadata.version}, "data": data}
            self._client.request("PATCH", self._path(name), body=change, media="application/merge-patch+json")
        log.info("certificate: issued one for %s", ", ".join(sorted(names)))
        return _Stored(pair, authorities, authority)

    def _put_authorities(self, configuration: _Configuration, authorities: bytes) -> None:
        """Put the CAs into all webhooks of the configuration, unless they are there."""
        wanted = set(certificates_in(authorities))
        patch: list[dict[str, Any]] = [
            {"op": "add", "path": f"/webhooks/{position}/clientConfig/caBundle", "value": authorities}
            for position, webhook in enumerate(configuration.webhooks)
            if not wanted.issubset(certificates_in(webhook.client_config.ca_bundle))
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
    pair, authorities = Pair(data.certificate, data.key), certificates_in(data.authorities)
    if not (authorities and _is_usable(pair) and is_issued_by(data.authorities, pair.certificate)):
        return None
    authority = Pair(authorities[0], data.authority_key)
    return _Stored(pair, data.authorities, authority if _is_usable(authority) else None)


def _is_usable(pair: Pair) -> bool:
    try:
        check(pair)
    except BadCertificate:
        return False
    return True


def _lasting(authority: Pair | None, must_last: float) -> Pair | None:
    """Return a CA that is valid now and for *must_last* seconds more, else None."""
    if authority is None:
        return None
    facts, now = facts_of(authority.certificate), time.time()
    return authority if facts.begins <= now <= facts.ends - must_last else None
