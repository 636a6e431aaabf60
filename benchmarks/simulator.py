"""How fast is the simulator: a window of 330 s on 128 GPUs, and the cost of an event as the network grows, beside SimGrid.

``window``: 128 GPUs, 330 s at 60 % load with tenants of both modes, every fabric in a fresh process: CPU time of the
simulation (turns are made before), and the process's peak memory. ``events``: Poisson flows between all hosts of a 2:1
leaf-spine, uplinks 60 % busy, replayed at once inside compiled code, through FastNetwork's interface, and by SimGrid's CM02
(C++, network/optim:Full, no cross-traffic, no TCP gamma) where libsimgrid-dev and g++ are installed. Needs no root. Machine
code is compiled before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import numpy as np

from flowsim import solver
from flowsim.compiled import compiled
from flowsim.solver import FastNetwork
from flowsim.state import Floats, State, Table
from kvfabric.machine import host_facts
from kvfabric.scenario import Scenario, load_scenario
from kvfabric.simulation import simulate
from kvfabric.tables import Column, show, table
from kvfabric.workload import build_workload

RATE_BPS = 45e9
RACK, UPLINKS = 32, 16
MEAN_BYTES = 5e9
LEAF_SPINE = ("fabric.kind=leaf-spine", "fabric.ocs=null")
FABRICS: dict[str, tuple[str, ...]] = {
    **{routing: (*LEAF_SPINE, f"fabric.routing={routing}") for routing in ("ecmp", "pinned", "adaptive", "srpt", "ceiling")},
    **{f"ocs {policy}": ("fabric.kind=ocs", f"fabric.ocs.policy={policy}") for policy in ("reservation", "admission", "none")},
}
_TENANTS = (
    "workload.tenants=[{name: agents, generator: agentic, load: 0.6, share: 0.5}, "
    "{name: chat, generator: agentic, load: 0.6, share: 0.5, mode: pull}]"
)
_SIMGRID = Path(__file__).with_name("simgrid_replay.cpp")
_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class Flow:
    """Starts at ``start_s``; the links of its path."""

    start_s: float
    size: int
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlowSet:
    """Flows in the order of their starts, over links of ``RATE_BPS``."""

    hosts: int
    links: int
    flows: tuple[Flow, ...]


def flow_set(hosts: int, count: int, seed: int) -> FlowSet:
    """Poisson flows between hosts of different racks, sizes exponential, uplinks by chance, 60 % of the uplinks' capacity."""
    draw = random.Random(f"{hosts} {seed}")
    racks = hosts // RACK
    up, down = 2 * hosts, 2 * hosts + racks * UPLINKS
    per_s = 0.6 * racks * UPLINKS * RATE_BPS / MEAN_BYTES
    flows, now_s = [], 0.0
    for _ in range(count):
        now_s += draw.expovariate(per_s)
        source = draw.randrange(hosts)
        other = (source // RACK + draw.randrange(1, racks)) % racks
        spine, sink = draw.randrange(UPLINKS), other * RACK + draw.randrange(RACK)
        path = (source, up + source // RACK * UPLINKS + spine, down + other * UPLINKS + spine, hosts + sink)
        flows.append(Flow(now_s, 1 + int(draw.expovariate(1 / MEAN_BYTES)), path))
    return FlowSet(hosts, down + racks * UPLINKS, tuple(flows))


@compiled
def _replay(state: State, told: Table, arrived_s: Floats) -> int:
    """All of it, without coming back: how many reports there were."""
    found = 0
    while True:
        new = solver._advance(state, np.inf, told)
        if new == 0:
            return found
        found += new
        for i in range(new):
            arrived_s[told[i, 0]] = state.clock[0]


def filled(flows: FlowSet) -> FastNetwork:
    """A network with all flows, nothing of which has begun."""
    network = FastNetwork([RATE_BPS] * flows.links)
    for number, flow in enumerate(flows.flows):
        network.add(number, range(number, number + 1), [flow.path], [flow.start_s], [float(flow.size)])
    return network


def replay_compiled(flows: FlowSet) -> tuple[float, Floats, int]:
    """CPU seconds of the replay inside compiled code, FCTs, levels computed."""
    network, arrived_s = filled(flows), np.full(len(flows.flows), np.nan)
    before_s = process_time()
    _replay(network._state, network._told, arrived_s)
    took_s = process_time() - before_s
    return took_s, arrived_s - np.array([flow.start_s for flow in flows.flows]), network.effort.relaxed


def replay_online(flows: FlowSet) -> tuple[float, float]:
    """CPU seconds of adding each flow when it starts and asking for each report, as a serving model would; mean flows sending."""
    network, sending = FastNetwork([RATE_BPS] * flows.links), 0
    before_s = process_time()
    for number, flow in enumerate(flows.flows):
        while network.advance(flow.start_s):
            pass
        network.add(number, range(number, number + 1), [flow.path], [flow.start_s], [float(flow.size)])
        sending += network.sending
    while network.advance(math.inf):
        pass
    return process_time() - before_s, sending / len(flows.flows)


def simgrid_program(folder: Path) -> Path | None:
    """The replay program, compiled; None where there is no compiler or no SimGrid."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    program = folder / "simgrid_replay"
    command = [compiler, "-O2", "-std=c++17", str(_SIMGRID), "-o", str(program), "-lsimgrid"]
    done = subprocess.run(command, capture_output=True, check=False)
    return program if done.returncode == 0 else None


def replay_simgrid(program: Path, flows: FlowSet, folder: Path) -> tuple[float, Floats]:
    """Seconds that SimGrid's engine ran, FCTs."""
    path = folder / f"flows-{flows.hosts}.txt"
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{flows.links}\n{' '.join([repr(RATE_BPS)] * flows.links)}\n{len(flows.flows)}\n")
        for flow in flows.flows:
            file.write(f"{flow.start_s!r} {flow.size} {len(flow.path)} {' '.join(map(str, flow.path))}\n")
    done = subprocess.run([str(program), str(path), "--log=root.thresh:error"], capture_output=True, text=True, check=True)
    took, *fcts = map(float, done.stdout.split())
    return took, np.array(fcts)


def window_scenario(fabric: str, window_s: float) -> Scenario:
    """128 GPUs, both tenants."""
    return load_scenario(
        "demo",
        (
            "cluster.prefill=16", "cluster.decode=16", "cluster.rack=32", "variants=[]", _TENANTS, "drain=600s",
            f"window={window_s:g}s", *FABRICS[fabric],
        ),
    )  # fmt: skip


def measure_window(fabric: str, window_s: float) -> dict[str, Any]:
    """One fabric, in this process."""
    simulate(warm := window_scenario(fabric, 1.0), build_workload(warm))  # loads the machine code
    scenario = window_scenario(fabric, window_s)
    workload = build_workload(scenario)
    before_s = process_time()
    run = simulate(scenario, workload)
    took_s = process_time() - before_s
    events: Any = run.verdict.fidelity.get("network_events", {})
    return {
        "fabric": fabric, "turns": len(run.requests), "flows": len(run.flows), "cpu_s": took_s,
        "memory_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "network_events": events.get("value"),
        "verdict": run.verdict.word, "reasons": list(run.verdict.reasons),
    }  # fmt: skip


def measure_events(hosts: int, count: int, repeat: int, program: Path | None, folder: Path) -> dict[str, Any]:
    """One size: the best of ``repeat`` of ours, one of SimGrid."""
    flows = flow_set(hosts, count, 1)
    replays = [replay_compiled(flows) for _ in range(repeat)]
    online = [replay_online(flows) for _ in range(repeat)]
    best_s, fcts, levels = min(replays, key=lambda item: item[0])
    online_s, sending = min(online)
    found: dict[str, Any] = {
        "hosts": hosts, "flows": count, "sending": sending, "compiled_s": best_s, "event_us": best_s / (2 * count) * 1e6,
        "levels_per_event": levels / (2 * count), "online_s": online_s,
    }  # fmt: skip
    if program is not None:
        simgrid_s, theirs = replay_simgrid(program, flows, folder)
        found |= {
            "simgrid_s": simgrid_s, "simgrid_over_compiled": simgrid_s / best_s, "simgrid_over_online": simgrid_s / online_s,
            "largest_difference": float(np.max(np.abs(fcts - theirs) / theirs)),
        }  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--parts", nargs="+", choices=("window", "events"), default=["window", "events"])
    parser.add_argument("--window", type=float, default=330.0, metavar="SECONDS")
    parser.add_argument("--fabrics", nargs="+", choices=list(FABRICS), default=list(FABRICS), metavar="FABRIC")
    parser.add_argument("--hosts", nargs="+", type=int, default=[128, 1024, 3072])
    parser.add_argument(
        "--simgrid-hosts", type=int, default=1024, metavar="N", help="no SimGrid above so many hosts: it takes minutes"
    )
    parser.add_argument("--flows", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", choices=list(FABRICS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure_window(args.one, args.window)))
        return 0
    document: dict[str, Any] = {"host": host_facts()}
    if "window" in args.parts:
        document["window"] = []
        for fabric in args.fabrics:
            command = [sys.executable, __file__, "--one", fabric, "--window", str(args.window)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            document["window"].append(json.loads(done.stdout))
    if "events" in args.parts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            program = simgrid_program(folder)
            replay_compiled(flow_set(64, 100, 1))
            document["events"] = [
                measure_events(hosts, args.flows, args.repeat, program if hosts <= args.simgrid_hosts else None, folder)
                for hosts in args.hosts
            ]
            document["simgrid"] = program is not None
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        show_document(document)
    return 0


def show_document(document: dict[str, Any]) -> None:
    """As tables."""

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    if "window" in document:
        columns = [
            Column("fabric"),
            *(Column(name, number=True) for name in ("turns", "flows", "events", "CPU s", "MB")),
            Column(""),
        ]
        rows = [
            (one["fabric"], one["turns"], one["flows"], number(one["network_events"], ",.0f"), number(one["cpu_s"], ".2f"),
             number(one["memory_MB"], ".0f"), one["verdict"])
            for one in document["window"]
        ]  # fmt: skip
        show(table(columns, rows))
    if "events" in document:
        names = (
            "hosts",
            "sending",
            "compiled s",
            "µs/event",
            "levels/event",
            "online s",
            "SimGrid s",
            "/compiled",
            "/online",
            "differ",
        )
        keys = (
            ("sending", ".0f"), ("compiled_s", ".3f"), ("event_us", ".2f"), ("levels_per_event", ".1f"), ("online_s", ".3f"),
            ("simgrid_s", ".2f"), ("simgrid_over_compiled", ".1f"), ("simgrid_over_online", ".1f"), ("largest_difference", ".1e"),
        )  # fmt: skip
        sizes = [(str(one["hosts"]), *(number(one.get(key), form) for key, form in keys)) for one in document["events"]]
        show(table([Column(name, number=True) for name in names], sizes))
        if not document["simgrid"]:
            print("SimGrid: not measured; it needs g++ and libsimgrid-dev")


if __name__ == "__main__":
    sys.exit(main())
