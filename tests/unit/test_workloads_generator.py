"""The seeded generators: published statistics, growth, and repeatability."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from workloads.generator import APPENDED_BY_PREFIX, AgenticSessions, ZipfLengths, appended_tokens
from workloads.inspect import inspect_trace

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray]:
    turns = AgenticSessions().turns(60_000, np.random.default_rng(7))
    return np.array([turn.context for turn in turns]), np.array([turn.new for turn in turns])


def test_the_medians_are_the_published_ones(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    context, new = drawn
    assert np.median(context) == pytest.approx(66_700, rel=0.04)
    assert np.median(new) == pytest.approx(1_100, rel=0.04)
    assert context.max() < 200_000
    assert (context + new).max() <= 200_000
    assert new.min() >= 1


def test_the_tails_follow_the_published_table_by_prefix(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    context, new = drawn
    scale = np.median(new[(context >= 64_000) & (context < 128_000)]) / 793
    for low, high in ((32_000, 64_000), (64_000, 128_000)):
        _, p50, p90, p99 = next(row for row in APPENDED_BY_PREFIX if row[0] == low)
        inside = new[(context >= low) & (context < high)]
        assert np.percentile(inside, 50) == pytest.approx(p50 * scale, rel=0.1)
        assert np.percentile(inside, 90) == pytest.approx(p90 * scale, rel=0.1)
        assert np.percentile(inside, 99) == pytest.approx(p99 * scale, rel=0.25)


def test_the_quantile_function_goes_through_the_published_points() -> None:
    for low, p50, p90, p99 in APPENDED_BY_PREFIX:
        z = np.array([0.0, 1.2815515655446004, 2.3263478740408408])
        assert appended_tokens(np.full(3, float(low)), z) == pytest.approx([p50, p90, p99], rel=1e-9)


def test_a_context_grows_by_what_was_new_and_generated_until_it_is_compacted() -> None:
    turns = AgenticSessions().turns(5_000, np.random.default_rng(2))
    steps = [(a, b) for a, b in itertools.pairwise(turns) if a.session == b.session]
    grown = [b.context == a.context + a.new + a.output for a, b in steps]
    compacted = [b.context < a.context + a.new + a.output for a, b in steps]
    assert all(one or other for one, other in zip(grown, compacted, strict=True))
    assert sum(grown) > 0.9 * len(steps)
    assert any(compacted)
    assert all(b.time_s > a.time_s for a, b in steps)


def test_the_same_seed_gives_the_same_turns_and_fewer_turns_are_the_first_of_more() -> None:
    source = AgenticSessions()
    many = source.turns(2_000, np.random.default_rng(5))
    assert source.turns(300, np.random.default_rng(5)) == many[:300]
    assert source.turns(300, np.random.default_rng(6)) != many[:300]


def test_other_medians_can_be_asked_for_and_impossible_ones_are_refused() -> None:
    turns = AgenticSessions(context_median=100_000, new_median=300).turns(30_000, np.random.default_rng(1))
    assert np.median([turn.context for turn in turns]) == pytest.approx(100_000, rel=0.06)
    assert np.median([turn.new for turn in turns]) == pytest.approx(300, rel=0.06)
    with pytest.raises(ValueError, match="max_context"):
        AgenticSessions(context_median=150_000)
    with pytest.raises(ValueError, match="no sessions have"):
        AgenticSessions(context_median=8_000, max_context=64_000).turns(1, np.random.default_rng(1))
    with pytest.raises(ValueError, match="new_median"):
        AgenticSessions(new_median=0)


def test_generated_traces_are_labelled_synthetic() -> None:
    for source, name in ((AgenticSessions(), "synthetic:agentic"), (ZipfLengths(), "synthetic:zipf")):
        report = inspect_trace(source.trace(50, np.random.default_rng(1)))
        assert (report.format, report.synthetic, report.rows, report.session_relative) == (name, True, 50, True)
        assert any("synthetic" in note for note in report.notes)


def test_zipf_lengths_are_bounded_and_the_kth_shortest_is_k_times_rarer() -> None:
    source = ZipfLengths(shortest=100, longest=1_000, step=100, exponent=1.0)
    turns = source.turns(30_000, np.random.default_rng(4))
    lengths, counts = np.unique([turn.new for turn in turns], return_counts=True)
    assert lengths.tolist() == list(range(100, 1_001, 100))
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.07)
    assert counts[0] / counts[4] == pytest.approx(5, rel=0.12)
    assert {turn.context for turn in turns} == {0}
    assert len({turn.session for turn in turns}) == len(turns)
