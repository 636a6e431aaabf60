"""Whether a run may be believed: evidence in, VALID or INVALID with reasons out. Pure.

Source: design.md, "Honesty of a run". A figure that is not a number, or was never measured, is never taken for a good one:
every check asks whether the figure is proved to be within its limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvfabric._circuit_verdict import circuit_figures, circuit_reasons
from kvfabric._wording import capped as _capped
from kvfabric._wording import count as _count
from kvfabric._wording import ms as _ms
from kvfabric._wording import percent as _percent
from kvfabric.evidence import CpuSample, Evidence, FlowEvidence, Limits, PortEvidence

__all__ = ["CpuSample", "Evidence", "FlowEvidence", "Limits", "PortEvidence", "Verdict", "judge"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reasons`` is empty for a valid run, the gravest first. ``fidelity`` has every figure beside its limit, JSON-ready."""

    valid: bool
    reasons: tuple[str, ...]
    fidelity: dict[str, object]

    @property
    def word(self) -> Literal["VALID", "INVALID"]:
        return "VALID" if self.valid else "INVALID"


DEFAULT_LIMITS = Limits()


def judge(evidence: Evidence, limits: Limits = DEFAULT_LIMITS) -> Verdict:
    """The verdict. Never raises for bad figures: they are reasons."""
    reasons = [reason for check in _CHECKS for reason in check(evidence, limits)]
    return Verdict(not reasons, tuple(reasons), _fidelity(evidence, limits))


def _broken_off(evidence: Evidence, _limits: Limits) -> list[str]:
    return [f"the run was interrupted by {evidence.interrupted}"] if evidence.interrupted else []


def _observer(evidence: Evidence, limits: Limits) -> list[str]:
    found = _capped("observer faults", evidence.observer_faults)
    if not evidence.longest_gap_emu_s <= limits.sampling_gap_emu_s:
        gap, limit = evidence.longest_gap_emu_s, limits.sampling_gap_emu_s
        found.append(f"nothing was observed for {gap:.1f} s (limit {limit:g} s): processors and links are unknown there")
    if not evidence.duration_emu_s < limits.sampling_gap_emu_s:
        if not evidence.cpu:
            found.append("the processors were not observed")
        if not evidence.ports:
            found.append("no port was observed")
    return found


def _preparation(evidence: Evidence, _limits: Limits) -> list[str]:
    return [
        *_capped("failures", (f"preflight: {item}" for item in evidence.preflight_failures)),
        *_capped("failures", (f"calibration: {item}" for item in evidence.calibration_failures)),
        *_capped("missing capabilities", (f"this machine lacks {item}" for item in evidence.missing_capabilities)),
    ]


def _configuration(evidence: Evidence, _limits: Limits) -> list[str]:
    return [
        *_capped("ports", (f"not shaped as planned at the start: {item}" for item in evidence.shaping_faults_start)),
        *_capped("ports", (f"not shaped as planned at the end: {item}" for item in evidence.shaping_faults_end)),
        *_capped("sysctls", (f"sysctl: {item}" for item in evidence.sysctl_faults)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """A run's books; the fields are those of Evidence."""

    rows_in: int
    rows_accounted: int
    offered: int
    completed: int
    failed: int
    unfinished: int
    request_rows: int
    failure_reasons: tuple[str, ...]


def accounting_reasons(accounts: Accounts | Evidence) -> list[str]:
    """What does not add up, and turns that did not complete; of every engine alike."""
    offered, completed, failed, unfinished = (getattr(accounts, name) for name in _COUNTS)
    found = []
    if offered == 0:
        found.append("no turn was offered")
    if accounts.rows_in != accounts.rows_accounted:
        found.append(f"{accounts.rows_in} trace rows in, {accounts.rows_accounted} accounted for")
    if offered != completed + failed + unfinished:
        found.append(f"offered {offered} turns ≠ {completed} completed + {failed} failed + {unfinished} unfinished")
    if accounts.request_rows != offered:
        found.append(f"offered {offered} turns, but {accounts.request_rows} are in the records")
    if failed > 0:
        found.append(f"{_count(failed, 'turn')} of {offered} failed; percentiles are lower bounds")
        found += _capped("reasons", (f"failed: {item}" for item in accounts.failure_reasons))
    if unfinished > 0:
        found.append(f"{_count(unfinished, 'turn')} of {offered} did not finish; percentiles are lower bounds")
    return found


def _accounting(evidence: Evidence, _limits: Limits) -> list[str]:
    return accounting_reasons(evidence)


def _content(evidence: Evidence, _limits: Limits) -> list[str]:
    checked = [flow for flow in evidence.flows if flow.content_checked and flow.status == "completed"]
    return _capped(
        "flows",
        [f"flow {flow.flow}: the received content differs from what was sent" for flow in checked if flow.content_ok is False]
        + [f"flow {flow.flow}: the content was to be checked and was not" for flow in checked if flow.content_ok is None],
    )


def _paths(evidence: Evidence, _limits: Limits) -> list[str]:
    unknown, other = [], []
    for flow in evidence.flows:
        if flow.path_realised is None or flow.path_predicted is None:
            if flow.status == "completed":
                which = "realised" if flow.path_realised is None else "predicted"
                unknown.append(f"flow {flow.flow}: the {which} path is unknown")
        elif flow.path_realised != flow.path_predicted:
            other.append(f"flow {flow.flow} took {flow.path_realised}, predicted {flow.path_predicted}")
    return _capped("flows", other) + _capped("flows", unknown)


def _lost(evidence: Evidence, _limits: Limits) -> list[str]:
    found = []
    if evidence.softnet_drops != 0:
        packets = _count(evidence.softnet_drops, "packet")
        found.append(f"the kernel dropped {packets} before any queue (softnet_stat): too slow a machine, or netdev_max_backlog")
    if evidence.queue == "fair":
        dropping = sorted((port for port in evidence.ports if port.drops != 0), key=lambda port: -port.drops)
        lines = (
            f"{port.port}: {_count(port.drops, 'packet')} dropped by a fair queue, which must lose none" for port in dropping
        )
        found += _capped("ports", lines)
    return found


def _processors(evidence: Evidence, limits: Limits) -> list[str]:
    short = sorted((item for item in evidence.cpu if not item.idle >= limits.cpu_idle), key=lambda item: item.idle)
    if not short:
        return []
    worst = short[0]
    core, idle = worst.worst_core
    where = f"core {core} {_percent(idle)}" if core >= 0 else "cores unknown"
    line = f"processors {_percent(worst.idle)} idle at {worst.time_s:.0f} s ({where}; floor {_percent(limits.cpu_idle)})"
    return [line, *([f"… and {len(short) - 1} more seconds below the floor"] if len(short) > 1 else [])]


def _lateness(evidence: Evidence, limits: Limits) -> list[str]:
    late = _latenesses(evidence)
    found = []
    if late:
        p99 = float(np.percentile(list(late.values()), 99))
        worst = max(late, key=lambda flow: (math.isnan(late[flow]), late[flow]))
        first = min(late, key=lambda flow: late[flow])
        if not p99 <= limits.lateness_p99_emu_s:
            found.append(f"sends are {_ms(p99)} late at p99 (limit {_ms(limits.lateness_p99_emu_s)})")
        if not late[worst] <= limits.lateness_max_emu_s:
            found.append(f"flow {worst} left {_ms(late[worst])} late (limit {_ms(limits.lateness_max_emu_s)})")
        if not late[first] >= -limits.early_emu_s:
            found.append(f"flow {first} left {_ms(-late[first])} before it was planned (limit {_ms(limits.early_emu_s)})")
    silent = [flow.flow for flow in evidence.flows if flow.status == "completed" and flow.lateness_emu_s is None]
    return found + _capped("flows", (f"flow {flow}: when it was sent is unknown" for flow in silent))


def _links(evidence: Evidence, limits: Limits) -> list[str]:
    above = sorted((port for port in evidence.ports if not port.max_use <= 1 + limits.link_above), key=lambda port: -port.max_use)
    below = sorted((port for port in evidence.ports if _falls_short(port, limits)), key=lambda port: port.saturated_use or 0.0)
    return [
        *_capped(
            "ports",
            (
                f"{port.port} carried {_percent(port.max_use)} of its rate at {port.max_use_at_s:.0f} s "
                f"(limit {_percent(1 + limits.link_above)})"
                for port in above
            ),
        ),
        *_capped(
            "ports",
            (
                f"{port.port} carried {_percent(port.saturated_use or 0.0)} of its rate over {port.saturated_s:.0f} s in which "
                f"packets waited {_percent(port.waiting / port.looks)} of the time (tolerance {_percent(limits.link_below)})"
                for port in below
            ),
        ),
    ]


def _falls_short(port: PortEvidence, limits: Limits) -> bool:
    if port.looks <= 0 or port.saturated_use is None:
        return False
    return not port.saturated_use >= port.waiting_share_low - limits.link_below


def _impossible(evidence: Evidence, _limits: Limits) -> list[str]:
    fast = [
        flow
        for flow in evidence.flows
        if flow.status == "completed" and not (flow.slowdown is not None and flow.slowdown >= 1 - flow.slowdown_credit)
    ]
    fast.sort(key=lambda flow: -math.inf if flow.slowdown is None or math.isnan(flow.slowdown) else flow.slowdown)
    return _capped("flows", (_too_fast(flow) for flow in fast))


def _too_fast(flow: FlowEvidence) -> str:
    if flow.slowdown is None or math.isnan(flow.slowdown):
        return f"flow {flow.flow}: its slowdown is unknown"
    limit = 1 - flow.slowdown_credit
    return f"flow {flow.flow} was faster than the same transfer alone: slowdown {flow.slowdown:.4f} (limit {limit:.4f})"


_COUNTS = ("offered", "completed", "failed", "unfinished")
_CHECKS: tuple[Callable[[Evidence, Limits], list[str]], ...] = (
    _broken_off,
    _observer,
    _preparation,
    _configuration,
    _accounting,
    _content,
    _paths,
    _lost,
    _processors,
    _lateness,
    _links,
    circuit_reasons,
    _impossible,
)
"""Gravest first."""


def _latenesses(evidence: Evidence) -> dict[int, float]:
    return {flow.flow: flow.lateness_emu_s for flow in evidence.flows if flow.lateness_emu_s is not None}


def _number(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _fidelity(evidence: Evidence, limits: Limits) -> dict[str, object]:
    late = list(_latenesses(evidence).values())
    cores = [(share, core) for sample in evidence.cpu for core, share in sample.cores]
    busiest = min(cores, default=None)
    judged = [port for port in evidence.ports if port.looks > 0 and port.saturated_use is not None]
    shortfalls = [port.waiting_share_low - (port.saturated_use or 0.0) for port in judged]
    completed = [flow for flow in evidence.flows if flow.status == "completed"]
    slowdowns = [flow.slowdown for flow in completed if flow.slowdown is not None]
    known = [flow for flow in completed if flow.path_realised is not None]

    def figure(value: float | None, limit: float | None) -> dict[str, float | None]:
        return {"value": _number(value), "limit": limit}

    figures: Mapping[str, dict[str, float | None]] = {
        "shaping_faults_start": figure(len(evidence.shaping_faults_start), 0),
        "shaping_faults_end": figure(len(evidence.shaping_faults_end), 0),
        "sysctl_faults": figure(len(evidence.sysctl_faults), 0),
        "softnet_drops": figure(evidence.softnet_drops, 0),
        "softnet_time_squeeze": figure(evidence.time_squeeze, None),
        "cpu_idle_min": figure(min((sample.idle for sample in evidence.cpu), default=None), limits.cpu_idle),
        "cpu_idle_mean": figure(float(np.mean([s.idle for s in evidence.cpu])) if evidence.cpu else None, None),
        "cpu_idle_worst_core": figure(busiest[0] if busiest else None, None),
        "lateness_p99_emu_s": figure(float(np.percentile(late, 99)) if late else None, limits.lateness_p99_emu_s),
        "lateness_max_emu_s": figure(max(late, default=None), limits.lateness_max_emu_s),
        "lateness_min_emu_s": figure(min(late, default=None), -limits.early_emu_s),
        "link_peak_use": figure(max((port.max_use for port in evidence.ports), default=None), 1 + limits.link_above),
        "link_shortfall": figure(max(shortfalls, default=None), limits.link_below),
        "queue_drops": figure(sum(port.drops for port in evidence.ports), 0 if evidence.queue == "fair" else None),
        "paths_known": figure(len(known), len(completed)),
        "paths_as_predicted": figure(sum(flow.path_realised == flow.path_predicted for flow in known), len(completed)),
        "content_checked": figure(sum(flow.content_checked for flow in completed), None),
        "content_wrong": figure(sum(flow.content_checked and flow.content_ok is not True for flow in completed), 0),
        "slowdown_min": figure(min(slowdowns, default=None), 1),
        "sampling_gap_emu_s": figure(evidence.longest_gap_emu_s, limits.sampling_gap_emu_s),
        "trace_rows_accounted": figure(evidence.rows_accounted, evidence.rows_in),
    }
    notes = [f"no flow in {name}" for name in evidence.empty_classes]
    if completed and not any(flow.content_checked for flow in completed):
        notes.append("no flow's content was checked")
    if not judged:
        notes.append("no port was ever seen with packets waiting")
    return {**figures, **circuit_figures(evidence.circuits, limits), "notes": notes}
