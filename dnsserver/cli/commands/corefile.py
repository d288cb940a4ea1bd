# SPDX-License-Identifier: Apache-2.0

"""``topodns corefile``: prints a forwarder's stub block for topodns, or checks or fixes a Corefile."""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES, WrongInput
from dnsserver.cli.log_format import say
from dnsserver.cli.output import is_seen, write_as_it_is, write_octets
from dnsserver.cli.parser import CommandParser, Example, add_output_format, one_of, parse_argument, program, read_file
from dnsserver.settings.values import OTHER_ZONE, ZONES, ListenAddress
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


def add_arguments(parser: CommandParser) -> None:
    """Add the flags for all: what to print, what to check, and what to fix."""
    parser.flags.add_argument(
        "--for",
        dest="forwarder",
        metavar="PROGRAM",
        choices=FORWARDERS,
        help=f"Forwarder to print for: {', '.join(FORWARDERS[:-1])} or {FORWARDERS[-1]}. With --check, the forwarder "
        f"that uses FILE: {' or '.join(CHECKED)} (default with --check: {COREDNS})",
    )
    parser.flags.add_argument(
        "--to",
        metavar="ADDR[:PORT],...",
        action="append",
        help="Addresses of topodns, separated by commas (default port: 53). With --check, check only the blocks that "
        "forward to these addresses (default with --check: the blocks that forward a zone of --zone; repeatable)",
    )
    parser.flags.add_argument(
        "--zone",
        metavar="NAME",
        action="append",
        help="Zone to forward to topodns; a network such as 10.96.0.0/12 means its reverse zones (default: "
        f"{CLUSTER_DOMAIN}, unless another zone is given by the next two flags; with --check, the zones of the plugin "
        "'kubernetes' in FILE; repeatable)",
    )
    for flag, names in (("--federation", "federated names"), ("--multicluster", "names of multi-cluster Services")):
        parser.flags.add_argument(
            flag,
            metavar="ZONE",
            action="append",
            help=f"Zone of {names} to forward to topodns, as its own {flag} (default: none; repeatable)",
        )
    parser.flags.add_argument(
        "--fail-open",
        action="store_true",
        help=f"Let {COREDNS} answer with its own plugin 'kubernetes' while topodns does not answer (default: off)",
    )
    parser.flags.add_argument(
        "--coredns-version",
        metavar="VERSION",
        help=f"Version of the {COREDNS} that gets the block, such as 1.14.7 (default: any from "
        f"{version_text(REVERTING)} on, with --fail-open from {version_text(FAILING_OVER)} on). From "
        f"{version_text(TIMING_READS)} on, it is told to wait 0.4 s for topodns in place of 2 s",
    )
    parser.flags.add_argument(
        "--check",
        metavar="FILE",
        help="Check this Corefile, or - for standard input; only 'topodns doctor' also knows the cluster's "
        "ExternalName Services",
    )
    parser.flags.add_argument(
        "--fix",
        metavar="FILE",
        help="Print this Corefile, or - for standard input, with the lines at fault changed that --check finds, and "
        "all else as it is; what needs a decision of yours is left, and said on standard error",
    )
    add_output_format(parser)


def run(arguments: Namespace) -> int:
    """Print a stub block, the findings of a Corefile, or a fixed Corefile."""
    to = [
        parse_argument("--to", stub_address, text, "ADDRESS or ADDRESS:PORT, separated by commas")
        for texts in arguments.to or ()
        for text in texts.split(",")
    ]
    zones, federation, multicluster = (
        [zone.name for text in given or () for zone in parse_argument(flag, syntax.read, text, syntax.expected)]
        for flag, syntax, given in (
            ("--zone", ZONES, arguments.zone),
            ("--federation", OTHER_ZONE, arguments.federation),
            ("--multicluster", OTHER_ZONE, arguments.multicluster),
        )
    )
    if arguments.check is not None and arguments.fix is not None:
        raise WrongInput("--fix: given together with --check, expected only one of them")
    if arguments.check is not None:
        return _check(arguments, to, [*zones, *federation, *multicluster])
    if arguments.fix is not None:
        return _fix(arguments, to, [*zones, *federation, *multicluster])
    return _print(arguments, to, zones, federation, multicluster)


def _print(
    arguments: Namespace,
    to: Sequence[ListenAddress],
    zones: Sequence[str],
    federation: Sequence[str],
    multicluster: Sequence[str],
) -> int:
    if arguments.forwarder is None:
        raise WrongInput(
            f"--for: missing, expected a program to print for, or --check FILE; see '{program()} corefile --help'"
        )
    if not to:
        raise WrongInput(f"--to: missing, expected the address of topodns; see '{program()} corefile --help'")
    if arguments.output != "text":
        raise WrongInput(f"-o: {arguments.output!r} without --check, expected it only with --check FILE")
    if len(to) + arguments.fail_open > MAX_UPSTREAMS:
        raise WrongInput(f"--to: {len(to)} addresses, expected at most {MAX_UPSTREAMS - arguments.fail_open}")
    version = _coredns_version(arguments)
    try:
        default = () if federation or multicluster else (CLUSTER_DOMAIN,)
        text = stub_block(
            arguments.forwarder,
            to,
            zones or default,
            federation=federation,
            multicluster=multicluster,
            fail_open=arguments.fail_open,
            version=version,
        )
    except ValueError as error:
        raise WrongInput(f"--fail-open: {error}") from None
    write_as_it_is(text)
    if arguments.forwarder == COREDNS and version is None and is_seen():
        newer = version_text(TIMING_READS)
        why = "lets it wait 0.4 s for topodns in place of 2 s"
        say(f"--coredns-version: is it CoreDNS {newer} or later? --coredns-version {newer} {why}", logging.INFO)
    return EXIT_DONE


def _coredns_version(arguments: Namespace) -> CoreDNSVersion | None:
    """Return the version of CoreDNS that gets the block. Raises WrongInput."""
    text = arguments.coredns_version
    if text is None:
        return None
    if arguments.forwarder != COREDNS:
        raise WrongInput(f"--coredns-version: given with --for {arguments.forwarder}, expected it with --for {COREDNS}")
    version = parse_argument("--coredns-version", parse_version, text, "a version such as 1.14.7")
    oldest = oldest_version(fail_open=arguments.fail_open)
    if version < oldest:
        what = "--fail-open needs" if arguments.fail_open else "the block needs"
        raise WrongInput(f"--coredns-version: {text!r}, expected {version_text(oldest)} or later, which {what}")
    return version


def _check(arguments: Namespace, to: Sequence[ListenAddress], zones: Sequence[str]) -> int:
    from dnsserver.cli.report import report
    from dnsserver.tools.corefile.checks import check, fixed

    file = arguments.check
    corefile = _corefile(arguments, "--check", file, to, zones, errors="replace")
    status = report(check(corefile, file=file), arguments.output)
    if is_seen() and fixed(corefile).text != corefile.text:
        say("--check: --fix in its place prints the Corefile with the lines at fault changed", logging.INFO)
    return status


def _fix(arguments: Namespace, to: Sequence[ListenAddress], zones: Sequence[str]) -> int:
    from dnsserver.tools.corefile.checks import check, fixed

    file = arguments.fix
    after = fixed(_corefile(arguments, "--fix", file, to, zones, errors="surrogateescape"))
    left = check(after, file=file)
    write_octets(after.text.encode(errors="surrogateescape"))
    for finding in left:
        say(f"left as it is: {finding}")
    return EXIT_FAILED if any(finding.severity == ERROR for finding in left) else EXIT_DONE


def _corefile(
    arguments: Namespace, flag: str, file: str, to: Sequence[ListenAddress], zones: Sequence[str], *, errors: str
) -> Corefile:
    """Return the Corefile that *flag* names. Raises WrongInput, also for what goes only with a printed block."""
    from dnsserver.tools.corefile.caddyfile import Unparsable
    from dnsserver.tools.corefile.stub_zones import read

    forwarder = arguments.forwarder or COREDNS
    if forwarder not in CHECKED:
        raise WrongInput(f"--for: {forwarder!r}, expected {one_of(CHECKED)} with {flag}")
    for other, given in (("--fail-open", arguments.fail_open), ("--coredns-version", arguments.coredns_version)):
        if given:
            raise WrongInput(f"{other}: given together with {flag}, expected only one of them")
    if flag == "--fix" and arguments.output != "text":
        raise WrongInput(f"-o: {arguments.output!r} with --fix, expected it only with --check FILE")
    if not file:
        raise WrongInput(f"{flag}: '' found, expected a file, or - for standard input")
    if file == "-" and sys.stdin is None:
        raise WrongInput("-: standard input is closed, expected a Corefile")
    octets = read_file(file, "a Corefile", sys.stdin.buffer if file == "-" else None)
    try:
        return read(octets.decode(errors=errors), forwarder=forwarder, to=to, zones=zones)
    except Unparsable as error:
        raise WrongInput(f"{file}: {error}") from None
