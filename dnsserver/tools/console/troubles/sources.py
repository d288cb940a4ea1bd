# SPDX-License-Identifier: Apache-2.0

"""What is wrong with the sources: clusters out of contact, a dump that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dnsserver.tools.console.troubles.trouble import BAD, NAMED, SOURCE, Trouble
from locator.model import Health, listed

OTHER_CLUSTER = "cluster "  # how the check of another one begins, before its name
DUMP = "snapshot"  # the check of a cluster that is read from files


def source_troubles(health: Mapping[str, Health], ages: Mapping[str, float], now: float) -> Iterator[Trouble]:
    """Yield each cluster whose source is broken, or out of contact. The own one is the first of *ages*."""
    own = next(iter(ages), "")
    since = now - ages[own] if ages.get(own) else None
    links = (("Clusters", "#clusters"),)
    waiting: dict[str, str] = {}
    for name, check in health.items():
        problem = check.problem or ("" if check.ok else check.text)
        if not problem:
            continue
        if name.startswith(OTHER_CLUSTER):
            other = name.removeprefix(OTHER_CLUSTER)
            age = ages.get(other, 0.0)
            yield Trouble(
                SOURCE, name, BAD, f"Cluster {other} is {'out of contact' if age else 'not read as it is now'}",
                f"{_sentence(problem)} Clients get its endpoints as topodns read them last, or none of them.",
                "Look at its API server, and at the address and the credentials that --cluster or --cluster-dir names.",
                links=links, since=now - age if age else None,
            )  # fmt: skip
        elif name == DUMP:
            yield Trouble(
                SOURCE, name, BAD, "The dump cannot be read" if check.ok else "The dump has not been read",
                _sentence(problem) + (" topodns answers from what it read before." if check.ok else ""),
                "Correct the file, or put it back if it is gone: topodns reads it again once it changes.", links=links,
            )  # fmt: skip
        else:
            waiting[name] = problem
    if waiting:
        lost = bool(since) and all(health[name].ok for name in waiting)
        title = f"No contact with the API server of {own}" if lost else f"Cluster {own} has not been read"
        cause = _sentence(f"{listed(list(waiting), NAMED)}: {next(iter(waiting.values()))}")
        yield Trouble(
            SOURCE, own, BAD, title, cause + (" topodns answers from what it read last." if lost else ""),
            "Is the API server up, and does topodns reach it? topodns catches up by itself.",
            "kubectl get --raw '/readyz?verbose'", links=links, since=since,
        )  # fmt: skip


def broken_clusters(health: Mapping[str, Health], ages: Mapping[str, float]) -> frozenset[str]:
    """Return the clusters of which topodns knows what they were before, not what they are. The own one is the first."""
    own, problems = next(iter(ages), ""), [name for name, check in health.items() if check.problem]
    return frozenset(name.removeprefix(OTHER_CLUSTER) if name.startswith(OTHER_CLUSTER) else own for name in problems)


def _sentence(text: str) -> str:
    return text if text.endswith(("?", ".")) else f"{text}."
