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
from kvfabric.testbed import keeper_of, link_settings, optical_of, socket_settings
from kvfabric.workload import Workload, build_workload
from ocs_switch.limits import refusal
from topo.scale import Circuits, KeptRatio, Scale, ScaleCheck, ScaleInputs, checks, kept
from topo.shaping import ETHERNET_HEADER, Queue
from topo.units import format_rate, format_size, format_time

CARRIED_BPS = 150e6
"""Payload in bytes per second, over all hosts, above which the sheet warns: three times what the demo offers, a round figure
and no measured limit. ``benchmarks/capacity.py`` finds what a machine carries; the verdict judges what it carried."""
PACKETS_PER_S = 12_000.0
"""Packets per second of one link above which the sheet warns; as round a figure."""
CONTROL_S = 5e-3
"""From a window's start to its ports going dark, emulated, at the worst seen on two busy cores; 1 to 2 ms is usual. The verdict
judges what it was."""
_BARE_RTT_S = 0.3e-3
"""Round trip without queues through four routed hops there: what veth and two CPUs take, whatever the rate."""
_KERNEL_RTO_S = 0.2
"""TCP's least retransmission timeout unless ``emulation.rto_min`` sets another. It does not scale."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of the cluster beside its emulated counterpart, both as text."""

    name: str
    real: str
    emulated: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole sheet."""

    scenario: str
    facts: tuple[tuple[str, str], ...]
    quantities: tuple[Quantity, ...]
    ratios: tuple[KeptRatio, ...]
    checks: tuple[ScaleCheck, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"ok": self.ok, **asdict(self)}


def build_plan(scenario: Scenario) -> Plan:
    """The sheet of a scenario. Raises what ``build_workload`` raises."""
    workload = build_workload(scenario)
    scale = Scale(scenario.fabric.rate, scenario.scale.rate, scenario.scale.time)
    inputs = _inputs(scenario, workload, scale)
    return Plan(
        scenario.name,
        _facts(scenario, workload, scale),
        _quantities(scenario, inputs, scale),
        kept(scale, inputs),
        checks(scale, inputs),
    )


def _inputs(scenario: Scenario, workload: Workload, scale: Scale) -> ScaleInputs:
    """Medians over the offered turns, and what the emulated network does with them."""
    turns, per_token = workload.offered.turns, workload.bytes_per_token_per_gpu
    chunk_s = statistics.median(workload.prefill.chunk_times(turn.context, turn.new)[-1] for turn in turns)
    settings, window = link_settings(scenario), socket_settings(scenario).receive_window
    rate = scenario.scale.rate
    frame_s = (settings.mtu + ETHERNET_HEADER) / rate
    return ScaleInputs(
        head_bytes=max(1.0, per_token * statistics.median(turn.context for turn in turns)),
        tail_bytes=per_token * statistics.median(turn.new for turn in turns),
        prefill_s=statistics.median(workload.prefill.total(turn.context, turn.new) for turn in turns),
        layer_s=chunk_s / workload.model.layers,
        mtu=settings.mtu,
        window_bytes=window,
        queue_s=window / rate if settings.queue is Queue.FAIR else settings.limit * frame_s,
        rtt_s=_BARE_RTT_S,
        offered_Bps=_offered_Bps(workload, scenario, scale),
        packets_per_s=PACKETS_PER_S,
        carried_Bps=CARRIED_BPS,
        circuits=None if scenario.fabric.circuits is None else Circuits(scenario.fabric.circuits.tau, CONTROL_S),
    )


def _facts(scenario: Scenario, workload: Workload, scale: Scale) -> tuple[tuple[str, str], ...]:
    cluster = scenario.cluster_layout()
    drain = format_time(scale.to_emu_time(scenario.drain))
    rto = format_time(scenario.emulation.rto_min or _KERNEL_RTO_S)
    ratio = float(scenario.oversubscription)
    offered = workload.offered
    arrivals = scale.to_emu_time(scenario.window)
    synthetic = f" (synthetic: {', '.join(workload.synthetic)})" if workload.synthetic else ""
    return (
        ("cluster", f"{cluster.size} GPUs: {cluster.prefill} prefill + {cluster.decode} decode instances of tp {cluster.tp}"),
        ("model", f"{workload.model.name}, {format_size(workload.bytes_per_token_per_gpu)} of KV per token and GPU"),
        ("fabric", f"{cluster.racks} leaves of {cluster.rack}, {scenario.uplinks} spines, {ratio:.3g}:1"),
        *_circuit_facts(scenario, scale),
        ("turns", f"{len(offered.turns)}{synthetic}; load " + ", ".join(
            f"{name} {load:.3g}" for name, load in offered.realised_load.items())),
        ("offered digest", offered.digest),
        ("a lost packet costs", f"{rto} emulated at worst (TCP's least RTO)"),
        ("expected duration", f"{format_time(arrivals)} of arrivals, {drain} more at most"),
    )  # fmt: skip


def _circuit_facts(scenario: Scenario, scale: Scale) -> tuple[tuple[str, str], ...]:
    ocs = scenario.fabric.circuits
    if ocs is None:
        return ()
    planes = optical_of(scenario)
    keeper = keeper_of(ocs)
    refused = refusal(ocs.tau, scenario.scale.time, keeper)
    kept = f"cannot be kept: {refused}" if refused else f"kept by {keeper.value}"
    return (
        (
            "optical switch",
            f"{planes.planes} planes of {planes.ports} ports, policy {ocs.policy}, reuse {'on' if ocs.reuse else 'off'}",
        ),
        ("reconfiguration", f"{format_time(ocs.tau)}, {format_time(scale.to_emu_time(ocs.tau))} emulated, {kept}"),
    )


def _quantities(scenario: Scenario, inputs: ScaleInputs, scale: Scale) -> tuple[Quantity, ...]:
    def times(name: str, real_s: float) -> Quantity:
        return Quantity(name, format_time(real_s), format_time(scale.to_emu_time(real_s)))

    def bytes_(name: str, real: float) -> Quantity:
        return Quantity(name, format_size(real), format_size(scale.to_emu_bytes(real)))

    rate = scenario.fabric.rate
    return (
        Quantity("link goodput", format_rate(rate), format_rate(scenario.scale.rate)),
        bytes_("head of a median turn, per GPU", inputs.head_bytes),
        bytes_("tail of a median turn, per GPU", inputs.tail_bytes),
        times("transfer of a median turn, alone", inputs.transfer_bytes / rate),
        times("prefill of a median turn", inputs.prefill_s),
        times("one layer of its last chunk", inputs.layer_s),
        times("window in which turns arrive", scenario.window),
    )


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
            [(item.name, item.emulated, item.bound, item.ok, "" if item.ok else item.note) for item in plan.checks],
        ),
        file=text,
    )
    return text.getvalue()
