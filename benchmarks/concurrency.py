"""A thousand flows at once in one process: are sends punctual, is every byte counted, what does a flow cost.

16 hosts of a 1:1 fabric; every host sends to hosts on all other leaves. Starts are spread evenly over a while that is
shorter than any flow takes, so all flows are live together and each shares its links with some sixty others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import monotonic, process_time

import numpy as np
from _common import (
    Bench,
    Figures,
    Job,
    NoFigureError,
    Setting,
    argument_parser,
    main,
    number,
    parse_setting,
    print_figures,
    scenario_for,
)

from kvfabric.machine import CpuSampler
from workloads.replay.engine import run_flows
from workloads.replay.flows import FlowSpec

_LEAD_S = 0.2
_WARM_BYTES = 20_000


def plan(hosts: Sequence[str], rack: int, flows: int, size: int, classes: int) -> tuple[Job, ...]:
    """Transfers from every host in turn to hosts of other leaves; a host's transfers lie in flow classes of their own.

    Raises ValueError when a host would need more flow classes than there are, or when there is only one leaf."""
    if -(-flows // len(hosts)) > classes:
        raise ValueError(f"{flows} flows over {len(hosts)} hosts need more than {classes} flow classes a host")
    shifts = len(hosts) - 2 * rack + 1  # from the next leaf on to the one before
    if shifts < 1:
        raise ValueError("flows between leaves need two leaves")
    return tuple(
        Job(hosts[flow % len(hosts)], hosts[(flow + rack + turn % shifts) % len(hosts)], turn, size)
        for flow in range(flows)
        for turn in (flow // len(hosts),)
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one round. Times in seconds; ``cpu_per_flow_s`` is this process's own, ``idle`` the machine's idle share."""

    flows: int
    live_at_once: int
    bytes_offered: int
    bytes_received: int
    content_checked: int
    lateness_p50_s: float
    lateness_p99_s: float
    lateness_max_s: float
    wall_s: float
    cpu_s: float
    cpu_per_flow_s: float
    idle: float


def one_round(bench: Bench, jobs: Sequence[Job], spread_s: float, allow_s: float) -> Outcome:
    """Send all jobs, starts ``spread_s`` / len(jobs) apart. Raises NoFigureError if one does not arrive whole."""
    engine = bench.engine
    engine.concurrent_peak = 0
    at = monotonic() + _LEAD_S
    specs = [
        FlowSpec(place, job.source, job.destination, job.slot, (at + spread_s * place / len(jobs),), (job.bytes,),
                 check=place % 20 == 0)
        for place, job in enumerate(jobs)
    ]  # fmt: skip
    sampler, cpu = CpuSampler(monotonic()), process_time()
    results = run_flows(engine, specs, give_up_at=at + allow_s)
    wall, spent = monotonic() - at, process_time() - cpu
    sample = sampler.sample(monotonic())
    bad = [result.failed or "wrong content" for result in results if result.failed or result.content_ok is False]
    if bad or len(results) < len(jobs):
        raise NoFigureError(f"{len(bad)} flows failed, {len(jobs) - len(results)} did not end: {bad[:1]}")
    p50, p99, most = (float(value) for value in np.percentile([result.lateness for result in results], [50, 99, 100]))
    offered, received = sum(job.bytes for job in jobs), sum(result.received for result in results)
    if offered != received:
        raise NoFigureError(f"{offered} bytes offered, {received} received")
    checked = sum(result.content_ok is True for result in results)
    return Outcome(
        len(jobs), engine.concurrent_peak, offered, received, checked, p50, p99, most, wall, spent, spent / len(jobs),
        float("nan") if sample is None else sample.idle,
    )  # fmt: skip


def measure(arguments: Sequence[str]) -> int:
    """Measure and print; in a sandbox."""
    asked = _parser().parse_args(arguments)
    with Bench(scenario_for(asked.setting, asked.set)) as bench:
        classes, rack = bench.scenario.emulation.classes, bench.scenario.cluster.rack
        jobs = plan(bench.hosts, rack, asked.flows, asked.bytes, classes)
        bench.warm(jobs, _WARM_BYTES)
        ideal = asked.bytes * max(1, asked.flows // len(bench.hosts)) / bench.rate_Bps
        outcomes = [one_round(bench, jobs, asked.spread, 20 * ideal + 30) for _ in range(asked.rounds)]
    columns = (
        number("flows"), number("live at once"), number("offered", "MB"), number("received", "MB"), number("compared", "flows"),
        number("lateness p50", "ms"), number("p99", "ms"), number("max", "ms"), number("wall", "s"), number("replay CPU", "s"),
        number("CPU per flow", "ms"), number("idle share"),
    )  # fmt: skip
    rows = tuple(
        (item.flows, item.live_at_once, item.bytes_offered / 1e6, item.bytes_received / 1e6, item.content_checked,
         1e3 * item.lateness_p50_s, 1e3 * item.lateness_p99_s, 1e3 * item.lateness_max_s, item.wall_s, item.cpu_s,
         1e3 * item.cpu_per_flow_s, item.idle)
        for item in outcomes
    )  # fmt: skip
    title = f"{asked.flows} flows of {asked.bytes} bytes, {asked.setting}, starts over {asked.spread:g} s; every byte counted"
    facts = {
        "flows": asked.flows,
        "bytes": asked.bytes,
        "spread_s": asked.spread,
        "outcomes": [asdict(item) for item in outcomes],
    }
    print_figures([Figures(title, columns, rows)], facts, as_json=asked.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--setting", type=parse_setting, default=Setting(100, 9000), metavar="Mb/s:MTU")
    parser.add_argument("--flows", type=int, default=1000)
    parser.add_argument("--bytes", type=int, default=400_000, help="of each flow")
    parser.add_argument("--spread", type=float, default=1.0, help="seconds over which the starts are spread")
    parser.add_argument("--rounds", type=int, default=3)
    return parser


if __name__ == "__main__":
    _parser().parse_args()  # refuse bad arguments before a sandbox is made
    sys.exit(main(__file__, sys.argv[1:], measure))
