"""``topodns webhook``: sets the topology hints of EndpointSlices, as an admission webhook."""

from __future__ import annotations

from argparse import Namespace

from dnsserver.cli.errors import DONE, WrongInput
from dnsserver.cli.parser import Parser
from dnsserver.cli.settings_flags import add_settings, settings_of


def add_arguments(parser: Parser) -> None:
    """Add the settings."""
    add_settings(parser, "webhook")


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
