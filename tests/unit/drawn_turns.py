"""Turns of a few tenants and sessions, drawn: arrivals far apart, close together and at one instant. No test in here."""

from __future__ import annotations

from hypothesis import strategies as st

from workloads.turns import Turn


@st.composite
def drawn_turns(draw: st.DrawFn, *, sessions: str, max_size: int) -> list[Turn]:
    """At most ``max_size``, in the order of their arrivals; ``sessions`` has a letter for each session."""
    rows = st.tuples(
        st.sampled_from([0.0, 0.25, 1.0, 7.0]) | st.floats(0, 3),
        st.sampled_from("ab"),
        st.sampled_from(sessions),
        st.integers(0, 5000),
        st.integers(1, 5000),
    )
    at_s, turns = 0.0, []
    for id, (gap_s, tenant, session, context, new) in enumerate(draw(st.lists(rows, max_size=max_size))):
        at_s += gap_s
        turns.append(Turn(id, tenant, session, at_s, context, new, 0, "test"))
    return turns
