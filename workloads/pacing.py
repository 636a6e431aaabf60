"""From a trace to arrivals in a window: cut and warp absolute times, or pace the turns of live sessions by a Poisson process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workloads.turns import TraceTurn

Work = Callable[[int, int], float]
"""Seconds of unloaded prefill for (context, new)."""

CLOSE, OVER = 0.01, 0.03
"""Paced turns are enough when their sum is this share below the target, and may exceed it by that one."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Turns and when they arrive, seconds since the window's start, in order.

    ``time_factor`` is run seconds per trace second, None where times were synthesised; ``exhausted`` says that the trace
    ended before the work asked for was there.
    """

    turns: tuple[TraceTurn, ...]
    times_s: tuple[float, ...]
    time_factor: float | None
    exhausted: bool
    notes: tuple[str, ...]


def cut(
    turns: Sequence[TraceTurn],
    work: Work,
    window_s: float,
    target_s: float | None,
    start_s: float,
    duration_s: float | None,
) -> Arrivals:
    """The turns of [start_s, start_s + duration_s), by time. Without a target, times are kept and the window ends the cut.

    With one (seconds of unloaded prefill) the piece of the trace from ``start_s`` on that holds it, to the nearest turn, is
    stretched or shrunk to the window. Turns of one instant stay together, so that one factor fits all.
    """
    end_s = math.inf if duration_s is None else start_s + duration_s
    chosen = [turn for turn in turns if start_s <= turn.time_s < end_s]
    if target_s is None:
        kept = [turn for turn in chosen if turn.time_s - start_s < window_s]
        return Arrivals(tuple(kept), tuple(turn.time_s - start_s for turn in kept), 1.0, False, ())
    if not chosen:
        return Arrivals((), (), 1.0, True, ())
    count = _nearest_count(chosen, work, target_s)
    if count < len(chosen):
        span_s = chosen[count].time_s - start_s
    elif duration_s is not None:
        span_s = duration_s
    else:  # the trace's end is not in it: take it one mean gap after the last turn
        span_s = (chosen[-1].time_s - start_s) * (1 + 1 / len(chosen)) or window_s
    factor = window_s / span_s
    latest = math.nextafter(window_s, 0.0)  # rounding may put the last turn on the window's end, which is outside
    times_s = tuple(min((turn.time_s - start_s) * factor, latest) for turn in chosen[:count])
    reached = math.fsum(work(turn.context, turn.new) for turn in chosen[:count])
    exhausted = count == len(chosen) and reached < target_s
    notes = [f"{span_s:.4g} s of the trace take {window_s:.4g} s of the run (times × {factor:.4g})"]
    if exhausted:
        notes.append(f"the trace holds {reached:.4g} s of prefill from {start_s:g} s on, where the load takes {target_s:.4g} s")
    return Arrivals(tuple(chosen[:count]), times_s, factor, exhausted, tuple(notes))


def _nearest_count(chosen: Sequence[TraceTurn], work: Work, target_s: float) -> int:
    """How many turns (at least one) come nearest to the target, ending where the time changes."""
    total_s, best, best_off = 0.0, len(chosen), math.inf
    for at, turn in enumerate(chosen, start=1):
        total_s += work(turn.context, turn.new)
        if at < len(chosen) and chosen[at].time_s == turn.time_s:
            continue
        if abs(total_s - target_s) < best_off:
            best, best_off = at, abs(total_s - target_s)
        if total_s >= target_s:
            break
    return best


def pace(
    turns: Sequence[TraceTurn], work: Work, window_s: float, target_s: float, live: int, rng: np.random.Generator
) -> Arrivals:
    """Turns that make up the target (seconds of unloaded prefill), at times of a Poisson process given their number, each the
    next turn of one of ``live`` sessions.

    The sessions live at the start are drawn in proportion to their length and met at a random turn: those before it are
    over. When one ends another, drawn at random from those not met, takes its place from its first turn. A turn that would
    exceed the target is left for after the window, with the rest of its session: without that a single one of the longest
    could be the whole load of a short window. So it is in short windows and near the end that they are rarer than in the trace.
    """
    order, choose, times = rng.spawn(3)
    running, waiting = _open(turns, live, order)
    picked: list[TraceTurn] = []
    left_over: list[TraceTurn] = []
    total_s = 0.0
    while running and target_s - total_s > CLOSE * target_s:
        slot = int(choose.integers(len(running)))
        session, at = running[slot]
        work_s = work(session[at].context, session[at].new)
        fits = total_s + work_s <= (1 + OVER) * target_s
        if fits:
            picked.append(session[at])
            total_s += work_s
        else:
            left_over.append(session[at])
        if fits and at + 1 < len(session):
            running[slot] = (session, at + 1)
        elif waiting:
            running[slot] = (waiting.pop(), 0)
        else:
            running.pop(slot)
    if not picked and left_over:
        picked = [min(left_over, key=lambda turn: work(turn.context, turn.new))]
    exhausted = not running and not left_over and target_s - total_s > CLOSE * target_s
    latest = math.nextafter(window_s, 0.0)
    times_s = tuple(min(float(time_s), latest) for time_s in np.sort(times.random(len(picked)) * window_s))
    notes = ["turns of live sessions arrive as a Poisson process (open loop, think times compressed)"]
    if left_over:
        notes.append(f"{len(left_over)} sessions stop short of a turn longer than what was left of the load")
    if exhausted:
        notes.append(f"the sessions left hold {total_s:.4g} s of prefill, where the load takes {target_s:.4g} s")
    return Arrivals(tuple(picked), times_s, None, exhausted, tuple(notes))


_Session = list[TraceTurn]


def _open(turns: Sequence[TraceTurn], live: int, order: np.random.Generator) -> tuple[list[tuple[_Session, int]], list[_Session]]:
    """The sessions live at the start, each with its next turn, and those waiting to take their places, last one first."""
    by_name: dict[str, _Session] = {}
    for turn in turns:
        by_name.setdefault(turn.session, []).append(turn)
    sessions = list(by_name.values())
    # An exponential race: the smallest of E/length are a draw without replacement in proportion to length.
    race = order.exponential(size=len(sessions)) / np.array([len(session) for session in sessions])
    first = np.argsort(race, kind="stable")[:live].tolist()
    met = set(first)
    waiting = [sessions[at] for at in order.permutation(len(sessions)).tolist() if at not in met]
    return [(sessions[at], int(order.integers(len(sessions[at])))) for at in first], waiting
