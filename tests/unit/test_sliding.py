"""What slides when a window is late, and in which order."""

from __future__ import annotations

import pytest
from test_calendar import booked, cluster

from controller.bookings import Moved

pytestmark = pytest.mark.unit


def test_a_late_window_pushes_those_behind_it_in_the_order_of_their_starts() -> None:
    one = cluster()
    for transfer, (p, d) in enumerate([(0, 0), (0, 1), (2, 1), (0, 2)]):
        one.book(transfer, "all", p, d, ready_s=0.0, size=1.0, now_s=0.0)
    assert [(w.start_s, w.end_s) for w in one.windows()] == [(0, 1.25), (1.25, 2.5), (0, 1.25), (2.5, 3.75)]
    changes = one.extend(0, "all", 1.5, 1.25)
    # Transfer 3 was not in the way itself, but keeps its place behind 1.
    moved = [(c.window.transfer, c.window.start_s) for c in changes if isinstance(c, Moved)]
    assert moved == [(0, 0.0), (1, 1.5), (3, 2.75)]
    assert one.extend(0, "all", 1.5, 1.5) == ()


def test_a_short_window_that_slides_does_not_lose_its_circuit_to_a_long_one_behind_it() -> None:
    """A head that is late by a hair, its tail on the same circuit, and another head that has the ports after that."""
    one = cluster()
    one.book(0, "head", 0, 0, ready_s=0.0, size=4.0, now_s=0.0)
    tail = booked(one.book(0, "tail", 0, 0, ready_s=0.0, size=0.1, now_s=0.0))
    other = booked(one.book(1, "head", 0, 1, ready_s=0.0, size=4.0, now_s=0.0))
    assert (tail.setup_s, other.start_s) == (0.0, tail.end_s)
    one.extend(0, "head", tail.start_s + 0.001, tail.start_s)
    moved = one.window(0, "tail")
    assert moved is not None
    assert moved.setup_s == 0.0
    assert moved.start_s == pytest.approx(tail.start_s + 0.001)
    behind = one.window(1, "head")
    assert behind is not None
    assert behind.start_s == pytest.approx(moved.end_s)


def test_a_late_window_that_is_in_nobodys_way_moves_nobody() -> None:
    one = cluster()
    one.book(0, "all", 0, 0, ready_s=0.0, size=1.0, now_s=0.0)
    later = booked(one.book(1, "all", 0, 1, ready_s=9.0, size=1.0, now_s=0.0))
    assert [c.window.transfer for c in one.extend(0, "all", 1.3, 1.2) if isinstance(c, Moved)] == [0]
    assert one.window(1, "all") == later
