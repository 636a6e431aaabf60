"""Rates by shortest remaining transfer first: the one with the fewest bytes left takes what its flows can get, then the next.

Pre-emptive: priorities are computed anew at every start and end, and a transfer that has to stand back keeps what it has sent. Of
transfers with equally many bytes left the flow with the lower number goes first.
"""

from __future__ import annotations

import numpy as np

from flowsim.compiled import compiled
from flowsim.state import DIRTY, EVENTS, HOPS, REFILLED, TOUCHED, State, next_dirty


@compiled
def _goes_before(state: State, one: int, other: int) -> bool:
    a, b = state.flows[one], state.flows[other]
    left, right = state.left[a.group], state.left[b.group]
    return left < right or (left == right and a.flow < b.flow)  # type: ignore[no-any-return]


@compiled
def settle_srpt(state: State) -> None:
    """The rate of every flow that sends, into ``limit`` by slot.

    The list of touched flows is kept from one time to the next, in order: what has not changed need not be sorted again.
    """
    while state.counts[DIRTY] > 0:
        next_dirty(state)
    state.counts[REFILLED] += 1
    now = state.clock[0]
    for i in range(state.counts[EVENTS]):
        state.left[state.flows[state.heap[i]].group] = 0.0
    for i in range(state.counts[EVENTS]):
        flow = state.flows[state.heap[i]]
        sent = flow.sent + flow.rate * (now - flow.since) if flow.rate > 0 else flow.sent
        state.left[flow.group] += state.releases[flow.begins + flow.steps - 1].upto - sent
    kept = 0
    for i in range(state.counts[TOUCHED]):
        slot = state.touched[i]
        if not state.flows[slot].sending:
            state.flows[slot].touched = 0
            continue
        at = kept
        while at > 0 and _goes_before(state, slot, state.touched[at - 1]):
            state.touched[at] = state.touched[at - 1]
            at -= 1
        state.touched[at] = slot
        kept += 1
    state.counts[TOUCHED] = kept
    for link in range(len(state.links)):
        state.links[link].used = 0.0
    for i in range(kept):
        slot = state.touched[i]
        rate, begin = np.inf, slot * state.counts[HOPS]
        for membership in range(begin, begin + state.flows[slot].hops):
            link = state.links[state.memberships[membership].link]
            rate = min(rate, max(0.0, link.capacity - link.used))
        for membership in range(begin, begin + state.flows[slot].hops):
            state.links[state.memberships[membership].link].used += rate
        state.limit[slot] = rate
