"""A fluid network for many flows: the one of flowsim/fluid.py, compiled, its rates kept up to date instead of computed anew.

Between reports nothing returns to Python: releases, waits and goals of every flow are events of one heap inside the compiled
loop, bytes that have left are brought up to date only where a rate changes. The same calls give the same bytes; flowsim/fluid.py
with flowsim/maxmin.py is the reference it is held to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from flowsim.compiled import compiled
from flowsim.levels import settle_levels
from flowsim.soundness import bad_path, bad_schedule
from flowsim.srpt import settle_srpt
from flowsim.state import (
    CHANGES,
    DONE,
    EVENTS,
    FELL_BACK,
    FLOW,
    HOPS,
    REFILLED,
    RELAXED,
    RELEASE,
    RULE,
    SENDING,
    TOUCHED,
    Floats,
    Ints,
    State,
    Table,
    empty_state,
    join,
    leave,
    lowest_level,
    reschedule,
    schedule,
    unschedule,
    with_slots,
)

Rule = Literal["fair", "srpt"]
_RULES = {"fair": 0, "srpt": 1}
_ROOM = 256
_RELEASES = 1 << 14
_HEAD, _ALL = 1, 2
_LANE = list(FLOW.names or ()).index("group")


@compiled
def _set_rate(state: State, slot: int, rate: float) -> None:
    flow, now = state.flows[slot], state.clock[0]
    if rate == flow.rate:
        return
    if now > flow.since and flow.rate > 0:
        # Never to the goal or past it: rounding must not send what is not released, or end a flow before its event.
        flow.sent = min(flow.sent + flow.rate * (now - flow.since), np.nextafter(flow.goal, 0.0))
    flow.since = now
    flow.rate = rate
    reschedule(state, slot, now + (flow.goal - flow.sent) / rate if rate > 0 else np.inf)


@compiled
def _settle(state: State) -> None:
    """The rates right again after starts and ends."""
    if state.counts[RULE] == 0:
        settle_levels(state)
        for i in range(state.counts[TOUCHED]):
            slot = state.touched[i]
            state.flows[slot].touched = 0
            if state.flows[slot].sending:
                _set_rate(state, slot, lowest_level(state.levels, state.memberships, state.counts[HOPS], slot, -1, -1))
        state.counts[TOUCHED] = 0
    else:
        settle_srpt(state)
        for i in range(state.counts[TOUCHED]):
            _set_rate(state, state.touched[i], state.limit[state.touched[i]])
    state.counts[CHANGES] = 0


@compiled
def _happen(state: State, slot: int) -> int:
    """The event of a flow that is due now; what of it has arrived."""
    flow, now, told = state.flows[slot], state.clock[0], 0
    if flow.sending:
        flow.sent, flow.since = flow.goal, now
        if flow.head_told == 0 and flow.sent >= flow.head:
            flow.head_told = 1
            told = _HEAD
    step = flow.step
    while step < flow.steps and state.releases[flow.begins + step].at <= now:
        step += 1
    flow.step = step
    released = state.releases[flow.begins + step - 1].upto if step > 0 else 0.0
    if flow.sent < released:
        flow.goal = flow.head if flow.sent < flow.head < released else released
        if flow.sending:
            reschedule(state, slot, now + (flow.goal - flow.sent) / flow.rate)
        else:
            flow.since = now
            reschedule(state, slot, np.inf)
            join(state, slot)
        return told
    leave(state, slot)
    if step == flow.steps:
        unschedule(state, slot)
        return told + _ALL
    reschedule(state, slot, state.releases[flow.begins + step].at)
    return told


@compiled
def _advance(state: State, until_s: float, told: Table) -> int:
    """Let time pass to ``until_s``, or to the first instant at which something is told; how much is: flow, slot, what."""
    found = 0
    while True:
        if state.counts[CHANGES] > 0:
            _settle(state)
        if state.counts[EVENTS] == 0:
            break
        due = state.flows[state.heap[0]].key
        if due > until_s or due == np.inf or (found > 0 and due > state.clock[0]):
            break
        state.clock[0] = max(state.clock[0], due)
        while state.counts[EVENTS] > 0 and state.flows[state.heap[0]].key <= due:
            slot = state.heap[0]
            what = _happen(state, slot)
            state.counts[DONE] += 1
            if what:
                told[found, 0], told[found, 1], told[found, 2] = state.flows[slot].flow, slot, what
                found += 1
    if found == 0 and until_s < np.inf:
        state.clock[0] = max(state.clock[0], until_s)
    return found


@compiled
def _admit(state: State, slots: Ints, first: int, paths: Table, group: int, begins: int, at: Floats, upto: Floats,
           head: float) -> None:  # fmt: skip
    """Flows of one schedule and group get their slots and their first events; their numbers are ``first`` and so on."""
    for i in range(len(at)):
        state.releases[begins + i].at, state.releases[begins + i].upto = at[i], upto[i]
    hops = state.counts[HOPS]
    for i in range(len(slots)):
        slot = slots[i]
        flow = state.flows[slot]
        flow.hops = 0
        for k in range(hops):
            membership = state.memberships[slot * hops + k]
            membership.slot, membership.link = slot, paths[i, k] if k < paths.shape[1] else -1
            flow.hops += membership.link >= 0
        flow.flow, flow.group, flow.head = first + i, group, head
        flow.rate, flow.sent, flow.goal, flow.sending = 0.0, 0.0, 0.0, 0
        flow.head_told = 1 if head <= 0 else 0
        flow.step, flow.steps, flow.begins = 0, len(at), begins
        schedule(state, slot, at[0])


@compiled
def _withdraw(state: State, slot: int) -> float:
    """Take a flow out; returns what it had sent."""
    if state.flows[slot].sending:
        _set_rate(state, slot, 0.0)
        leave(state, slot)
    unschedule(state, slot)
    return state.flows[slot].sent  # type: ignore[no-any-return]


class Report(NamedTuple):
    """At ``at_s`` the last byte of a flow's ``head`` arrived, or of ``all`` of it (or of both)."""

    at_s: float
    flow: int
    head: bool
    all: bool


@dataclass(frozen=True, slots=True)
class Effort:
    """Events of flows (starts, waits, goals, ends), levels computed, networks filled anew, of which because relaxing came to
    no end."""

    events: int
    relaxed: int
    refilled: int
    fell_back: int


@dataclass(slots=True)
class _Group:
    """Flows that share a schedule, which is at ``begins`` of the releases; ``lane`` is the group's place in the state."""

    lane: int
    begins: int
    steps: int
    slots: set[int]


class FastNetwork:
    """Flows with release schedules over links, by ``rule``: max-min fair, or shortest remaining transfer first.

    ``hops`` is the longest path. Flows are added in groups (a transfer) that share a schedule: from ``released_at[i]`` on up to
    ``released_bytes[i]`` (cumulative) may leave. Raises ValueError for what cannot be.
    """

    def __init__(self, capacity_Bps: npt.ArrayLike, *, rule: Rule = "fair", hops: int = 4) -> None:
        capacity = np.asarray(capacity_Bps, dtype=np.float64)
        if not (capacity >= 0).all() or np.isinf(capacity).any():
            raise ValueError("a link's capacity is zero or more, and finite; leave a link out of the paths if it does not limit")
        self._state = empty_state(capacity, _ROOM, max(1, hops), _RELEASES)
        self._state.counts[RULE] = _RULES[rule]
        self._free = list(range(_ROOM - 1, -1, -1))
        self._lanes = list(range(_ROOM - 1, -1, -1))
        self._slot: dict[int, int] = {}
        self._groups: dict[int, _Group] = {}
        self._group_of: dict[int, tuple[_Group, int]] = {}  # by lane
        self._used = 0  # releases
        self._told = np.zeros((2 * _ROOM, 3), dtype=np.int64)
        self._hops, self._now_s = max(1, hops), -math.inf

    @property
    def now_s(self) -> float:
        return self._now_s

    @property
    def sending(self) -> int:
        """Flows that are sending."""
        return int(self._state.counts[SENDING])

    @property
    def effort(self) -> Effort:
        """What it took so far."""
        return Effort(*(int(self._state.counts[place]) for place in (DONE, RELAXED, REFILLED, FELL_BACK)))

    def add(self, group: int, flows: range, paths: Sequence[Sequence[int]], released_at: Sequence[float],
            released_bytes: Sequence[float], head_bytes: float = 0.0) -> None:  # fmt: skip
        """Take in the flows of a group, which are numbered one after the other. What was released before is released now."""
        at = np.array(released_at, dtype=np.float64)
        upto = np.array(released_bytes, dtype=np.float64)
        if bad_schedule(at, upto, float(head_bytes)):
            raise ValueError(
                f"group {group}: release times must not fall, and released bytes rise from zero to no less than the head"
            )
        if group in self._groups or not flows or flows.step != 1 or any(flow in self._slot for flow in flows):
            raise ValueError(f"group {group} has no flows, or is there already, or one of its flows {flows} is")
        longest = max(map(len, paths))
        table = np.array([[*path, *[-1] * (longest - len(path))] for path in paths], dtype=np.int64).reshape(len(flows), longest)
        if longest > self._hops or (wrong := bad_path(self._state, table)) >= 0:
            path = max(paths, key=len) if longest > self._hops else paths[wrong]
            raise ValueError(
                f"a flow of group {group} cannot cross {tuple(path)}: of {self._hops} hops at most, none of them twice"
            )
        self._make_room(len(flows), len(at))
        slots = [self._free.pop() for _ in flows]
        one = self._groups[group] = _Group(self._lanes.pop(), self._used, len(at), set(slots))
        self._group_of[one.lane] = one, group
        self._slot.update(zip(flows, slots, strict=True))
        self._used += len(at)
        _admit(self._state, np.array(slots), flows.start, table, one.lane, one.begins, at, upto, float(head_bytes))

    def remove(self, flow: int) -> float:
        """Give a flow up; returns the bytes that had arrived."""
        slot = self._slot[flow]
        sent = float(_withdraw(self._state, slot))
        self._forget(flow, slot)
        return sent

    def rates(self) -> dict[int, float]:
        """The present rate of every flow that sends, by flow."""
        if self._state.counts[CHANGES] > 0:
            _settle(self._state)
        flows = self._state.flows
        return {flow: float(flows[slot]["rate"]) for flow, slot in sorted(self._slot.items()) if flows[slot]["sending"]}

    def advance(self, until_s: float) -> tuple[Report, ...]:
        """Let time pass to ``until_s``, or only to the first instant at which something is to be told, flows in order."""
        if not until_s >= self._now_s:
            raise ValueError(f"time went from {self._now_s!r} s back to {until_s!r} s")
        found = _advance(self._state, until_s, self._told)
        self._now_s = self._state.clock.item(0)
        if found == 0:
            return ()
        flags: dict[int, int] = {}  # a flow may have both in two steps
        for flow, slot, what in self._told[:found].tolist():
            flags[flow] = flags.get(flow, 0) | what
            if what & _ALL:
                self._forget(flow, slot)
        now_s = self._now_s
        return tuple(Report(now_s, flow, bool(what & _HEAD), bool(what & _ALL)) for flow, what in sorted(flags.items()))

    def _forget(self, flow: int, slot: int) -> None:
        del self._slot[flow]
        self._free.append(slot)
        lane = self._state.flows.item(slot)[_LANE]
        one, group = self._group_of[lane]
        one.slots.remove(slot)
        if not one.slots:
            del self._groups[group], self._group_of[lane]
            self._lanes.append(lane)

    def _make_room(self, flows: int, releases: int) -> None:
        while len(self._free) < flows:
            size = len(self._state.flows)
            self._state = with_slots(self._state, 2 * size)
            added = range(2 * size - 1, size - 1, -1)
            self._free, self._lanes = [*added, *self._free], [*added, *self._lanes]
            self._told = np.zeros((4 * size, 3), dtype=np.int64)
        room = len(self._state.releases)
        if self._used + releases <= room:
            return
        # Move the schedules that are still there together, into more room if they need half of it.
        while room < 2 * (sum(one.steps for one in self._groups.values()) + releases):
            room *= 2
        moved, self._used = np.zeros(room, dtype=RELEASE), 0
        for one in self._groups.values():
            moved[self._used : self._used + one.steps] = self._state.releases[one.begins : one.begins + one.steps]
            one.begins = self._used
            self._state.flows["begins"][list(one.slots)] = one.begins
            self._used += one.steps
        self._state = self._state._replace(releases=moved)
