# SPDX-License-Identifier: Apache-2.0

"""``topodns webhook``: sets the topology hints of EndpointSlices, as an admission webhook."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES, WrongInput
from dnsserver.cli.parser import CommandParser, Example
from dnsserver.cli.settings_flags import add_flags, add_settings, flags_of, settings_of
from dnsserver.settings.flags import switch

EXAMPLES = (
    Example(
        "Answer with its own certificate, which it keeps in a Secret:",
        "topodns webhook --tls-secret kube-system/topodns-webhook",
    ),
    Example(
        "Let API servers trust that certificate, as somebody who may change the webhook configuration:",
        "topodns webhook --install-ca --tls-secret kube-system/topodns-webhook",
    ),
    Example(
        "Answer with a certificate of cert-manager:", "topodns webhook --tls-cert /tls/tls.crt --tls-key /tls/tls.key"
    ),
)
STATUSES = {
    **STATUSES,
    EXIT_DONE: "ended by SIGTERM or SIGINT, after it had answered the reviews that it had begun; with --install-ca, "
    "the webhook configuration holds the CA",
    EXIT_FAILED: "an address or a port cannot be bound; with --install-ca, the API server refuses or cannot be reached",
}


@dataclass(frozen=True, kw_only=True)
class WebhookFlags:
    """What to do in place of answering."""

    install_ca: bool = switch(
        help="Issue a CA for the webhook's own certificate if --tls-secret holds none for the next five years, put it "
        "into --webhook-configuration, and end. The webhook itself then needs no right to change the configuration"
    )
    """Who may change the webhook configuration does this once."""


def add_arguments(parser: CommandParser) -> None:
    """Add the settings, and what to do with them."""
    add_flags(parser, WebhookFlags)
    add_settings(parser, "webhook", common=("webhook_listen", "tls_cert", "tls_key", "tls_secret"))


def run(arguments: Namespace) -> int:
    """Answer AdmissionReviews until SIGTERM or SIGINT arrives, or put the CA into the webhook configuration."""
    settings = settings_of(arguments)
    from dnsserver.cli.cluster import cluster_errors
    from dnsserver.programs import webhook
    from locator.cluster.certificates.issuing import BadCertificate

    try:
        with cluster_errors():
            if not flags_of(arguments, WebhookFlags).install_ca:
                webhook.run(settings)
            elif settings.tls_cert is not None:
                raise WrongInput("--install-ca: given together with --tls-cert, expected only one of them")
            else:
                webhook.install_ca(settings)
    except BadCertificate as error:
        raise WrongInput(str(error)) from None
    return EXIT_DONE
