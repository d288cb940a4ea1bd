# SPDX-License-Identifier: Apache-2.0

"""``topodns simulate``: prints who would get what, and what that does to the load and to the traffic between zones."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES, WrongInput
from dnsserver.cli.output import coloured, write, write_json
from dnsserver.cli.parser import CommandParser, Example, add_output_format, one_of, parse_argument
from dnsserver.cli.settings_flags import ONE_NAMESPACE, add_settings, settings_of
from dnsserver.settings import values
from dnsserver.settings.fields import Settings
from dnsserver.tools.simulation import IDLE, MAX_OVERLOAD, OVERLOAD, UNMET

if TYPE_CHECKING:
    from dnsserver.cli.cluster import ReadClusters
    from dnsserver.tools.simulation.as_if import Changes
    from dnsserver.tools.simulation.results import Price, Simulation
    from dnsserver.tools.simulation.selecting import ClientSelector
    from dnsserver.tools.simulation.world import Subject, World

MAX_PROPOSALS = 20  # Services for which annotations are tried, the worst: each takes some dozens of simulations
MAX_FINDINGS = 50  # in text: people read no more
NEVER = "never"
FAIL_ON = (NEVER, OVERLOAD, IDLE, UNMET)

EXAMPLES = (
    Example("What do the constraints of a cluster do to the load, and to the traffic between zones?",
            "topodns simulate --snapshot cluster.yaml"),
    Example("What would a constraint do, before it is switched on?",
            "topodns simulate --service shop/kafka --with 'shop/kafka=topology.kubernetes.io/zone,*' "
            "--snapshot cluster.yaml"),
    Example("What if a zone loses its endpoints, or a node dies?",
            "topodns simulate --fail topology.kubernetes.io/zone=eu-west-b --snapshot cluster.yaml"),
    Example("What does it save, at 0.02 a gigabyte between zones and 3,000 GB a month for each Service?",
            "topodns simulate --price 0.02 --traffic 3000 --snapshot cluster.yaml"),
    Example("Let a pipeline fail if clients get nothing, with a text for the pull request:",
            "topodns simulate --fail-on unmet -o markdown --snapshot cluster.yaml"),
    Example("Who flows where, as a picture:",
            "topodns simulate --service shop/memcached --picture memcached.svg --snapshot cluster.yaml"),
)  # fmt: skip
STATUSES = {
    **STATUSES,
    EXIT_DONE: "simulated, and nothing of what --fail-on names was found",
    EXIT_FAILED: "something of what --fail-on names was found, or a server cannot be reached, or refuses",
}


def add_arguments(parser: CommandParser) -> None:
    """Add what is simulated, thresholds, output format and the settings."""
    add = parser.flags.add_argument
    add(
        "--service",
        metavar="NS/NAME",
        action="append",
        default=[],
        help="Simulate this Service (default: every headless one with a constraint; repeatable)",
    )
    add(
        "--with",
        dest="tried",
        metavar="NS/NAME=KEYS",
        action="append",
        default=[],
        help="As if the Service had these keys as topodns.io/topology-keys; '=' alone takes the annotation away "
        "(default: none; repeatable)",
    )
    add(
        "--fail",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="As if nothing in this topology domain were ready (default: none; repeatable)",
    )
    add(
        "--clients",
        metavar="NS[/SELECTOR]",
        action="append",
        default=[],
        help="Who asks: the running pods of a namespace with these labels (default: every running pod that is no "
        "endpoint of the Service; repeatable)",
    )
    add(
        "--clients-from",
        metavar="URL",
        help="How much each zone asks: as a running server has counted, at an address of its --http (default: each pod "
        "asks as much)",
    )
    add(
        "--max-overload",
        metavar="FACTOR",
        default=str(MAX_OVERLOAD),
        help=f"Warn of an endpoint with more than so many even shares of the load (default: {MAX_OVERLOAD})",
    )
    add(
        "--fail-on",
        metavar="WHAT",
        action="append",
        default=[],
        help=f"End with status 1 if there is: {one_of(FAIL_ON[1:])}; several by commas (default: {NEVER}; repeatable)",
    )
    add("--price", metavar="PER_GB", help="What a gigabyte between zones costs, in any currency (default: none)")
    add("--traffic", metavar="GB", help="Gigabytes that the clients of each Service get in a month (default: none)")
    add("--picture", metavar="FILE.svg", help="Draw who flows where, and what is overloaded (default: none)")
    parser.words["fail_on"] = FAIL_ON
    add_output_format(parser, "markdown")
    add_settings(parser, "simulate", common=("snapshot",), also=ONE_NAMESPACE)


def run(arguments: Namespace) -> int:
    """Print the simulation; the exit status is 1 if something of --fail-on was found."""
    settings = settings_of(arguments)
    from dnsserver.cli.reading.simulated import read_counted, read_world
    from dnsserver.tools.simulation.selecting import BadSelection, subjects

    changes, selectors = _changes(arguments, settings), list(_client_selectors(arguments.clients))
    price = _price(arguments)
    max_overload, fail_on = _factor(arguments.max_overload), _fail_on(arguments.fail_on)
    named = [parse_argument("--service", values.SERVICE_KEY.read, text, values.SERVICE_KEY.expected)
             for text in arguments.service]  # fmt: skip
    url = arguments.clients_from
    if url is not None:
        url = parse_argument("--clients-from", values.SERVER_URL.read, url, values.SERVER_URL.expected)
    try:
        world, reading = read_world(settings, changes, selectors, None if url is None else read_counted(url))
        selected = subjects(world.snapshot, world.authority, named, changes.annotations)
    except BadSelection as error:
        raise WrongInput(f"{error.argument}: {error}") from None
    simulation = _simulated(selected, world, reading, changes, max_overload, price)
    _print(simulation, arguments)
    return EXIT_FAILED if _found(simulation, fail_on) else EXIT_DONE


def _simulated(
    selected: Sequence[Subject],
    world: World,
    reading: ReadClusters,
    changes: Changes,
    max_overload: float,
    price: Price | None,
) -> Simulation:
    """Simulate some names, and look for proposals. A terminal shows how far that is."""
    from dnsserver.cli.progress import shown_progress
    from dnsserver.cli.reading.simulated import findings_in
    from dnsserver.tools.simulation.proposals import most_overloaded, proposal
    from dnsserver.tools.simulation.results import Simulation, distinct_clients, simulate_all

    with shown_progress() as report:
        services = simulate_all(
            selected, world, lambda done: report(f"simulating, {done:,} of {len(selected):,} Services")
        )
        report("looking for proposals")
        proposals = {
            simulated.subject.name: proposed
            for simulated in most_overloaded(services, max_overload)[:MAX_PROPOSALS]
            if (proposed := proposal(simulated, world, max_overload, honor_kubernetes=changes.honor_kubernetes))
        }
        findings = findings_in(services, reading, world, changes, max_overload)
    return Simulation(services, distinct_clients(services, world), max_overload, findings, proposals, price)


def _changes(arguments: Namespace, settings: Settings) -> Changes:
    """Return what --with and --fail ask for. Raises WrongInput."""
    from dnsserver.settings.values import HONOR
    from dnsserver.tools.simulation.as_if import Changes
    from locator.model import SUCCESSORS
    from locator.topology.annotations import TOPOLOGY_KEYS

    annotations: dict[str, dict[str, str | None]] = {}
    for text in arguments.tried:
        name, equals, keys = text.partition("=")
        if not equals:
            raise WrongInput(f"--with: {text!r} found, expected NAMESPACE/NAME=KEYS")
        key = parse_argument("--with", values.SERVICE_KEY.read, name, values.SERVICE_KEY.expected)
        annotations[key] = {TOPOLOGY_KEYS: keys.strip() or None}
    failed = [parse_argument("--fail", _domain, text, "KEY=VALUE of a node label") for text in arguments.fail]
    return Changes(
        annotations, [(SUCCESSORS.get(key, key), value) for key, value in failed],
        honor_kubernetes=settings.traffic_distribution == HONOR,
    )  # fmt: skip


def _domain(text: str) -> tuple[str, str]:
    from locator.labels import valid_label_key, valid_label_value

    key, equals, value = text.partition("=")
    if not equals or not valid_label_key(key) or not value or not valid_label_value(value):
        raise ValueError(repr(text))
    return key, value


def _client_selectors(texts: Sequence[str]) -> Iterator[ClientSelector]:
    """Yield what --clients asks for. Raises WrongInput."""
    from dnsserver.tools.simulation.selecting import ClientSelector
    from locator.labels import Selector

    for text in texts:
        name, slash, selector = text.partition("/")
        namespace = parse_argument("--clients", values.NAMESPACE.read, name, values.NAMESPACE.expected)
        chosen = Selector()
        if slash:
            chosen = parse_argument("--clients", values.SELECTOR.read, selector, values.SELECTOR.expected)
        yield ClientSelector(text, namespace, chosen)


def _price(arguments: Namespace) -> Price | None:
    """Return what --price and --traffic say, None if neither is given. Raises WrongInput."""
    from dnsserver.tools.simulation.results import Price

    given = {"--price": arguments.price, "--traffic": arguments.traffic}
    if all(text is None for text in given.values()):
        return None
    for flag, text in given.items():
        if text is None:
            raise WrongInput(f"{flag}: missing, expected both --price and --traffic")
    amounts = [parse_argument(flag, _amount, text or "", "a number from 0 on") for flag, text in given.items()]
    if not math.isfinite(amounts[0] * amounts[1]):
        raise WrongInput(f"--price: {arguments.price!r} times --traffic {arguments.traffic!r} is too large")
    return Price(*amounts)


def _amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(repr(text)) from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(repr(text))
    return number


def _factor(text: str) -> float:
    """Return the value of --max-overload. Raises WrongInput."""

    def read(text: str) -> float:
        if (number := _amount(text)) < 1:
            raise ValueError(repr(text))
        return number

    return parse_argument("--max-overload", read, text, "a factor from 1 on")


def _fail_on(texts: Sequence[str]) -> set[str]:
    """Return the words of --fail-on. Raises WrongInput."""
    words = [word.strip() for text in texts for word in text.split(",")]
    for word in words:
        if word not in FAIL_ON:
            raise WrongInput(f"--fail-on: {word!r} found, expected {one_of(FAIL_ON)}")
    return set(words) - {NEVER}


def _found(simulation: Simulation, fail_on: set[str]) -> bool:
    from dnsserver.tools.simulation.codes import FAILS_ON

    return any(FAILS_ON.get(finding.code) in fail_on for finding in simulation.findings)


def _print(simulation: Simulation, arguments: Namespace) -> None:
    """Write the simulation to standard output, and the picture to its file. Raises CommandError."""
    from dnsserver.cli.report import as_json, as_lines
    from dnsserver.tools.simulation.results import json_parts
    from dnsserver.tools.simulation.text import as_markdown, as_text

    if arguments.picture is not None:
        from dnsserver.tools.simulation.picture import picture

        try:
            Path(arguments.picture).write_text(
                picture(simulation.services, simulation.max_overload), encoding="utf-8"
            )  # fmt: skip
        except OSError as error:
            raise WrongInput(f"--picture {arguments.picture}: {error.strerror}, expected a file to write") from None
    if arguments.output == "json":
        for part in json_parts(simulation, list(map(as_json, simulation.findings))):
            write_json(part)
    elif arguments.output == "markdown":
        write(as_markdown(simulation))
    else:
        write(as_text(simulation, colour=coloured()))
        *lines, numbers = as_lines(simulation.findings, colour=coloured())
        if (more := len(lines) - MAX_FINDINGS) > 0:
            lines[MAX_FINDINGS:] = [f"{more:,} more findings; -o json has all"]
        write("".join(f"{line}\n" for line in (*lines, numbers)))
