"""What the benchmarks share: a sandboxed testbed with the product's own settings, warm connections, flows on chosen paths.

Everything that decides a figure (sysctls, sockets, shaping, steering, priority) comes from the functions ``kvfabric run``
uses, so that a benchmark measures the product and not a copy of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, process_time

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

from kvfabric.awake import cpus_awake
from kvfabric.emulation import PUBLISH, REPLAY_NICE
from kvfabric.machine import CpuSampler, host_facts, read_softnet, softnet_delta
from kvfabric.sandbox import inside, run_sealed
from kvfabric.scenario import Scenario, load_scenario
from kvfabric.tables import Cell, Column, show, table
from kvfabric.testbed import build_testbed, choose_steering, endpoints, socket_settings
from topo import tc
from topo.emulated import EmulatedFabric, FlowTuple
from topo.fabric import NodeKind
from topo.netlink import Request, raw_request
from workloads.replay.connections import LISTEN_PORT, source_port
from workloads.replay.engine import ReplayEngine, run_flows
from workloads.replay.flows import FlowResult, FlowSpec
from workloads.replay.pattern import Pattern

LEAD_S = 0.05
"""Between asking for flows and their planned start, so that starting many does not make the first late."""
_PREPARE_S = 20.0
_TC_H_ROOT = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Setting:
    """A link's goodput in Mb/s and its MTU."""

    rate_Mbps: float
    mtu: int

    @property
    def rate_Bps(self) -> float:
        return self.rate_Mbps * 1e6 / 8

    def __str__(self) -> str:
        return f"{self.rate_Mbps:g} Mb/s, MTU {self.mtu}"


ISSUE_SETTINGS = (Setting(100, 1500), Setting(400, 9000))


def parse_setting(text: str) -> Setting:
    """``"100:1500"``: Mb/s and MTU. Raises argparse.ArgumentTypeError."""
    rate, _, mtu = text.partition(":")
    try:
        setting = Setting(float(rate), int(mtu))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not RATE_Mb/s:MTU, like 100:1500") from None
    if not 0 < setting.rate_Mbps < 1e6 or not 576 <= setting.mtu <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: the rate is in Mb/s above 0, the MTU from 576 to 65535")
    return setting


def argument_parser(about: str) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the scenario, as kvfabric run does"
    )
    return parser


def scenario_for(setting: Setting, changes: Sequence[str] = (), *, ratio: str = "1:1") -> Scenario:
    """16 hosts on 4 leaves at that setting; everything else as the demo has it."""
    rate = f"scale.rate={setting.rate_Bps * 8:.0f}b/s"
    chosen = (f"fabric.ratio={ratio}", rate, f"emulation.mtu={setting.mtu}", "emulation.connections=reused")
    return load_scenario("demo", (*chosen, *changes))


@dataclass(frozen=True, slots=True)
class Job:
    """A transfer to make: between two hosts, in a slot (which fixes path and flow class), of so many bytes."""

    source: str
    destination: str
    slot: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """What the machine did meanwhile: idle share of all cores and of the busiest, softnet drops, the replay's own CPU share.

    ``others`` is how many cores other programs took (and a hypervisor kept): figures of a busy machine are figures of that.
    """

    idle: float
    idle_worst_core: float
    softnet_drops: int
    replay_cpu: float
    others: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Flows that ran together, and the machine's load between their start and the last one's end."""

    results: tuple[FlowResult, ...]
    wall_s: float
    load: Load


class NoFigureError(RuntimeError):
    """Flows did not end, or a path could not be found: there is nothing to print."""


class Bench:
    """A testbed and a replay engine on it, inside a sandbox. A context manager."""

    def __init__(self, scenario: Scenario, *, check: bool = False) -> None:
        self.scenario = scenario
        self.rate_Bps: float = scenario.scale.rate
        self.check = check
        self._undo = ExitStack()
        self._next = 0
        self._opened: dict[tuple[str, int], str] = {}
        self._warm: set[tuple[str, str, int]] = set()
        steering = choose_steering()
        self.fabric: EmulatedFabric = self._undo.enter_context(build_testbed(scenario, PUBLISH, steering))
        if steering is not None:
            self._undo.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, {steering.host_cpu})
        os.setpriority(os.PRIO_PROCESS, 0, REPLAY_NICE)
        self.awake = self._undo.enter_context(cpus_awake())
        pattern = Pattern(scenario.seed)
        self._undo.callback(pattern.close)
        self.engine = ReplayEngine(endpoints(self.fabric), socket_settings(scenario), pattern)
        self._undo.callback(self.engine.close)
        self.hosts = tuple(node.name for node in self.fabric.fabric.of_kind(NodeKind.HOST))

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    def slot(self, source: str, destination: str, uplink: int, taken: set[int]) -> int:
        """A slot, of a flow class that is not ``taken`` (and then is), whose first connection takes the source leaf's
        ``uplink``-th uplink: what the kernel says, not what we hash. Raises NoFigureError."""
        classes = self.scenario.emulation.classes
        for slot in range(classes):
            sport = source_port(slot, classes)
            number = tc.flow_class(sport, LISTEN_PORT, classes)
            if number in taken or self._opened.get((source, number), destination) != destination:
                continue  # a second connection of a host in a class has another port, and so another path
            path = self.fabric.predict(FlowTuple(source, destination, sport, LISTEN_PORT))
            if path[1].number == self.scenario.cluster.rack + uplink:
                taken.add(number)
                self._opened[source, number] = destination
                return slot
        raise NoFigureError(f"no flow class is left that takes {source} over uplink {uplink}")

    def permutation(self, size: int) -> tuple[Job, ...]:
        """Every host sends to the host half the cluster away, each over links nobody else uses."""
        taken: set[int] = set()
        rack, count = self.scenario.cluster.rack, len(self.hosts)
        return tuple(
            Job(host, other, self.slot(host, other, place % rack, taken), size)
            for place, host in enumerate(self.hosts)
            for other in (self.hosts[(place + count // 2) % count],)
        )

    def warm(self, jobs: Sequence[Job], size: int = 200_000) -> None:
        """Open the connection of every job that has none, and send something over each, so that its windows have grown."""
        for job in jobs:
            if (key := (job.source, job.destination, job.slot)) not in self._warm:
                self._warm.add(key)
                self.engine.dialer.prepare(*key)
        until = monotonic() + _PREPARE_S
        while self.engine.dialer.preparing and monotonic() < until:
            self.engine.run(monotonic() + 0.02)
        if self.engine.dialer.preparing:
            raise NoFigureError(f"{self.engine.dialer.preparing} connections did not open within {_PREPARE_S:g} s")
        self.run([Job(job.source, job.destination, job.slot, size) for job in jobs])

    def adopt(self, source: str, destination: str, slot: int) -> None:
        """A flow has opened the connection of this slot: ``warm`` need not."""
        self._warm.add((source, destination, slot))

    def unshape(self) -> None:
        """Remove the shaping of every port, for a figure of what the machine forwards when nothing holds it back."""
        for name, ports in self.fabric.fabric.ports_of.items():
            node = self.fabric.node(name)
            node.namespace.netlink.apply([_no_qdisc(node.index_of[port.name], port.name) for port in ports])

    def run(self, jobs: Sequence[Job], *, allow_s: float = 60.0) -> Measured:
        """Send all jobs at one instant. Raises NoFigureError when a flow fails or does not end within ``allow_s``."""
        first = self._next
        self._next += len(jobs)
        gc.collect()
        at = monotonic() + LEAD_S
        specs = [
            FlowSpec(first + place, job.source, job.destination, job.slot, (at,), (job.bytes,), check=self.check)
            for place, job in enumerate(jobs)
        ]
        sampler, softnet, cpu, since = CpuSampler(monotonic()), read_softnet(), process_time(), monotonic()
        programs = _program_s()
        with collector_off():
            results = run_flows(self.engine, specs, give_up_at=at + allow_s)
        now = monotonic()
        sample = sampler.sample(now)
        spent = process_time() - cpu
        others = max(0.0, _program_s() - programs - spent) / (now - since)
        if len(results) < len(jobs):
            raise NoFigureError(f"{len(jobs) - len(results)} of {len(jobs)} flows did not end within {allow_s:g} s")
        for result in results:
            if result.failed is not None or result.received != result.spec.bytes or result.content_ok is False:
                raise NoFigureError(f"flow {result.spec.source} > {result.spec.destination}: {result.failed or 'wrong bytes'}")
        results.sort(key=lambda result: result.spec.id)
        drops = softnet_delta(softnet, read_softnet()).drops
        idle = (sample.idle, sample.worst_core[1]) if sample else (float("nan"), float("nan"))
        return Measured(tuple(results), now - at, Load(*idle, drops, spent / (now - since), others))


def _program_s() -> float:
    """Seconds of all cores spent in programs since boot (user, nice, system) or stolen; interrupts are not in it."""
    words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    ticks = [int(word) for word in words[1:9]]
    return (ticks[0] + ticks[1] + ticks[2] + ticks[7]) / os.sysconf("SC_CLK_TCK")


def _no_qdisc(index: int, device: str) -> Request:
    return raw_request(tc.RTM_DELQDISC, struct.pack("=BBHiIII", 0, 0, 0, index, 0, _TC_H_ROOT, 0), f"{device}: remove the qdisc")


@contextmanager
def collector_off() -> Iterator[None]:
    """No pause of the garbage collector inside."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def error(result: FlowResult, rate_Bps: float) -> float:
    """How much longer a flow took than its bytes at ``rate_Bps``, as a share: 0.01 is 1 % longer."""
    return result.fct * rate_Bps / result.spec.bytes - 1


@dataclass(frozen=True, slots=True)
class Spread:
    """Errors of several flows: least, median, largest, and the share of them within ``limit`` of zero."""

    count: int
    low: float
    median: float
    high: float
    limit: float
    within: float

    @classmethod
    def of(cls, errors: Sequence[float], limit: float) -> Spread:
        """Raises ValueError without errors."""
        if not errors:
            raise ValueError("a spread of nothing")
        within = sum(abs(value) <= limit for value in errors) / len(errors)
        return cls(len(errors), min(errors), statistics.median(errors), max(errors), limit, within)


def percent(share: float, digits: int = 2) -> str:
    """A signed share in percent, without the sign that its column's header has."""
    return f"{100 * share:+.{digits}f}"


@dataclass(frozen=True, slots=True)
class Figures:
    """One table of a benchmark: what it is, its columns, its rows."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def number(header: str, unit: str = "") -> Column:
    """A column of numbers."""
    return Column(header, unit, number=True)


def print_figures(found: Sequence[Figures], facts: Mapping[str, object], *, as_json: bool) -> None:
    """All tables, or one JSON document with the machine's description."""
    if as_json:
        tables = [
            {"title": item.title, "columns": [asdict(column) for column in item.columns], "rows": item.rows} for item in found
        ]
        json.dump(
            {"machine": host_facts(), "settings": dict(facts), "tables": tables},
            sys.stdout,
            indent=2,
            ensure_ascii=False,
        )
        print()
        return
    show(*(table(item.columns, item.rows, title=item.title) for item in found))


def main(file: str, arguments: Sequence[str], measure: Callable[[Sequence[str]], int]) -> int:
    """Run ``measure(arguments)`` in a sandbox: directly inside one, else by starting ``file`` again in a new one."""
    if inside():
        try:
            return measure(arguments)
        except (NoFigureError, OSError) as problem:
            print(f"{Path(file).stem}: {problem}", file=sys.stderr)
            return 1
    if os.geteuid() != 0:
        print(f"{Path(file).stem}: network namespaces need root\nrun it again with sudo", file=sys.stderr)
        return 2
    # One thread: a pool of numpy's that spins would take the CPU that is measured.
    return run_sealed([sys.executable, file, *arguments], env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
