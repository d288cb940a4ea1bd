# SPDX-License-Identifier: Apache-2.0

"""What a server says in its log: that it is ready, or why not, and whom it cannot serve well."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

import trio

from dnsserver.metrics.counters import Counts
from dnsserver.net.sockets import log_alone
from locator.cluster.publisher import Publisher, Subscriber
from locator.model import Finding
from locator.state.snapshot import Snapshot

log = logging.getLogger("topodns")

DELAY_SECONDS = 5.0  # after which a person asks why nothing is answered; a small cluster takes one or two


def ready_line() -> Subscriber:
    """Return a subscriber that logs the line ``ready`` at the first snapshot, for programs that wait for it."""
    logged = False

    def subscriber(snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        nonlocal logged
        if not logged:
            log_alone("ready")
        logged = True

    return subscriber


async def log_delay(publisher: Publisher, problems: Callable[[], Collection[str]], advice: str) -> None:
    """Warn once if the first snapshot does not come, with the *problems* of the moment; then return."""
    await trio.sleep(DELAY_SECONDS)
    if publisher.snapshot is None and (found := sorted(filter(None, problems()))):
        log.warning(
            "not ready after %d s: %s; topodns goes on trying, and answers SERVFAIL until then%s",
            DELAY_SECONDS, "; ".join(found), advice,
        )  # fmt: skip


def warn_about_forwarders(counts: Counts, now: float) -> None:
    """Log the forwarders that do not name their clients, or name clients without being trusted."""
    for forwarder in counts.unnamed_clients.due(now):
        from dnsserver.tools.corefile.stub_blocks import ECS_RULE

        log.warning(
            "forwarder %s names no client, so topodns cannot locate its clients: put '%s' into the stub block of its "
            "Corefile; for forwarders other than CoreDNS, 'topodns corefile' prints the configuration",
            forwarder,
            ECS_RULE,
            extra={"fields": {"source": forwarder}},
        )
    for source in counts.ignored_clients.due(now):
        log.warning(
            "%s names clients but is no trusted forwarder, so topodns locates its clients by its own address: if it "
            "forwards their queries, start topodns with --trusted-forwarder %s/%d",
            source,
            source,
            128 if ":" in source else 32,
            extra={"fields": {"source": source}},
        )


def warn_about_lookups(counts: Counts, now: float) -> None:
    """Log the namespaces whose look-ups at the upstream were refused."""
    for namespace in counts.refused_lookups.due(now):
        if namespace:  # explanations tell whoever asks for them
            log.warning(
                "queries about ExternalName Services of namespace %s were refused: its look-ups at the upstream use up "
                "the share of a namespace; other namespaces are answered. Mend or delete those of its Services whose "
                "externalName is never answered, or only slowly",
                namespace,
                extra={"fields": {"namespace": namespace}},
            )
