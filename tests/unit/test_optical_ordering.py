"""The order that the source paper reports, on generated agentic turns: reservation where a circuit stands, reservation, none."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from optical_driver import check, simulate

from controller.optical_config import OpticalConfig, Policy
from controller.prediction import LaplaceError
from workloads.events import TurnFinished
from workloads.generator import AgenticSessions
from workloads.kvsize import MODELS
from workloads.offered import Offered, TenantLoad, offer
from workloads.prefill import PrefillModel
from workloads.serving_config import ServingConfig
from workloads.slo import meets_slo, slo_limits_s

pytestmark = pytest.mark.unit

TP = 4
KV = next(model for name, model in MODELS.items() if name.lower() == "llama-3.1-70b")
PREFILL = PrefillModel(KV, TP)


@cache
def load() -> Offered:
    """16 GPUs: two instances of each role; 60 % of the prefills' time in a window of 120 s."""
    tenant = TenantLoad("agent", AgenticSessions(), PREFILL, 0.6)
    return offer([tenant], window_s=120.0, prefill_instances=2, rng=np.random.default_rng(1))


def shares(policy: Policy, *, circuit_aware: bool = False, tau_s: float, reuse: bool, median: float = 0.0) -> tuple[float, float]:
    """The shares of turns that are hidden, and that meet their service level."""
    turns = list(load().turns)
    serving = ServingConfig(
        prefill=2, decode=2, layers=KV.layers, bytes_per_token_per_gpu=KV.bytes_per_token_per_gpu(TP),
        choose_decode_at="arrival" if policy == "admission" else "start",
    )  # fmt: skip
    optical = OpticalConfig(
        prefill=2, decode=2, layers=KV.layers, rate_Bps=45e9, tau_s=tau_s, policy=policy, reuse=reuse, grace_s=1e-6
    )  # fmt: skip
    outcome = simulate(
        serving, optical, PREFILL.chunk_times, PREFILL.chunks, turns, circuit_aware=circuit_aware,
        errors=lambda transfer: LaplaceError(median, random.Random(transfer)),
    )  # fmt: skip
    check(outcome, turns)
    limits_s = slo_limits_s((turn.tenant, PREFILL.total(turn.context, turn.new)) for turn in turns)
    finished: list[TurnFinished] = outcome.run.finished
    met = sum(meets_slo(done, limits_s[done.turn.tenant]) for done in finished)
    return sum(done.hidden for done in finished) / len(turns), met / len(turns)


@pytest.mark.parametrize("tau_s", [0.025, 0.05])
@pytest.mark.parametrize("reuse", [True, False])
def test_circuit_aware_reservation_hides_most_then_reservation_then_none(tau_s: float, reuse: bool) -> None:
    aware = shares("reservation", circuit_aware=True, tau_s=tau_s, reuse=reuse)
    by_load = shares("reservation", tau_s=tau_s, reuse=reuse)
    none, after = shares("none", tau_s=tau_s, reuse=reuse), shares("after", tau_s=tau_s, reuse=reuse)
    assert aware[0] > by_load[0] + 0.05
    assert by_load[0] > none[0] + 0.05
    assert none[0] > after[0]
    assert aware[1] >= by_load[1] - 0.01
    assert by_load[1] > none[1]


def test_a_published_error_of_prediction_costs_little() -> None:
    exact, wrong = (shares("reservation", circuit_aware=True, tau_s=0.025, reuse=True, median=m)[0] for m in (0.0, 0.046))
    assert exact - 0.05 < wrong < exact + 0.05
