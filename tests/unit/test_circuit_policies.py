"""Which decode gets a circuit, circuits without reservation, and how wrong a prediction is."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.bookings import BookingError, Bookings
from controller.circuit_aware import CircuitAware
from controller.fifo import CircuitFifo, Granted
from controller.prediction import LaplaceError
from workloads.decode_choice import DecodeChoice

pytestmark = pytest.mark.unit

TAU_S = 0.25
RATE_BPS = 8.0


# Which decode


def choice(one: DecodeChoice, loads: list[int], *, holder: int | None = None, head: int = 8, now_s: float = 10.0) -> int:
    return one(prefill=0, holder=holder, loads=loads, head_bytes=head, now_s=now_s)


def test_the_decode_with_a_circuit_is_kept_until_it_has_too_much() -> None:
    bookings = Bookings(2, 3, rate_Bps=RATE_BPS, tau_s=TAU_S)
    bookings.book(1, "all", 0, 2, ready_s=0.0, size=8.0, now_s=0.0)
    one = CircuitAware(bookings, slack=0.1)
    assert choice(one, [0, 0, 0]) == 2  # last booked
    bookings.free(1, "all", 1.0)
    assert choice(one, [10, 10, 11]) == 2  # standing, 11 ≤ 1.1 · 31 / 3
    assert choice(one, [10, 9, 12]) == 1
    assert choice(CircuitAware(bookings, slack=0.2), [10, 9, 12]) == 2
    # To the letter of the listing the bound says nothing here: the standing circuit ends τ sooner than any other.
    assert choice(CircuitAware(bookings, slack=0.1, retake=True), [10, 9, 12]) == 2


def test_a_circuit_that_another_prefill_took_is_none() -> None:
    bookings = Bookings(2, 3, rate_Bps=RATE_BPS, tau_s=TAU_S)
    bookings.book(1, "all", 0, 2, ready_s=0.0, size=8.0, now_s=0.0)
    bookings.free(1, "all", 1.0)
    bookings.book(2, "all", 1, 2, ready_s=1.0, size=8.0, now_s=1.0)
    assert choice(CircuitAware(bookings), [0, 0, 0]) == 0


def test_without_a_circuit_the_gap_that_ends_first_wins_then_the_load() -> None:
    bookings = Bookings(2, 3, rate_Bps=RATE_BPS, tau_s=TAU_S)
    bookings.book(1, "all", 1, 0, ready_s=10.0, size=80.0, now_s=0.0)
    assert choice(CircuitAware(bookings), [0, 5, 4]) == 2
    assert choice(CircuitAware(bookings), [0, 4, 4]) == 1
    assert choice(CircuitAware(bookings), [4, 3, 3], head=0) == 1  # nothing moves: by load alone, then by index


def test_the_holder_moves_no_head_and_comes_first_only_with_affinity() -> None:
    bookings = Bookings(2, 3, rate_Bps=RATE_BPS, tau_s=TAU_S)
    assert choice(CircuitAware(bookings), [5, 5, 6], holder=2) == 2  # nothing moves: its gap ends at once
    bookings.book(1, "all", 0, 1, ready_s=0.0, size=8.0, now_s=0.0)
    assert choice(CircuitAware(bookings), [5, 5, 5], holder=2) == 1
    assert choice(CircuitAware(bookings, affinity=True), [5, 5, 5], holder=2) == 2
    assert choice(CircuitAware(bookings, affinity=True), [5, 5, 9], holder=2) == 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(1, 16)), max_size=12),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.booleans(),
)
def test_the_search_over_all_decodes_finds_the_least_of_end_load_and_index(
    booked: list[tuple[int, int, int]], loads: list[int], retake: bool
) -> None:
    bookings = Bookings(3, 4, rate_Bps=RATE_BPS, tau_s=TAU_S)
    for transfer, (prefill, decode, size) in enumerate(booked):  # none of them from prefill 0
        bookings.book(transfer, "all", prefill, decode, ready_s=0.0, size=size, now_s=0.0)
    keys = []
    for d in range(4):
        found = bookings.gap(0, d, ready_s=0.5, size=6.0, now_s=0.5)
        assert found is not None
        keys.append((found.end_s, loads[d], d))
    assert choice(CircuitAware(bookings, retake=retake), loads, head=6, now_s=0.5) == min(keys)[2]


# No reservation, prediction errors


def test_circuits_without_reservation_are_granted_in_the_order_of_asking_and_held_to_the_end() -> None:
    one = CircuitFifo(tau_s=TAU_S)
    assert one.request(1, 0, 0, now_s=0.0) == (Granted(1, 0, 0, 0.0, TAU_S),)
    assert one.request(2, 0, 1, now_s=0.1) == ()
    assert one.request(3, 1, 1, now_s=0.2) == ()  # decode 1 is idle, but 2 asked for it first
    assert one.request(4, 2, 2, now_s=0.3) == (Granted(4, 2, 2, 0.3, TAU_S),)
    assert one.waiting == (2, 3)
    assert one.release(1, now_s=5.0) == (Granted(2, 0, 1, 5.0, TAU_S),)
    assert one.release(2, now_s=6.0) == (Granted(3, 1, 1, 6.0, TAU_S),)
    assert one.release(4, now_s=7.0) == ()
    assert one.request(5, 2, 2, now_s=8.0) == (Granted(5, 2, 2, 8.0, 0.0),)  # it stands
    with pytest.raises(BookingError, match="has asked before"):
        one.request(5, 2, 2, now_s=8.0)
    with pytest.raises(BookingError, match="neither holds ports nor waits"):
        one.release(1, now_s=8.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans(), st.integers(0, 9)), max_size=30), st.booleans())
def test_without_reservation_no_port_is_held_twice_none_overtaken_and_none_left_idle(
    steps: list[tuple[int, int, bool, int]], reuse: bool
) -> None:
    one = CircuitFifo(tau_s=TAU_S, reuse=reuse)
    alive: dict[int, tuple[int, int]] = {}
    holding: set[int] = set()
    pointing: dict[tuple[str, int], int] = {}
    for transfer, (prefill, decode, ask, which) in enumerate(steps):
        if ask or not alive:
            alive[transfer] = prefill, decode
            granted = one.request(transfer, prefill, decode, now_s=transfer)
        else:
            gone = list(alive)[which % len(alive)]
            del alive[gone]
            holding.discard(gone)
            granted = one.release(gone, now_s=transfer)
        for grant in granted:
            holding.add(grant.transfer)
            stood = (pointing.get(("p", grant.prefill)), pointing.get(("d", grant.decode))) == (grant.decode, grant.prefill)
            assert grant.setup_s == (0.0 if stood and reuse else TAU_S)
            pointing["p", grant.prefill], pointing["d", grant.decode] = grant.decode, grant.prefill
        assert one.waiting == tuple(t for t in alive if t not in holding)
        for side in (0, 1):
            held = [alive[t][side] for t in holding]
            assert len(held) == len(set(held))
        # Whoever waits does so behind someone on one of its ports.
        for waiting in one.waiting:
            assert any(t < waiting and (alive[t][0] == alive[waiting][0] or alive[t][1] == alive[waiting][1]) for t in alive)


def test_prediction_errors_have_the_given_median_both_signs_and_never_a_negative_time() -> None:
    one = LaplaceError(0.046, random.Random(1))
    errors = [one.predict(10.0) / 10.0 - 1.0 for _ in range(20_000)]
    assert statistics.median(abs(e) for e in errors) == pytest.approx(0.046, rel=0.03)
    assert statistics.median(errors) == pytest.approx(0.0, abs=0.002)
    assert min(LaplaceError(5.0, random.Random(2)).predict(1.0) for _ in range(100)) >= 0.0
    assert LaplaceError(0.0, random.Random(3)).predict(7.0) == 7.0
    with pytest.raises(ValueError, match="not zero or more"):
        LaplaceError(-1.0, random.Random(1))
