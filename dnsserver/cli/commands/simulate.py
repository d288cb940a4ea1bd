# SPDX-License-Identifier: Apache-2.0

"""``topodns simulate``: prints who would get what, and what that does to the load and to the traffic between zones."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES, WrongInput
from dnsserver.cli.output import as_yaml, coloured, write, write_as_it_is, write_json
from dnsserver.cli.parser import CommandParser, Example, add_output_format, one_of
from dnsserver.cli.settings_flags import ONE_NAMESPACE, add_flags, add_settings, flags_of, settings_of
from dnsserver.settings import values
from dnsserver.settings.flags import repeatable, several, single, switch
from dnsserver.settings.settings import Settings
from dnsserver.settings.values import HONOR, ServiceName, Syntax
from dnsserver.spelling import suggestion
from dnsserver.tools.simulation import IDLE, MAX_OVERLOAD, OVERLOAD, UNMET
from locator.labels import ClientSelector, parse_client_selector
from locator.model import SUCCESSORS

if TYPE_CHECKING:
    from dnsserver.cli.cluster import ReadClusters
    from dnsserver.tools.simulation.as_if import Annotations, Changes
    from dnsserver.tools.simulation.cost import Price
    from dnsserver.tools.simulation.results import Simulation
    from dnsserver.tools.simulation.world import Subject, World

MAX_FINDINGS = 50  # in text: people read no more
NEVER = "never"
FAIL_ON = (NEVER, OVERLOAD, IDLE, UNMET)
FACTOR = "FACTOR"
TRIED = (
    "NAMESPACE/NAME=KEYS, NAME.NAMESPACE=KEYS, or svc/NAME=KEYS with -n NAMESPACE; or with :max-overload, :clients "
    "or :min-endpoints before '='"
)

EXAMPLES = (
    Example("What do the constraints of a cluster do to the load, and to the traffic between zones?",
            "topodns simulate --snapshot cluster.yaml"),
    Example("What would a cluster without constraints gain, at 0.02 a gigabyte and 3,000 GB a month for each Service?",
            "topodns simulate --price 0.02 --traffic 3000 plain.yaml"),
    Example("What would a constraint do, before it is switched on?",
            "topodns simulate --service shop/kafka --with 'shop/kafka=topology.kubernetes.io/zone,*' "
            "--snapshot cluster.yaml"),
    Example("What would bound the load of each endpoint?",
            "topodns simulate --service shop/ratings --with 'shop/ratings:max-overload=1.2' --snapshot cluster.yaml"),
    Example("Which constraint fits a Service?",
            "topodns simulate --service shop/ratings --compare --snapshot cluster.yaml"),
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


class Tried(NamedTuple):
    """An annotation that a Service would have, None for none."""

    service: ServiceName
    annotation: str
    value: str | None


def _read_domain(text: str) -> tuple[str, str]:
    from locator.labels import valid_label_key, valid_label_value

    key, equals, value = text.partition("=")
    if not equals or not valid_label_key(key) or not value or not valid_label_value(value):
        raise ValueError(repr(text))
    return SUCCESSORS.get(key, key), value


def _read_tried(text: str) -> Tried:
    from locator.topology.annotations import CLIENTS, MAX_OVERLOAD, MIN_ENDPOINTS, PREFIX, TOPOLOGY_KEYS

    service_and_name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(repr(text))
    service, colon, name = service_and_name.partition(":")
    known = {key.removeprefix(PREFIX): key for key in (MAX_OVERLOAD, CLIENTS, MIN_ENDPOINTS)}
    if colon and name not in known:
        raise ValueError(f"{text!r}: {name!r} cannot be tried{suggestion(name, known)}")
    return Tried(values.parse_service(service), known[name] if colon else TOPOLOGY_KEYS, value.strip() or None)


def _read_factor(text: str) -> float:
    if (number := values.amount(FACTOR).read(text)) < 1:
        raise ValueError(repr(text))
    return number


def _read_picture(text: str) -> str:
    """Read where the picture goes. Raises ValueError of a name that promises another format."""
    path = Path(text)
    if path.suffix.lower() not in ("", ".svg"):
        raise ValueError(f"{text!r}: the picture is an SVG, and {str(path.with_suffix('.svg'))!r} would say so")
    return text


def _read_fail_on(text: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",")]
    if unknown := [word for word in words if word not in FAIL_ON]:
        raise ValueError(repr(unknown[0]))
    return tuple(word for word in words if word != NEVER)


@dataclass(frozen=True, kw_only=True)
class SimulateFlags:
    """What is simulated, and what is too much of it."""

    service: tuple[ServiceName, ...] = repeatable(
        (),
        values.SERVICE,
        help="Simulate this Service; svc/NAME is in the namespace of -n",
        shown="every headless one with a constraint",
    )
    """A Service without a constraint can be simulated, too. If none has one, what each would gain is shown."""

    with_: tuple[Tried, ...] = repeatable(
        (),
        Syntax("NS/NAME[:ANNOTATION]=VALUE", TRIED, _read_tried),
        help="As if the Service had these topodns.io/topology-keys, or another max-overload, clients or min-endpoints; "
        "no value takes the annotation away",
        shown="none",
    )
    """All that is given for one Service counts together."""

    fail: tuple[tuple[str, str], ...] = repeatable(
        (),
        Syntax("KEY=VALUE", "KEY=VALUE of a node label", _read_domain),
        help="As if nothing in this topology domain were ready",
        shown="none",
    )
    """The clients there go on asking."""

    clients: tuple[ClientSelector, ...] = repeatable(
        (),
        Syntax("NS[/SELECTOR]", "NAMESPACE, or NAMESPACE/SELECTOR with a label selector", parse_client_selector),
        help="Who asks: the running pods of a namespace with these labels",
        shown="every running pod that is no endpoint of the Service",
    )
    """Each pod asks as much as any other, unless --clients-from says more."""

    clients_from: str | None = single(
        None,
        replace(values.SERVER_URL, metavar="URL"),
        help="How much each zone asks: as a running server has counted, at an address of its --http",
        shown="each pod asks as much",
    )
    """A server counts the answers to each zone, and with --metrics-per-service those of each Service."""

    max_overload: float = single(
        MAX_OVERLOAD,
        Syntax(FACTOR, "a factor from 1 on", _read_factor),
        help="Warn of an endpoint with more than so many even shares of the load",
    )
    """What a deployment with some room left still carries."""

    compare: bool = switch(
        help="Compare each Service with no constraint, as it is, with its own zone first, and with bounds to the load"
    )
    """The choices that most people have."""

    fail_on: tuple[str, ...] = several(
        (),
        Syntax("WHAT", one_of(FAIL_ON), _read_fail_on, FAIL_ON),
        help=f"End with status 1 if there is: {one_of(FAIL_ON[1:])}; several by commas",
        shown=NEVER,
    )
    """A simulation is a question, and its answer no failure."""

    price: float | None = single(
        None,
        values.amount("PER_GB"),
        help="What a gigabyte between zones costs, in any currency",
        shown="none",
    )
    """Needs --traffic."""

    traffic: float | None = single(
        None,
        values.amount("GB", "gigabytes"),
        help="Gigabytes that the clients of each Service get in a month",
        shown="none",
    )
    """Needs --price."""

    picture: str | None = single(
        None,
        Syntax("FILE.svg", "FILE.svg", _read_picture),
        help="Draw who flows where, and what is overloaded",
        shown="none",
    )
    """Written before the text is."""


def add_arguments(parser: CommandParser) -> None:
    """Add what is simulated, thresholds, output format and the settings."""
    add_flags(parser, SimulateFlags)
    add_output_format(parser, "markdown")
    add_settings(parser, "simulate", common=("snapshot",), also=ONE_NAMESPACE)


def run(arguments: Namespace) -> int:
    """Print the simulation; the exit status is 1 if something of --fail-on was found."""
    settings, flags = settings_of(arguments), flags_of(arguments, SimulateFlags)
    from dnsserver.cli.reading.simulated import check_zones, read_counted, read_world
    from dnsserver.tools.simulation.gains_text import others_line
    from dnsserver.tools.simulation.selecting import BadSelection, in_several_zones, subjects, unconstrained_subjects

    price, namespace = _price(flags), partial(_namespace, settings)
    named, changes = [service.key(namespace) for service in flags.service], _changes(flags, settings, namespace)
    counted = None if flags.clients_from is None else read_counted(flags.clients_from)
    try:
        world, reading = read_world(settings, changes, flags.clients, counted)
        selected = subjects(world.snapshot, world.authority, named, changes)
        gaining = not selected
        if gaining:
            check_zones(world, reading)
            selected = unconstrained_subjects(world.snapshot, world.authority)
    except BadSelection as error:
        raise WrongInput(f"{error.argument}: {error}" if error.argument else str(error)) from None
    simulation = _simulated(selected, world, reading, changes, flags, price, gaining=gaining)
    _print(simulation, flags, arguments.output)
    if not gaining and arguments.output == "text":
        found = in_several_zones(unconstrained_subjects(world.snapshot, world.authority), world.snapshot)
        write(others_line([one for one in found if not named or (one.key in named and not flags.compare)]))
    return EXIT_FAILED if _found(simulation, flags.fail_on) else EXIT_DONE


def _simulated(
    selected: Sequence[Subject],
    world: World,
    reading: ReadClusters,
    changes: Changes,
    flags: SimulateFlags,
    price: Price | None,
    *,
    gaining: bool,
) -> Simulation:
    """Simulate some names, if *gaining* with what each of them would gain by. A terminal shows how far that is."""
    from dnsserver.cli.progress import shown_progress
    from dnsserver.cli.reading.simulated import findings_in, world_as_if
    from dnsserver.tools.simulation.comparing import AS_IT_IS, CHOICES, Compared, compare
    from dnsserver.tools.simulation.gains import Gain, find_gains, ranked
    from dnsserver.tools.simulation.results import Simulation, distinct_clients, simulate_all

    def as_if(services: Collection[str], annotations: Annotations) -> World:
        return world_as_if(world, reading, changes.also(services, annotations))

    compared: list[list[Compared]] = []
    gains: list[Gain] | None = None
    number = f"{len(selected):,} Services"
    with shown_progress() as report:
        if gaining:
            found = find_gains(
                selected, as_if, flags.max_overload, lambda done: report(f"trying, {done:,} of {number}")
            )
            gains = ranked(found, price)
            changes = changes.instead({one.key: one.annotations for one in gains if one.annotations})
            world = world_as_if(world, reading, changes)
        services = simulate_all(selected, world, lambda done: report(f"simulating, {done:,} of {number}"))
        if flags.compare:
            compared = compare(
                services, partial(as_if, {subject.key for subject in selected}), flags.max_overload,
                lambda done: report(f"comparing, {done} of {len(CHOICES)} choices"),
            )  # fmt: skip
        if gaining:  # they were simulated as they would be, and as they are is "none"
            compared = [[row for row in rows if row.name != AS_IT_IS] for rows in compared]
        findings = findings_in(services, reading, world, changes, flags.max_overload)
    clients = distinct_clients(services, world)
    return Simulation(services, clients, flags.max_overload, findings, changes.annotations, compared, price, gains)


def _namespace(settings: Settings) -> str:
    """Return the namespace of svc/NAME: that of ``-n``, or of the kubeconfig's context. Raises CommandError."""
    if len(settings.serve_namespace) > 1:
        raise WrongInput("-n: several namespaces found, expected one for svc/NAME, or NAMESPACE/NAME")
    if settings.serve_namespace:
        return settings.serve_namespace[0]
    if settings.snapshot:
        return "default"
    from dnsserver.cli.cluster import cluster_errors
    from dnsserver.programs.from_settings import cluster_of

    with cluster_errors(or_dump=True):
        return cluster_of(settings).namespace


def _changes(flags: SimulateFlags, settings: Settings, namespace: Callable[[], str]) -> Changes:
    """Return what --with and --fail ask for."""
    from dnsserver.tools.simulation.as_if import Changes

    annotations: dict[str, dict[str, str | None]] = {}
    for service, annotation, value in flags.with_:
        annotations.setdefault(service.key(namespace), {})[annotation] = value
    return Changes(annotations, flags.fail, honor_kubernetes=settings.traffic_distribution == HONOR)


def _price(flags: SimulateFlags) -> Price | None:
    """Return what --price and --traffic say, None if neither is given. Raises WrongInput."""
    from dnsserver.tools.simulation.cost import Price

    if flags.price is None and flags.traffic is None:
        return None
    if flags.price is None or flags.traffic is None:
        missing = "--price" if flags.price is None else "--traffic"
        raise WrongInput(f"{missing}: missing, expected both --price and --traffic")
    if not math.isfinite(flags.price * flags.traffic):
        raise WrongInput(f"--price: {flags.price:g} times --traffic {flags.traffic:g} is too large")
    return Price(flags.price, flags.traffic)


def _found(simulation: Simulation, fail_on: Sequence[str]) -> bool:
    from dnsserver.tools.simulation.codes import FAILS_ON

    return any(FAILS_ON.get(finding.code) in fail_on for finding in simulation.findings)


def _print(simulation: Simulation, flags: SimulateFlags, output: str) -> None:
    """Write the simulation to standard output, and the picture to its file. Raises CommandError."""
    from dnsserver.cli.report import as_json, as_lines
    from dnsserver.tools.simulation.results import json_parts
    from dnsserver.tools.simulation.text import as_markdown, as_text

    if flags.picture is not None:
        from dnsserver.tools.simulation.picture import picture

        try:
            Path(flags.picture).write_text(picture(simulation.services, simulation.max_overload), encoding="utf-8")
        except OSError as error:
            raise WrongInput(f"--picture {flags.picture}: {error.strerror}, expected a file to write") from None
    findings = [*map(as_json, simulation.findings)]
    if output == "json":
        for part in json_parts(simulation, findings):
            write_json(part)
    elif output == "yaml":
        for part in _yaml_parts(simulation, findings):
            write_as_it_is(part)
    elif output == "markdown":
        write(as_markdown(simulation))
    else:
        write(as_text(simulation, colour=coloured()))
        *lines, numbers = as_lines(simulation.findings, colour=coloured())
        if (more := len(lines) - MAX_FINDINGS) > 0:
            lines[MAX_FINDINGS:] = [f"{more:,} more findings; -o json has all"]
        write("".join(f"{line}\n" for line in (*lines, numbers)))


def _yaml_parts(simulation: Simulation, findings: Sequence[object]) -> Iterator[str]:
    """Yield what ``json_parts`` yields as YAML, a Service at a time, too."""
    import msgspec

    from dnsserver.tools.simulation.results import gain_json, service_json

    yield "services:\n" if simulation.services else "services: []\n"
    for simulated, compared in simulation.each():
        yield as_yaml([msgspec.to_builtins(service_json(simulated, compared))])
    if simulation.gains is not None:
        gains = [msgspec.to_builtins(gain_json(gain, simulation.price)) for gain in simulation.gains]
        yield as_yaml({"gains": gains})
    yield as_yaml({"totals": msgspec.to_builtins(simulation.totals()), "findings": findings})
