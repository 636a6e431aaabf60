"""How close flows come to bytes/R': alone, 16 at once, sharing a link, and after idling (token credit).

R' is the goodput declared for a link; nothing is fitted. Error = FCT × R'/bytes − 1, the FCT from the first packet sent to the
last byte received. Connections are warm unless a row says cold.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import sleep

from _common import (
    ISSUE_SETTINGS,
    Bench,
    Figures,
    Job,
    Measured,
    Setting,
    Spread,
    argument_parser,
    error,
    main,
    number,
    parse_setting,
    print_figures,
    scenario_for,
)

from kvfabric.tables import Cell, Column
from topo.shaping import header_efficiency

ALONE_WITHIN = 0.005
TOGETHER_WITHIN = 0.01
SIZES = (1_000_000, 4_000_000, 16_000_000, 64_000_000)
CREDIT_SIZES = (30_000, 300_000, 3_000_000)
PARTS = ("alone", "together", "shares", "credit")
_BUDGET_S = 6.0
_SHARE_S = 1.0
_IDLE_S = 2.0


def repetitions(size: int, rate_Bps: float, least: int, most: int = 15) -> int:
    """How often to send ``size`` bytes: about six seconds' worth, but ``least`` times for sizes that fit into them thrice,
    and once for those that do not fit at all."""
    fit = int(_BUDGET_S * rate_Bps / size)
    return max(1, min(most, fit if fit < 3 else max(least, fit)))


def least_time(size: int, burst: int, wire_Bps: float, mtu: int) -> float:
    """Seconds that ``size`` payload bytes take at least through a bucket of ``burst`` wire bytes: (size − burst)/rate."""
    return max(0.0, (size / header_efficiency(mtu) - burst) / wire_Bps)


def _load(items: Sequence[Measured]) -> tuple[float, float, float]:
    loads = [item.load for item in items]
    return (
        statistics.median(load.idle for load in loads),
        statistics.median(load.idle_worst_core for load in loads),
        statistics.median(load.others for load in loads),
    )


def _row(name: str, spread: Spread, loads: Sequence[Measured]) -> tuple[Cell, ...]:
    retransmissions = sum(result.retransmissions for item in loads for result in item.results)
    return (
        name, spread.count, 100 * spread.low, 100 * spread.median, 100 * spread.high, 100 * spread.within, retransmissions,
        *_load(loads),
    )  # fmt: skip


def _columns(what: str, within: float) -> tuple[Column, ...]:
    return (
        Column(what), number("flows"), number("error least", "%"), number("median", "%"), number("most", "%"),
        number(f"within {within:.1%}", "% of flows"), number("retransmitted"), number("idle share"), number("idle, busiest core"),
        number("others", "cores"),
    )  # fmt: skip


def alone(bench: Bench, least: int) -> tuple[tuple[Cell, ...], ...]:
    """One flow across the spine, nobody else on the network."""
    source, destination = bench.hosts[0], bench.hosts[len(bench.hosts) // 2]
    slot = bench.slot(source, destination, 0, set())
    cold = bench.run([Job(source, destination, slot, SIZES[0])])
    bench.adopt(source, destination, slot)
    rows = [_row(f"{SIZES[0] // 10**6} MB, cold", Spread.of([error(cold.results[0], bench.rate_Bps)], ALONE_WITHIN), [cold])]
    for size in SIZES:
        job = Job(source, destination, slot, size)
        runs = [bench.run([job]) for _ in range(repetitions(size, bench.rate_Bps, least))]
        errors = [error(run.results[0], bench.rate_Bps) for run in runs]
        rows.append(_row(f"{size // 10**6} MB", Spread.of(errors, ALONE_WITHIN), runs))
    return tuple(rows)


def together(bench: Bench, rounds: int) -> tuple[Cell, ...]:
    """All 16 hosts at once, no link shared."""
    jobs = bench.permutation(int(bench.rate_Bps * _SHARE_S))
    bench.warm(jobs)
    runs = [bench.run(jobs) for _ in range(rounds)]
    errors = [error(result, bench.rate_Bps) for run in runs for result in run.results]
    return _row("16 hosts at once", Spread.of(errors, TOGETHER_WITHIN), runs)


def shares(bench: Bench, count: int, *, to_one_host: bool, rounds: int) -> tuple[Cell, ...]:
    """``count`` flows of one leaf that share a link: the last one, to a host, or their leaf's first uplink."""
    taken: set[int] = set()
    half = len(bench.hosts) // 2
    jobs = []
    for place in range(count):
        source, destination = bench.hosts[place], bench.hosts[half + (0 if to_one_host else place)]
        slot = bench.slot(source, destination, place if to_one_host else 0, taken)
        jobs.append(Job(source, destination, slot, int(bench.rate_Bps * _SHARE_S / count)))
    bench.warm(jobs)
    runs = [bench.run(jobs) for _ in range(rounds)]
    errors = [error(result, bench.rate_Bps / count) for run in runs for result in run.results]
    where = "one host's link" if to_one_host else "one uplink"
    return _row(f"{count} flows on {where}", Spread.of(errors, TOGETHER_WITHIN), runs)


@dataclass(frozen=True, slots=True)
class Credit:
    """A transfer after the link idled: what it took, what it must take at least, and how much of the rate it saw at most."""

    size: int
    took_s: float
    least_s: float

    @property
    def kept(self) -> bool:
        """Whether the token credit was bounded by the burst. The clock's 20 µs are granted."""
        return self.took_s >= self.least_s - 20e-6


def credit(bench: Bench, rounds: int) -> tuple[tuple[Cell, ...], ...]:
    """Idle, then send: the shortest of ``rounds`` transfers against (size − burst)/rate."""
    source, destination = bench.hosts[1], bench.hosts[len(bench.hosts) // 2 + 1]
    slot = bench.slot(source, destination, 1, set())
    bench.warm([Job(source, destination, slot, 1)])
    shape = bench.fabric.settings.shape(bench.rate_Bps)
    rows = []
    for size in CREDIT_SIZES:
        took = []
        for _ in range(rounds):
            sleep(_IDLE_S)
            took.append(bench.run([Job(source, destination, slot, size)]).results[0].fct)
        found = Credit(size, min(took), least_time(size, shape.burst, shape.wire_Bps, shape.mtu))
        unburst = size / bench.rate_Bps
        rows.append((size, shape.burst, 1e3 * found.took_s, 1e3 * found.least_s, 1e3 * unburst, found.kept))
    return tuple(rows)


def _measure_setting(setting: Setting, asked: argparse.Namespace) -> list[Figures]:
    found = []
    with Bench(scenario_for(setting, asked.set)) as bench:
        if "alone" in asked.parts:
            title = f"one flow alone, {setting}"
            found.append(Figures(title, _columns("size", ALONE_WITHIN), alone(bench, asked.repeat)))
        rows = []
        if "together" in asked.parts:
            rows.append(together(bench, asked.rounds))
        if "shares" in asked.parts:
            rows += [shares(bench, n, to_one_host=kind, rounds=asked.rounds) for kind in (True, False) for n in (2, 4)]
        if rows:
            title = f"several flows, {setting}: each against its share"
            found.append(Figures(title, _columns("flows", TOGETHER_WITHIN), tuple(rows)))
        if "credit" in asked.parts:
            columns = (
                number("bytes"), number("burst", "B"), number("took, least", "ms"), number("bound (size − burst)/rate", "ms"),
                number("size/rate", "ms"), Column("kept"),
            )  # fmt: skip
            found.append(Figures(f"after {_IDLE_S:g} s idle, {setting}", columns, credit(bench, asked.rounds)))
    return found


def measure(arguments: Sequence[str]) -> int:
    """Measure and print; in a sandbox."""
    asked = _parser().parse_args(arguments)
    figures = [item for setting in asked.setting or ISSUE_SETTINGS for item in _measure_setting(setting, asked)]
    print_figures(figures, {"alone_within": ALONE_WITHIN, "together_within": TOGETHER_WITHIN}, as_json=asked.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--setting", type=parse_setting, nargs="+", metavar="Mb/s:MTU", help="default: 100:1500 400:9000")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeat", type=int, default=5, help="repetitions of small sizes, at least")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of everything but the lone flows")
    return parser


if __name__ == "__main__":
    _parser().parse_args()  # refuse bad arguments before a sandbox is made
    sys.exit(main(__file__, sys.argv[1:], measure))
