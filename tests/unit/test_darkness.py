"""What the arrivals of a numbered stream say: when it was dark, what was lost, what went astray."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocs_switch.darkness import astray, gaps, lost, move

pytestmark = pytest.mark.unit

STEP_NS = 100_000
MIDDLE_NS = 49 * STEP_NS, 55 * STEP_NS


def stream(count: int) -> list[int]:
    return [STEP_NS * number for number in range(count)]


@given(st.integers(1, 500), st.integers(1, 400), st.integers(1, 100))
def test_the_dark_time_is_found_within_an_interval(before: int, dark: int, after: int) -> None:
    """Light is off over any [begin, end) on the sender's clock."""
    begin, end = before * STEP_NS - STEP_NS // 3, (before + dark) * STEP_NS - STEP_NS // 7
    sent = stream(before + dark + after)
    arrived = {number for number, at in enumerate(sent) if not begin <= at < end}
    (gap,) = gaps(sent, arrived)
    assert gap.lost == dark
    assert gap.least_s <= (end - begin) / 1e9 <= gap.most_s
    assert abs(gap.dark_s - (end - begin) / 1e9) <= STEP_NS / 1e9


@given(st.sets(st.integers(0, 99)))
def test_what_gaps_miss_is_only_at_the_ends(arrived: set[int]) -> None:
    found = gaps(stream(100), arrived)
    inner = max(arrived) - min(arrived) + 1 if arrived else 0
    assert sum(gap.lost for gap in found) == inner - len(arrived)
    assert lost(100, arrived) == 100 - len(arrived)


def test_a_clean_move_has_no_frame_on_a_wrong_circuit() -> None:
    found = move(stream(100), {2: range(40), 3: range(60, 100)}, 2, 3, range(100), MIDDLE_NS)
    assert found is not None
    assert (found.gap.lost, found.wrong) == (20, 0)


@pytest.mark.parametrize(
    ("arrivals", "wrong"),
    [
        ({2: [*range(40), 70], 3: range(60, 100)}, 1),  # the old circuit after the new one carried light
        ({2: range(40), 3: [5, 6, *range(60, 100)]}, 2),  # the new one before the dark
        ({2: range(40), 3: range(60, 100), 4: [10, 50, 90]}, 3),  # a third port
    ],
)
def test_frames_on_a_wrong_circuit_are_counted(arrivals: dict[int, list[int]], wrong: int) -> None:
    found = move(stream(100), arrivals, 2, 3, range(100), MIDDLE_NS)
    assert found is not None
    assert found.wrong == wrong


def test_frames_lost_at_another_time_are_not_the_move() -> None:
    found = move(stream(100), {2: [*range(10), *range(45, 49)], 3: range(60, 100)}, 2, 3, range(100), MIDDLE_NS)
    assert found is not None
    assert (found.gap.last_before, found.gap.lost, found.wrong, found.lost_besides) == (48, 11, 0, 35)


def test_only_the_span_asked_for_counts() -> None:
    found = move(stream(300), {2: [*range(40), 250], 3: range(60, 100)}, 2, 3, range(100), MIDDLE_NS)
    assert found is not None
    assert found.wrong == 0


def test_a_move_that_was_never_dark_or_never_lit_again_is_none() -> None:
    assert move(stream(100), {2: range(50), 3: range(50, 100)}, 2, 3, range(100), MIDDLE_NS) is None
    assert move(stream(100), {2: range(50)}, 2, 3, range(100), MIDDLE_NS) is None


def test_light_that_goes_as_the_circuits_say_is_no_complaint() -> None:
    found = {0: {1: {1}, 2: {1}, -1: {1}}, 1: {0: {0}, 2: {0}, -1: {0}}, 2: {0: set[int](), 1: set[int](), -1: set[int]()}}
    assert astray(found, [(0, 1)]) == []


def test_light_that_goes_anywhere_else_or_nowhere_is_named() -> None:
    found = {0: {1: {1, 2}}, 1: {0: set[int]()}, 2: {0: {0}}}
    assert astray(found, [(0, 1)]) == [
        "port 0: a frame to 1 came out at 2, its circuit leads to 1",
        "port 1: a frame to 0 was lost, its circuit leads to 0",
        "port 2: a frame to 0 came out at 0, it has no circuit",
    ]
