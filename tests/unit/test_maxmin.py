"""Max-min fair rates: closed forms, and the condition itself on any network."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsim.maxmin import max_min_rates, max_min_violations

pytestmark = pytest.mark.unit


def rates(capacity: list[float], paths: list[list[int]]) -> list[float]:
    found = max_min_rates(capacity, paths)
    assert max_min_violations(capacity, paths, found) == ()
    return [float(rate) for rate in found]


def test_one_flow_has_the_least_capacity_of_its_path() -> None:
    assert rates([9.0, 4.0, 7.0], [[2, 0, 1]]) == [4.0]


@pytest.mark.parametrize("flows", [2, 3, 7, 100])
def test_flows_on_one_link_share_it_equally(flows: int) -> None:
    assert rates([10.0], [[0]] * flows) == pytest.approx([10.0 / flows] * flows, rel=1e-12)


@pytest.mark.parametrize("links", [1, 2, 5, 40])
def test_parking_lot(links: int) -> None:
    """One flow over all links and one on each: every one of them has half."""
    paths = [list(range(links)), *([i] for i in range(links))]
    assert rates([1.0] * links, paths) == [0.5] * (links + 1)


def test_several_bottlenecks_are_filled_one_after_the_other() -> None:
    # Link 0 (10 B/s) stops its two at 2 with the third; link 1 leaves the rest to flow 3.
    assert rates([6.0, 10.0, 100.0], [[0], [0, 1], [0, 2], [1, 2], [2]]) == pytest.approx([2.0, 2.0, 2.0, 8.0, 90.0], rel=1e-12)


def test_a_flow_without_links_is_limited_by_nothing_and_one_over_a_dark_link_gets_nothing() -> None:
    assert rates([0.0, 4.0], [[], [0, 1], [1]]) == [float("inf"), 0.0, 4.0]
    assert rates([1.0], []) == []
    assert rates([], [[]]) == [float("inf")]


def test_what_is_no_network_is_refused() -> None:
    for capacity in ([-1.0], [float("nan")], [float("inf")]):
        with pytest.raises(ValueError, match="capacity is zero or more"):
            max_min_rates(capacity, [[0]])
    for path in ([1], [-1]):
        with pytest.raises(IndexError, match="not among the 1"):
            max_min_rates([1.0], [path])


networks = st.lists(
    st.sampled_from([0.0, 1e-3, 0.1, 1.0, 1 / 3, 7.0, 45e9]) | st.floats(1e-9, 1e6), min_size=1, max_size=8
).flatmap(
    lambda capacity: st.tuples(
        st.just(capacity), st.lists(st.lists(st.integers(0, len(capacity) - 1), unique=True, max_size=5), max_size=25)
    )
)


@settings(max_examples=200, deadline=None)
@given(networks)
def test_every_flow_of_any_network_has_a_full_link_on_which_none_is_faster(network: tuple[list[float], list[list[int]]]) -> None:
    capacity, paths = network
    assert max_min_violations(capacity, paths, max_min_rates(capacity, paths)) == ()


@settings(max_examples=60, deadline=None)
@given(networks, st.randoms(use_true_random=False), st.sampled_from([0.5, 2.0, 1024.0]))
def test_the_rates_do_not_depend_on_the_order_of_flows_and_scale_with_the_capacities(
    network: tuple[list[float], list[list[int]]], rng: object, factor: float
) -> None:
    capacity, paths = network
    plain = max_min_rates(capacity, paths)
    order = list(range(len(paths)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    shuffled = max_min_rates(capacity, [paths[i][::-1] for i in order])
    np.testing.assert_allclose(shuffled, plain[order] if order else plain, rtol=1e-9, atol=1e-9 * max(capacity))
    np.testing.assert_array_equal(max_min_rates([factor * c for c in capacity], paths), factor * plain)  # powers of two are exact


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([5.0, 5.5, 4.5], "link 0 carries 10.5 of 10 B/s"),
        ([5.0, 5.0, 4.0], "flow 2 at 4 B/s has no full link on which it is the fastest"),
        ([4.0, 6.0, 4.0], "flow 0 at 4 B/s has no full link on which it is the fastest"),
        ([0.0, 0.0, 0.0], "flow 1 at 0 B/s has no full link on which it is the fastest"),
    ],
)
def test_the_certificate_finds_what_is_not_max_min_fair(wrong: list[float], said: str) -> None:
    capacity, paths = [10.0, 10.0], [[0], [0, 1], [1]]
    assert max_min_violations(capacity, paths, [5.0, 5.0, 5.0]) == ()
    assert said in max_min_violations(capacity, paths, wrong)


def test_the_certificate_wants_a_flow_without_links_to_be_unlimited() -> None:
    assert max_min_violations([], [[]], [float("inf")]) == ()
    assert max_min_violations([], [[]], [3.0]) == ("flow 0 crosses no link and has 3 B/s",)
