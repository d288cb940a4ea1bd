"""``topodns webhook``: sets the topology hints of EndpointSlices, as an admission webhook."""

from __future__ import annotations

from argparse import Namespace

from dnsserver.cli.errors import DONE, FAILED, STATUSES, WrongInput
from dnsserver.cli.parser import Example, Parser
from dnsserver.cli.settings_flags import add_settings, settings_of

EXAMPLES = (
    Example(
        "Answer with its own certificate, which it keeps in a Secret:",
        "topodns webhook --tls-secret kube-system/topodns-webhook",
    ),
    Example(
        "Answer with a certificate of cert-manager:",
        "topodns webhook --tls-cert /tls/tls.crt --tls-key /tls/tls.key",
    ),
)
STATUSES = {
    **STATUSES,
    DONE: "ended by SIGTERM or SIGINT, after it had answered the reviews that it had begun",
    FAILED: "an address or a port cannot be bound",
}


def add_arguments(parser: Parser) -> None:
    """Add the settings."""
    add_settings(parser, "webhook", common=("webhook_listen", "tls_cert", "tls_key", "tls_secret"))


def run(arguments: Namespace) -> int:
    """Answer AdmissionReviews until SIGTERM or SIGINT arrives."""
    settings = settings_of(arguments)
    from dnsserver import webhook_app
    from dnsserver.cli.cluster import cluster_errors
    from locator.cluster.certificates.issuing import BadCertificate

    try:
        with cluster_errors():
            webhook_app.run(settings)
    except BadCertificate as error:
        raise WrongInput(str(error)) from None
    return DONE
