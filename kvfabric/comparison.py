"""Two runs of the same offered load against each other, flow by flow and turn by turn. Pure: rows in, the document out.

The error of a flow is |a − b| / b of its FCT, its bias (a − b) / b; with a the emulation and b the simulation that is by how much
packets are slower than the fluid. Classes show where a fluid stops being true: alone on all links of its path or not, as b has
it, and shorter or longer than the median flow. Source: interface.md of the design, ``compare.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from kvfabric.rows import FlowRow, RequestRow, TransferRow

_SAME_START_EMU_S = 1e-5
"""Planned starts that differ by less are the same: the records of an emulation are rounded by its clock."""

Link = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRows:
    """What a comparison needs of a run. ``name`` is for tables, ``verdict`` VALID or INVALID."""

    name: str
    engine: str
    verdict: str
    digest: str
    requests: Sequence[RequestRow]
    transfers: Sequence[TransferRow]
    flows: Sequence[FlowRow]


def compare(a: RunRows, b: RunRows) -> dict[str, Any]:
    """The document of ``compare.json``. Its figures are of what completed in both runs; what did not is counted."""
    flows = _pairs(a.flows, b.flows, lambda row: row.flow, lambda row: row.fct_s)
    turns = _pairs(a.requests, b.requests, lambda row: row.turn, lambda row: row.ttft_s)
    transfers = _pairs(a.transfers, b.transfers, lambda row: row.transfer, lambda row: row.fct_s)
    same_path = [x.path_realised is not None and _way(x) == _way(y) for x, y, *_ in flows]
    same_start = [abs(x.planned_send_emu_s - y.planned_send_emu_s) <= _SAME_START_EMU_S for x, y, *_ in flows]
    fct, ttft = ([(mine, other) for *_, mine, other in pairs] for pairs in (flows, turns))
    return {
        "runs": [{"name": run.name, "engine": run.engine, "verdict": run.verdict} for run in (a, b)],
        "flows": len(flows),
        "turns": len(turns),
        "fct_error": _error(fct),
        "ttft_error": _error(ttft),
        "transfer_fct_error": _error([(mine, other) for *_, mine, other in transfers]),
        "aggregate_error": {key: None if value is None else abs(value) for key, value in _aggregate(fct, ttft).items()},
        "aggregate_bias": _aggregate(fct, ttft),
        "paths_equal": _share(same_path),
        "starts_equal": _share(same_start),
        "same_decode": _share([x.decode == y.decode for x, y, *_ in turns]),
        "offered_digest_equal": a.digest == b.digest,
        "classes": {name: {"flows": len(of), **_error(of)} for name, of in _classes(b.flows, flows).items()},
        "left_out": {
            "flows": [len(a.flows) - len(flows), len(b.flows) - len(flows)],
            "turns": [len(a.requests) - len(turns), len(b.requests) - len(turns)],
        },
    }


def _pairs(a: Sequence[Any], b: Sequence[Any], key: Callable[[Any], int],
           time_of: Callable[[Any], float | None]) -> list[tuple[Any, Any, float, float]]:  # fmt: skip
    """Rows of both runs that belong together, with their times where both have one."""
    others = {key(row): row for row in b}
    found = []
    for row in a:
        other = others.get(key(row))
        mine_s, other_s = time_of(row), None if other is None else time_of(other)
        if mine_s is not None and other_s is not None and other_s > 0:
            found.append((row, other, mine_s, other_s))
    return found


def _way(row: FlowRow) -> tuple[str, str, str | None]:
    return row.source, row.destination, row.path_realised


def _share(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None


def _error(pairs: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    """Median and 95th percentile of the error, and the mean of the signed one; None of nothing."""
    if not pairs:
        return {"median": None, "p95": None, "bias": None}
    mine, other = np.asarray(pairs, dtype=np.float64).T
    signed = (mine - other) / other
    size = np.abs(signed)
    return {"median": float(np.median(size)), "p95": float(np.percentile(size, 95)), "bias": float(signed.mean())}


def _aggregate(fct: Sequence[tuple[float, float]], ttft: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    """Signed errors of what a paper would report: means and 95th percentiles."""
    found: dict[str, float | None] = {}
    for name, pairs in (("fct", fct), ("ttft", ttft)):
        for statistic, of in (("mean", np.mean), ("p95", lambda values: np.percentile(values, 95))):
            value = None
            if pairs:
                mine, other = (float(of(side)) for side in np.asarray(pairs, dtype=np.float64).T)
                value = (mine - other) / other
            found[f"{statistic}_{name}"] = value
    return found


def _classes(
    flows: Sequence[FlowRow], pairs: Sequence[tuple[FlowRow, FlowRow, float, float]]
) -> Mapping[str, list[tuple[float, float]]]:
    alone = alone_on_their_path(flows)
    ideal = [other.ideal_fct_emu_s for _, other, *_ in pairs]
    middle = float(np.median(ideal)) if ideal else 0.0
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "shared": [], "short": [], "long": []}
    for _, other, mine_s, other_s in pairs:
        found["alone" if other.flow in alone else "shared"].append((mine_s, other_s))
        found["short" if other.ideal_fct_emu_s < middle else "long"].append((mine_s, other_s))
    return found


def links_of(row: FlowRow) -> list[Link]:
    """The links of a flow, in one direction each: its host's, those between routers, the other host's."""
    routers = (row.path_realised or "").split(">")
    stops = [row.source, *routers, row.destination]
    return list(pairwise(stops))


def alone_on_their_path(flows: Iterable[FlowRow]) -> frozenset[int]:
    """Flows that shared no link with another one from their planned start to their end. One that did not end counts as shared."""
    ended = [row for row in flows if row.delivered_emu_s is not None]
    by_link: dict[Link, list[tuple[float, float, int]]] = {}
    for row in ended:
        for link in links_of(row):
            by_link.setdefault(link, []).append((row.planned_send_emu_s, row.delivered_emu_s or 0.0, row.flow))
    shared: set[int] = set()
    for users in by_link.values():
        users.sort()
        last_end, last = float("-inf"), -1  # of all before, the one that stays longest
        for begin, end, flow in users:
            if begin < last_end:
                shared |= {flow, last}
            if end > last_end:
                last_end, last = end, flow
    return frozenset(row.flow for row in ended) - shared
