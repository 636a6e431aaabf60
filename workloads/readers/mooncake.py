"""Mooncake JSONL: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` (blocks of 512 tokens).

Source: kvcache-ai/Mooncake, FAST25-release/traces. An id stands for a block *and* everything before it, so equal leading
ids are an equal prefix, over the whole file.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace
from pathlib import Path

from workloads.errors import TraceError
from workloads.readers._fields import Row, json_row
from workloads.readers._trace import Collector, Trace, lines_of
from workloads.turns import TraceTurn

BLOCK = 512
UNIT_ROWS = 100
"""Below this many rows a rate says nothing about the unit of the timestamps."""
FASTEST_PER_S = 500.0
SLOWEST_GAP_S = 60.0
"""A file of UNIT_ROWS or more is refused when its timestamps, read as ms, give more requests a second than FASTEST_PER_S
(they are seconds) or a mean gap above SLOWEST_GAP_S (they are µs or ns). The public files have 3.4 and 3.9 a second, so a
factor of 1000 either way is caught with room to spare."""


def read(path: Path, *, skip_bad: bool = False, spread: bool = True) -> Trace:
    """Read a file. ``spread`` undoes a quantisation of the timestamps (see ``find_quantum``), evenly and repeatably.

    Raises TraceError: a bad row (unless ``skip_bad``), timestamps out of order or in another unit, nothing in the file.
    """
    into = Collector(str(path), skip_bad=skip_bad)
    prefixes = _Prefixes()
    last_ms = 0.0
    for number, content in lines_of(path):
        try:
            row = json_row(str(path), number, content)
            at_ms = row.number("timestamp", high=3e18)
            if at_ms < last_ms:
                raise row.error("timestamp", f"is {at_ms:g}, before {last_ms:g} above it; sort the file by timestamp")
            turn = _turn(row, at_ms, prefixes)
        except TraceError as error:
            into.bad(error)
            continue
        last_ms = at_ms
        into.turns.append(turn)
    if into.turns:
        _check_unit(into)
        _from_epoch(into)
    quantum_s = find_quantum([turn.time_s for turn in into.turns])
    shared = len(into.turns) - len({turn.time_s for turn in into.turns})
    if quantum_s and spread:
        into.turns = _spread(into.turns, quantum_s)
        into.notes.append(
            f"timestamps are rounded to {quantum_s:g} s; rows that share one are spread evenly up to the next (spread)"
        )
    elif quantum_s:
        into.notes.append(f"timestamps are rounded to {quantum_s:g} s and left as they are: rows arrive in bursts")
    elif shared:
        into.notes.append(f"{shared} rows have the timestamp of the row above; left as they are")
    return into.trace("mooncake", session_relative=False, quantum_s=quantum_s)


class _Prefixes:
    """Which blocks have been seen, and in which session each was used last."""

    def __init__(self) -> None:
        self._session: dict[int, str] = {}

    def leading(self, ids: list[int]) -> int:
        for depth, block in enumerate(ids):
            if block not in self._session:
                return depth
        return len(ids)

    def use(self, ids: list[int], depth: int, fresh: str) -> str:
        # The first block is a system prompt that everybody shares: it says nothing about who continues whom.
        session = self._session[ids[depth - 1]] if depth > 1 else fresh
        for block in ids:
            self._session[block] = session
        return session


def _turn(row: Row, at_ms: float, prefixes: _Prefixes) -> TraceTurn:
    length = row.count("input_length", low=1)
    output = row.count("output_length")
    ids = row.ids("hash_ids")
    if abs(len(ids) * BLOCK - length) >= BLOCK:
        raise row.error(
            "hash_ids", f"has {len(ids)} blocks of {BLOCK} tokens for input_length {length}; they must cover each other"
        )
    depth = prefixes.leading(ids)
    context = min(depth * BLOCK, length - 1)  # at least one token is always computed, or there is no next one
    return TraceTurn(
        time_s=at_ms / 1e3,
        session=prefixes.use(ids, depth, f"line{row.line}"),
        context=context,
        new=length - context,
        output=output,
        source=row.source,
    )


def _check_unit(into: Collector) -> None:
    turns = into.turns
    first, last = turns[0].time_s, turns[-1].time_s
    # Times since 1970 give their unit away by their size (2001 to 2065).
    for low, unit in ((1e6, "seconds"), (1e12, "microseconds"), (1e15, "nanoseconds")):
        if low <= first < 3 * low and len(turns) > 1:
            raise TraceError(
                into.path,
                None,
                "timestamp",
                f"the first one, {first * 1e3:.0f}, is {unit} since 1970; it must be milliseconds",
            )
    span = last - first
    if span > 0 and len(turns) >= UNIT_ROWS:
        rate = len(turns) / span
        if rate > FASTEST_PER_S or 1 / rate > SLOWEST_GAP_S:
            unit, to_do = ("seconds", "multiply by 1000") if rate > 1 else ("microseconds or finer", "divide by 1000")
            raise TraceError(
                into.path,
                None,
                "timestamp",
                f"read as milliseconds, {len(turns)} requests span {span:.4g} s ({rate:.3g} a second), as if they were in "
                f"{unit}; {to_do} if so (accepted: {1 / SLOWEST_GAP_S:.2g} to {FASTEST_PER_S:g} a second)",
            )


def _from_epoch(into: Collector) -> None:
    first = into.turns[0].time_s
    if first >= 1e9:
        into.turns = [replace(turn, time_s=turn.time_s - first) for turn in into.turns]
        into.notes.append("timestamps count from 1970; times are given since the first row")


def find_quantum(times_s: list[float]) -> float:
    """The step to which timestamps are rounded, in seconds; 0 where they are not.

    They are when at least half of the rows share a timestamp with another row, and nine gaps in ten between distinct
    timestamps are a multiple of the median gap, within 0.5 % or 5 ms, and that gap is at least 0.1 s.
    """
    distinct = sorted(set(times_s))
    if len(distinct) < 2:
        return 0.0
    counts: dict[float, int] = {}
    for time_s in times_s:
        counts[time_s] = counts.get(time_s, 0) + 1
    if sum(count for count in counts.values() if count > 1) * 2 < len(times_s):
        return 0.0
    gaps = [after - before for before, after in itertools.pairwise(distinct)]
    step = statistics.median_low(gaps)
    tolerance = max(0.005 * step, 0.005)
    regular = sum(abs(gap - max(1, round(gap / step)) * step) <= tolerance for gap in gaps)
    return step if step >= 0.1 and regular >= 0.9 * len(gaps) else 0.0


def _spread(turns: list[TraceTurn], quantum_s: float) -> list[TraceTurn]:
    spread: list[TraceTurn] = []
    start = 0
    while start < len(turns):
        time_s = turns[start].time_s
        end = start
        while end < len(turns) and turns[end].time_s == time_s:
            end += 1
        # Not beyond one step: an empty step is an idle one, and not to be filled.
        room = min(turns[end].time_s - time_s, quantum_s) if end < len(turns) else quantum_s
        spread += [replace(turns[at], time_s=time_s + room * (at - start) / (end - start)) for at in range(start, end)]
        start = end
    return spread
