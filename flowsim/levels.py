"""Max-min fair rates kept up to date: every link has a level, and after a start or an end only what changes is computed.

A link's level is the water level of its flows, given what each of them gets on its other links: Σ min(level, elsewhere) =
capacity, infinite where all of them are limited elsewhere. A flow's rate is the lowest level of its path. Where every level
agrees with the others, every flow is fastest on the link that limits it and that link is full: this is the max-min
allocation (the certificate of flowsim/maxmin.py). Dirty links are looked at in the order in which they became dirty, until
none is left; then the lowest levels are right first, and each later one after a finite number of looks.

A link that is not full keeps its slack, so that it is looked at only when that is used up.

Rounding can keep two levels from agreeing for ever. Work is therefore bounded, and then the network is filled anew by
progressive filling, which also serves many starts at once better.
"""

from __future__ import annotations

import numpy as np

from flowsim.compiled import compiled
from flowsim.state import (
    CHANGES,
    DIRTY,
    EVENTS,
    FELL_BACK,
    HOPS,
    REFILLED,
    RELAXED,
    SENDING,
    SLACK,
    Floats,
    Records,
    State,
    lowest_level,
    next_dirty,
    rise,
    sink,
    soil,
    take_out,
    touch,
)

TOLERANCE = 1e-14
"""Of a level: less is rounding, and changes nothing."""
_MANY = 24
_SHARE = 4
"""Starts and ends at once, at least so many and one in so many of all flows, are served by a refill."""
_EFFORT = 64


@compiled
def _water_level(links: Records, levels: Floats, memberships: Records, hops: int, limit: Floats, link: int) -> float:
    """The level of a link, given the others'."""
    left, rising, membership = links[link].capacity, 0, links[link].first
    while membership >= 0:
        limit[rising] = lowest_level(levels, memberships, hops, memberships[membership].slot, membership, -1)
        rising += 1
        membership = memberships[membership].following
    while rising > 0:
        level = max(0.0, left / rising)
        kept = 0
        for i in range(rising):
            if limit[i] <= level:
                left -= limit[i]
            else:
                limit[kept] = limit[i]
                kept += 1
        if kept == rising:  # the set does not shrink any more
            return float(level)
        rising = kept
    links[link].slack = left
    return np.inf


@compiled
def _soil_others(state: State, link: int, before: float, after: float) -> None:
    """A level has changed: touch the link's flows, and look again at those of their links for which it makes a difference."""
    links, levels, memberships, hops = state.links, state.levels, state.memberships, state.counts[HOPS]
    membership = links[link].first
    while membership >= 0:
        slot = memberships[membership].slot
        touch(state, slot)
        begin = slot * hops
        for other in range(begin, begin + hops):
            place = memberships[other].link
            if place < 0:
                break
            there = links[place]
            if other == membership or there.queued:
                continue
            rest = lowest_level(levels, memberships, hops, slot, membership, other)
            if levels[place] < np.inf:
                bound = min(levels[place], rest)
                if min(bound, before) != min(bound, after):
                    soil(state, place)
                continue
            got, gets = min(before, rest), min(after, rest)
            if got == gets:
                continue
            if got == np.inf or gets == np.inf:
                soil(state, place)
                continue
            there.slack -= gets - got
            if gets > got and there.slack < SLACK * there.capacity:
                soil(state, place)
        membership = memberships[membership].following


@compiled
def relax(state: State) -> bool:
    """Bring the levels to agree; False if that took more effort than filling the network several times would."""
    links, levels, memberships, hops = state.links, state.levels, state.memberships, state.counts[HOPS]
    budget = _EFFORT * (8 + 4 * state.counts[SENDING])
    while state.counts[DIRTY] > 0:
        link = next_dirty(state)
        state.counts[RELAXED] += 1
        budget -= 1 + links[link].members
        if budget < 0:
            return False
        before, after = levels[link], _water_level(links, levels, memberships, hops, state.limit, link)
        if before == after or abs(before - after) <= TOLERANCE * before < np.inf:
            continue
        levels[link] = after
        _soil_others(state, link, before, after)
    return True


@compiled
def refill(state: State) -> None:
    """All levels anew, by progressive filling, whatever they were; every flow that sends is touched."""
    while state.counts[DIRTY] > 0:
        next_dirty(state)
    state.counts[REFILLED] += 1
    heap, links, risen, hops, size = state.link_heap, state.links, state.limit, state.counts[HOPS], 0
    state.levels[:] = np.inf
    for place in range(len(links)):
        link = links[place]
        link.rising, link.used = link.members, 0.0
        if link.rising > 0:
            link.key = link.capacity / link.rising
            heap[size] = place
            size += 1
            rise(heap, links, size - 1)
    for i in range(state.counts[EVENTS]):
        slot = state.heap[i]
        if state.flows[slot].sending:
            touch(state, slot)
            risen[slot] = 0.0
    level = 0.0
    while size > 0:
        full = heap[0]
        # Rounding must not let the level fall: what has stopped, stopped at the lowest level there was.
        level = max(level, links[full].key)
        state.levels[full] = level
        membership = links[full].first
        while membership >= 0:
            slot = state.memberships[membership].slot
            membership = state.memberships[membership].following
            if risen[slot] > 0:
                continue
            risen[slot] = 1.0
            begin = slot * hops
            for other in range(begin, begin + state.flows[slot].hops):
                place = state.memberships[other].link
                link = links[place]
                link.rising -= 1
                link.used += level
                if place == full:
                    continue
                if link.rising == 0:
                    take_out(heap, links, size, place)
                    size -= 1
                else:
                    link.key = max(level, (link.capacity - link.used) / link.rising)
                    sink(heap, links, size, link.place)
        take_out(heap, links, size, full)
        size -= 1
    for place in range(len(links)):
        links[place].slack = links[place].capacity - links[place].used


@compiled
def settle_levels(state: State) -> None:
    """All levels right again after starts and ends."""
    changes = state.counts[CHANGES]
    if changes >= _MANY and changes * _SHARE >= state.counts[SENDING]:
        refill(state)
    elif not relax(state):
        state.counts[FELL_BACK] += 1
        refill(state)
