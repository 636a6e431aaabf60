"""Is a port dark for τ, and nothing but dark? Circuits are moved again and again while frames are sent through them.

One plane, five ports. Port 0 sends a numbered frame every 100 µs and is moved between two others; port 1 sends as many to port
4 over a circuit that is left alone. Shutters keep the dark time; the rules are exchanged behind them over OpenFlow, and light
comes back at τ or when every packet follows the new rules, whichever is later. ``--fence`` says who
does it, and how that is known.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, sleep

from _common import Figures, NoFigureError, argument_parser, main, number, print_figures
from _openflow import Connection

from kvfabric.emulation import PUBLISH
from kvfabric.ocs_process import OPENFLOW_PORT, OcsController
from kvfabric.scenario import load_scenario
from kvfabric.tables import Cell
from kvfabric.testbed import choose_steering, host_sysctls, link_settings
from ocs_switch.darkness import lost, move
from ocs_switch.fence import Fence
from ocs_switch.probes import PacedStreams, Probes, Station
from ocs_switch.shutters import Shutters
from topo.cluster import Cluster
from topo.emulated_optical import EmulatedOptical, SwitchSettings
from topo.leafspine import LeafSpine
from topo.optical import KV_NIC, Optical, PlaneCircuit, PlanePort

CLUSTER = Cluster(2, 3, 1, 3)
MOVED, STANDING, STANDING_PEER = 0, 1, 4
TARGETS = (2, 3)
RATE = 10_000.0
DRAIN_S = 0.5e-3
"""Between the dark and the change of rules: what had passed the shutter is through the switch by then."""
_SETTLE_S = 6e-3
_STAMP_S = 0.1e-3  # from a frame's stamp to the shutter
_AHEAD_NS = 200_000  # the instant of light must not be past when it is written, or it is not exact
_PAUSE_S = 0.02
_LEAD_S = 0.2


@dataclass
class Plane:
    """One plane under this process's own control. Ports count from 0."""

    net: EmulatedOptical
    shutters: Shutters
    switch: Connection
    fence: Fence
    how: str

    def connect(self, a: int, b: int, left: int, tau_s: float) -> tuple[int, int, bool]:
        """Move ``a`` from its circuit with ``left`` to one with ``b``: (dark from, lit from, lit no later than τ asked)."""
        ends = [PlanePort(0, port) for port in (a, b)]
        began = monotonic_ns() + _AHEAD_NS
        self.shutters.shut([*ends, PlanePort(0, left)], began)
        sleep(min(DRAIN_S, tau_s / 4) + _AHEAD_NS / 1e9)
        self.switch.change([(a + 1, left + 1), (left + 1, a + 1)], [(a + 1, b + 1), (b + 1, a + 1)])
        if self.how == "settle":
            sleep(_SETTLE_S)
        elif self.how == "purge":
            self.fence.raise_now()
        until = began + round(tau_s * 1e9)
        earliest = monotonic_ns() + _AHEAD_NS
        self.shutters.shut(ends, began, max(until, earliest))
        return began, max(until, earliest), earliest <= until


@dataclass
class OrderedPlane:
    """The same under the Ryu app, as a run has it."""

    controller: OcsController

    def connect(self, a: int, b: int, left: int, tau_s: float) -> tuple[int, int, bool]:
        """See Plane."""
        del left  # replaced
        armed = self.controller.move(0, a, b)
        assert armed.dark_ns is not None
        assert armed.up_ns is not None
        return armed.dark_ns, armed.up_ns, armed.up_ns - armed.dark_ns <= round(tau_s * 1e9)


@contextmanager
def plane(how: str, tau_s: float) -> Iterator[tuple[Plane | OrderedPlane, Probes]]:
    """The plane with its two circuits, and probes at all ports."""
    scenario = load_scenario("demo", ())
    optical = Optical(CLUSTER, scenario.scale.rate)
    steering = choose_steering()
    with ExitStack() as undo:
        directory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="ovs-")))
        cpu = None if steering is None else steering.router_cpu(0)
        switch_settings = SwitchSettings(
            directory, controller=f"tcp:127.0.0.1:{OPENFLOW_PORT}" if how == "app" else None, datapath="user",
            cpus=None if cpu is None else {cpu}, receive_cpu=cpu,
        )  # fmt: skip
        settings = link_settings(scenario)
        net = undo.enter_context(
            EmulatedOptical(
                LeafSpine(CLUSTER, 1, scenario.scale.rate).build(), settings, optical, settings, switch_settings,
                host_sysctls=host_sysctls(scenario), publish=PUBLISH, steering=steering, observed=False,
            )
        )  # fmt: skip
        if steering is not None:
            undo.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, {steering.host_cpu})
        netlink = net.node("ocs0").namespace.netlink
        shutters = undo.enter_context(Shutters.attached_to(netlink, net.switch_indices()))
        pairs = ((MOVED, TARGETS[0]), (STANDING, STANDING_PEER))
        ordered: Plane | OrderedPlane
        if how == "app":
            cpus = None if cpu is None else {cpu}
            controller = OcsController(
                optical, net.switch_indices(), shutters.light.fd, tau_s, directory, cpus, net.switch.control
            )
            undo.callback(controller.close)
            controller.join(PlaneCircuit(0, *one) for one in pairs)
            ordered = OrderedPlane(controller)
        else:
            switch = Connection(net.switch.directory / "ocs0.mgmt")
            undo.callback(switch.close)
            fence = undo.enter_context(Fence(net.switch.directory / "ovs-vswitchd.ctl"))
            switch.change([], [(a + 1, b + 1) for one in pairs for a, b in (one, one[::-1])])
            shutters.open(PlanePort(0, port) for one in pairs for port in one)
            ordered = Plane(net, shutters, switch, fence, how)
        stations = []
        for place, gpu in optical.places():
            host = optical.name(gpu)
            node = net.node(host)
            mac = optical.fabric.by_name[host].mac(KV_NIC)
            stations.append(Station(place.port, node.namespace, f"{host}-eth{KV_NIC}", mac))
        probes = undo.enter_context(Probes(stations))
        yield ordered, probes


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of all moves at one τ. Times in seconds. ``outside``: moves whose darkness, as the stream bounds it, is not what
    was set. ``late``: moves whose rules were not sure to be in place at τ."""

    tau_s: float
    moves: int
    errors_s: tuple[float, ...]
    outside: int
    late: int
    wrong: int
    standing_lost: int
    lost_besides: int
    first_arrived: int
    ready_s: tuple[float, ...]


def moves_at(tau_s: float, count: int, how: str) -> Outcome:
    """Move ``count`` times with streams running. Raises NoFigureError when a move was not seen at all."""
    with plane(how, tau_s) as (switched, probes):
        span_s = tau_s + 2 * _PAUSE_S + 0.02
        arrivals: dict[int, dict[int, set[int]]] = {MOVED: {}, STANDING: {}}

        spans, late, ready = [], 0, []
        with PacedStreams(
            probes, {MOVED: TARGETS[0], STANDING: STANDING_PEER}, rate=RATE, seconds=count * span_s * 2 + 2
        ) as streams:
            sleep(_LEAD_S)
            at = 0
            for _ in range(count):
                first = streams.sent
                sleep(_PAUSE_S)
                began, lit, in_time = switched.connect(MOVED, TARGETS[1 - at], TARGETS[at], tau_s)
                ready.append((monotonic_ns() - began) / 1e9)
                late += not in_time
                sleep(max(0.0, (lit - monotonic_ns()) / 1e9) + _PAUSE_S)
                spans.append((range(first, streams.sent), TARGETS[at], TARGETS[1 - at], began, lit))
                at = 1 - at
            sleep(0.05)
            streams.stop()
            sleep(0.05)
            for arrival in probes.collect():
                arrivals[arrival.source].setdefault(arrival.port, set()).add(arrival.number)
            sent, standing = streams.sent_ns(MOVED), streams.sent
        errors, wrong, firsts, besides, outside = [], 0, 0, 0, 0
        for span, before, after, began, lit in spans:
            seen = move(sent, arrivals[MOVED], before, after, span, (began, lit))
            if seen is None:
                raise NoFigureError(f"a move of {tau_s * 1e3:g} ms was never dark")
            errors.append(seen.gap.dark_s - tau_s)
            dark_s = (lit - began) / 1e9
            outside += not seen.gap.least_s - _STAMP_S <= dark_s <= seen.gap.most_s + _STAMP_S
            wrong += seen.wrong
            besides += seen.lost_besides
            should = next(place for place in span if sent[place] > lit + 100_000)
            firsts += seen.gap.first_after <= should
        lost_standing = lost(standing, arrivals[STANDING].get(STANDING_PEER, set()))
        wrong += sum(len(numbers) for port, numbers in arrivals[STANDING].items() if port != STANDING_PEER)
    return Outcome(tau_s, count, tuple(errors), outside, late, wrong, lost_standing, besides, firsts, tuple(ready))


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def measure(arguments: Sequence[str]) -> int:
    """Measure and print; in a sandbox."""
    asked = _parser().parse_args(arguments)
    outcomes = [moves_at(tau / 1e3, asked.moves, asked.fence) for tau in asked.tau]
    rows: list[tuple[Cell, ...]] = []
    for item in outcomes:
        off = [abs(value) * 1e3 for value in item.errors_s]
        rows.append(
            (item.tau_s * 1e3, item.moves, statistics.median(off), _p99(off), max(off), item.outside, item.late, item.wrong,
             item.standing_lost, item.lost_besides, item.first_arrived, statistics.median(item.ready_s) * 1e3,
             max(item.ready_s) * 1e3)
        )  # fmt: skip
    columns = (
        number("τ", "ms"), number("moves"), number("|dark − τ| median", "ms"), number("p99", "ms"), number("most", "ms"),
        number("not as set"), number("late"), number("on a wrong circuit"), number("lost by the circuit left alone"),
        number("lost outside the dark"), number("first packet after up arrived"), number("rules in place after", "ms"),
        number("most", "ms"),
    )  # fmt: skip
    title = f"Dark time of moved circuits, {RATE:g} frames/s, fence: {asked.fence}"
    print_figures([Figures(title, columns, tuple(rows))], vars(asked), as_json=asked.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tau", type=float, nargs="+", default=[1, 2, 5, 10, 25, 50, 100], metavar="MS")
    parser.add_argument("--moves", type=int, default=50)
    parser.add_argument(
        "--fence",
        choices=("app", "purge", "settle", "none"),
        default="app",
        help="who moves circuits: the Ryu app, or this program",
    )
    return parser


if __name__ == "__main__":
    _parser().parse_args()  # refuse bad arguments before a sandbox is made
    sys.exit(main(__file__, sys.argv[1:], measure))
