"""Whether a simulated run may be believed: its books, and what no network could do. Pure.

There is no machine to mistrust: no lateness, no processors, no shaping. What is left is that every row and every turn is
accounted for, that all of them ended, and that no flow was faster than alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from flowsim.solver import Effort
from kvfabric._wording import capped
from kvfabric.rows import CircuitRow, FlowRow, RequestRow
from kvfabric.verdict import Accounts, Verdict, accounting_reasons

_OVERLAP = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationEvidence:
    """What a simulated run leaves; ``effort`` is None over circuits."""

    accounts: Accounts
    requests: Sequence[RequestRow]
    flows: Sequence[FlowRow]
    circuits: Sequence[CircuitRow]
    tp: int
    effort: Effort | None


def judge_simulation(evidence: SimulationEvidence) -> Verdict:
    """The verdict."""
    reasons = [
        *accounting_reasons(evidence.accounts),
        *capped("turns", _missing_flows(evidence)),
        *capped("flows", (f"flow {row.flow}: its slowdown is {row.slowdown}, under 1" for row in _too_fast(evidence.flows))),
        *capped("windows", _overlaps(evidence.circuits)),
    ]
    completed = [row for row in evidence.flows if row.status == "completed"]
    slowdowns = [row.slowdown for row in completed if row.slowdown is not None]

    def figure(value: float | None, limit: float | None) -> dict[str, float | None]:
        return {"value": value, "limit": limit}

    figures: dict[str, object] = {
        "paths_known": figure(sum(row.path_realised is not None for row in completed), len(completed)),
        "slowdown_min": figure(min(slowdowns, default=None), 1),
        "trace_rows_accounted": figure(evidence.accounts.rows_accounted, evidence.accounts.rows_in),
    }
    if evidence.effort is not None:
        effort = evidence.effort
        figures |= {
            "network_events": figure(effort.events, None),
            "levels_computed": figure(effort.relaxed, None),
            "refills": figure(effort.refilled, None),
            "refills_after_relaxing": figure(effort.fell_back, None),
        }
    migrated = {row.turn for row in evidence.requests if row.migrated}
    classes = {
        "migrated (head and tail)": any(row.transfer in migrated for row in evidence.flows),
        "not migrated (tail only)": any(row.transfer not in migrated for row in evidence.flows),
    }
    notes = [f"no flow in {name}" for name, found in classes.items() if not found]
    return Verdict(not reasons, tuple(reasons), {**figures, "notes": notes})


def _missing_flows(evidence: SimulationEvidence) -> list[str]:
    flows = Counter(row.transfer for row in evidence.flows if row.status == "completed")
    moved = [row for row in evidence.requests if row.status == "completed" and (row.head_bytes or 0) + (row.tail_bytes or 0) > 0]
    return [
        f"turn {row.turn}: {flows[row.turn]} of its {evidence.tp} flows arrived"
        for row in moved
        if flows[row.turn] != evidence.tp
    ]


def _too_fast(flows: Sequence[FlowRow]) -> list[FlowRow]:
    return [row for row in flows if row.status == "completed" and not (row.slowdown is not None and row.slowdown >= 1)]


def _overlaps(circuits: Sequence[CircuitRow]) -> list[str]:
    """Windows of an instance that overlap, which its ports cannot do."""
    found = []
    for side in ("prefill", "decode"):
        begun = sorted((getattr(row, side), row.start_s, row.end_s, row.window) for row in circuits if row.start_s is not None)
        for instance, windows in groupby(begun, key=lambda item: item[0]):
            before_end, before = float("-inf"), -1
            for _, start_s, end_s, window in windows:
                if start_s < before_end - _OVERLAP:
                    found.append(f"windows {before} and {window} hold {side} {instance} at the same time")
                before_end, before = end_s, window
    return found
