# SPDX-License-Identifier: Apache-2.0

"""Puts the webhook together: which part gets which, in what order things start, and how they end."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from functools import partial

import trio

from dnsserver.http import connections, loop_delay, webhook
from dnsserver.http.conversation import Limits
from dnsserver.metrics.controller import ControllerMetrics
from dnsserver.metrics.counters import Durations
from dnsserver.metrics.families import LEADING, Family, Values, labelled
from dnsserver.metrics.webhook import (
    CA_EXPIRY,
    CERTIFICATE_EXPIRY,
    SLICES_REWRITTEN,
    SLICES_WAITING,
    WEBHOOK_REQUEST_DURATION,
    WEBHOOK_REQUESTS,
    WebhookCounts,
)
from dnsserver.net.bounds import HeldOctets
from dnsserver.net.sockets import announce, bound_stream, default_listen, in_pod
from dnsserver.programs.from_settings import cluster_of
from dnsserver.programs.run import Shutdown, election_of, run_program, start_http
from dnsserver.settings.settings import Settings
from locator.cluster.certificates.issuing import BadCertificate
from locator.cluster.certificates.secret import CertificateSecret
from locator.cluster.certificates.serving import CertificateFiles, ServingCertificate
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector
from locator.hints.admission import reply_to_untrusted
from locator.hints.rules import HintRules
from locator.model import Health

log = logging.getLogger("topodns")

HTTPS_PORT = 8443
# Of the Lease, the Secret and the MutatingWebhookConfiguration, as in the manifests, and of the writer of hints.
NAME = "topodns-webhook"


def run(settings: Settings) -> None:
    """Answer AdmissionReviews until SIGTERM or SIGINT. Raises CannotListen, BadCluster, BadCertificate."""
    run_program(_run, settings)


def install_ca(settings: Settings) -> None:
    """Put the CA of the webhook's own certificate into the webhook configuration, once.

    Raises BadCluster, BadCertificate, Refused, Unreachable.
    """
    _secret_of(settings, ServingCertificate()).install_ca()


def _secret_of(settings: Settings, serving: ServingCertificate) -> CertificateSecret:
    """Return what keeps the webhook's own certificate in *serving*. Raises BadCluster, BadCertificate."""
    if settings.tls_secret is None and not in_pod():
        raise BadCertificate(
            "neither --tls-cert with --tls-key nor --tls-secret given, expected one of them outside a pod"
        )
    client = cluster_of(settings)
    secret = settings.tls_secret or (client.namespace, NAME)
    return CertificateSecret(client, secret, settings.webhook_configuration or NAME, serving)


def _certificate_of(settings: Settings, serving: ServingCertificate) -> CertificateFiles | CertificateSecret:
    """Return what keeps the certificate of the settings in *serving*. Raises BadCluster, BadCertificate."""
    if settings.tls_cert is None or settings.tls_key is None:
        return _secret_of(settings, serving)
    files = CertificateFiles(settings.tls_cert, settings.tls_key, serving)
    files.load()
    return files


async def _run(settings: Settings) -> None:
    serving = ServingCertificate()
    certificate = _certificate_of(settings, serving)
    client = cluster_of(settings)
    elector = LeaderElector(client, election_of(settings, client, NAME), writes="EndpointSlices")
    rules = HintRules()
    controller = Controller(client, elector, rules, field_manager=NAME)
    counts = WebhookCounts()
    shutdown = Shutdown(settings.shutdown_delay)

    def health() -> Mapping[str, Health]:
        return {**shutdown.health(), **controller.health(), "certificate": certificate.health()}

    metrics = metrics_of(elector, controller, counts, serving, certificate)
    held = HeldOctets(metrics.failures)
    app = webhook.application(lambda body: reply_to_untrusted(body, rules), counts)
    listen = settings.webhook_listen or default_listen(HTTPS_PORT)
    sock, ending = bound_stream("--webhook-listen", listen), trio.Event()
    address = sock.getsockname()
    limits = Limits(held, webhook.IDLE_SECONDS, webhook.GRACE_SECONDS)
    serve = partial(connections.serve, sock, app, metrics.failures, limits, tls=serving.context, until=ending.wait)
    async with trio.open_nursery() as nursery:  # it outlives the listener
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            await start_http(nursery, settings, metrics, held, health)
            nursery.start_soon(loop_delay.measure, metrics.loop_delays)
            nursery.start_soon(elector.lead, controller.run)
            nursery.start_soon(certificate.run)
            async with trio.open_nursery() as listener:
                await listener.start(serve)
                announce("https", address)
                await shutdown.wait(signals, counts.requests.total)
                log.info("ending: the webhook answers the reviews that have begun, and releases its Lease if it leads")
                ending.set()
        nursery.cancel_scope.cancel()


def metrics_of(
    elector: LeaderElector,
    controller: Controller,
    counts: WebhookCounts,
    serving: ServingCertificate,
    certificate: CertificateFiles | CertificateSecret,
) -> ControllerMetrics:
    """Return the metrics of a webhook."""
    writes = controller.writer.writes
    shown: dict[Family, Callable[[], Values | Durations | float]] = {
        WEBHOOK_REQUESTS: lambda: labelled(counts.requests),
        WEBHOOK_REQUEST_DURATION: lambda: counts.durations,
        SLICES_REWRITTEN: lambda: {(result,): number for (_, result), number in writes.items()},  # all are patches
        SLICES_WAITING: lambda: controller.writer.waiting,
        LEADING: lambda: {(elector.lease,): elector.is_leader()},
        CERTIFICATE_EXPIRY: lambda: serving.ends,
    }
    if isinstance(certificate, CertificateSecret):
        shown[CA_EXPIRY] = lambda: certificate.ca_ends
    return ControllerMetrics(lambda: controller.object_counts, controller.watches, shown)
