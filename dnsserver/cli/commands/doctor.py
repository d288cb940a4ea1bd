# SPDX-License-Identifier: Apache-2.0

"""``topodns doctor``: examines a running installation, step by step, and says what fixes it."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES
from dnsserver.cli.output import coloured, write_as_it_is, write_result
from dnsserver.cli.parser import CommandParser, Example, add_output_format
from dnsserver.cli.settings_flags import add_flags, add_settings, flags_of, settings_of
from dnsserver.settings import values
from dnsserver.settings.flags import single
from dnsserver.text import BOLD, DIM, GREEN, RED, YELLOW, Paint, painter
from locator.printable import as_line, cut, printable

if TYPE_CHECKING:
    from dnsserver.tools.doctor.facts import Facts
    from dnsserver.tools.doctor.steps import DoctorStep

MARKS = {"passed": ("\u2713", "+", GREEN), "failed": ("\u2717", "x", RED), "unknown": ("\u2013", "-", YELLOW)}
EXAMPLES = (
    Example("Examine the installation in the cluster of the current kubeconfig:", "topodns doctor"),
    Example("Examine another one:", "topodns doctor --context staging -n dns"),
    Example(
        "Examine it from inside, where pods can be reached:", "kubectl -n topodns exec deploy/topodns -- topodns doctor"
    ),
)
STATUSES = {**STATUSES, EXIT_DONE: "no step failed", EXIT_FAILED: "a step failed, or the API server cannot be reached"}


@dataclass(frozen=True, kw_only=True)
class DoctorFlags:
    """What is examined."""

    namespace: str | None = single(
        None,
        values.IN_NAMESPACE,
        short="-n",
        help="Namespace that topodns is installed in",
        shown="that of the Deployment with the label app.kubernetes.io/name=topodns, else topodns",
    )
    """Most who install it leave the names as they are."""


def add_arguments(parser: CommandParser) -> None:
    """Add the namespace, the output format and the settings."""
    add_flags(parser, DoctorFlags)
    add_output_format(parser)
    add_settings(parser, "doctor")


def run(arguments: Namespace) -> int:
    """Print all steps. The exit status is 1 if one of them failed."""
    settings, namespace = settings_of(arguments), flags_of(arguments, DoctorFlags).namespace
    import trio

    from dnsserver.cli.cluster import cluster_errors
    from dnsserver.cli.progress import shown_progress
    from dnsserver.cli.reading.observing import observe
    from dnsserver.programs.from_settings import cluster_of, kubectl_of
    from dnsserver.tools.doctor.diagnosis import diagnose
    from dnsserver.tools.doctor.steps import FAILED

    with cluster_errors():
        client = cluster_of(settings)
    with shown_progress() as report:
        report(f"{client.host}: looking at the installation")
        facts = trio.run(partial(observe, client, namespace, kubectl_of(settings)))
    steps = diagnose(facts)
    if arguments.output == "text":
        encoding = (sys.stdout.encoding if sys.stdout is not None else None) or "ascii"
        write_as_it_is(text_of(steps, encoding, colour=coloured()))
    else:
        write_result(result_of(facts, steps), arguments.output)
    return EXIT_FAILED if any(step.status == FAILED for step in steps) else EXIT_DONE


def result_of(facts: Facts, steps: Sequence[DoctorStep]) -> dict[str, Any]:
    """Return the steps as ``-o json`` and ``-o yaml`` print them."""
    from dnsserver.tools.doctor.corefiles import providers_of
    from dnsserver.tools.doctor.steps import as_json

    return {
        "version": facts.version,
        "namespace": facts.installed.namespace,
        "providers": [provider.name for provider in providers_of(facts)],
        "steps": list(map(as_json, steps)),
        "counts": _counts(steps),
    }


def _counts(steps: Sequence[DoctorStep]) -> dict[str, int]:
    return {status: sum(step.status == status for step in steps) for status in MARKS}


def text_of(steps: Sequence[DoctorStep], encoding: str, *, colour: bool) -> str:
    """Return the steps for people, in an encoding: what fixes a step follows it, and commands begin their line.

    Commands are whole, however long they are: some hold a Corefile.
    """
    try:
        "".join(mark for mark, _, _ in MARKS.values()).encode(encoding)
        column = 0
    except (LookupError, UnicodeEncodeError):
        column = 1

    paint = painter(colour=colour)

    def lines() -> Iterator[str]:
        for step in steps:
            code = MARKS[step.status][2]
            subject = f" ({cut(step.subject)})" if step.subject else ""
            mark, title = paint(MARKS[step.status][column], code), paint(step.code.title + subject, BOLD)
            yield f"{mark} {title}: {as_line(step.message)}"
            yield from _fixing(step, paint)
        counts = _counts(steps)
        yield f"{counts['failed']} failed, {counts['unknown']} could not be looked at, {counts['passed']} passed"

    return "".join(f"{line.encode(encoding, 'replace').decode(encoding)}\n" for line in lines())


def _fixing(step: DoctorStep, paint: Paint) -> Iterator[str]:
    if step.status == "passed":
        return
    if step.status == "failed":
        yield f"    why: {step.code.why} [{step.code.name}: {step.code.documentation}]"
        yield f"    fix: {printable(step.advice or step.code.fix)}"
    elif step.advice:
        yield f"    {printable(step.advice)}"
    yield from (f"    {as_line(line)}" for line in step.difference.splitlines())
    for command in step.commands:
        first, *others = map(printable, command.split("\n"))
        yield from (paint(f"$ {first}", DIM), *others)
