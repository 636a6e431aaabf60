"""The benchmarks' arguments and arithmetic, without a network."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import capacity
import concurrency
import fidelity
from _common import Setting, Spread, parse_setting, percent, scenario_for

from topo.shaping import PortShape

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("text", "setting"), [("100:1500", Setting(100, 1500)), ("12.5:9000", Setting(12.5, 9000))])
def test_a_setting_is_a_rate_and_an_mtu(text: str, setting: Setting) -> None:
    assert parse_setting(text) == setting


@pytest.mark.parametrize("text", ["", "100", "100:", ":1500", "fast:1500", "0:1500", "-1:1500", "nan:1500", "100:9", "100:1e4"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_setting(text)


def test_a_benchmark_measures_the_demo_at_the_setting_that_was_asked() -> None:
    scenario = scenario_for(Setting(400, 9000), ("emulation.receive_window=48KiB",))
    assert (scenario.scale.rate, scenario.emulation.mtu, scenario.uplinks) == (50e6, 9000, scenario.cluster.rack)
    assert scenario.emulation.receive_window == 48 * 1024


def test_a_spread_counts_errors_of_either_sign() -> None:
    spread = Spread.of([-0.02, 0.0, 0.004, 0.005], 0.005)
    assert (spread.low, spread.median, spread.high, spread.within) == (-0.02, 0.002, 0.005, 0.75)
    with pytest.raises(ValueError, match="nothing"):
        Spread.of([], 0.01)


def test_percent_keeps_its_sign() -> None:
    assert (percent(0.0123), percent(-0.5, 0)) == ("+1.23", "-50")


@pytest.mark.parametrize(("size", "count"), [(1_000_000, 15), (16_000_000, 5), (40_000_000, 1), (10**9, 1)])
def test_small_sizes_are_repeated_often_and_large_ones_as_time_allows(size: int, count: int) -> None:
    assert fidelity.repetitions(size, 12.5e6, 5) == count


@given(st.integers(1, 10**8), st.floats(1e5, 1e9), st.integers(576, 9000))
def test_the_credit_bound_is_the_burst_below_the_unburst_time(size: int, rate_Bps: float, mtu: int) -> None:
    shape = PortShape(rate_Bps, mtu)
    least = fidelity.least_time(size, shape.burst, shape.wire_Bps, mtu)
    assert 0 <= least <= size / rate_Bps * (1 + 1e-3)
    assert least == 0 or math.isclose(least + shape.burst / shape.wire_Bps, size / rate_Bps, rel_tol=1e-3)


@given(st.floats(0.1, 1e3), st.floats(1, 100), st.floats(1.01, 4))
def test_the_ladder_climbs_by_equal_factors_within_its_ends(low: float, factor: float, step: float) -> None:
    rates = capacity.ladder(low, low * factor, step)
    assert rates[0] == low
    assert rates[-1] <= low * factor * (1 + 1e-6) < rates[-1] * step * (1 + 1e-6)


def test_a_ladder_without_rungs_is_refused() -> None:
    for low, high, step in ((0.0, 1.0, 2.0), (2.0, 1.0, 2.0), (1.0, 2.0, 1.0)):
        with pytest.raises(ValueError, match="no rates"):
            capacity.ladder(low, high, step)


@given(st.integers(1, 200), st.integers(0, 200))
def test_bisection_finds_the_last_rate_that_holds_in_few_trials(count: int, good: int) -> None:
    rates = [float(place + 1) for place in range(count)]
    tried: list[float] = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= good

    assert capacity.highest(rates, holds) == (float(min(good, count)) if good else None)
    assert len(tried) <= math.ceil(math.log2(count + 1))
    assert len(set(tried)) == len(tried)


def test_packets_carry_the_payload_of_a_full_frame() -> None:
    assert capacity.packets_per_s(1448e3, 1500) == 1000


@given(st.integers(1, 16), st.integers(2, 8), st.integers(1, 1000))
def test_concurrent_flows_leave_their_leaf_and_have_flow_classes_of_their_own(rack: int, leaves: int, flows: int) -> None:
    hosts = [f"h{place}" for place in range(rack * leaves)]
    if -(-flows // len(hosts)) > 64:
        with pytest.raises(ValueError, match="flow classes"):
            concurrency.plan(hosts, rack, flows, 1, 64)
        return
    jobs = concurrency.plan(hosts, rack, flows, 1, 64)
    assert len(jobs) == flows
    assert len({(job.source, job.slot) for job in jobs}) == flows
    for job in jobs:
        assert hosts.index(job.source) // rack != hosts.index(job.destination) // rack


def test_flows_between_leaves_need_two() -> None:
    with pytest.raises(ValueError, match="two leaves"):
        concurrency.plan(["a", "b"], 2, 4, 1, 64)
