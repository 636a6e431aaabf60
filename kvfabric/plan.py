"""The scale-down sheet: what is kept when a cluster is shrunk, what cannot be, and whether that still is negligible.

Source: design.md, "Scale-down". Pure arithmetic over the scenario's own turns.
"""

from __future__ import annotations

import io
import statistics
from dataclasses import asdict, dataclass
from typing import Any

from kvfabric.scenario import Scenario
from kvfabric.tables import Column, pairs, show, table
from kvfabric.testbed import link_settings, socket_settings
from kvfabric.workload import Workload, build_workload
from topo.scale import Scale
from topo.shaping import TCP_IP_HEADERS, Queue
from topo.units import format_rate, format_size, format_time

WINDOW_SHARE = 1 / 100
RTT_SHARE = 0.005
BDP_SEGMENTS = 10
CARRIED_BPS = 150e6
"""Goodput, bytes per second over all flows, that two cores of the development machine carried faithfully at MTU 9000 in
``benchmarks/capacity.py``; a larger offered load is a warning, and what this machine really carries is in the verdict."""
_PORTS_TO_CROSS = 4
_KERNEL_RTO_S = 0.2
"""TCP's least retransmission timeout unless ``emulation.rto_min`` sets another. It does not scale."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of the cluster beside its emulated counterpart, both as text."""

    name: str
    real: str
    emulated: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio that matters, in the real cluster and the emulated one; equal by construction, up to whole bytes."""

    name: str
    real: float
    emulated: float


@dataclass(frozen=True, slots=True)
class Check:
    """Something that does not scale: its value, its bound, whether it is within, and what follows if not."""

    name: str
    value: float
    bound: float
    ok: bool
    note: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole sheet."""

    scenario: str
    facts: tuple[tuple[str, str], ...]
    quantities: tuple[Quantity, ...]
    ratios: tuple[Ratio, ...]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"ok": self.ok, **asdict(self)}


def build_plan(scenario: Scenario) -> Plan:
    """The sheet of a scenario. Raises what ``build_workload`` raises."""
    workload = build_workload(scenario)
    sizes = _Sizes.of(scenario, workload)
    scale = Scale(scenario.fabric.rate, scenario.scale.rate, scenario.scale.time)
    return Plan(
        scenario.name,
        _facts(scenario, workload, scale),
        _quantities(scenario, sizes, scale),
        _ratios(scenario, sizes, scale),
        _checks(scenario, workload, sizes, scale),
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Medians over the offered turns; bytes per GPU and real seconds."""

    head: float
    tail: float
    prefill_s: float
    layer_s: float

    @classmethod
    def of(cls, scenario: Scenario, workload: Workload) -> _Sizes:
        turns = workload.offered.turns
        per_token = workload.bytes_per_token_per_gpu
        prefill = statistics.median(workload.prefill.total(turn.context, turn.new) for turn in turns)
        chunk = statistics.median(workload.prefill.chunk_times(turn.context, turn.new)[-1] for turn in turns)
        return cls(
            head=per_token * statistics.median(turn.context for turn in turns),
            tail=per_token * statistics.median(turn.new for turn in turns),
            prefill_s=prefill,
            layer_s=chunk / workload.model.layers,
        )

    @property
    def transfer(self) -> float:
        """Bytes of the transfer of a median turn that migrates."""
        return self.head + self.tail


def _facts(scenario: Scenario, workload: Workload, scale: Scale) -> tuple[tuple[str, str], ...]:
    cluster = scenario.cluster_layout()
    ratio = float(scenario.oversubscription)
    offered = workload.offered
    arrivals = scale.to_emu_time(scenario.window)
    synthetic = f" (synthetic: {', '.join(workload.synthetic)})" if workload.synthetic else ""
    return (
        ("cluster", f"{cluster.size} GPUs: {cluster.prefill} prefill + {cluster.decode} decode instances of tp {cluster.tp}"),
        ("model", f"{workload.model.name}, {format_size(workload.bytes_per_token_per_gpu)} of KV per token and GPU"),
        ("fabric", f"{cluster.racks} leaves of {cluster.rack}, {scenario.uplinks} spines, {ratio:.3g}:1"),
        ("turns", f"{len(offered.turns)}{synthetic}; load " + ", ".join(
            f"{name} {load:.3g}" for name, load in offered.realised_load.items())),
        ("offered digest", offered.digest),
        ("a lost packet costs", f"{format_time(scenario.emulation.rto_min or _KERNEL_RTO_S)} emulated at worst (TCP's least RTO)"),
        ("expected duration", f"{format_time(arrivals)} of arrivals, {format_time(scale.to_emu_time(scenario.drain))} more at most"),
    )  # fmt: skip


def _quantities(scenario: Scenario, sizes: _Sizes, scale: Scale) -> tuple[Quantity, ...]:
    def times(name: str, real_s: float) -> Quantity:
        return Quantity(name, format_time(real_s), format_time(scale.to_emu_time(real_s)))

    def bytes_(name: str, real: float) -> Quantity:
        return Quantity(name, format_size(real), format_size(scale.to_emu_bytes(real)))

    rate = scenario.fabric.rate
    return (
        Quantity("link goodput", format_rate(rate), format_rate(scenario.scale.rate)),
        bytes_("head of a median turn, per GPU", sizes.head),
        bytes_("tail of a median turn, per GPU", sizes.tail),
        times("transfer of a median turn, alone", sizes.transfer / rate),
        times("prefill of a median turn", sizes.prefill_s),
        times("one layer of its last chunk", sizes.layer_s),
        times("window in which turns arrive", scenario.window),
    )


def _ratios(scenario: Scenario, sizes: _Sizes, scale: Scale) -> tuple[Ratio, ...]:
    real, emulated = scenario.fabric.rate, scenario.scale.rate

    def ratio(name: str, size: float, real_s: float) -> Ratio:
        return Ratio(name, size / real / real_s, scale.to_emu_bytes(size) / emulated / scale.to_emu_time(real_s))

    layers = sizes.prefill_s / sizes.layer_s if sizes.layer_s else 1.0
    return (
        ratio("transfer / prefill", sizes.transfer, sizes.prefill_s),
        ratio("layer transfer / layer time", sizes.tail / max(layers, 1.0), sizes.layer_s),
        Ratio("oversubscription", float(scenario.oversubscription), float(scenario.oversubscription)),
    )


def _checks(scenario: Scenario, workload: Workload, sizes: _Sizes, scale: Scale) -> tuple[Check, ...]:
    settings, sockets = link_settings(scenario), socket_settings(scenario)
    rate = scenario.scale.rate
    head, tail = scale.to_emu_bytes(sizes.head), scale.to_emu_bytes(sizes.tail)
    segment = settings.mtu - TCP_IP_HEADERS
    frame_s = (settings.mtu + 14) / rate
    rtt_s = sockets.receive_window / rate if settings.queue is Queue.FAIR else settings.limit * frame_s
    offered_Bps = _offered_Bps(workload, scenario, scale)

    def at_most(name: str, value: float, bound: float, note: str) -> Check:
        return Check(name, value, bound, value <= bound, note)

    return (
        at_most("receive window / head", sockets.receive_window / head, WINDOW_SHARE, "a longer scale.time makes flows longer"),
        at_most("receive window / tail", sockets.receive_window / tail, WINDOW_SHARE,
                "tails are paced by the prefill, so this one matters least"),
        at_most("loaded RTT / transfer", rtt_s / (head / rate), RTT_SHARE, "a smaller receive window or a longer scale.time"),
        at_most("BDP without queues, segments", rate * _PORTS_TO_CROSS * 50e-6 / segment, BDP_SEGMENTS,
                "a lower scale.rate"),
        at_most("packets/s of one link", rate / segment, 12_000, "a larger MTU or a lower scale.rate"),
        at_most("offered load, MB/s over all links of hosts", offered_Bps / 1e6, CARRIED_BPS / 1e6,
                "a lower scale.rate; benchmarks/capacity.py tells what this machine carries"),
    )  # fmt: skip


def _offered_Bps(workload: Workload, scenario: Scenario, scale: Scale) -> float:
    """Emulated bytes per second if every turn migrated: an upper bound of the mean."""
    tokens = sum(turn.context + turn.new for turn in workload.offered.turns)
    total = scale.to_emu_bytes(tokens * workload.bytes_per_token_per_gpu) * scenario.cluster.tp
    return total / scale.to_emu_time(scenario.window)


def render_plan(plan: Plan) -> str:
    """The sheet as text."""
    text = io.StringIO()
    show(
        pairs(plan.facts, title=f"Plan of {plan.scenario}"),
        table(
            (Column("quantity"), Column("real", number=True), Column("emulated", number=True)),
            [(item.name, item.real, item.emulated) for item in plan.quantities],
        ),
        table(
            (Column("ratio that is kept"), Column("real", number=True), Column("emulated", number=True)),
            [(item.name, item.real, item.emulated) for item in plan.ratios],
        ),
        table(
            (
                Column("what does not scale"),
                Column("value", number=True),
                Column("bound", number=True),
                Column("within"),
                Column("else"),
            ),
            [(item.name, item.value, item.bound, item.ok, "" if item.ok else item.note) for item in plan.checks],
        ),
        file=text,
    )
    return text.getvalue()
