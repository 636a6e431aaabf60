"""How much this machine carries faithfully, beside how much it forwards at all.

For each MTU, by bisection: the highest equal rate at which 16 hosts of a 1:1 fabric, each sending to another over links
nobody else uses, all get within 1 % of it with the processors at least 5 % idle. Beside it, in the same run, on the same
graph with the same MTU, offloads, windows and steering: TCP with the qdiscs removed, of all hosts at once and of one alone.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from _common import (
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
    print_figures,
    scenario_for,
)

from topo.shaping import TCP_IP_HEADERS

TOLERANCE = 0.01
IDLE_FLOOR = 0.05
_FLOW_S = 1.0
_RAW_S = 2.0
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """One rate tried: it holds when most rounds had every flow within the tolerance and the processors idle enough."""

    rate_Mbps: float
    holds: bool
    rounds_good: int
    spread: Spread
    idle: float


@dataclass(frozen=True, slots=True)
class Raw:
    """Unshaped TCP: goodput of all flows together in bytes/s, and what the processors had left."""

    goodput_Bps: float
    idle: float


def ladder(low: float, high: float, step: float) -> tuple[float, ...]:
    """Rates from ``low`` to at most ``high``, each ``step`` times the one before. Raises ValueError when there is none."""
    if not 0 < low <= high or step <= 1:
        raise ValueError(f"no rates from {low} to {high} by {step}")
    return tuple(low * step**place for place in range(1 + math.floor(math.log(high / low) / math.log(step) + 1e-9)))


def highest(rates: Sequence[float], holds: Callable[[float], bool]) -> float | None:
    """The highest of ascending ``rates`` that holds, by bisection, as if holding were monotonic; None if none is found."""
    low, high = -1, len(rates)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(rates[middle]):
            low = middle
        else:
            high = middle
    return rates[low] if low >= 0 else None


def packets_per_s(goodput_Bps: float, mtu: int) -> float:
    """Full-sized data packets a second that carry a goodput (their acknowledgements come on top)."""
    return goodput_Bps / (mtu - TCP_IP_HEADERS)


def _try(rate_Mbps: float, mtu: int, changes: Sequence[str]) -> Trial:
    setting = Setting(rate_Mbps, mtu)
    with Bench(scenario_for(setting, changes)) as bench:
        jobs = bench.permutation(max(100_000, int(setting.rate_Bps * _FLOW_S)))
        bench.warm(jobs)
        rounds: list[Measured] = []
        good = 0
        for _ in range(_ROUNDS):
            rounds.append(bench.run(jobs))
            errors = [error(result, bench.rate_Bps) for result in rounds[-1].results]
            good += max(map(abs, errors)) <= TOLERANCE and rounds[-1].load.idle >= IDLE_FLOOR
            if max(good, len(rounds) - good) > _ROUNDS // 2:
                break
        every = [error(result, bench.rate_Bps) for item in rounds for result in item.results]
        idle = statistics.median(item.load.idle for item in rounds)
        return Trial(rate_Mbps, good > _ROUNDS // 2, good, Spread.of(every, TOLERANCE), idle)


def _goodput(measured: Measured, jobs: Sequence[Job]) -> float:
    first = min(result.actual_send for result in measured.results)
    return sum(job.bytes for job in jobs) / (max(result.delivered for result in measured.results) - first)


def _raw(mtu: int, changes: Sequence[str]) -> tuple[Raw, Raw]:
    """Unshaped: all hosts at once, and one flow alone."""
    with Bench(scenario_for(Setting(1000, mtu), changes)) as bench:
        bench.unshape()
        found = []
        for count in (len(bench.hosts), 1):
            jobs = bench.permutation(4_000_000)[:count]
            bench.warm(jobs, 1_000_000)
            guess = bench.run(jobs)
            size = int(_goodput(guess, jobs) / count * _RAW_S)
            jobs = tuple(Job(job.source, job.destination, job.slot, size) for job in jobs)
            measured = bench.run(jobs)
            found.append(Raw(_goodput(measured, jobs), measured.load.idle))
        return found[0], found[1]


def measure(arguments: Sequence[str]) -> int:
    """Measure and print; in a sandbox."""
    asked = _parser().parse_args(arguments)
    rows, tried = [], []
    for mtu in asked.mtu:
        together, alone = _raw(mtu, asked.set)
        hosts = 16
        top = together.goodput_Bps * 8 / 1e6 / hosts
        trials: list[Trial] = []

        def holds(rate: float, mtu: int = mtu, trials: list[Trial] = trials) -> bool:
            trials.append(_try(rate, mtu, asked.set))
            return trials[-1].holds

        best = highest(ladder(top / 32, top, asked.step), holds)
        aggregate = (best or 0.0) * hosts * 1e6 / 8
        rows.append(
            (mtu, best, aggregate * 8 / 1e6, packets_per_s(aggregate, mtu) / 1e3, together.goodput_Bps * 8 / 1e6,
             packets_per_s(together.goodput_Bps, mtu) / 1e3, alone.goodput_Bps * 8 / 1e6,
             packets_per_s(alone.goodput_Bps, mtu) / 1e3, aggregate / together.goodput_Bps)
        )  # fmt: skip
        tried += [
            (mtu, item.rate_Mbps, item.holds, item.rounds_good, 100 * item.spread.low, 100 * item.spread.median,
             100 * item.spread.high, item.idle)
            for item in sorted(trials, key=lambda item: item.rate_Mbps)
        ]  # fmt: skip
    columns = (
        number("MTU"), number("faithful per host", "Mb/s"), number("faithful in all", "Mb/s"), number("packets", "thousand/s"),
        number("raw, 16 at once", "Mb/s"), number("packets", "thousand/s"), number("raw, one alone", "Mb/s"),
        number("packets", "thousand/s"), number("faithful / raw"),
    )  # fmt: skip
    search = (
        number("MTU"), number("rate per host", "Mb/s"), number("holds"), number("good rounds"), number("error least", "%"),
        number("median", "%"), number("most", "%"), number("idle share"),
    )  # fmt: skip
    title = f"highest rate at which all 16 flows are within {TOLERANCE:.0%} and CPU idle is at least {IDLE_FLOOR:.0%}"
    print_figures(
        [Figures(title, columns, tuple(rows)), Figures("every rate tried", search, tuple(tried))],
        {"tolerance": TOLERANCE, "idle_floor": IDLE_FLOOR, "flow_s": _FLOW_S, "rounds": _ROUNDS, "step": asked.step},
        as_json=asked.json,
    )
    return 0


def _step(text: str) -> float:
    value = float(text)
    if not 1 < value <= 4:
        raise argparse.ArgumentTypeError(f"{text}: a factor above 1, at most 4")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mtu", type=int, nargs="+", default=[1500, 4096, 9000], metavar="BYTES")
    parser.add_argument("--step", type=_step, default=1.1, help="ratio of neighbouring rates in the search")
    return parser


if __name__ == "__main__":
    _parser().parse_args()  # refuse bad arguments before a sandbox is made
    sys.exit(main(__file__, sys.argv[1:], measure))
