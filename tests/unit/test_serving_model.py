"""The serving model, scenario by scenario."""

from __future__ import annotations

from typing import Any

import pytest
from serving_driver import chunk_times, chunk_tokens, drive, turn

from workloads.events import (
    Arrival,
    HeadDelivered,
    ReleaseSchedule,
    SetTimer,
    StartTransfer,
    TimerFired,
    TransferDelivered,
    TransferFailed,
    TurnFinished,
)
from workloads.live_turn import TurnState
from workloads.serving import ServingConfig, ServingError, ServingModel

pytestmark = pytest.mark.unit


def model(**changes: Any) -> ServingModel:
    values: dict[str, Any] = {"prefill": 1, "decode": 1, "layers": 4, "bytes_per_token_per_gpu": 8.0}
    return ServingModel(ServingConfig(**(values | changes)), chunk_times, chunk_tokens)


def test_a_first_turn_starts_at_once_and_sends_its_new_kv_layer_by_layer() -> None:
    said = model().handle(Arrival(turn(0, 2.0)), 2.0)
    assert said == (
        SetTimer(3.0, 0),
        StartTransfer(0, 0, 0, 0, 0, 6000, "layerwise", 2.0, (3.0,)),
        ReleaseSchedule(0, (2.25, 2.5, 2.75, 3.0), (1500, 3000, 4500, 6000)),
    )


def test_a_turn_whose_prefix_is_elsewhere_releases_the_head_when_its_prefill_starts() -> None:
    schedule = drive(model(), [turn(0, 2.0, context=100)]).schedules[0]
    assert (schedule.at_s[0], schedule.released_bytes[0]) == (2.0, 800)
    assert (schedule.at_s[-1], schedule.released_bytes[-1]) == (3.0, 6800)


def test_long_prefills_release_chunk_by_chunk() -> None:
    start = drive(model(layers=2), [turn(0, 0.0, new=2048 + 750)])
    first_s, end_s = 0.25 + 2.048, 0.25 + 2.048 + 1.0
    assert start.transfers[0].chunk_ends_s == pytest.approx((first_s, end_s))
    assert start.transfers[0].last_chunk_start_s == pytest.approx(first_s)
    assert start.schedules[0].at_s == pytest.approx((first_s / 2, first_s, first_s + 0.5, end_s))
    assert start.schedules[0].released_bytes == (8192, 16384, 16384 + 3000, 16384 + 6000)


def test_pull_releases_all_at_the_end_of_the_prefill() -> None:
    schedule = drive(model(mode="pull"), [turn(0, 2.0, context=100)]).schedules[0]
    assert schedule == ReleaseSchedule(0, (3.0,), (6800,))


def test_the_mode_is_the_tenants_own_where_it_has_one() -> None:
    one = model(tenant_modes={"chat": "pull"})
    trace = drive(one, [turn(0, 0.0, "a", tenant="chat"), turn(1, 9.0, "b", tenant="agent")])
    assert [start.mode for start in trace.transfers.values()] == ["pull", "layerwise"]
    assert [len(schedule.at_s) for schedule in trace.schedules.values()] == [1, 4]


def test_prefills_queue_and_the_next_starts_the_instant_the_last_one_ends() -> None:
    trace = drive(model(), [turn(0, 0.0, "a"), turn(1, 0.5, "b"), turn(2, 0.75, "c")])
    assert [(one.prefill_start_s, one.prefill_end_s) for one in trace.finished.values()] == [(0, 1), (1, 2), (2, 3)]
    assert trace.finished[2].ttft_s == 2.25


def test_new_sessions_go_to_the_prefill_instance_with_the_least_work_in_seconds() -> None:
    # Instance 0 gets one long turn, instance 1 two short ones that together are still less work.
    turns = [turn(0, 0.0, "long", new=2000), turn(1, 0.0, "b", new=750), turn(2, 0.0, "c", new=150), turn(3, 0.0, "d")]
    finished = drive(model(prefill=2), turns).finished
    assert [finished[i].prefill for i in range(4)] == [0, 1, 1, 1]


def test_work_already_done_does_not_count_as_backlog_and_ties_go_to_the_lowest_index() -> None:
    turns = [turn(0, 0.0, "a", new=1750), turn(1, 0.0, "b"), turn(2, 0.9, "c", new=100), turn(3, 5.0, "d")]
    finished = drive(model(prefill=2), turns).finished
    assert [finished[i].prefill for i in range(4)] == [0, 1, 1, 0]


def test_a_session_stays_on_the_prefill_instance_that_holds_its_prefix_even_when_others_are_idle() -> None:
    trace = drive(model(prefill=3), [turn(0, 0.0), turn(1, 0.1, context=750), turn(2, 0.2, context=1500)])
    assert {one.prefill for one in trace.finished.values()} == {0}
    assert [one.prefill_start_s for one in trace.finished.values()] == [0.0, 1.0, 2.0]


def test_sessions_of_two_tenants_with_one_name_are_two_sessions() -> None:
    trace = drive(model(prefill=2), [turn(0, 0.0, "s", tenant="a"), turn(1, 0.1, "s", tenant="b")])
    assert [trace.finished[i].prefill for i in (0, 1)] == [0, 1]


def test_decode_by_load_takes_the_fewest_tokens_and_migrates_the_context() -> None:
    one = model(decode=2)
    trace = drive(one, [turn(0, 0.0), turn(1, 2.0, context=750), turn(2, 4.0, context=1500)])
    assert [(one.decode, one.migrated, one.head_bytes) for one in trace.finished.values()] == [
        (0, False, 0),
        (1, True, 6000),
        (0, True, 12000),  # decode 0 held the first turn only: an older part of the prefix is not the prefix
    ]
    assert one.decode_loads == (750 + 2250, 1500)


def test_affinity_keeps_the_decode_and_sends_the_tail_only() -> None:
    one = model(decode=2, decode_choice="affinity", affinity_slack=1.0)
    trace = drive(one, [turn(i, 2.0 * i, context=750 * i) for i in range(5)])
    assert {(one.decode, one.migrated, one.head_bytes) for one in trace.finished.values()} == {(0, False, 0)}


def test_affinity_gives_way_when_the_holder_is_loaded_beyond_the_slack() -> None:
    one = model(decode=2, decode_choice="affinity", affinity_slack=0.1)
    trace = drive(one, [turn(0, 0.0), turn(1, 2.0, context=750)])
    assert (trace.finished[1].decode, trace.finished[1].migrated) == (1, True)


def test_load_may_count_only_what_moves() -> None:
    one = model(decode=2, decode_choice="affinity", affinity_slack=1.0, load_counts="moved")
    drive(one, [turn(0, 0.0), turn(1, 2.0, context=750)])
    assert one.decode_loads == (1500, 0)


def test_a_decode_holds_the_prefix_from_the_start_of_the_prefill_on() -> None:
    # Nothing has been delivered when the second turn starts: its data follow the first turn's.
    one = model(decode=2, decode_choice="affinity", affinity_slack=1.0)
    trace = drive(one, [turn(0, 0.0), turn(1, 0.5, context=750)], rate_Bps=1.0, until_s=1.5)
    assert not trace.finished
    assert (trace.transfers[1].decode, trace.transfers[1].head_bytes) == (0, 0)


def test_a_policy_from_outside_can_choose_the_decode() -> None:
    asked: list[dict[str, object]] = []

    def choose(**known: object) -> int:
        asked.append({**known, "loads": list(known["loads"])})  # type: ignore[call-overload]
        return 1

    config = ServingConfig(prefill=1, decode=2, layers=1, bytes_per_token_per_gpu=8.0)
    one = ServingModel(config, chunk_times, chunk_tokens, choose_decode=choose)
    drive(one, [turn(0, 0.0), turn(1, 2.0, context=750)])
    assert asked == [
        {"prefill": 0, "holder": None, "loads": [0, 0], "head_bytes": 0, "now_s": 0.0},
        {"prefill": 0, "holder": 1, "loads": [0, 750], "head_bytes": 6000, "now_s": 2.0},
    ]


def test_a_turn_finishes_when_the_prefill_and_the_transfer_have_both_ended_in_either_order() -> None:
    early, late = model(), model()
    for one in (early, late):
        one.handle(Arrival(turn(0, 0.0)), 0.0)
    assert early.handle(TransferDelivered(0), 0.5) == ()
    (finished,) = early.handle(TimerFired(0), 1.0)
    assert isinstance(finished, TurnFinished)
    assert (finished.last_byte_s, finished.ttft_s, finished.exposed_s, finished.hidden) == (0.5, 1.0, 0.0, True)
    assert late.handle(TimerFired(0), 1.0) == ()
    (finished,) = late.handle(TransferDelivered(0), 1.5)
    assert isinstance(finished, TurnFinished)
    assert (finished.last_byte_s, finished.ttft_s, finished.exposed_s, finished.hidden) == (1.5, 1.5, 0.5, False)


def test_the_arrival_of_the_head_is_recorded() -> None:
    finished = drive(model(), [turn(0, 0.0, context=100)], rate_Bps=1e4).finished[0]
    assert finished.head_last_byte_s == pytest.approx(0.08)


def test_a_turn_too_small_to_have_bytes_finishes_with_its_prefill() -> None:
    trace = drive(model(bytes_per_token_per_gpu=1e-4), [turn(0, 0.0, context=1)])
    assert not trace.transfers
    assert (trace.finished[0].last_byte_s, trace.finished[0].exposed_s) == (1.0, 0.0)


def test_a_failed_transfer_ends_the_turn_as_failed_and_the_decode_does_not_hold_the_prefix() -> None:
    one = model()
    trace = drive(one, [turn(0, 0.0), turn(1, 5.0, context=750), turn(2, 9.0, context=1500)], fails=lambda i: i == 0)
    assert [(done.failed, done.migrated) for done in trace.finished.values()] == [
        ("reset", False),
        (None, True),
        (None, False),
    ]
    assert (one.counts.completed, one.counts.failed, one.counts.offered) == (2, 1, 3)


def test_a_failure_during_the_prefill_waits_for_its_end() -> None:
    one = model()
    one.handle(Arrival(turn(0, 0.0)), 0.0)
    assert one.handle(TransferFailed(0, "unreachable"), 0.25) == ()
    (finished,) = one.handle(TimerFired(0), 1.0)
    assert isinstance(finished, TurnFinished)
    assert (finished.failed, finished.last_byte_s) == ("unreachable", 0.25)


def test_a_failure_of_an_older_transfer_leaves_a_decode_that_got_the_whole_prefix_since() -> None:
    one = model(decode=2)
    for i, at_s in enumerate((0.0, 1.0, 2.0)):
        one.handle(Arrival(turn(i, at_s, context=750 * i)), at_s)
        one.handle(TimerFired(i), at_s + 1.0)
    assert [left.decode for left in one.unfinished()] == [0, 1, 0]
    one.handle(TransferFailed(0, "reset"), 3.0)  # decode 0 has the prefix from turn 2 on
    one.handle(Arrival(turn(3, 3.0, "other", new=20000)), 3.0)
    one.handle(TimerFired(3), 3.0 + sum(chunk_times(0, 20000)))
    said = one.handle(Arrival(turn(4, 50.0, context=2250)), 50.0)
    assert [(start.decode, start.head_bytes) for start in said if isinstance(start, StartTransfer)] == [(0, 0)]


def test_what_is_left_at_the_end_of_a_run_is_told_with_its_state() -> None:
    one = model()
    drive(one, [turn(0, 0.0, "a"), turn(1, 0.1, "b", context=9), turn(2, 0.2, "c")], rate_Bps=1.0, until_s=1.5)
    assert [(left.turn.id, left.state, left.decode, left.migrated) for left in one.unfinished()] == [
        (0, TurnState.TRANSFERRING, 0, False),
        (1, TurnState.PREFILLING, 0, True),
        (2, TurnState.QUEUED, None, False),
    ]
    assert [left.prefill_start_s for left in one.unfinished()] == [0.0, 1.0, 2.0]
    counts = one.counts
    assert (counts.queued, counts.prefilling, counts.transferring, counts.unfinished) == (1, 1, 1, 3)
    assert (counts.offered, counts.migrated) == (3, 1)


def test_a_late_driver_does_not_delay_prefills() -> None:
    one = model()
    one.handle(Arrival(turn(0, 0.0, "a")), 0.004)
    one.handle(Arrival(turn(1, 0.5, "b")), 0.503)
    said = one.handle(TimerFired(0), 1.007)
    assert said[0] == SetTimer(2.0, 1)
    assert one.handle(Arrival(turn(2, 2.25, "c")), 2.26)[0] == SetTimer(3.25, 2)  # the timer of turn 1 is still to come
    assert one.handle(TimerFired(1), 2.27) == ()


def test_a_late_driver_does_not_reorder_the_choice_of_decodes() -> None:
    # The timer of turn 0 is handed in after the planned end of turn 1, and the arrival of turn 3 later still. It is
    # nevertheless turn 3, due first, that chooses its decode before turn 2.
    turns = [turn(0, 0.0, "a"), turn(1, 0.1, "a", 750), turn(2, 0.2, "a", 1500), turn(3, 1.4, "b")]
    for late_s in (0.0, 1.5):
        trace = drive(model(prefill=2, decode=2), turns, late_s=lambda stimulus, late_s=late_s: late_s)  # type: ignore[misc]
        assert [(i, start.decode) for i, start in trace.transfers.items()] == [(0, 0), (1, 1), (3, 0), (2, 0)]


@pytest.mark.parametrize(
    ("stimulus", "now_s", "says"),
    [
        (Arrival(turn(0, 0.5)), 0.5, "turn 0 has arrived before"),
        (Arrival(turn(1, 0.7)), 0.5, "turn 1 of 0.7 s arrives at 0.5 s"),
        (Arrival(turn(1, float("nan"))), 0.5, "turn 1 of nan s"),
        (Arrival(turn(1, 0.5, context=-1)), 0.5, "-1 context"),
        (Arrival(turn(1, 0.5, new=0)), 0.5, "0 new"),
        (TimerFired(0), 0.5, "timer 0 of 1.0 s fired at 0.5 s"),
        (TimerFired(7), 0.5, "timer 7 fired, which was not set"),
        (HeadDelivered(0), 0.5, "has no head"),
        (TransferDelivered(7), 0.5, "no such transfer"),
        (TransferFailed(7, "reset"), 0.5, "no such transfer"),
        (TransferDelivered(0), 0.2, "time went from 0.25 s back to 0.2 s"),
        (TransferDelivered(0), float("nan"), "back to nan"),
    ],
)
def test_a_stimulus_that_makes_no_sense_is_an_error(stimulus: Any, now_s: float, says: str) -> None:
    one = model()
    one.handle(Arrival(turn(0, 0.25, new=500)), 0.25)
    with pytest.raises(ServingError, match=says):
        one.handle(stimulus, now_s)


@pytest.mark.parametrize(
    ("before", "again"),
    [
        ([], HeadDelivered(0)),
        ([TransferDelivered(0)], TransferDelivered(0)),
        ([TransferDelivered(0)], TransferFailed(0, "reset")),
        ([TransferDelivered(0)], HeadDelivered(0)),
        ([TimerFired(0)], TimerFired(0)),
        ([TimerFired(0), TransferDelivered(0)], TransferDelivered(0)),
        ([TimerFired(0), TransferDelivered(0)], TimerFired(0)),
    ],
)
def test_nothing_is_reported_twice(before: list[Any], again: Any) -> None:
    one = model()
    one.handle(Arrival(turn(0, 0.0, context=1)), 0.0)
    one.handle(HeadDelivered(0), 0.5)
    for stimulus in before:
        one.handle(stimulus, 1.0)
    with pytest.raises(ServingError):
        one.handle(again, 2.0)


def test_a_queued_turn_has_no_transfer_to_report_on() -> None:
    one = model()
    one.handle(Arrival(turn(0, 0.0)), 0.0)
    one.handle(Arrival(turn(1, 0.0)), 0.0)
    with pytest.raises(ServingError, match="no such transfer"):
        one.handle(TransferDelivered(1), 0.5)


@pytest.mark.parametrize(
    ("times", "tokens"), [((1.0,), (300, 450)), ((1.0,), (749,)), ((-1.0,), (750,)), ((float("inf"),), (750,))]
)
def test_a_prefill_model_that_contradicts_itself_is_an_error(times: tuple[float], tokens: tuple[int]) -> None:
    config = ServingConfig(prefill=1, decode=1, layers=1, bytes_per_token_per_gpu=1.0)
    one = ServingModel(config, lambda context, new: times, lambda new: tokens)
    with pytest.raises(ServingError, match="prefill of turn 0"):
        one.handle(Arrival(turn(0, 0.0)), 0.0)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_decode_that_does_not_exist_is_an_error(index: int) -> None:
    config = ServingConfig(prefill=1, decode=2, layers=1, bytes_per_token_per_gpu=1.0)
    one = ServingModel(config, chunk_times, chunk_tokens, choose_decode=lambda **known: index)
    with pytest.raises(ServingError, match=f"names decode {index} of 2"):
        one.handle(Arrival(turn(0, 0.0)), 0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prefill", 0),
        ("decode", 0),
        ("layers", 0),
        ("bytes_per_token_per_gpu", 0.0),
        ("bytes_per_token_per_gpu", float("nan")),
        ("affinity_slack", -0.1),
        ("mode", "push"),
        ("decode_choice", "random"),
        ("load_counts", "bytes"),
        ("tenant_modes", {"chat": "push"}),
    ],
)
def test_a_configuration_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"serving\.{field}"):
        model(**{field: value})
