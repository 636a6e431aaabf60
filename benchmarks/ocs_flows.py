"""How close flows over standing circuits come to bytes/R' when every KV NIC sends at once, and what the shutters cost.

Two layouts: 16 GPUs in 4 planes of 4 ports, every NIC sending to its circuit's other end; and one plane of 16 + 16 ports in which
all prefill NICs send, and the decode NICs back. Retransmissions must be 0; ``CPU`` is in cores, over the flows' time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from _common import (
    LEAD_S,
    Figures,
    NoFigureError,
    Spread,
    argument_parser,
    collector_off,
    error,
    main,
    number,
    percent,
    print_figures,
)

from kvfabric.emulation import PUBLISH, REPLAY_NICE
from kvfabric.machine import read_softnet, softnet_delta
from kvfabric.scenario import Scenario, load_scenario
from kvfabric.tables import Cell, Column
from kvfabric.testbed import choose_steering, host_sysctls, link_settings, socket_settings
from ocs_switch.shutters import Shutters
from topo.cluster import Cluster, Role
from topo.emulated import LinkSettings
from topo.emulated_optical import EmulatedOptical, SwitchSettings
from topo.fabric import NodeKind
from topo.leafspine import LeafSpine
from topo.optical import Optical
from workloads.replay.connections import Endpoint
from workloads.replay.engine import ReplayEngine, run_flows
from workloads.replay.flows import FlowResult, FlowSpec
from workloads.replay.pattern import Pattern

LAYOUTS = {"4 planes of 4": Cluster(2, 2, 4, 4), "1 plane of 16+16": Cluster(16, 16, 1, 16)}
_WARM_BYTES = 200_000
_OPEN_S = 20.0


@dataclass(frozen=True, slots=True)
class Offloads:
    """Of the KV NICs and of the userspace switch, named as ethtool and Open vSwitch name them."""

    tso: bool
    tx: bool
    userspace_tso: bool
    shutters: bool = True

    def __str__(self) -> str:
        words = {"TSO": self.tso, "tx": self.tx, "userspace-tso": self.userspace_tso, "shutters": self.shutters}
        return ", ".join(f"{name} {'on' if on else 'off'}" for name, on in words.items())


USUAL = Offloads(tso=True, tx=True, userspace_tso=True)
"""A circuit is shared by nobody, so that TSO's bursts, which a packet fabric's queues would show, delay nobody either."""

OTHERS = (
    Offloads(tso=True, tx=True, userspace_tso=True, shutters=False),
    Offloads(tso=False, tx=True, userspace_tso=True),
    Offloads(tso=False, tx=False, userspace_tso=False),
)


@contextmanager
def circuits_up(
    scenario: Scenario, cluster: Cluster, chosen: Offloads, *, steer: bool, receive: str
) -> Iterator[EmulatedOptical]:
    """The cluster with every prefill instance joined to the decode instance of its number. Raises NoFigureError."""
    steering = choose_steering() if steer else None
    settings = link_settings(scenario)
    offload = {"tso": chosen.tso, "gso": chosen.tso, "gro": False, "tx": chosen.tx}
    kv = LinkSettings(settings.mtu, settings.queue, settings.classes, settings.limit, offload=offload)
    optical = Optical(cluster, scenario.scale.rate)
    with ExitStack() as undo:
        directory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="ovs-")))
        switch = SwitchSettings(
            directory,
            userspace_tso=chosen.userspace_tso,
            datapath="user",
            cpus=None if steering is None else set(steering.router_cpus),
            receive_cpu=None if steering is None or receive == "sender" else steering.router_cpu(0),
        )
        net = undo.enter_context(
            EmulatedOptical(
                LeafSpine(cluster, 1, scenario.scale.rate).build(), settings, optical, kv, switch,
                host_sysctls=host_sysctls(scenario), publish=PUBLISH, steering=steering, observed=False,
            )
        )  # fmt: skip
        for instance in range(cluster.prefill):
            for circuit in optical.circuits(instance, instance):
                a, b = circuit.prefill_port + 1, circuit.decode_port + 1
                for one, other in ((a, b), (b, a)):
                    net.switch.ofctl("add-flow", optical.switch(circuit.plane).name, f"in_port={one},actions=output:{other}")
        if chosen.shutters:
            netlink = net.node(optical.switch(0).name).namespace.netlink
            shutters = undo.enter_context(Shutters.attached_to(netlink, net.switch_indices()))
            shutters.open(shutters.indices)
        if steering is not None:
            undo.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, {steering.host_cpu})
        os.setpriority(os.PRIO_PROCESS, 0, REPLAY_NICE)
        faults = net.shaping_faults()
        if faults:
            raise NoFigureError(faults[0])
        yield net


def pairs(optical: Optical, *, back: bool) -> list[tuple[str, str]]:
    """Every prefill GPU and its circuit's other end; with ``back`` the other way too."""
    found = []
    for gpu in optical.cluster.gpus():
        role = Role.DECODE if gpu.role is Role.PREFILL else Role.PREFILL
        if gpu.role is Role.PREFILL or back:
            found.append((optical.name(gpu), optical.name(optical.cluster.gpu(role, gpu.instance, gpu.position))))
    return found


@dataclass(frozen=True, slots=True)
class Round:
    """All flows of one start, the switch's CPU share meanwhile and the whole machine's, and packets lost in its backlogs."""

    results: tuple[FlowResult, ...]
    switch_cores: float
    busy_cores: float
    drops: int


def _switch_s(net: EmulatedOptical) -> float:
    words = Path(f"/proc/{net.switch.pids[-1]}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _busy_s() -> float:
    words = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return (sum(words) - words[3] - words[4]) / os.sysconf("SC_CLK_TCK")


def send(net: EmulatedOptical, engine: ReplayEngine, wanted: Sequence[tuple[str, str]], size: int, first: int) -> Round:
    """One flow of every pair, all at once. Raises NoFigureError when one does not arrive."""
    at = monotonic() + LEAD_S
    specs = [FlowSpec(first + place, a, b, place, (at,), (size,)) for place, (a, b) in enumerate(wanted)]
    began, switch, busy, softnet = monotonic(), _switch_s(net), _busy_s(), read_softnet()
    with collector_off():
        results = run_flows(engine, specs, give_up_at=at + 60)
    took = monotonic() - began
    failed = [result for result in results if result.failed]
    if failed or len(results) < len(specs):
        raise NoFigureError(f"{len(results)} of {len(specs)} flows ended, {len(failed)} of them failed")
    drops = softnet_delta(softnet, read_softnet()).drops
    return Round(tuple(results), (_switch_s(net) - switch) / took, (_busy_s() - busy) / took, drops)


def one_case(scenario: Scenario, cluster: Cluster, chosen: Offloads, asked: argparse.Namespace) -> tuple[list[Round], float]:
    """The rounds of a layout, and how long it took to come up."""
    began = monotonic()
    with ExitStack() as undo:
        net = undo.enter_context(circuits_up(scenario, cluster, chosen, steer=not asked.unsteered, receive=asked.receive))
        up_s = monotonic() - began
        pattern = Pattern(scenario.seed)
        undo.callback(pattern.close)
        hosts = [node.name for node in net.fabric.of_kind(NodeKind.HOST)]
        endpoints = {host: Endpoint(host, net.kv_address(host), net.node(host).namespace) for host in hosts}
        engine = ReplayEngine(endpoints, socket_settings(scenario), pattern)
        undo.callback(engine.close)
        wanted = pairs(net.optical, back=not asked.one_way)
        for place, (a, b) in enumerate(wanted):
            engine.dialer.prepare(a, b, place)
        until = monotonic() + _OPEN_S
        while engine.dialer.preparing and monotonic() < until:
            engine.run(monotonic() + 0.02)
        if engine.dialer.preparing:
            raise NoFigureError(f"{engine.dialer.preparing} connections did not open within {_OPEN_S:g} s ({chosen})")
        send(net, engine, wanted, _WARM_BYTES, 0)
        return [send(net, engine, wanted, asked.bytes, (turn + 1) * len(wanted)) for turn in range(asked.rounds)], up_s


def measure(arguments: Sequence[str]) -> int:
    """Measure and print; in a sandbox."""
    asked = _parser().parse_args(arguments)
    rate = f"scale.rate={asked.rate:g}Mb/s"
    scenario = load_scenario(
        "demo",
        (
            rate,
            f"emulation.mtu={asked.mtu}",
            f"emulation.receive_window={asked.window}KiB",
            "emulation.connections=reused",
            *asked.set,
        ),
    )
    rows: list[tuple[Cell, ...]] = []
    for name, cluster in LAYOUTS.items():
        if asked.layout is not None and asked.layout not in name:
            continue
        for chosen in (USUAL, *(OTHERS if asked.all else ())):
            try:
                rounds, up_s = one_case(scenario, cluster, chosen, asked)
            except NoFigureError as problem:
                rows.append((name, str(chosen), str(problem), *(None,) * 8))
                continue
            results = [result for one in rounds for result in one.results]
            spread = Spread.of([error(result, scenario.scale.rate) for result in results], 0.01)
            rows.append(
                (name, str(chosen), spread.count, percent(spread.low), percent(spread.median), percent(spread.high),
                 100 * spread.within, sum(result.retransmissions for result in results),
                 sum(one.switch_cores for one in rounds) / len(rounds), sum(one.busy_cores for one in rounds) / len(rounds),
                 up_s)
            )  # fmt: skip
    columns = (
        Column("layout"), Column("settings"), number("flows"), number("FCT error least", "%"), number("median", "%"),
        number("most", "%"), number("within 1 %", "%"), number("retransmissions"), number("switch", "cores"),
        number("machine", "cores"), number("up", "s"),
    )  # fmt: skip
    title = f"All KV NICs send {asked.bytes / 1e6:g} MB at once over circuits, {asked.rate:g} Mb/s, MTU {asked.mtu}"
    print_figures([Figures(title, columns, tuple(rows))], vars(asked), as_json=asked.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rate", type=float, default=200, metavar="Mb/s", help="goodput of every KV NIC")
    parser.add_argument("--mtu", type=int, default=9000)
    parser.add_argument("--window", type=int, default=256, metavar="KiB", help="receive window of every connection")
    parser.add_argument("--bytes", type=int, default=10_000_000, help="of each flow")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layout", help="only the layouts with this in their name")
    parser.add_argument("--one-way", action="store_true", help="only prefill sends")
    parser.add_argument("--all", action="store_true", help="other offloads too, and without shutters")
    parser.add_argument("--receive", choices=("switch", "sender"), default="switch", help="whose CPU a port's frames wake")
    parser.add_argument("--unsteered", action="store_true", help="leave it to the kernel which CPU works for whom")
    return parser


if __name__ == "__main__":
    _parser().parse_args()  # refuse bad arguments before a sandbox is made
    sys.exit(main(__file__, sys.argv[1:], measure))
