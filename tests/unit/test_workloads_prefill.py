"""Prefill times: the anchor, chunks, the fit, and prediction errors."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.errors import TraceError
from workloads.kvsize import load_model
from workloads.prefill import PrefillModel, fit_csv, predict

pytestmark = pytest.mark.unit

MODEL = PrefillModel(load_model("Llama-3.1-70B"), tp=4)
tokens = st.integers(1, 20_000)


def test_the_median_agentic_turn_takes_191_ms_by_default_and_191_9_at_the_published_mfu() -> None:
    assert MODEL.total(66_700, 1_100) * 1e3 == pytest.approx(191.0, abs=0.1)
    assert replace(MODEL, mfu=0.46).total(66_700, 1_100) * 1e3 == pytest.approx(191.9, abs=0.1)


def test_chunks_are_full_ones_and_a_rest() -> None:
    assert MODEL.chunks(5_000) == (2_048, 2_048, 904)
    assert MODEL.chunks(2_048) == (2_048,)
    assert MODEL.chunks(1) == (1,)
    with pytest.raises(ValueError, match="at least one"):
        MODEL.chunks(0)


@given(st.integers(0, 100_000), tokens)
def test_chunking_changes_nothing_but_the_fixed_part(context: int, new: int) -> None:
    model = replace(MODEL, fixed_s=0.01)
    times = model.chunk_times(context, new)
    assert len(times) == len(model.chunks(new))
    assert sum(model.chunks(new)) == new
    whole = replace(MODEL, max_chunk=new).chunk_time(context, new)
    assert model.total(context, new) == pytest.approx(whole + 0.01 * len(times))


@given(st.integers(0, 100_000), tokens, tokens)
def test_more_tokens_take_longer(context: int, new: int, more: int) -> None:
    assert MODEL.total(context, new + more) > MODEL.total(context, new)
    assert MODEL.total(context + more, new) > MODEL.total(context, new)


def test_a_fit_finds_the_coefficients_it_was_made_from(tmp_path: Path) -> None:
    truth = replace(MODEL, fixed_s=0.012, mfu=0.5, mfu_attention=0.3)
    rows = [(n, prefix) for n in (128, 1_000, 4_000, 16_000) for prefix in (0, 50_000)]
    lines = [f"{n},{prefix},{truth.chunk_time(prefix, n) * 1e3}" for n, prefix in rows]
    path = tmp_path / "runs.csv"
    path.write_text("n,prefix,ms\n" + "\n".join(lines) + "\n")
    fit = fit_csv(path, MODEL)
    assert fit.rows == 8
    assert fit.median_relative_error < 1e-9
    assert (fit.model.fixed_s, fit.model.mfu, fit.model.mfu_attention) == pytest.approx((0.012, 0.5, 0.3))


def test_a_part_that_would_be_negative_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("n,ms\n1000,10\n2000,18\n4000,32\n8000,58\n")  # less than linear: attention would be below zero
    model = fit_csv(path, MODEL).model
    assert model.mfu_attention == math.inf
    assert model.chunk_time(0, 4_000) == pytest.approx(0.032, rel=0.1)


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("tokens,ms\n1,2\n", 1, "n"),
        ("n,ms\n1,2\n2,x\n", 3, "ms"),
        ("n,ms\n1,2\n0,3\n", 3, "n"),
        ("n,ms\n1,2\n5,-3\n", 3, "ms"),
        ("n,ms\n1,2\n5\n", 3, "ms"),
        ("n,ms\n1,2\n2,4\n", None, "n"),
    ],
)
def test_a_bad_measurement_names_line_and_column(tmp_path: Path, text: str, line: int | None, field: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        fit_csv(path, MODEL)
    assert (caught.value.line, caught.value.field) == (line, field)


def test_measured_operator_sums_are_fitted_within_five_percent(shared_data: Path) -> None:
    fit = fit_csv(shared_data / "aiconfigurator" / "llama70b_tp4_bf16_h100_operator_sum.csv", MODEL)
    assert fit.rows == 12
    assert fit.median_relative_error < 0.05
    assert fit.worst_relative_error < 0.1
    assert fit.model.fixed_s == pytest.approx(0.010, rel=0.05)


def test_predictions_have_the_median_error_asked_for_and_stay_above_zero() -> None:
    rng = np.random.default_rng(3)
    errors = np.array([predict(2.0, 0.05, rng) / 2.0 - 1 for _ in range(20_000)])
    assert np.median(np.abs(errors)) == pytest.approx(0.05, rel=0.03)
    assert np.median(errors) == pytest.approx(0, abs=0.002)
    assert min(predict(2.0, 3.0, rng) for _ in range(2_000)) > 0


def test_an_error_of_zero_predicts_the_truth_and_draws_as_much() -> None:
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    assert predict(0.191, 0.0, one) == 0.191
    predict(0.191, 0.1, other)
    assert one.random() == other.random()
    with pytest.raises(ValueError, match="median_abs_error"):
        predict(1.0, -0.1, one)
