"""The decode chosen at the arrival: what is told then, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from serving_driver import Trace, chunk_times, chunk_tokens, drive, turn
from test_serving_properties import configs, decided, offered

from workloads.events import Arrival, TransferFailed, TurnQueued
from workloads.serving import ServingConfig, ServingError, ServingModel
from workloads.turns import Turn

pytestmark = pytest.mark.unit


def config(**more: object) -> ServingConfig:
    return ServingConfig(prefill=1, decode=2, layers=2, bytes_per_token_per_gpu=2.0, choose_decode_at="arrival", **more)  # type: ignore[arg-type]


def queued(trace: Trace) -> dict[int, tuple[float, TurnQueued]]:
    return {one.transfer: (at_s, one) for at_s, one in trace.said if isinstance(one, TurnQueued)}


def test_a_turn_in_the_queue_is_told_of_at_its_arrival_with_its_planned_instants() -> None:
    turns = [turn(0, 0.0), turn(1, 0.25, "x", context=100, new=2048 + 750)]
    at_s, notice = queued(drive(ServingModel(config(), chunk_times, chunk_tokens), turns))[1]
    assert at_s == 0.25
    # The first turn's prefill takes a second, then come chunks of 2.298 s and 1 s.
    assert notice.chunk_ends_s == pytest.approx((3.298, 4.298))
    assert notice == TurnQueued(1, 0, 1, 200, 2 * 2798, "layerwise", 1.0, notice.chunk_ends_s, 2 * 750)
    assert (notice.last_chunk_start_s, notice.prefill_end_s) == notice.chunk_ends_s


@given(configs(), offered())
def test_what_was_told_at_the_arrival_is_what_starts(given_config: ServingConfig, turns: list[Turn]) -> None:
    one = ServingModel(replace(given_config, choose_decode_at="arrival"), chunk_times, chunk_tokens)
    trace = drive(one, turns, 1e4)
    told = queued(trace)
    assert told.keys() == trace.transfers.keys()
    for transfer, (at_s, notice) in told.items():
        start, schedule = trace.transfers[transfer], trace.schedules[transfer]
        assert at_s == turns[transfer].arrival_s
        for name in ("prefill", "decode", "head_bytes", "tail_bytes", "mode", "prefill_start_s", "chunk_ends_s"):
            assert getattr(notice, name) == getattr(start, name)
        assert (notice.last_chunk_start_s, notice.prefill_end_s) == (start.last_chunk_start_s, start.prefill_end_s)
        if start.mode == "layerwise":
            pairs = zip(schedule.at_s, schedule.released_bytes, strict=True)
            before = [released for at_s, released in pairs if at_s <= start.last_chunk_start_s]
            assert notice.last_chunk_bytes == start.head_bytes + start.tail_bytes - max([start.head_bytes, *before])
    # Arrivals and starts are in one order within an instance; with the choices that see no network the rest is the same.
    if given_config.prefill == 1:
        assert decided(trace) == decided(drive(ServingModel(given_config, chunk_times, chunk_tokens), turns, 1e4))


def test_a_report_of_a_transfer_that_has_not_started_is_refused_as_before() -> None:
    one = ServingModel(config(), chunk_times, chunk_tokens)
    one.handle(Arrival(turn(0, 0.0)), 0.0)
    one.handle(Arrival(turn(1, 0.5)), 0.5)
    assert [row.decode for row in one.unfinished()] == [0, 1]
    with pytest.raises(ServingError, match="no such transfer"):
        one.handle(TransferFailed(1, "reset"), 0.5)


def test_only_turns_with_bytes_to_move_are_told_of_and_a_wrong_word_is_refused() -> None:
    small = ServingConfig(prefill=1, decode=1, layers=1, bytes_per_token_per_gpu=1e-4, choose_decode_at="arrival")
    assert not queued(drive(ServingModel(small, chunk_times, chunk_tokens), [turn(0, 0.0)]))
    assert not queued(drive(ServingModel(ServingConfig(prefill=1, decode=1, layers=1, bytes_per_token_per_gpu=1.0),
                                         chunk_times, chunk_tokens), [turn(0, 0.0)]))  # fmt: skip
    with pytest.raises(ValueError, match=r"serving\.choose_decode_at is 'end'"):
        ServingConfig(prefill=1, decode=1, layers=1, bytes_per_token_per_gpu=1.0, choose_decode_at="end")  # type: ignore[arg-type]
