"""What holds of the serving model for any load, cluster and network."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import get_args

import pytest
from drawn_turns import drawn_turns
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_driver import Trace, chunk_times, chunk_tokens, drive

from workloads.events import Arrival, Mode, Stimulus, TimerFired
from workloads.serving import ServingConfig, ServingModel
from workloads.turns import Turn

pytestmark = pytest.mark.unit

rates = st.sampled_from([3e2, 1e4, 1e6, float("inf")])
offered = partial(drawn_turns, sessions="wxyz", max_size=25)


@st.composite
def configs(draw: st.DrawFn) -> ServingConfig:
    modes = st.sampled_from(get_args(Mode))
    return ServingConfig(
        prefill=draw(st.integers(1, 3)),
        decode=draw(st.integers(1, 4)),
        layers=draw(st.integers(1, 5)),
        bytes_per_token_per_gpu=draw(st.sampled_from([0.001, 0.7, 3.0, 81920.0])),
        mode=draw(modes),
        tenant_modes=draw(st.dictionaries(st.just("b"), modes)),
        decode_choice=draw(st.sampled_from(["load", "affinity"])),
        affinity_slack=draw(st.sampled_from([0.0, 0.1, 1.0])),
        load_counts=draw(st.sampled_from(["kv", "moved"])),
    )


def model(config: ServingConfig) -> ServingModel:
    return ServingModel(config, chunk_times, chunk_tokens)


def decided(trace: Trace) -> list[tuple[object, ...]]:
    """All that is decided without the network."""
    return sorted(
        (i, done.prefill, done.decode, done.migrated, done.head_bytes, done.prefill_start_s, done.prefill_end_s)
        for i, done in trace.finished.items()
    )


@given(configs(), offered(), rates, st.floats(0, 60), st.integers(0, 3))
def test_every_arrival_is_finished_or_unfinished_exactly_once_at_any_instant(
    config: ServingConfig, turns: list[Turn], rate_Bps: float, until_s: float, failing: int
) -> None:
    one = model(config)
    trace = drive(one, turns, rate_Bps, until_s=until_s, fails=lambda i: i % 4 == failing)
    arrived = [stimulus.turn.id for _, stimulus in trace.given if isinstance(stimulus, Arrival)]
    left = [row.turn.id for row in one.unfinished()]
    assert sorted([*trace.finished, *left]) == arrived
    counts = one.counts
    failed = sum(done.failed is not None for done in trace.finished.values())
    assert (counts.offered, counts.unfinished, counts.failed) == (len(arrived), len(left), failed)
    assert counts.completed == len(trace.finished) - failed


@given(configs(), offered(), rates)
def test_nothing_is_left_of_finished_turns_but_their_sessions(config: ServingConfig, turns: list[Turn], rate_Bps: float) -> None:
    one = model(config)
    trace = drive(one, turns, rate_Bps)
    assert len(trace.finished) == len(turns)
    kept = (one._live, one._ends, one._ended_ahead, one._seen, *one._queues)
    assert [len(held) for held in kept] == [0] * len(kept)
    assert len(one._sessions) == len({(turn.tenant, turn.session) for turn in turns})
    assert not any(one._running)


@given(configs(), offered(), rates)
def test_an_instance_prefills_in_the_order_of_arrival_one_at_a_time_and_never_idles_with_work(
    config: ServingConfig, turns: list[Turn], rate_Bps: float
) -> None:
    finished = drive(model(config), turns, rate_Bps).finished
    for instance in range(config.prefill):
        mine = [finished[turn.id] for turn in turns if finished[turn.id].prefill == instance]
        free_s = 0.0
        for done in mine:
            assert done.prefill_start_s == max(done.turn.arrival_s, free_s)
            free_s = done.prefill_end_s
            assert free_s - done.prefill_start_s == pytest.approx(done.unloaded_prefill_s)
    sessions = {(done.turn.tenant, done.turn.session, done.prefill) for done in finished.values()}
    assert len(sessions) == len({(turn.tenant, turn.session) for turn in turns})


@given(configs(), offered())
def test_releases_rise_to_exactly_all_bytes_and_never_precede_the_layer_they_hold(
    config: ServingConfig, turns: list[Turn]
) -> None:
    trace = drive(model(config), turns)
    for transfer, schedule in trace.schedules.items():
        start = trace.transfers[transfer]
        assert len(schedule.at_s) == len(schedule.released_bytes) >= 1
        assert all(a <= b for a, b in pairwise(schedule.at_s))
        assert all(a < b for a, b in pairwise((0, *schedule.released_bytes)))
        assert schedule.released_bytes[-1] == start.head_bytes + start.tail_bytes
        assert start.prefill_start_s <= schedule.at_s[0]
        assert schedule.at_s[-1] == start.prefill_end_s or start.tail_bytes == 0
        if start.mode == "pull":
            assert schedule.at_s == (start.prefill_end_s,)
            continue
        tokens = chunk_tokens(turns[transfer].new)
        begins_s = (start.prefill_start_s, *start.chunk_ends_s)
        for at_s, released in zip(schedule.at_s, schedule.released_bytes, strict=True):
            computed = 0.0  # tokens' worth of layers that have ended by then
            for count, begin_s, end_s in zip(tokens, begins_s, start.chunk_ends_s, strict=False):
                done = (at_s - begin_s) / (end_s - begin_s) * config.layers
                computed += count * min(config.layers, max(0, int(done + 1e-6))) / config.layers
            assert released - start.head_bytes <= start.tail_bytes * computed / turns[transfer].new * (1 + 1e-9)


@given(configs(), offered(), rates)
def test_ttft_holds_the_prefill_and_the_exposed_time(config: ServingConfig, turns: list[Turn], rate_Bps: float) -> None:
    for done in drive(model(config), turns, rate_Bps).finished.values():
        assert done.exposed_s >= 0
        assert done.ttft_s >= done.prefill_end_s - done.turn.arrival_s
        assert done.ttft_s == pytest.approx(done.prefill_end_s - done.turn.arrival_s + done.exposed_s)
        assert done.last_byte_s >= done.prefill_end_s or done.tail_bytes == 0
        assert (done.head_last_byte_s is None) == (done.head_bytes == 0)
        assert done.head_last_byte_s is None or done.head_last_byte_s <= done.last_byte_s


@given(configs(), offered(), rates)
def test_the_same_stimuli_give_the_same_instructions(config: ServingConfig, turns: list[Turn], rate_Bps: float) -> None:
    first, second = drive(model(config), turns, rate_Bps), drive(model(config), turns, rate_Bps)
    assert first.said == second.said


@given(configs(), offered(), rates, st.randoms(use_true_random=False))
def test_prefills_and_decodes_depend_neither_on_the_network_nor_on_late_timers(
    config: ServingConfig, turns: list[Turn], rate_Bps: float, rng: random.Random
) -> None:
    def late_s(stimulus: Stimulus) -> float:
        return rng.choice([0.0, 1e-3, 2.0]) if isinstance(stimulus, TimerFired) else 0.0

    late = drive(model(config), turns, rate_Bps, late_s=late_s)
    assert decided(late) == decided(drive(model(config), turns))


@given(configs(), offered(), st.sampled_from([1e-3, 0.7]))
def test_a_driver_that_is_late_with_everything_changes_nothing(config: ServingConfig, turns: list[Turn], late_s: float) -> None:
    late = drive(model(config), turns, 1e4, late_s=lambda stimulus: late_s)
    assert decided(late) == decided(drive(model(config), turns))


@given(configs(), offered())
def test_a_turn_migrates_exactly_when_its_decode_was_not_the_last_to_get_the_sessions_kv(
    config: ServingConfig, turns: list[Turn]
) -> None:
    holders: dict[tuple[str, str], int] = {}
    finished = drive(model(config), turns).finished
    for done in sorted(finished.values(), key=lambda done: done.turn.id):  # within a session: the order of starts
        key = (done.turn.tenant, done.turn.session)
        assert done.migrated == (holders.get(key) != done.decode and done.turn.context > 0)
        assert done.head_bytes == (round(done.turn.context * config.bytes_per_token_per_gpu) if done.migrated else 0)
        assert done.tail_bytes == round(done.turn.new * config.bytes_per_token_per_gpu)
        holders[key] = done.decode


@given(configs(), offered())
def test_decode_loads_stay_balanced(config: ServingConfig, turns: list[Turn]) -> None:
    one = model(config)
    drive(one, turns)
    loads, largest = one.decode_loads, max((turn.context + turn.new for turn in turns), default=0)
    mean = sum(loads) / len(loads)
    if config.decode_choice == "load":
        assert max(loads) - min(loads) <= largest
    else:
        assert max(loads) <= (1 + config.affinity_slack) * mean + largest


@settings(max_examples=5)
@given(st.integers(0, 2**32))
def test_affinity_keeps_nearly_all_turns_of_long_sessions_on_their_decode(seed: int) -> None:
    rng = random.Random(seed)
    contexts: Counter[str] = Counter()
    turns = []
    for id in range(600):
        session, new = f"s{rng.randrange(40)}", rng.randrange(200, 2000)
        turns.append(Turn(id, "t", session, id * 1.0, contexts[session], new, 0, "test"))
        contexts[session] += new
    shares = {}
    for choice in ("load", "affinity"):
        config = ServingConfig(
            prefill=4, decode=4, layers=1, bytes_per_token_per_gpu=1.0, decode_choice=choice, affinity_slack=0.2
        )
        one = model(config)
        drive(one, turns)
        shares[choice] = one.counts.migrated / (len(turns) - len(contexts))
        assert max(one.decode_loads) <= 1.25 * sum(one.decode_loads) / 4
    assert shares["affinity"] < 0.35 * shares["load"]
