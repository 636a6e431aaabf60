"""Calendars: GAP against its listing, and what holds after any bookings, frees, slides and errors."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.bookings import Booked, BookingError, Bookings, Change, Freed, Moved
from controller.calendar import Calendar, Gap, Part, Window, find_gap
from ocs_switch.crossbar import Crossbar, Refused

pytestmark = pytest.mark.unit

TAU_S = 0.25
times = st.integers(0, 40).map(lambda n: n / 4)  # coarse: windows touch, and every sum is exact
sizes = st.integers(1, 12).map(lambda n: n / 4)


def cluster(*, reuse: bool = True, tau_s: float = TAU_S) -> Bookings:
    """Three prefill and three decode instances whose ports carry one byte a second."""
    return Bookings(3, 3, rate_Bps=1.0, tau_s=tau_s, reuse=reuse)


def booked(changes: tuple[Change, ...]) -> Window:
    (change,) = changes
    assert isinstance(change, Booked)
    return change.window


def listed_gap(
    p: Calendar, d: Calendar, past: list[Window], *, now_s: float, ready_s: float, duration_s: float, tau_s: float, reuse: bool
) -> Gap:
    """GAP as it is listed in serving.md, word by word and slowly; ``past`` holds the windows that had started when freed."""
    pair = p.instance, d.instance
    mine = [w for w in past if w.prefill == p.instance] + p.windows, [w for w in past if w.decode == d.instance] + d.windows

    def setup(t: float) -> float:
        last = [max((w for w in ws if w in past or w.start_s < t), key=lambda w: w.start_s, default=None) for ws in mine]
        return 0.0 if reuse and all(w is not None and (w.prefill, w.decode) == pair for w in last) else tau_s

    now_s = max(now_s, *(w.start_s + w.setup_s for w in past if w in mine[0] or w in mine[1]), now_s)
    first = max(now_s, ready_s - tau_s)
    for t in sorted({first, max(now_s, ready_s)} | {e for e in (*p.ends, *d.ends) if first <= e < math.inf}):
        s = setup(t)
        a = max(t, ready_s - s)
        e = max(a + s, ready_s) + duration_s
        overlaps = any(w.start_s < e and a < w.end_s for c in (p, d) for w in c.windows)
        loses = False
        for calendar, peer in ((p, d.instance), (d, p.instance)):
            later = [(w, q) for w, q in zip(calendar.windows, calendar.peers, strict=True) if w.start_s >= e]
            loses |= bool(later) and later[0][0].setup_s < tau_s and later[0][1] != peer
        if not overlaps and setup(a) == s and not loses:
            return Gap(a, s, e)
    raise AssertionError("no gap")


asks = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), times, sizes), max_size=14)


@settings(max_examples=150, deadline=None)
@given(asks, st.lists(st.integers(0, 13), max_size=4), times, st.booleans(), st.sampled_from([0.0, TAU_S, 1.0]))
def test_the_gap_found_is_the_one_of_the_listing(
    bookings: list[tuple[int, int, float, float]], freed: list[int], now_s: float, reuse: bool, tau_s: float
) -> None:
    one = cluster(reuse=reuse, tau_s=tau_s)
    for transfer, (prefill, decode, ready_s, size) in enumerate(bookings):
        p, d = one.prefill[prefill], one.decode[decode]
        expected = listed_gap(p, d, [], now_s=0.0, ready_s=ready_s, duration_s=size, tau_s=tau_s, reuse=reuse)
        window = booked(one.book(transfer, "all", prefill, decode, ready_s=ready_s, size=size, now_s=0.0))
        assert Gap(window.start_s, window.setup_s, window.end_s) == expected
    past: list[Window] = []
    for transfer in freed:
        window_then = one.window(transfer, "all")
        if window_then is not None:
            past += [window_then] if window_then.start_s < now_s else []
            one.free(transfer, "all", now_s)
    for p in one.prefill:
        for d in one.decode:
            listing = listed_gap(p, d, past, now_s=now_s, ready_s=now_s + 0.5, duration_s=0.75, tau_s=tau_s, reuse=reuse)
            found = one.gap(p.instance, d.instance, ready_s=now_s + 0.5, size=0.75, now_s=now_s)
            assert found == listing
            assert one.gap(p.instance, d.instance, ready_s=now_s + 0.5, size=0.75, now_s=now_s, before_s=found.end_s) is None
            later_s = math.nextafter(found.end_s, math.inf)
            assert one.gap(p.instance, d.instance, ready_s=now_s + 0.5, size=0.75, now_s=now_s, before_s=later_s) == found


def test_the_set_up_precedes_the_data_where_it_can() -> None:
    one = cluster()
    assert booked(one.book(1, "all", 0, 0, ready_s=5.0, size=2.0, now_s=0.0)) == Window(
        1, "all", 0, 0, size=2.0, ready_s=5.0, start_s=4.75, setup_s=0.25, end_s=7.0
    )
    window = booked(one.book(2, "all", 1, 1, ready_s=5.0, size=2.0, now_s=4.9))
    assert (window.start_s, window.data_s, window.end_s) == (4.9, 5.15, 7.15)


def test_a_standing_circuit_needs_no_set_up_until_one_of_its_ports_was_moved() -> None:
    one = cluster()
    one.book(1, "all", 0, 0, ready_s=0.0, size=1.0, now_s=0.0)
    one.free(1, "all", 1.0)
    assert booked(one.book(2, "all", 0, 0, ready_s=2.0, size=1.0, now_s=2.0)).setup_s == 0.0
    one.free(2, "all", 2.5)
    one.book(3, "all", 1, 0, ready_s=3.0, size=1.0, now_s=3.0)  # takes the decode's port away
    one.free(3, "all", 4.0)
    assert booked(one.book(4, "all", 0, 0, ready_s=5.0, size=1.0, now_s=5.0)).setup_s == TAU_S


def test_a_window_does_not_squeeze_in_before_one_that_counts_on_the_circuit() -> None:
    one = cluster()
    one.book(1, "all", 0, 0, ready_s=0.0, size=1.0, now_s=0.0)
    assert booked(one.book(2, "all", 0, 0, ready_s=9.0, size=1.0, now_s=0.0)).setup_s == 0.0
    assert booked(one.book(3, "all", 0, 1, ready_s=2.0, size=1.0, now_s=0.0)).start_s == 10.0  # 1.25 to 9 is free
    assert booked(one.book(4, "all", 0, 0, ready_s=2.0, size=1.0, now_s=0.0)).start_s == 2.0  # the same circuit may


def test_a_cancelled_window_whose_circuit_another_counted_on_makes_that_one_set_it_up() -> None:
    one = cluster()
    one.book(1, "all", 0, 0, ready_s=2.0, size=1.0, now_s=0.0)
    behind = booked(one.book(2, "all", 0, 0, ready_s=5.0, size=1.0, now_s=0.0))
    freed, moved = one.free(1, "all", 1.0)
    assert isinstance(freed, Freed)
    assert isinstance(moved, Moved)
    assert moved.was is behind
    assert (moved.window.start_s, moved.window.setup_s, moved.window.end_s) == (4.75, 0.25, 6.0)


@pytest.mark.parametrize("reuse", [True, False])
def test_a_tail_stays_behind_its_head_when_the_head_slides_past_it(reuse: bool) -> None:
    one = cluster(reuse=reuse)
    one.book(1, "all", 0, 1, ready_s=0.0, size=1.0, now_s=0.0)
    one.book(2, "head", 0, 0, ready_s=0.0, size=1.0, now_s=0.0)
    one.book(2, "tail", 0, 0, ready_s=6.0, size=1.0, now_s=0.0)
    one.book(3, "all", 0, 2, ready_s=9.0, size=1.0, now_s=0.0)
    one.extend(1, "all", 5.5, 1.25)
    head, tail = one.window(2, "head"), one.window(2, "tail")
    assert head is not None
    assert tail is not None
    assert head.start_s == 5.5
    assert tail.start_s >= head.end_s
    check(one, [])


def test_a_window_that_slides_past_one_that_counted_on_its_circuit_makes_that_one_move_too() -> None:
    one = cluster()
    one.book(1, "all", 0, 0, ready_s=0.0, size=1.0, now_s=0.0)
    one.book(2, "all", 0, 1, ready_s=0.0, size=2.0, now_s=0.0)
    behind = booked(one.book(3, "all", 0, 1, ready_s=6.0, size=1.0, now_s=0.0))
    assert behind.setup_s == 0.0
    one.extend(1, "all", 5.0, 1.25)  # what is left before 6 is too short for 2
    moved = one.window(3, "all")
    assert moved is not None
    assert (moved.start_s, moved.setup_s) == (7.25, 0.0)  # in the order of their starts: behind 2, on its circuit
    check(one, [])


def test_ports_given_back_while_they_move_are_closed_until_the_move_is_over() -> None:
    for peer, setup_s in ((0, 0.0), (1, TAU_S)):
        one = cluster()
        one.book(1, "all", 0, 0, ready_s=0.0, size=1.0, now_s=0.0)
        one.free(1, "all", 0.125)
        window = booked(one.book(2, "all", 0, peer, ready_s=0.125, size=1.0, now_s=0.125))
        assert (window.start_s, window.setup_s) == (0.25, setup_s)


def test_a_window_given_back_at_its_very_start_was_not_commanded() -> None:
    one = cluster()
    one.book(1, "all", 0, 0, ready_s=0.25, size=1.0, now_s=0.0)
    one.free(1, "all", 0.0)
    assert booked(one.book(2, "all", 0, 0, ready_s=0.0, size=1.0, now_s=0.0)).setup_s == TAU_S


def test_reports_in_another_order_than_the_windows_leave_the_last_circuit_standing() -> None:
    one = cluster()
    one.book(1, "all", 0, 0, ready_s=0.0, size=1.0, now_s=0.0)
    one.book(2, "all", 0, 1, ready_s=0.0, size=1.0, now_s=0.0)
    one.free(2, "all", 3.0)
    assert one.prefill[0].peer_at(3.0) == 1
    one.free(1, "all", 3.0)
    assert one.prefill[0].peer_at(3.0) == 1


def test_what_is_booked_twice_or_not_at_all_is_a_bug_of_the_caller() -> None:
    one = cluster()
    one.book(1, "all", 0, 0, ready_s=0.0, size=1.0, now_s=0.0)
    with pytest.raises(BookingError, match="the all of transfer 1 is booked already"):
        one.book(1, "all", 1, 1, ready_s=0.0, size=1.0, now_s=0.0)
    with pytest.raises(BookingError, match="the tail of transfer 1 is not booked"):
        one.free(1, "tail", 0.0)
    with pytest.raises(ValueError, match="are no switch"):
        Bookings(1, 1, rate_Bps=0.0, tau_s=0.0)


def test_a_calendar_refuses_windows_that_overlap_or_are_empty() -> None:
    calendar = Calendar(0)
    window = Window(1, "all", 0, 0, 1.0, 1.0, 1.0, 0.0, 2.0)
    calendar.add(window, 0)
    for start_s, end_s in ((1.5, 3.0), (0.0, 1.5), (1.0, 2.0), (0.0, 9.0), (3.0, 3.0)):
        with pytest.raises(ValueError, match="does not fit"):
            calendar.add(Window(2, "all", 0, 0, 1.0, start_s, start_s, 0.0, end_s), 0)
    with pytest.raises(KeyError):
        calendar.remove(Window(1, "all", 0, 0, 1.0, 1.0, 1.0, 0.0, 2.0))  # equal, but not the one
    assert find_gap(calendar, Calendar(0), now_s=0, ready_s=0, duration_s=1, tau_s=0) == Gap(0, 0.0, 1)


# Any order of calls. ``history`` is what the ports really did: windows that had started when they were freed.


def check(one: Bookings, history: list[Window]) -> None:
    """The invariants of serving.md, from the windows alone."""
    live = one.windows()
    for calendars, side in ((one.prefill, "prefill"), (one.decode, "decode")):
        for calendar in calendars:
            mine = sorted((w for w in live if getattr(w, side) == calendar.instance), key=lambda w: w.start_s)
            assert calendar.windows == mine  # on both calendars or on none
            assert calendar.starts == [*(w.start_s for w in mine), math.inf]
            assert calendar.ends == [*(w.end_s for w in mine), math.inf]
            assert all(a.end_s <= b.start_s for a, b in pairwise(mine))
            past = [w for w in history if getattr(w, side) == calendar.instance]
            for window in mine:
                # No port is commanded while it moves, nor counted on.
                assert all(w.start_s + w.setup_s <= window.start_s for w in past if w.start_s < window.start_s)
                before = max((w for w in (*past, *mine) if w.start_s < window.start_s), key=lambda w: w.start_s, default=None)
                if before is None or (before.prefill, before.decode) != (window.prefill, window.decode) or not one.reuse:
                    assert window.setup_s == one.tau_s
    for window in live:
        assert window.end_s >= window.data_s + window.size / one.rate_Bps or window.size == 0
        head = one.window(window.transfer, "head")
        assert window.part != "tail" or head is None or window.start_s >= head.end_s


calls = st.lists(
    st.tuples(
        st.sampled_from(["book", "book", "book", "split", "free", "extend", "rebook", "wait"]),
        st.integers(0, 2),
        st.integers(0, 2),
        times,
        sizes,
        st.integers(0, 30),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(calls, st.booleans(), st.sampled_from([TAU_S, TAU_S, 0.0]))
def test_any_calls_keep_windows_apart_with_their_circuits_and_never_in_the_past(
    given_calls: list[tuple[str, int, int, float, float, int]], reuse: bool, tau_s: float
) -> None:
    one, now_s, history = cluster(reuse=reuse, tau_s=tau_s), 0.0, list[Window]()
    for transfer, (verb, prefill, decode, wait_s, size, which) in enumerate(given_calls):
        live = one.windows()
        target = live[which % len(live)] if live else None
        ready_s, before = now_s + wait_s, set(live)
        changes: tuple[Change, ...] = ()
        if verb == "wait":
            now_s += wait_s / 4
        elif verb == "book":
            changes = one.book(transfer, "all", prefill, decode, ready_s=ready_s, size=size, now_s=now_s)
        elif verb == "split":
            parts: tuple[Part, Part] = ("head", "tail")
            for part in parts:
                changes += one.book(transfer, part, prefill, decode, ready_s=ready_s, size=size, now_s=now_s)
        elif target is not None and verb == "free":
            changes = one.free(target.transfer, target.part, now_s)
        elif target is not None and verb == "extend":
            # What is late holds its ports: only a window that has started can be, and nothing behind it has.
            until_s = target.end_s + (1 + which % 4) * size if target.start_s <= now_s else target.end_s
            changes = one.extend(target.transfer, target.part, max(until_s, now_s), now_s)
        elif target is not None and verb == "rebook":
            changes = one.rebook(target.transfer, target.part, ready_s=ready_s, size=size, now_s=now_s)
        if target is not None and verb in ("free", "rebook") and target.start_s < now_s:
            history.append(target)
        check(one, history)
        told = set(before)
        for change in changes:
            if isinstance(change, Booked):
                told.add(change.window)
            elif isinstance(change, Freed):
                told.remove(change.window)
            else:
                told.remove(change.was)
                told.add(change.window)
                assert change.window.start_s >= now_s or change.window.start_s == change.was.start_s
            if isinstance(change, Booked):
                assert change.window.start_s >= now_s
        assert told == set(one.windows())  # the changes tell all there is


@settings(max_examples=60, deadline=None)
@given(asks, st.lists(st.sampled_from([0.5, 1.0, 1.0, 1.5, 3.0]), min_size=14, max_size=14))
def test_windows_carried_out_on_a_switch_find_every_circuit_up_when_their_data_leave(
    bookings: list[tuple[int, int, float, float]], lasts: list[float]
) -> None:
    """Each window is a command to a crossbar; transfers end early, in time or late, and those that are late say so."""
    one, plane = cluster(), Crossbar(6, TAU_S)
    for transfer, (prefill, decode, ready_s, size) in enumerate(bookings):
        one.book(transfer, "all", prefill, decode, ready_s=ready_s, size=size, now_s=0.0)
    running: dict[int, float] = {}
    checked = 0
    while one.windows():
        steps = [(w.start_s, 1, w.transfer) for w in one.windows() if w.transfer not in running]
        steps += [(end_s, 0, transfer) for transfer, end_s in running.items()]
        now_s, starts, transfer = min(steps)
        window = one.window(transfer, "all")
        assert window is not None
        if starts:
            events = plane.connect(window.prefill, 3 + window.decode, now_s, replace=window.setup_s > 0)
            assert not any(isinstance(event, Refused) for event in events)
            assert window.setup_s > 0 or plane.peer(window.prefill) == 3 + window.decode
            running[transfer] = window.data_s + window.size * lasts[transfer]
            if running[transfer] > window.end_s:
                one.extend(transfer, "all", running[transfer], now_s)
        else:
            plane.advance(now_s)
            assert plane.peer(window.prefill) == 3 + window.decode
            del running[transfer]
            one.free(transfer, "all", now_s)
            checked += 1
    assert checked == len(bookings)
