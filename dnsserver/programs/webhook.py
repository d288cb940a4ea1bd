# SPDX-License-Identifier: Apache-2.0

"""Puts the webhook together: which part gets which, in what order things start, and how they end."""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping
from functools import partial

import trio

from dnsserver.http import loop_delay, webhook
from dnsserver.metrics.webhook import WebhookCounts, WebhookMetrics, WebhookState
from dnsserver.net.bounds import HeldOctets
from dnsserver.net.listening import default_listen, in_pod
from dnsserver.net.sockets import announce, bound_stream
from dnsserver.programs.from_settings import cluster_of
from dnsserver.programs.run import Shutdown, election_of, run_program, start_http
from dnsserver.settings.fields import Settings
from locator.cluster.certificates.files import CertificateFiles
from locator.cluster.certificates.issuing import BadCertificate
from locator.cluster.certificates.secret import CertificateSecret
from locator.cluster.certificates.serving import ServingCertificate
from locator.cluster.leading.hint_controller import HintController
from locator.cluster.leading.leader_elector import LeaderElector
from locator.hints.admission import reply_to_untrusted
from locator.hints.objects import WEBHOOK_RESOURCES
from locator.model import Health

log = logging.getLogger("topodns")

HTTPS_PORT = 8443
NAME = "topodns-webhook"  # of the Lease, the Secret and the MutatingWebhookConfiguration, as in the manifests


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
    controller = HintController(client, elector, writes_per_second=settings.writes_per_second)
    watches = {WEBHOOK_RESOURCES[kind].name: reflector for kind, reflector in controller.reflectors.items()}
    counts = WebhookCounts()

    def state() -> WebhookState:
        writer, objects = controller.writer, controller.store.object_counts
        leading = {elector.lease: writer.leading}
        ca_ends = certificate.ca_ends if isinstance(certificate, CertificateSecret) else None
        return WebhookState(writer.writes, leading, writer.waiting, objects, watches, serving.ends, ca_ends)

    shutdown = Shutdown(settings.shutdown_delay)

    def health() -> Mapping[str, Health]:
        return {
            **shutdown.health(),
            **{kind: watch.health() for kind, watch in watches.items()},
            "certificate": certificate.health(),
        }

    metrics = WebhookMetrics(counts, state)
    held = HeldOctets(metrics.failures)
    app = webhook.application(lambda body: reply_to_untrusted(body, controller.store), counts)
    listen = settings.webhook_listen or default_listen(HTTPS_PORT)
    sock, ending = bound_stream("--webhook-listen", listen), trio.Event()
    address = sock.getsockname()
    serve = partial(webhook.serve, sock, app, serving.context, metrics.failures, held, until=ending.wait)
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
