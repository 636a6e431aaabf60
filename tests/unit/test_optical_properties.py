"""What holds of the serving model on circuits for any load, policy, prediction and disturbance."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

import pytest
from drawn_turns import drawn_turns
from hypothesis import given, settings
from hypothesis import strategies as st
from optical_driver import Outcome, check, simulate
from serving_driver import chunk_times, chunk_tokens

from controller.optical_config import OpticalConfig, Policy
from controller.prediction import LaplaceError
from controller.reservation import Overrun
from flowsim.circuits import Disturbance
from workloads.events import Mode
from workloads.serving_config import ServingConfig
from workloads.turns import Turn

pytestmark = pytest.mark.unit

TAU_S = 0.25
RATE_BPS = 4000.0


@dataclass(frozen=True)
class Case:
    serving: ServingConfig
    optical: OpticalConfig
    turns: list[Turn]
    circuit_aware: bool
    median: float
    seed: int

    def errors(self, transfer: int) -> LaplaceError:
        return LaplaceError(self.median, random.Random(100 * self.seed + transfer))

    def run(self, disturbance: Disturbance | None = None, *, broken: frozenset[tuple[int, int]] = frozenset()) -> Outcome:
        return simulate(
            self.serving, self.optical, chunk_times, chunk_tokens, self.turns,
            circuit_aware=self.circuit_aware, errors=self.errors,
            disturbance=disturbance, broken=broken, nagged=True, lookahead_s=0.9 * self.serving.lookahead_s,
        )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn, policies: tuple[Policy, ...] = get_args(Policy)) -> Case:
    policy = draw(st.sampled_from(policies))
    prefill, decode, layers = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    serving = ServingConfig(
        prefill=prefill,
        decode=decode,
        layers=layers,
        bytes_per_token_per_gpu=draw(st.sampled_from([0.0001, 0.3, 1.0])),
        mode=draw(st.sampled_from(get_args(Mode))),
        tenant_modes=draw(st.dictionaries(st.just("b"), st.sampled_from(get_args(Mode)))),
        decode_choice=draw(st.sampled_from(["load", "affinity"])),
        choose_decode_at="arrival" if policy == "admission" else draw(st.sampled_from(["start", "arrival"])),
        lookahead_s=draw(st.sampled_from([0.0, 0.01])),
    )
    optical = OpticalConfig(
        prefill=prefill,
        decode=decode,
        layers=layers,
        rate_Bps=RATE_BPS,
        tau_s=draw(st.sampled_from([0.0, TAU_S])),
        policy=policy,
        reuse=draw(st.booleans()),
        overrun=draw(st.sampled_from(get_args(Overrun))),
        grace_s=draw(st.sampled_from([1e-3, 0.1])),
    )
    turns = draw(drawn_turns(sessions="xyz", max_size=12))
    aware = policy in ("reservation", "admission") and draw(st.booleans())
    return Case(serving, optical, turns, aware, draw(st.sampled_from([0.0, 0.05, 0.5])), draw(st.integers(0, 9)))


def disturbance(rng: random.Random, late_s: float) -> Disturbance:
    """Transfers that are slow, fast or fail, and reports and timers up to ``late_s`` late."""
    rates = [rng.choice([1.0, 1.0, 0.4, 0.9, 1.5, 5.0]) for _ in range(50)]
    fails_s = [rng.choice([None, None, None, rng.random() * 3]) for _ in range(50)]
    return Disturbance(rates.__getitem__, fails_s.__getitem__, lambda at_s: at_s + rng.choice([0.0, rng.random() * late_s]))


@settings(deadline=None)
@given(cases())
def test_every_turn_ends_over_circuits_that_are_lit_and_nothing_is_left(case: Case) -> None:
    outcome = case.run()
    check(outcome, case.turns)
    assert all(done.failed is None for done in outcome.run.finished)


@settings(deadline=None)
@given(cases(), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.002, 0.4]))
def test_the_same_holds_when_transfers_are_slow_or_fail_and_timers_late(case: Case, rng: random.Random, late_s: float) -> None:
    check(case.run(disturbance(rng, late_s)), case.turns)


@settings(deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_a_circuit_that_cannot_be_set_up_fails_its_transfers_and_no_other(case: Case, rng: random.Random) -> None:
    outcome = case.run(disturbance(rng, 0.0) if rng.random() < 0.5 else None, broken=frozenset({(0, 0)}))
    check(outcome, case.turns)
    for done in outcome.run.finished:
        if done.failed == "a mirror is stuck":
            assert (done.prefill, done.decode) == (0, 0)
        elif (done.prefill, done.decode) == (0, 0) and done.head_bytes + done.tail_bytes > 0:
            assert done.failed == "reset"


@settings(deadline=None)
@given(cases(), st.integers(0, 9), st.sampled_from([0.0, 0.1]))
def test_the_same_run_twice_is_the_same_in_every_instruction(case: Case, seed: int, late_s: float) -> None:
    first, second = (case.run(disturbance(random.Random(seed), late_s)) for _ in range(2))
    assert first.run.said == second.run.said
    assert first.run.finished == second.run.finished


@settings(deadline=None)
@given(cases(("none", "after")))
def test_without_reservation_ports_are_held_from_the_asking_in_order_to_the_last_byte(case: Case) -> None:
    outcome = case.run()
    ends_s = {done.turn.id: done.last_byte_s for done in outcome.run.finished}
    for side in ("prefill", "decode"):
        for instance in range(getattr(case.optical, side)):
            mine = [one for one in outcome.run.windows if getattr(one, side) == instance]
            assert [one.end_s for one in mine] == [ends_s[one.transfer] for one in mine]
            assert all(a.booked_s <= b.booked_s for a, b in pairwise(mine))
    for one in outcome.run.windows:
        start = outcome.run.starts[one.transfer]
        if case.optical.policy == "after":
            assert one.booked_s == start.prefill_end_s


@settings(deadline=None)
@given(cases(("reservation", "admission")))
def test_parts_go_in_their_order_and_a_window_is_never_commanded_before_it_was_booked(case: Case) -> None:
    outcome = case.run()
    for transfer in outcome.run.starts:
        mine = [one for one in outcome.run.windows if one.transfer == transfer and one.start_s is not None]
        parts = [one.part for one in mine]
        assert parts == sorted(parts)  # head before tail
        assert all(one.start_s is not None and one.start_s >= one.booked_s for one in mine)
        if case.median == 0 and case.optical.policy == "reservation":
            assert all(one.data_s is not None for one in mine)
