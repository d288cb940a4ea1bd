# SPDX-License-Identifier: Apache-2.0

"""What ``make bench`` does around its measurements: errors, missing tools, and what the tables say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import offering
from bench.__main__ import BenchPart, measure_all
from bench.attacks import measuring, soaking
from bench.attacks.watching import FIRST, FIRST_TCP, LIVE, NEW, NEW_TCP, REMEMBERED, Waits
from bench.balancing import churning as balanced
from bench.balancing import following, planning
from bench.balancing import measuring as balancing
from bench.large import churning, reading
from bench.sending import FULL_LOAD, BadReply, Pace, Run
from bench.servers import CannotStart

PACE = Pace(rounds=1, warmup=0.0, seconds=0.1)
RUN = Run(took=1.0, sent=1000, replies=1000, checked=100, cpu=0.01, latencies=[0.001] * 1000)


@pytest.mark.parametrize(
    "error",
    [CannotStart("no unbound"), BadReply("SERVFAIL"), KeyError("a row"), FileNotFoundError("a program")],
    ids=["cannot-start", "bad-reply", "key", "file"],
)
def test_an_error_ends_its_own_part_only(capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    """It is reported with the part's name, the other parts still run, and the exit status is 1; each is announced."""

    def fails(*_: object) -> str:
        raise error

    parts = {
        "first": BenchPart(lambda *_: "a table", 7),
        "broken": BenchPart(fails, 1),
        "last": BenchPart(lambda *_: "a figure", 1),
    }
    assert measure_all(parts, PACE) == 1
    printed = capsys.readouterr()
    assert printed.out == "a table\na figure\n"
    assert "bench: broken: " in printed.err and str(error) in printed.err and "first: about 7 min" in printed.err
    assert measure_all({"first": parts["first"]}, PACE) == 0


def test_offered_loads_need_no_go(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without Go, only CoreDNS is left out, and with it the targets that name it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert offering.program_of_coredns() is None
    assert "the rows of CoreDNS are left out" in capsys.readouterr().err
    printed = offering.report(offered("unbound", "topodns", "topodns, forwarded", "topodns on [::]"))
    assert "topodns to unbound: ≤ 1.5" in printed and "topodns on [::] to topodns: ≤ 1.15" in printed
    assert "CoreDNS, file: ≤" not in printed
    assert "CoreDNS could not be built, so its rows are left out." in printed


def test_offered_loads_are_compared_with_coredns() -> None:
    """Where it could be built, by CPU and by latency."""
    titles = ("unbound", "CoreDNS, file", "topodns", "topodns, forwarded", "topodns on [::]")
    printed = offering.report(offered(*titles))
    assert "topodns to CoreDNS, file: ≤ 0.6" in printed and "topodns to CoreDNS, file: ≤ 1 " in printed
    assert "left out" not in printed


def offered(*titles: str) -> Sequence[offering.Row]:
    """Return rows of servers that all cost the same; the table needs neither the servers nor what asks them."""
    return [offering.Row(title, None, None, {rate: [RUN] for rate in (*offering.RATES, FULL_LOAD)}) for title in titles]


def test_a_second_is_printed_in_hundredths() -> None:
    """A start that takes 1.04 s misses a target of 1 s, and reads so."""
    read = reading.Read(elapsed=1.04, cpu=0.967, resident=100.0, peak=110.0)
    reads = dict.fromkeys((reading.TENTH, "topodns", reading.RESTORED), read)
    printed = reading.report(reads, 3, reading.Grown("topodns", [100.0] * 5, 100.0, 120.0))
    assert "1.04 s      | ≤ 1 s: missed" in printed and "0.97 s" in printed
    assert "Medians of 3 rounds" in printed


@pytest.mark.parametrize("situation", [churning.RELISTED, churning.BOTH], ids=["alone", "and-scraped"])
def test_listing_anew_has_a_target(situation: str) -> None:
    """While all pods are listed anew, the longest reply of all counts, whether or not /metrics is read, too."""
    late = RUN._replace(latencies=[*RUN.latencies, 0.016])
    printed = churning.report([churning.Row("topodns", situation, [RUN, late], [500.0, 500.0])])
    assert "≤ 15 ms at most: missed" in printed


def test_what_balance_costs() -> None:
    """Each balanced server is compared with the one beside it: CPU and p99 within a round, and the first memory."""
    plain, more = RUN._replace(cpu=0.25), RUN._replace(cpu=0.35, latencies=[0.002] * 1000)
    rows = [
        balanced.Row("native", balanced.PLAIN, (200.0, 210.0), [plain], [500.0]),
        balanced.Row("native", balanced.BALANCED, (239.0, 260.0), [more], [500.0]),
    ]
    followed = following.Followed(planned=5_800, took=29.4, cpu=1.2, changed=184.5, alone=8.5)
    costs = [planning.Planned(20, 18, ("kubernetes.io/hostname", "*"), "in a zone", 57.4, 71.0)]
    printed = balancing.report(balancing.Measured(costs, followed, rows))
    assert "+100, ≤ +150: met" in printed
    assert "×2.00, ≤ ×1.1: missed" in printed
    assert "+39 MB, ≤ +40 MB: met" in printed
    assert "5,800 pass somebody on" in printed
    assert [cell.strip() for cell in printed.split("hostname,*")[1].splitlines()[0].split("|")[1:-1]] == [
        *("18", "in a zone", "57 µs", "71 µs")
    ]


def suffered(seconds: Sequence[float], lost: int = 0, unanswered: int = 0) -> measuring.Suffered:
    """What a victim noticed whose names took so long, and a loop that was late once, by 4 ms."""
    kinds = (NEW, NEW_TCP, FIRST, FIRST_TCP, REMEMBERED)
    names = {kind: Waits(list(seconds), lost, unanswered) for kind in kinds}
    return measuring.Suffered({LIVE: Waits([0.002, 5.0], 1, 1), **names}, 80.0, {0.001: 9, 0.005: 10, math.inf: 10})


def test_attacks_beside_each_other() -> None:
    """A row of the table has both servers, what was lost, and an empty cell where CoreDNS has nothing to attack."""
    rows = [
        measuring.Row("options", suffered([0.001, 0.003, 0.003]), suffered([0.002, 4.0], lost=3, unanswered=1)),
        measuring.Row("zonal-names", suffered([0.004]), None),
    ]
    both, alone = (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in measuring.report(rows, 6.0).splitlines()
        if line.startswith(("| options ", "| zonal-names ")) and "≤" in line
    )
    assert both[:3] == ["options", "3.0 / 3.0", "4,000.0 / 4,000.0, 75% lost"]
    assert both[7:] == ["5,000, 1 failed", "5,000, 1 failed", "80 MB", "80 MB", "≤ 5 ms"]
    assert (alone[1], alone[2], alone[-1]) == ("4.0 / 4.0", "", "≤ 5 ms")


@pytest.mark.parametrize(
    ("memory", "unanswered", "status"),
    [((90, 100, 119), 0, 0), ((90, 100, 121), 0, 1), ((50, 100, 100), 0, 0), ((90, 100, 100), 1, 1)],
    ids=["sound", "grown", "warm-up", "unanswered"],
)
def test_what_a_soak_finds(memory: Sequence[float], unanswered: int, status: int) -> None:
    """It fails if the memory grew by more than a fifth since the first round, or if a victim got no answer."""
    rounds = [soaking.Measured(60.0 * number, at, 20, 8) for number, at in enumerate(memory)]
    noticed = {"tcp-idle": {NEW: Waits([0.001, 4.0], 2 * unanswered, unanswered), LIVE: Waits([5.0], 1, 1)}}
    soaked = soaking.Soaked(rounds, noticed, {0.05: 99, 0.1: 100, math.inf: 100}, {"send": 0, "queue": 7})
    assert soaked.status == status
    printed = soaking.report(soaked)
    assert f"{unanswered} queries of victims got no answer" in printed and "counted: queue 7." in printed
    assert "by more than 100 ms, and 1.00% of the time" in printed
