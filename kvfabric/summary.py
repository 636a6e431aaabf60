"""The summary of a run, ``summary.json``, from its rows and its verdict; and the table a user sees. Pure.

No turn leaves the percentiles silently. One that did not finish, or whose transfer the network gave up, enters with the
least it can have taken (until the end of the run), and ``fidelity.lower_bounds`` says how many such there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvfabric.evidence import CircuitEvidence
from kvfabric.rows import FlowRow, RequestRow
from kvfabric.verdict import Verdict
from topo.units import format_time
from workloads.events import TurnFinished
from workloads.slo import SLO_FACTOR, slo_attainment, slo_limits_s
from workloads.turns import Turn

Statistics = dict[str, float | None]
_STATISTICS = ("mean", "p50", "p95", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a summary says of the run besides its rows.

    ``ended_s`` is when it ended, in real-cluster seconds since the start of the window; ``time_scale`` emulated seconds per
    real one (1 for a simulation); ``wall_s`` how long the user waited.
    """

    scenario: str
    engine: str
    fabric: str
    offered_digest: str
    ended_s: float
    time_scale: float
    wall_s: float
    slo_factor: float = SLO_FACTOR


def statistics(values: Sequence[float]) -> Statistics:
    """Mean and percentiles (linear between ranks); all None of nothing."""
    if not values:
        return dict.fromkeys(_STATISTICS)
    array = np.asarray(values, dtype=np.float64)
    return {"mean": float(array.mean()), **{f"p{q}": float(np.percentile(array, q)) for q in (50, 95, 99)}}


def summarise(facts: RunFacts, verdict: Verdict, requests: Iterable[RequestRow], flows: Iterable[FlowRow],
              circuits: CircuitEvidence | None = None) -> dict[str, Any]:  # fmt: skip
    """The document of ``summary.json``: keys as in interface.md. ``fct_s`` and ``slowdown`` are over flows."""
    rows, flow_rows = tuple(requests), tuple(flows)
    status = {name: sum(row.status == name for row in rows) for name in ("completed", "failed", "unfinished")}
    migrated = [row for row in rows if row.migrated]
    ttft = [_ttft_s(row, facts.ended_s) for row in rows]
    exposed = [_exposed_s(row, facts.ended_s) for row in rows]
    fct = [_fct_s(row, facts) for row in flow_rows]
    slowdown = [_slowdown(row, time_s, facts) for row, time_s in zip(flow_rows, fct, strict=True)]
    waited = sum(ttft)
    open_turns = status["failed"] + status["unfinished"]
    open_flows = sum(row.fct_s is None for row in flow_rows)
    bounds = {"ttft_s": open_turns, "exposed_s": open_turns, "fct_s": open_flows, "slowdown": open_flows}
    return {
        "scenario": facts.scenario,
        "engine": facts.engine,
        "fabric": facts.fabric,
        "verdict": verdict.word,
        "reasons": list(verdict.reasons),
        "requests": {"offered": len(rows), **status, "migrated": len(migrated)},
        "ttft_s": statistics(ttft),
        "exposed_s": statistics(exposed),
        "fct_s": statistics(fct),
        "slowdown": statistics(slowdown),
        "exposed_share_of_ttft": sum(exposed) / waited if waited > 0 else None,
        "hidden_share": sum(row.hidden is True for row in migrated) / len(migrated) if migrated else None,
        "slo_attainment": _slo(rows, facts.slo_factor),
        "circuits": _circuits(circuits, facts.time_scale),
        "offered_digest": facts.offered_digest,
        "fidelity": {**verdict.fidelity, "lower_bounds": bounds, "flows": len(flow_rows)},
        "wall_s": facts.wall_s,
    }


def _circuits(seen: CircuitEvidence | None, time_scale: float) -> dict[str, Any]:
    errors = [abs(error_s) * 1e3 / time_scale for error_s in seen.dark_errors_emu_s] if seen else []
    return {
        "booked": seen.booked if seen else 0,
        "reconfigurations": seen.reconfigurations if seen else 0,
        "reused": seen.reused if seen else 0,
        "dark_error_ms": {f"p{q}": float(np.percentile(errors, q)) if errors else None for q in (50, 99)},
    }


def _ttft_s(row: RequestRow, ended_s: float) -> float:
    if row.ttft_s is not None:
        return row.ttft_s
    # A prefill's end is exact once it has begun, and may lie behind the end of the run.
    return max(0.0, ended_s - row.arrival_s, (row.prefill_end_s or 0.0) - row.arrival_s)


def _exposed_s(row: RequestRow, ended_s: float) -> float:
    if row.exposed_s is not None:
        return row.exposed_s
    return 0.0 if row.prefill_end_s is None else max(0.0, ended_s - row.prefill_end_s)


def _fct_s(row: FlowRow, facts: RunFacts) -> float:
    if row.fct_s is not None:
        return row.fct_s
    began = row.planned_send_emu_s if row.actual_send_emu_s is None else row.actual_send_emu_s
    return max(0.0, facts.ended_s - began / facts.time_scale)


def _slowdown(row: FlowRow, fct_s: float, facts: RunFacts) -> float:
    if row.slowdown is not None:
        return row.slowdown
    # No transfer beats the same one alone, so 1 is the least it can come to.
    return max(1.0, fct_s * facts.time_scale / row.ideal_fct_emu_s) if row.ideal_fct_emu_s > 0 else 1.0


def _slo(rows: Sequence[RequestRow], factor: float) -> dict[str, float]:
    limits = slo_limits_s(((row.tenant, row.unloaded_prefill_s) for row in rows), factor)
    ended = [finished for row in rows if (finished := _finished(row)) is not None]
    missed = [row.tenant for row in rows if row.ttft_s is None]
    return slo_attainment(ended, missed, limits)


def _finished(row: RequestRow) -> TurnFinished | None:
    """The event a completed row was made from; None of any other."""
    if row.ttft_s is None or row.last_byte_s is None or row.prefill_start_s is None or row.prefill_end_s is None:
        return None
    turn = Turn(row.turn, row.tenant, row.session, row.arrival_s, row.context, row.new, row.output, row.source)
    return TurnFinished(
        turn, -1 if row.prefill is None else row.prefill, -1 if row.decode is None else row.decode, bool(row.migrated),
        row.head_bytes or 0, row.tail_bytes or 0, row.prefill_start_s, row.prefill_end_s, row.last_byte_s,
        row.unloaded_prefill_s, None, row.head_last_byte_s,
    )  # fmt: skip


def render_summary(summary: Mapping[str, Any]) -> RenderableType:
    """The verdict first, its reasons, then the figures in tables that line up; an INVALID run says so in every title."""
    valid = summary["verdict"] == "VALID"
    mark = "" if valid else " (INVALID)"
    head = Text.assemble(
        (summary["verdict"], "bold green" if valid else "bold red"),
        f"  {summary['scenario']} on {summary['fabric']}, {summary['engine']}, {summary['wall_s']:.1f} s",
    )
    reasons = [Text(f"  - {reason}", style="red") for reason in summary["reasons"]]
    fidelity = summary["fidelity"]
    notes = [Text(f"  note: {note}", style="dim") for note in fidelity.get("notes", ())]
    return Group(
        head,
        *reasons,
        *notes,
        _counts(summary, mark),
        *_circuit_table(summary, mark),
        _times(summary, mark),
        _shares(summary, mark),
        _trust(fidelity, mark),
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _counts(summary: Mapping[str, Any], mark: str) -> Table:
    requests = summary["requests"]
    table = _table(f"Turns{mark}", *requests)
    for column in table.columns:
        column.justify = "right"
    table.add_row(*(str(count) if count else "none" for count in requests.values()))
    return table


def _circuit_table(summary: Mapping[str, Any], mark: str) -> tuple[Table, ...]:
    circuits = summary["circuits"]
    if not circuits["booked"]:
        return ()
    table = _table(f"Circuits{mark}", "booked", "reconfigurations", "reused")
    table.columns[0].justify = "right"
    table.add_row(*(str(circuits[name]) for name in ("booked", "reconfigurations", "reused")))
    return (table,)


def _times(summary: Mapping[str, Any], mark: str) -> Table:
    table = _table(f"Times of the real cluster{mark}", "", *_STATISTICS)
    bounds = summary["fidelity"].get("lower_bounds", {})
    for key, name in (("ttft_s", "TTFT"), ("exposed_s", "exposed"), ("fct_s", "FCT"), ("slowdown", "slowdown")):
        show = _ratio if key == "slowdown" else format_time
        least = "≥ " if bounds.get(key) else ""
        values = (summary[key][item] for item in _STATISTICS)
        table.add_row(name, *("none" if value is None else f"{least}{show(value)}" for value in values))
    return table


def _shares(summary: Mapping[str, Any], mark: str) -> Table:
    table = _table(f"Shares{mark}", "", "")
    table.add_row("exposed share of TTFT", _share(summary["exposed_share_of_ttft"]))
    table.add_row("hidden, of migrated turns", _share(summary["hidden_share"]))
    attained = summary["slo_attainment"]
    for tenant, share in attained.items():
        table.add_row(escape("SLO met" if tenant == "all" else f"  {tenant}"), _share(share))
    if not attained:
        table.add_row("SLO met", "none")
    return table


_TRUST = (
    ("lateness_p99_emu_s", "send lateness p99 (emulated)", "time", "≤"),
    ("lateness_max_emu_s", "send lateness max (emulated)", "time", "≤"),
    ("cpu_idle_min", "processors idle, least in a second", "share", "≥"),
    ("cpu_idle_worst_core", "busiest core idle, least in a second", "share", ""),
    ("link_peak_use", "link peak, of its rate", "share", "≤"),
    ("link_shortfall", "saturated link short of its rate by", "share", "≤"),
    ("slowdown_min", "least slowdown of a flow", "ratio", ""),
    ("paths_known", "realised paths known", "count", "of"),
    ("paths_as_predicted", "paths as predicted", "count", "of"),
    ("circuit_carried_p05", "carried by a circuit, of its rate, p5", "share", "≥"),
    ("dark_error_p50_emu_s", "dark time off τ, median (emulated)", "time", "≤"),
    ("dark_error_p99_emu_s", "dark time off τ, p99 (emulated)", "time", "≤"),
    ("control_p99_emu_s", "circuits commanded late, p99 (emulated)", "time", "≤"),
    ("lost_in_the_dark", "packets lost in the dark", "count", "≤"),
    ("queue_drops", "packets dropped in queues", "count", "≤"),
    ("softnet_drops", "packets dropped by the kernel", "count", "≤"),
)


def _trust(fidelity: Mapping[str, Any], mark: str) -> Table:
    table = _table(f"Fidelity{mark}", "", "measured", "limit")
    for key, name, kind, relation in _TRUST:
        figure = fidelity.get(key)
        if figure is None:
            continue
        limit = "" if figure["limit"] is None or not relation else f"{relation} {_shown(figure['limit'], kind)}"
        table.add_row(name, _shown(figure["value"], kind), limit)
    return table


def _shown(value: float | None, kind: str) -> str:
    if value is None:
        return "none"
    if kind == "time":
        return format_time(value)
    if kind == "share":
        return _share(value)
    return _ratio(value) if kind == "ratio" else f"{value:.0f}"


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value * 100:.1f} %"


def _ratio(value: float) -> str:
    return f"{value:.3f}"
