# SPDX-License-Identifier: Apache-2.0

"""Prints the Grafana dashboard of topodns: ``make docs``."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode, VisibilityMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from msgspec import Struct

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
# The pods of one installation: several of them may share a Prometheus.
PODS = 'namespace=~"$namespace"'
RATE = "[$__rate_interval]"
REPLICA = "{{pod}} {{instance}}"  # not every Prometheus knows the pods of its targets


class Panel(Struct, frozen=True):
    """A graph or a single number: its queries with their legends, and what it means. *span* is of 24 columns."""

    title: str
    text: str
    queries: Sequence[tuple[str, str]]
    unit: str = "reqps"
    span: int = 8
    stacked: bool = False
    single: bool = False
    limits: Sequence[tuple[float, str]] = ()
    """Where a single number changes its colour, and to which."""


def of(metric: str, *matchers: str) -> str:
    """Return a selector of a metric of this installation."""
    selected = ",".join((PODS, *matchers))
    return f"{metric}{{{selected}}}"


def rate(metric: str, *matchers: str, by: str = "") -> str:
    """Return the sum of the rates of a counter."""
    return f"sum{f' by ({by})' if by else ''} (rate({of(metric, *matchers)}{RATE}))"


def share(part: str, whole: str) -> str:
    """Return a share, which there is only if the whole is more than 0."""
    return f"({part} or vector(0)) / ({whole} > 0)"


def quantile(which: float, metric: str) -> str:
    """Return a quantile of a histogram."""
    return f"histogram_quantile({which}, {rate(f'{metric}_bucket', by='le')})"


ZONES, ANSWERS, CLIENTS = "topodns_answer_zones_total", "topodns_answers_total", "topodns_clients_total"
KNOWN, SAME, OTHER = 'answer!="unknown"', 'answer="same"', 'answer="other"'
UNMET, UNKNOWN = 'outcome="unmet"', 'located_by="unknown"'
BY_ZONE = rate(ZONES, KNOWN, by="client_zone")
OURS = f"and on (instance) topodns_build_info{{{PODS}}}"

ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "At a glance",
        (
            Panel(
                "Same zone",
                "Answers all of whose endpoints are in the client's zone, of those about which this is known.",
                [(share(rate(ZONES, SAME), rate(ZONES, KNOWN)), "")],
                unit="percentunit", span=4, single=True, limits=[(0, "red"), (0.5, "yellow"), (0.9, "green")],
            ),
            Panel(
                "Other zone",
                "Answers none of whose endpoints is in the client's zone. What these clients send is billed.",
                [(share(rate(ZONES, OTHER), rate(ZONES, KNOWN)), "")],
                unit="percentunit", span=4, single=True, limits=[(0, "green"), (0.1, "yellow"), (0.5, "red")],
            ),
            Panel(
                "Unmet",
                "Queries that got no endpoint, because a Service insists on nearness and has none near the client.",
                [(f"{rate(ANSWERS, UNMET)} or vector(0)", "")],
                span=4, single=True, limits=[(0, "green"), (0.01, "yellow"), (1, "red")],
            ),
            Panel(
                "Unknown clients",
                "Queries of clients that topodns cannot locate.",
                [(share(rate(CLIENTS, UNKNOWN), rate(CLIENTS)), "")],
                unit="percentunit", span=4, single=True, limits=[(0, "green"), (0.01, "yellow"), (0.05, "red")],
            ),
            Panel(
                "Not synced",
                "Replicas that have not read the whole cluster. Servers among them answer SERVFAIL.",
                [(f"count(min without (kind) ({of('topodns_synced')}) == 0) or vector(0)", "")],
                unit="short", span=4, single=True, limits=[(0, "green"), (1, "red")],
            ),
            Panel(
                "Invalid constraints",
                "Services whose constraint is invalid. They get answers as if they had none; topodns check names them.",
                [(f"max({of('topodns_invalid_constraints')})", "")],
                unit="short", span=4, single=True, limits=[(0, "green"), (1, "red")],
            ),
        ),
    ),
    (
        "Zones",
        (
            Panel(
                "Same zone, by the client's zone",
                "The share of answers all of whose endpoints are in the client's zone.",
                [
                    (
                        f"({rate(ZONES, SAME, by='client_zone')} or 0 * {BY_ZONE}) / ({BY_ZONE} > 0)",
                        "{{client_zone}}",
                    )
                ],
                unit="percentunit",
            ),
            Panel(
                "Where the endpoints are",
                "Answers by whether their endpoints are in the client's zone: all (same), some, none (other).",
                [(rate(ZONES, by="answer"), "{{answer}}")],
                stacked=True,
            ),
        ),
    ),
    (
        "Answers",
        (
            Panel("Outcomes", "How the endpoints were chosen.", [(rate(ANSWERS, by="outcome"), "{{outcome}}")],
                  stacked=True),
            Panel("Deciding keys", "Answers by the topology key that decided.",
                  [(rate("topodns_answer_tier_total", by="key"), "{{key}}")], stacked=True),
            Panel("Replies", "By rcode. SERVFAIL: a replica is not synced.",
                  [(rate("topodns_dns_responses_total", by="rcode"), "{{rcode}}")], stacked=True),
        ),
    ),
    (
        "Clients and forwarders",
        (
            Panel("Clients", "Queries by how topodns located the client.",
                  [(rate(CLIENTS, by="located_by"), "{{located_by}}")], stacked=True),
            Panel("Forwarders that name nobody", "Trusted forwarders that do not say who asks.",
                  [(f"topk(10, {rate('topodns_forwarded_without_client_total', by='forwarder')})", "{{forwarder}}")]),
            Panel("Ignored client subnets", "Sources that name clients without being trusted.",
                  [(f"topk(10, {rate('topodns_client_subnets_ignored_total', by='source')})", "{{source}}")]),
        ),
    ),
    (
        "Speed",
        (
            Panel("Time to answer", "From receiving a query to sending its reply.",
                  [(quantile(which, "topodns_dns_request_duration_seconds"), name)
                   for which, name in ((0.5, "median"), (0.99, "p99"))], unit="s"),
            Panel("Time from a change to the answer", "From the change of an EndpointSlice to answers that show it.",
                  [(quantile(which, "topodns_kubernetes_dns_programming_duration_seconds"), name)
                   for which, name in ((0.5, "median"), (0.99, "p99"))], unit="s"),
            Panel("Delay of the event loop", "How late the event loop runs what is due.",
                  [(quantile(0.99, "topodns_loop_delay_seconds"), "p99")], unit="s"),
            Panel("Queries", "By transport and replica.",
                  [(rate("topodns_dns_requests_total", by="pod, instance, proto"), f"{REPLICA} {{{{proto}}}}")],
                  stacked=True),
            Panel("Answers repeated from memory", "The share of replies that were remembered.",
                  [(share(rate("topodns_remembered_total", 'result="hit"'), rate("topodns_remembered_total")), "hits")],
                  unit="percentunit"),
            Panel("Errors and lost queries", "Errors caught, and queries dropped, by where.",
                  [(rate("topodns_failures_total", by="wall"), "{{wall}}")]),
        ),
    ),
    (
        "The view of the cluster",
        (
            Panel("Out of reach", "For how long the API server of a cluster is out of reach.",
                  [(f"max by (source_cluster) ({of('topodns_cluster_view_age_seconds')})", "{{source_cluster}}")],
                  unit="s"),
            Panel("Watches restarted", "By kind and reason.",
                  [(rate("topodns_watch_restarts_total", by="kind, reason"), "{{kind}} {{reason}}")], unit="short"),
            Panel("Objects", "What topodns has read, by kind.",
                  [(f"max by (kind) ({of('topodns_objects')})", "{{kind}}")], unit="short"),
            Panel("Memory", "Of each replica. Unused memory of one replica is no sign of the next one's.",
                  [(f"{of('process_resident_memory_bytes')} {OURS}", REPLICA)], unit="bytes"),
            Panel("CPU", "Of each replica, in cores.",
                  [(f"rate({of('process_cpu_seconds_total')}{RATE}) {OURS}", REPLICA)], unit="short"),
            Panel("TCP connections", "Open connections of each replica.",
                  [(of("topodns_tcp_connections"), REPLICA)], unit="short"),
        ),
    ),
)  # fmt: skip

MATRIX = f"sum by (client_zone, answer) (increase({of(ZONES)}[$__range]))"
CROSSING = of(ZONES, 'service_name!=""', 'answer=~"some|other"')
BY_SERVICE = f"topk(20, sum by (service_namespace, service_name) (increase({CROSSING}[$__range])))"


def document() -> str:
    """Return the dashboard as JSON."""
    board = (
        dashboard.Dashboard("topodns")
        .uid("topodns")
        .tags(["dns", "kubernetes"])
        .description("Which endpoints topodns answers with, how near they are, and whether topodns is well.")
        .editable()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("1m")
        .time("now-3h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("namespace")
            .label("Namespace")
            .datasource(SOURCE)
            .query("label_values(topodns_build_info, namespace)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)  # the default never asks again for new installations
            .sort(VariableSort.ALPHABETICAL_ASC)
            .include_all(True)
            .all_value(".*")
            .multi(True)
        )
    )
    for title, panels in ROWS:
        board = board.with_row(dashboard.Row(title))
        for panel in panels:
            board = board.with_panel(_single(panel) if panel.single else _graph(panel))
        if title == "Zones":
            board = board.with_panel(_matrix()).with_panel(_services())
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _queries(panel: Panel) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().ref_id(chr(ord("A") + at)).expr(expression).legend_format(legend or "__auto")
        for at, (expression, legend) in enumerate(panel.queries)
    ]


def _single(panel: Panel) -> stat.Panel:
    colours = [Threshold(color=colour, value=value if at else None) for at, (value, colour) in enumerate(panel.limits)]
    made = stat.Panel().title(panel.title).description(panel.text).datasource(SOURCE).unit(panel.unit)
    made = made.span(panel.span).height(5).thresholds(
        dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(colours)
    )  # fmt: skip
    made = made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    for query in _queries(panel):
        made = made.with_target(query)
    return made


def _graph(panel: Panel) -> timeseries.Panel:
    made = timeseries.Panel().title(panel.title).description(panel.text).datasource(SOURCE).unit(panel.unit)
    made = made.span(panel.span).height(8).min(0).show_points(VisibilityMode.NEVER)
    if panel.stacked:
        made = made.fill_opacity(30).stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for query in _queries(panel):
        made = made.with_target(query)
    return made


def _table(title: str, text: str, expression: str) -> table.Panel:
    made = table.Panel().title(title).description(text).datasource(SOURCE).unit("short").decimals(0).height(8)
    query = prometheus.Dataquery().ref_id("A").expr(expression).instant().format(PromQueryFormat.TABLE)
    return made.with_target(query)


def _matrix() -> table.Panel:
    text = "Answers in the chosen time: who asked from where, and whether the endpoints are in that zone."
    fields = {"rowField": "client_zone", "columnField": "answer", "valueField": "Value"}
    return _table("Zone by zone", text, MATRIX).span(8).with_transformation(
        DataTransformerConfig(id_val="groupingToMatrix", options=fields)
    )  # fmt: skip


def _services() -> table.Panel:
    text = "Needs --metrics-per-service. Answers with endpoints in other zones: where a constraint saves most."
    return _table("Services whose answers cross zones", text, BY_SERVICE).span(24).with_transformation(
        DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}})
    )  # fmt: skip


if __name__ == "__main__":
    print(document(), end="")
