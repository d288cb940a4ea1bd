# SPDX-License-Identifier: Apache-2.0

"""``topodns corefile``: prints a forwarder's stub block for topodns, or checks or fixes a Corefile."""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES, WrongInput
from dnsserver.cli.log_format import say
from dnsserver.cli.output import is_seen, write_as_it_is, write_octets
from dnsserver.cli.parser import CommandParser, Example, add_output_format, one_of, program, read_file
from dnsserver.cli.settings_flags import add_flags, flags_of
from dnsserver.names import Zone
from dnsserver.settings.flags import several, single, switch
from dnsserver.settings.values import OTHER_ZONE, ZONES, ListenAddress, Syntax, any_text, choice
from dnsserver.tools.corefile.stub_blocks import (
    CHECKED,
    CLUSTER_DOMAIN,
    COREDNS,
    FAILING_OVER,
    FORWARDERS,
    MAX_UPSTREAMS,
    REVERTING,
    TIMING_READS,
    CoreDNSVersion,
    oldest_version,
    parse_version,
    stub_address,
    stub_block,
    version_text,
)
from locator.model import ERROR

if TYPE_CHECKING:
    from dnsserver.tools.corefile.stub_zones import Corefile

A_COREFILE = "a file, or - for standard input"

EXAMPLES = (
    Example("Print the block that makes CoreDNS ask topodns:", "topodns corefile --for coredns --to 10.96.0.53"),
    Example("The same, with CoreDNS answering by itself while topodns does not:",
            "topodns corefile --for coredns --to 10.96.0.53 --fail-open"),
    Example("Check a Corefile:", "topodns corefile --check Corefile"),
    Example("Check the Corefile of the cluster:",
            "kubectl get configmap coredns -n kube-system -o 'jsonpath={.data.Corefile}' | topodns corefile --check -"),
    Example("Change its lines at fault, and nothing else:",
            "topodns corefile --fix Corefile > fixed && diff -u Corefile fixed"),
)  # fmt: skip
STATUSES = {
    **STATUSES,
    EXIT_DONE: "the block is printed, or no error is in the Corefile (with --fix: any more)",
    EXIT_FAILED: "the Corefile has an error",
}


def _read_to(text: str) -> tuple[ListenAddress, ...]:
    return tuple(map(stub_address, text.split(",")))


@dataclass(frozen=True, kw_only=True)
class CorefileFlags:
    """What to print, what to check, and what to fix."""

    for_: str | None = single(
        None,
        choice("PROGRAM", *FORWARDERS),
        help=f"Forwarder to print for: {one_of(FORWARDERS)}. With --check, the forwarder that uses FILE: "
        f"{one_of(CHECKED)} (default with --check: {COREDNS})",
    )
    """Each forwarder has a syntax of its own."""

    to: tuple[ListenAddress, ...] = several(
        (),
        Syntax("ADDR[:PORT],...", "ADDRESS or ADDRESS:PORT, separated by commas", _read_to),
        help="Addresses of topodns, separated by commas (default port: 53). With --check, check only the blocks that "
        "forward to these addresses",
        shown="with --check, the blocks that forward a zone of --zone",
    )
    """A block needs one at least."""

    zone: tuple[Zone, ...] = several(
        (),
        ZONES,
        help="Zone to forward to topodns; a network such as 10.96.0.0/12 means its reverse zones",
        shown=f"{CLUSTER_DOMAIN}, unless another zone is given by the next two flags; with --check, the zones of the "
        "plugin 'kubernetes' in FILE",
    )
    """Those of the server's own --zone."""

    federation: tuple[Zone, ...] = several(
        (), OTHER_ZONE, help="Zone of federated names to forward to topodns, as its own --federation", shown="none"
    )
    """CoreDNS must not answer these by itself while topodns does not: nobody else knows them."""

    multicluster: tuple[Zone, ...] = several(
        (),
        OTHER_ZONE,
        help="Zone of names of multi-cluster Services to forward to topodns, as its own --multicluster",
        shown="none",
    )
    """As for --federation."""

    fail_open: bool = switch(
        help=f"Let {COREDNS} answer with its own plugin 'kubernetes' while topodns does not answer"
    )
    """Off, because its answers are then those of any endpoint."""

    coredns_version: CoreDNSVersion | None = single(
        None,
        Syntax("VERSION", "a version such as 1.14.7", parse_version),
        help=f"Version of the {COREDNS} that gets the block, such as 1.14.7 (default: any from "
        f"{version_text(REVERTING)} on, with --fail-open from {version_text(FAILING_OVER)} on). From "
        f"{version_text(TIMING_READS)} on, it is told to wait 0.4 s for topodns in place of 2 s",
    )
    """An older CoreDNS refuses a Corefile with an option that it does not know."""

    check: str | None = single(
        None,
        any_text("FILE", A_COREFILE),
        help="Check this Corefile, or - for standard input; only 'topodns doctor' also knows the cluster's "
        "ExternalName Services",
    )
    """In place of printing."""

    fix: str | None = single(
        None,
        any_text("FILE", A_COREFILE),
        help="Print this Corefile, or - for standard input, with the lines at fault changed that --check finds, and "
        "all else as it is; what needs a decision of yours is left, and said on standard error",
    )
    """In place of printing."""


def add_arguments(parser: CommandParser) -> None:
    """Add the flags for all: what to print, what to check, and what to fix."""
    add_flags(parser, CorefileFlags)
    add_output_format(parser)


def run(arguments: Namespace) -> int:
    """Print a stub block, the findings of a Corefile, or a fixed Corefile."""
    flags, output = flags_of(arguments, CorefileFlags), str(arguments.output)
    if flags.check is not None and flags.fix is not None:
        raise WrongInput("--fix: given together with --check, expected only one of them")
    if flags.check is not None:
        return _check(flags, flags.check, output)
    if flags.fix is not None:
        return _fix(flags, flags.fix, output)
    return _print(flags, output)


def _print(flags: CorefileFlags, output: str) -> int:
    if flags.for_ is None:
        raise WrongInput(
            f"--for: missing, expected a program to print for, or --check FILE; see '{program()} corefile --help'"
        )
    if not flags.to:
        raise WrongInput(f"--to: missing, expected the address of topodns; see '{program()} corefile --help'")
    if output != "text":
        raise WrongInput(f"-o: {output!r} without --check, expected it only with --check FILE")
    if len(flags.to) + flags.fail_open > MAX_UPSTREAMS:
        raise WrongInput(f"--to: {len(flags.to)} addresses, expected at most {MAX_UPSTREAMS - flags.fail_open}")
    _check_version(flags)
    default = () if flags.federation or flags.multicluster else (CLUSTER_DOMAIN,)
    try:
        text = stub_block(
            flags.for_,
            flags.to,
            _names(flags.zone) or default,
            federation=_names(flags.federation),
            multicluster=_names(flags.multicluster),
            fail_open=flags.fail_open,
            version=flags.coredns_version,
        )
    except ValueError as error:
        raise WrongInput(f"--fail-open: {error}") from None
    write_as_it_is(text)
    if flags.for_ == COREDNS and flags.coredns_version is None and is_seen():
        newer = version_text(TIMING_READS)
        why = "lets it wait 0.4 s for topodns in place of 2 s"
        say(f"--coredns-version: is it CoreDNS {newer} or later? --coredns-version {newer} {why}", logging.INFO)
    return EXIT_DONE


def _check_version(flags: CorefileFlags) -> None:
    """Raise WrongInput if the version of CoreDNS cannot have the block."""
    if flags.coredns_version is None:
        return
    if flags.for_ != COREDNS:
        raise WrongInput(f"--coredns-version: given with --for {flags.for_}, expected it with --for {COREDNS}")
    oldest = oldest_version(fail_open=flags.fail_open)
    if flags.coredns_version < oldest:
        found, what = version_text(flags.coredns_version), "--fail-open needs" if flags.fail_open else "the block needs"
        raise WrongInput(f"--coredns-version: {found!r}, expected {version_text(oldest)} or later, which {what}")


def _names(zones: Sequence[Zone]) -> list[str]:
    return [zone.name for zone in zones]


def _check(flags: CorefileFlags, file: str, output: str) -> int:
    from dnsserver.cli.report import report
    from dnsserver.tools.corefile.checks import check, fixed

    corefile = _corefile(flags, "--check", file, errors="replace")
    status = report(check(corefile, file=file), output)
    if is_seen() and fixed(corefile).text != corefile.text:
        say("--check: --fix in its place prints the Corefile with the lines at fault changed", logging.INFO)
    return status


def _fix(flags: CorefileFlags, file: str, output: str) -> int:
    from dnsserver.tools.corefile.checks import check, fixed

    if output != "text":
        raise WrongInput(f"-o: {output!r} with --fix, expected it only with --check FILE")
    after = fixed(_corefile(flags, "--fix", file, errors="surrogateescape"))
    left = check(after, file=file)
    write_octets(after.text.encode(errors="surrogateescape"))
    for finding in left:
        say(f"left as it is: {finding}")
    return EXIT_FAILED if any(finding.severity == ERROR for finding in left) else EXIT_DONE


def _corefile(flags: CorefileFlags, flag: str, file: str, *, errors: str) -> Corefile:
    """Return the Corefile that *flag* names. Raises WrongInput, also for what goes only with a printed block."""
    from dnsserver.tools.corefile.caddyfile import Unparsable
    from dnsserver.tools.corefile.stub_zones import read

    forwarder = flags.for_ or COREDNS
    if forwarder not in CHECKED:
        raise WrongInput(f"--for: {forwarder!r}, expected {one_of(CHECKED)} with {flag}")
    for other, given in (("--fail-open", flags.fail_open), ("--coredns-version", flags.coredns_version)):
        if given:
            raise WrongInput(f"{other}: given together with {flag}, expected only one of them")
    if file == "-" and sys.stdin is None:
        raise WrongInput("-: standard input is closed, expected a Corefile")
    octets = read_file(file, "a Corefile", sys.stdin.buffer if file == "-" else None)
    zones = _names((*flags.zone, *flags.federation, *flags.multicluster))
    try:
        return read(octets.decode(errors=errors), forwarder=forwarder, to=flags.to, zones=zones)
    except Unparsable as error:
        raise WrongInput(f"{file}: {error}") from None
