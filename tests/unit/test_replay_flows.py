"""The pure parts of the replay: ideal times, realised paths, ports and flow classes, content."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo.tc import flow_class
from workloads.replay.connections import LISTEN_PORT, source_port
from workloads.replay.flows import FlowResult, FlowSpec, ideal_fct
from workloads.replay.paths import realised_path
from workloads.replay.pattern import Pattern

pytestmark = pytest.mark.unit

RATE_BPS = 25e6


def spec(at: tuple[float, ...], released: tuple[int, ...]) -> FlowSpec:
    return FlowSpec(1, "p0g0", "d0g0", 0, at, released)


def result(flow: FlowSpec, *, sent: float, delivered: float) -> FlowResult:
    return FlowResult(
        flow, 8192, LISTEN_PORT, True, sent, None, delivered, flow.bytes, 0, 0, None, 0.0, None, None
    )  # fmt: skip


# Ideal times


def test_bytes_released_at_once_take_their_size_over_the_rate() -> None:
    assert ideal_fct((5.0,), (1_000_000,), RATE_BPS) == pytest.approx(0.04)


def test_bytes_released_faster_than_the_rate_queue_behind_each_other() -> None:
    assert ideal_fct((5.0, 5.001), (500_000, 1_000_000), RATE_BPS) == pytest.approx(0.04)


def test_bytes_released_slower_than_the_rate_wait_for_the_last_release() -> None:
    assert ideal_fct((5.0, 6.0), (500_000, 1_000_000), RATE_BPS) == pytest.approx(1.02)


def test_bytes_behind_a_gate_wait_for_it_and_the_time_counts_from_the_first_one() -> None:
    at, released = (5.0, 5.1), (500_000, 1_000_000)
    assert ideal_fct(at, released, RATE_BPS, [(5.5, 1_000_000)]) == pytest.approx(0.04)
    assert ideal_fct(at, released, RATE_BPS, [(4.0, 1_000_000)]) == pytest.approx(0.1 + 0.02)
    assert ideal_fct(at, released, RATE_BPS, [(5.5, 250_000), (6.0, 1_000_000)]) == pytest.approx(0.5 + 0.03)
    assert ideal_fct(at, released, RATE_BPS, [(5.05, 500_000), (5.06, 1_000_000)]) == pytest.approx(0.05 + 0.02)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 10**6)), min_size=1, max_size=20),
    st.integers(1_000, 10**9),
)
def test_the_ideal_time_is_that_of_a_fluid_that_never_runs_ahead_of_its_release(
    steps: list[tuple[int, int]], rate_Bps: int
) -> None:
    at, released, now_ms, total = [], [], 0, 0
    for gap_ms, size in steps:
        now_ms, total = now_ms + gap_ms, total + size
        at.append(now_ms)
        released.append(total)
    # A fluid is done when the last byte is; what is released at t_i cannot end before t_i plus everything after it.
    before = [0, *released[:-1]]
    exact = max(Fraction(t, 1000) + Fraction(total - done, rate_Bps) for t, done in zip(at, before, strict=True)) - Fraction(
        at[0], 1000
    )
    assert math.isclose(ideal_fct([t / 1000 for t in at], released, rate_Bps), exact, rel_tol=1e-9, abs_tol=1e-9)


def test_lateness_and_duration_are_counted_apart() -> None:
    flow = result(spec((10.0,), (1000,)), sent=10.25, delivered=11.0)
    assert (flow.lateness, flow.fct, flow.planned_send) == (0.25, 0.75, 10.0)


# Paths


def test_a_flow_within_a_leaf_needs_no_spine() -> None:
    assert realised_path("leaf0", "leaf0", {}, 1000) == "leaf0"


def test_a_flow_counted_by_one_spine_went_through_it() -> None:
    assert realised_path("leaf0", "leaf1", {"spine1": 1052}, 1000) == "leaf0>spine1>leaf1"


def test_a_flow_that_changed_its_way_is_told_from_one_that_did_not() -> None:
    assert realised_path("leaf0", "leaf1", {"spine1": 600, "spine0": 600}, 1000) == "leaf0>spine0+spine1>leaf1"


@pytest.mark.parametrize("counted", [{}, {"spine0": 999}, {"spine0": 400, "spine1": 400}])
def test_a_path_of_which_too_little_was_counted_is_unknown(counted: dict[str, int]) -> None:
    assert realised_path("leaf0", "leaf1", counted, 1000) is None


# Ports and classes


@pytest.mark.parametrize("classes", [2, 32, 64, 256, 4096])
def test_the_source_port_of_a_slot_lies_in_its_flow_class(classes: int) -> None:
    for slot in (0, 1, classes - 1, classes, 5 * classes + 3):
        for turn in (0, 1, 48_000 // classes - 1):
            sport = source_port(slot, classes, turn)
            assert 1024 < sport < 65536
            assert flow_class(sport, LISTEN_PORT, classes) == slot % classes == (sport + LISTEN_PORT) % classes


@pytest.mark.parametrize("classes", [32, 64])
def test_no_two_connections_of_a_host_are_given_the_same_port(classes: int) -> None:
    ports = [source_port(slot, classes, turn) for slot in range(classes) for turn in range(48_000 // classes)]
    assert len(set(ports)) == len(ports)
    assert LISTEN_PORT not in ports


# Content


def test_a_pattern_tells_its_own_bytes_from_moved_and_foreign_ones() -> None:
    mine, other = Pattern(1), Pattern(2)
    try:
        data = memoryview(bytes(mine._view[mine.offset(7, 100) :][:1000]))
        assert mine.matches(7, 100, data)
        assert not mine.matches(7, 101, data)
        assert not mine.matches(8, 100, data)
        assert not other.matches(7, 100, data)
        wrong = bytearray(data)
        wrong[999] ^= 1
        assert not mine.matches(7, 100, memoryview(wrong))
    finally:
        mine.close()
        other.close()


def test_a_pattern_goes_round_without_a_seam() -> None:
    pattern = Pattern(3)
    try:
        whole = len(pattern._view) - pattern.SLACK
        for position in (0, whole - 10, whole - 1, whole, 5 * whole - 3):
            start = pattern.offset(0, position)
            assert start + pattern.SLACK <= len(pattern._view)
            end = bytes(pattern._view[start : start + 20])
            assert end == bytes((pattern._view[(position + step) % whole]) for step in range(20))
    finally:
        pattern.close()
