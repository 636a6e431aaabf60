"""What the observer measures, tick by tick; its clock and its readings are passed in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from kvfabric.evidence import CpuSample, PortEvidence
from kvfabric.machine import CpuSampler, CpuTimes, Softnet, SoftnetRows, read_cpu_times, read_softnet, softnet_delta
from kvfabric.ports import PortPlan, PortTally, Reading
from kvfabric.rows import LinkRow

ReadPorts = Callable[[Collection[str] | None], Iterable[Reading]]
"""Reads the ports of the named nodes, or of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was observed between ``begin`` and ``end`` of a run. ``rows`` counts the rows written, by table.

    ``longest_gap_emu_s`` is the longest time between two readings; ``faults`` say what could not be observed.
    """

    cpu: tuple[CpuSample, ...]
    softnet_drops: int
    time_squeeze: int
    ports: tuple[PortEvidence, ...]
    duration_emu_s: float
    longest_gap_emu_s: float
    faults: tuple[str, ...]
    rows: Mapping[str, int]


class Watch:
    """Samples processors, softnet and ports. Times are the clock's seconds, labels count from ``epoch_s``."""

    def __init__(self, plans: Iterable[PortPlan], read_ports: ReadPorts, interval_s: float, *,
                 read_cpu: Callable[[], CpuTimes] = read_cpu_times,
                 read_soft: Callable[[], SoftnetRows] = read_softnet) -> None:  # fmt: skip
        self._plans = {plan.port: plan for plan in plans}
        self._read_ports = read_ports
        self._interval_s = interval_s
        self._read_cpu, self._read_soft = read_cpu, read_soft
        self._tallies: dict[str, PortTally] = {}
        self._node_of: dict[str, str] = {}
        self._samples: list[CpuSample] = []
        self._faults: dict[str, str] = {}
        self._epoch_s = self._began_s = self._then_s = 0.0
        self._gap_s = 0.0
        self._softnet: SoftnetRows | None = None

    def begin(self, now_s: float, epoch_s: float) -> None:
        """Take the first reading; everything counts from here."""
        self._epoch_s = epoch_s
        self._began_s = self._then_s = now_s
        self._cpu = CpuSampler(now_s, self._read_cpu)
        self._softnet = self._read_soft()
        for reading in self._read_ports(None):
            for port, counters in reading.counters.items():
                if port in self._plans:
                    self._tallies[port] = PortTally(self._plans[port], reading.at_s, reading.slack_s, counters)
                    self._node_of[port] = reading.node
        self._note_missing(self._tallies, now_s)

    def look(self) -> None:
        """A look between two ticks at the nodes where packets waited at the last one."""
        nodes = {self._node_of[port] for port, tally in self._tallies.items() if tally.waiting}
        if not nodes:
            return
        for reading in self._read_ports(nodes):
            for port, counters in reading.counters.items():
                if port in self._tallies:
                    self._tallies[port].look(counters.backlog)

    def tick(self, now_s: float) -> list[LinkRow]:
        """The end of an interval: its rows."""
        interval = now_s - self._then_s
        self._gap_s = max(self._gap_s, interval)
        self._then_s = now_s
        # Over a fraction of an interval the kernel's ticks of 10 ms are too coarse to judge by.
        if interval >= self._interval_s / 2:
            sample = self._cpu.sample(now_s, label_s=now_s - self._epoch_s)
            if sample is not None:
                self._samples.append(sample)
        rows: list[LinkRow] = []
        seen: set[str] = set()
        for reading in self._read_ports(None):
            for port, counters in reading.counters.items():
                seen.add(port)
                if port not in self._tallies:
                    continue
                found = self._tallies[port].tick(reading.at_s, reading.slack_s, counters, epoch_s=self._epoch_s)
                if isinstance(found, str):
                    self._faults.setdefault(port, found)
                else:
                    rows.append(found)
        self._note_missing(seen, now_s)
        return rows

    def _note_missing(self, seen: Collection[str], now_s: float) -> None:
        for port in self._plans:
            if port not in seen:
                self._faults.setdefault(port, f"{port}: has no shaper at {now_s - self._epoch_s:.1f} s")

    def observation(self, rows: Mapping[str, int]) -> Observation:
        """Everything observed; ``rows`` are the rows written."""
        softnet = Softnet(0, 0) if self._softnet is None else softnet_delta(self._softnet, self._read_soft())
        return Observation(
            cpu=tuple(self._samples),
            softnet_drops=softnet.drops,
            time_squeeze=softnet.time_squeeze,
            ports=tuple(tally.evidence() for tally in self._tallies.values()),
            duration_emu_s=self._then_s - self._began_s,
            longest_gap_emu_s=self._gap_s,
            faults=tuple(self._faults.values()),
            rows=dict(rows),
        )
