"""Everything a fluid network holds, as arrays of records that compiled loops work on; and the heaps and lists among them.

A flow has a slot; its hop k is membership ``slot · hops + k``, an element of the list of flows that are sending over that link.
Links, slots and memberships are counted from 0, -1 is none. Times are seconds, rates bytes per second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flowsim.compiled import compiled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Table = npt.NDArray[np.int64]
"""Of two dimensions."""
Records = Any
"""An array of records: ``records[i].field`` in compiled code, for which numpy has no type."""

EVENTS, DIRTY, FIRST_DIRTY, TOUCHED, SENDING, CHANGES, RULE, HOPS = range(8)
"""Counts: of the heap, of links to be looked at, where their ring begins, of flows whose rate may have changed, of flows that
send, of starts and ends since the rates were last computed; how rates are computed; and the length of the longest path."""
DONE, RELAXED, REFILLED, FELL_BACK = range(8, 12)
"""Tallies: starts, ends and goals; levels computed; networks filled anew, of which after relaxing came to no end."""

SLACK = 1e-9
"""Of a link's capacity: less slack is not trusted, because it is kept up by many small sums."""

LINK = np.dtype([
    ("capacity", np.float64),
    ("slack", np.float64),  # where the level is infinite: what its flows, as they are limited elsewhere, leave of it
    ("first", np.int64),  # the first membership of its list
    ("members", np.int64),
    ("queued", np.int64),
    ("key", np.float64),  # from here on, scratch of a refill: the level at which it will be full
    ("used", np.float64),
    ("rising", np.int64),
    ("place", np.int64),
])  # fmt: skip
FLOW = np.dtype([
    ("rate", np.float64),
    ("sent", np.float64),  # at ``since``
    ("since", np.float64),
    ("goal", np.float64),  # the next count of bytes at which something happens
    ("key", np.float64),  # when something happens next
    ("place", np.int64),  # in the heap of events
    ("sending", np.int64),
    ("touched", np.int64),
    ("hops", np.int64),
    ("head", np.float64),
    ("head_told", np.int64),
    ("begins", np.int64),  # where its schedule begins, how many releases it has, how many of them have come
    ("steps", np.int64),
    ("step", np.int64),
    ("flow", np.int64),
    ("group", np.int64),
])  # fmt: skip
MEMBERSHIP = np.dtype([("link", np.int32), ("slot", np.int32), ("following", np.int32), ("previous", np.int32)])
"""A path that is shorter than the longest ends with link -1."""
RELEASE = np.dtype([("at", np.float64), ("upto", np.float64)])


class State(NamedTuple):
    """See the records' types. ``levels`` is what each link grants a flow that is limited nowhere else: read more than anything,
    and therefore by itself. ``fifo`` is the ring of dirty links, ``limit`` and ``left`` are scratch by slot and by group."""

    counts: Ints
    clock: Floats
    links: Records
    levels: Floats
    fifo: Ints
    link_heap: Ints
    flows: Records
    memberships: Records
    touched: Ints
    limit: Floats
    left: Floats
    heap: Ints
    releases: Records


def empty_state(capacity: npt.ArrayLike, slots: int, hops: int, releases: int) -> State:
    """A network without flows, with room for some."""
    given = np.asarray(capacity, dtype=np.float64)
    links = np.zeros(len(given), dtype=LINK)
    links["capacity"], links["slack"], links["first"] = given, given, -1
    count = np.zeros(12, dtype=np.int64)
    count[HOPS] = hops
    return State(
        counts=count,
        clock=np.array([-np.inf]),
        links=links,
        levels=np.full(len(given), np.inf),
        fifo=np.zeros(max(1, len(given)), dtype=np.int64),
        link_heap=np.zeros(len(given), dtype=np.int64),
        flows=np.zeros(slots, dtype=FLOW),
        memberships=np.zeros(slots * hops, dtype=MEMBERSHIP),
        touched=np.zeros(slots, dtype=np.int64),
        limit=np.zeros(slots),
        left=np.zeros(slots),
        heap=np.zeros(slots, dtype=np.int64),
        releases=np.zeros(releases, dtype=RELEASE),
    )


def with_slots(state: State, slots: int) -> State:
    """The same with room for more flows."""

    def larger(old: Any, factor: int = 1) -> Any:
        new = np.zeros(slots * factor, dtype=old.dtype)
        new[: len(old)] = old
        return new

    return state._replace(
        flows=larger(state.flows),
        memberships=larger(state.memberships, int(state.counts[HOPS])),
        touched=larger(state.touched),
        limit=larger(state.limit),
        left=larger(state.left),
        heap=larger(state.heap),
    )


@compiled
def rise(heap: Ints, items: Records, at: int) -> None:
    """An item of a heap, by the key of its record, may have to go up."""
    item = heap[at]
    key = items[item].key
    while at > 0:
        parent = (at - 1) >> 1
        if items[heap[parent]].key <= key:
            break
        heap[at] = heap[parent]
        items[heap[at]].place = at
        at = parent
    heap[at] = item
    items[item].place = at


@compiled
def sink(heap: Ints, items: Records, size: int, at: int) -> None:
    """An item of a heap of ``size`` may have to go down."""
    item = heap[at]
    key = items[item].key
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and items[heap[child + 1]].key < items[heap[child]].key:
            child += 1
        if key <= items[heap[child]].key:
            break
        heap[at] = heap[child]
        items[heap[at]].place = at
        at = child
    heap[at] = item
    items[item].place = at


@compiled
def take_out(heap: Ints, items: Records, size: int, item: int) -> None:
    """An item leaves a heap, which had ``size``."""
    at, last = items[item].place, size - 1
    if at < last:
        moved = heap[last]
        heap[at] = moved
        items[moved].place = at
        rise(heap, items, at)
        sink(heap, items, last, items[moved].place)


@compiled
def reschedule(state: State, slot: int, at_s: float) -> None:
    """The next event of a flow is at another time."""
    flow = state.flows[slot]
    before = flow.key
    flow.key = at_s
    if at_s < before:
        rise(state.heap, state.flows, flow.place)
    elif at_s > before:
        sink(state.heap, state.flows, state.counts[EVENTS], flow.place)


@compiled
def schedule(state: State, slot: int, at_s: float) -> None:
    """A flow gets a place in the heap of events."""
    at = state.counts[EVENTS]
    state.counts[EVENTS] = at + 1
    state.flows[slot].key = at_s
    state.heap[at] = slot
    rise(state.heap, state.flows, at)


@compiled
def unschedule(state: State, slot: int) -> None:
    """A flow has no event any more."""
    take_out(state.heap, state.flows, state.counts[EVENTS], slot)
    state.counts[EVENTS] -= 1


@compiled
def touch(state: State, slot: int) -> None:
    """A flow's rate may have changed."""
    flow = state.flows[slot]
    if flow.touched == 0:
        flow.touched = 1
        state.touched[state.counts[TOUCHED]] = slot
        state.counts[TOUCHED] += 1


@compiled
def soil(state: State, link: int) -> None:
    """A link's level may have changed: it goes to the end of the ring of those that are to be looked at."""
    if state.links[link].queued == 0:
        state.links[link].queued = 1
        at = state.counts[FIRST_DIRTY] + state.counts[DIRTY]
        size = len(state.fifo)
        state.fifo[at if at < size else at - size] = link
        state.counts[DIRTY] += 1


@compiled
def next_dirty(state: State) -> int:
    """Take the first link from the ring, which is not empty."""
    at = state.counts[FIRST_DIRTY]
    state.counts[FIRST_DIRTY] = at + 1 if at + 1 < len(state.fifo) else 0
    state.counts[DIRTY] -= 1
    link = state.fifo[at]
    state.links[link].queued = 0
    return link  # type: ignore[no-any-return]


@compiled
def lowest_level(levels: Floats, memberships: Records, hops: int, slot: int, but: int, nor: int) -> float:
    """The lowest level on a flow's path, memberships ``but`` and ``nor`` left out (-1: none)."""
    lowest, begin = np.inf, slot * hops
    for membership in range(begin, begin + hops):
        link = memberships[membership].link
        if link < 0:
            break
        level = levels[link]
        if level < lowest and membership != but and membership != nor:
            lowest = level
    return lowest


@compiled
def join(state: State, slot: int) -> None:
    """A flow begins to send. Its links become dirty in the order of their shares: the tightest one settles what it gets."""
    links, levels, memberships, hops = state.links, state.levels, state.memberships, state.counts[HOPS]
    flow, begin = state.flows[slot], slot * hops
    for membership in range(begin, begin + flow.hops):
        mine = memberships[membership]
        link = links[mine.link]
        mine.following, mine.previous = link.first, -1
        if link.first >= 0:
            memberships[link.first].previous = membership
        link.first = membership
        link.members += 1
    seen = 0
    for _ in range(flow.hops):
        tightest, least = -1, np.inf
        for k in range(flow.hops):
            link = links[memberships[begin + k].link]
            if not seen >> k & 1 and link.capacity < least * link.members:
                tightest, least = k, link.capacity / link.members
        if tightest < 0:
            break
        seen |= 1 << tightest
        place = memberships[begin + tightest].link
        link = links[place]
        if levels[place] == np.inf and not link.queued:
            gets = lowest_level(levels, memberships, hops, slot, begin + tightest, -1)
            if gets < np.inf:
                link.slack -= gets
                if link.slack >= SLACK * link.capacity:
                    continue
        soil(state, place)
    flow.sending = 1
    state.counts[SENDING] += 1
    state.counts[CHANGES] += 1
    touch(state, slot)


@compiled
def leave(state: State, slot: int) -> None:
    """A flow sends no more, for now or for ever."""
    links, levels, memberships, hops = state.links, state.levels, state.memberships, state.counts[HOPS]
    flow, begin = state.flows[slot], slot * hops
    for membership in range(begin, begin + flow.hops):
        mine = memberships[membership]
        link = links[mine.link]
        if mine.previous >= 0:
            memberships[mine.previous].following = mine.following
        else:
            link.first = mine.following
        if mine.following >= 0:
            memberships[mine.following].previous = mine.previous
        link.members -= 1
        got = lowest_level(levels, memberships, hops, slot, membership, -1) if levels[mine.link] == np.inf else np.inf
        if got < np.inf:
            link.slack += got  # what is not full stays so
        else:
            soil(state, mine.link)
    flow.sending = 0
    flow.rate = 0.0
    state.counts[SENDING] -= 1
    state.counts[CHANGES] += 1
