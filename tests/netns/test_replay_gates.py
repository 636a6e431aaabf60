"""Flows whose bytes wait for a gate: what leaves, what is reported, and that nothing of them is on the wire by then."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic

import pytest
from test_replay import RATE_BPS, SOON_S, flow, one, replay, replaying

from workloads.replay.engine import ReplayEngine
from workloads.replay.flows import FlowSpec

pytestmark = [pytest.mark.netns, pytest.mark.sealed]

SIZE, HEAD = 300_000, 200_000


def gated(number: int, start: float, *, size: int = SIZE, head: int = HEAD, slot: int = 0) -> FlowSpec:
    return replace(flow(number, (0.0, size), start=start, head=head, slot=slot, check=True), gated=True)


@contextmanager
def ready() -> Iterator[ReplayEngine]:
    """An engine with one warm connection: a gated flow opens none, its handshake might meet the dark."""
    with replaying() as (_fabric, engine):
        one(engine, flow(0, (0.0, 1000), start=monotonic() + SOON_S))
        yield engine


def unacknowledged(engine: ReplayEngine) -> list[int]:
    """Bytes in flight of every connection in use."""
    return [
        struct.unpack("i", fcntl.ioctl(connection.sender.fileno(), 0x5411, bytes(4)))[0]
        for connection in engine._live  # what the test is about is under the public surface
    ]


def test_a_gated_flow_sends_what_its_gate_lets_through_and_no_more() -> None:
    with ready() as engine:
        start = monotonic() + SOON_S
        seen: list[tuple[str, float, int]] = []
        left: list[int] = []
        engine.on_head = lambda spec, now: seen.append(("head", now - start, sum(unacknowledged(engine))))
        engine.call_at(start + 0.1, lambda: left.append(engine.outstanding(1)))
        engine.call_at(start + 0.1, lambda: engine.open_gate(1, HEAD))
        engine.call_at(start + 0.3, lambda: left.append(engine.outstanding(1)))
        engine.call_at(start + 0.3, lambda: engine.open_gate(1, SIZE))
        result = one(engine, gated(1, start))
        assert (result.failed, result.received, result.content_ok) == (None, SIZE, True)
        assert left == [SIZE, SIZE - HEAD]
        [(what, at, in_flight)] = seen
        assert (what, in_flight) == ("head", 0)
        assert at == pytest.approx(0.1 + HEAD / RATE_BPS, abs=0.02)
        assert result.actual_send - start == pytest.approx(0.1, abs=0.01)
        assert result.delivered - start == pytest.approx(0.3 + (SIZE - HEAD) / RATE_BPS, abs=0.02)
        assert engine.outstanding(1) == 0


def test_a_gate_that_closes_in_mid_flow_tells_when_all_that_left_has_arrived() -> None:
    with ready() as engine:
        start = monotonic() + SOON_S
        size = 2_000_000
        drained: list[tuple[int, int, float]] = []

        def told(spec: FlowSpec, received: int) -> None:
            drained.append((received, sum(unacknowledged(engine)), monotonic() - start))
            engine.call_at(start + 0.3, lambda: engine.open_gate(spec.id, size))

        engine.on_drained = told
        engine.call_at(start + 1e-3, lambda: engine.open_gate(1, size))
        engine.call_at(start + 0.02, lambda: engine.close_gate(1))
        result = one(engine, gated(1, start, size=size, head=0))
        [(received, in_flight, at)] = drained
        assert 0 < received < size
        assert in_flight == 0
        assert at < 0.2
        assert (result.failed, result.received, result.content_ok) == (None, size, True)
        assert result.delivered - start == pytest.approx(0.3 + (size - received) / RATE_BPS, abs=0.02)


def test_a_gate_that_nothing_has_passed_is_drained_at_once() -> None:
    with ready() as engine:
        start = monotonic() + SOON_S
        told: list[int] = []
        engine.on_drained = lambda _spec, received: told.append(received)
        engine.call_at(start + 0.05, lambda: engine.close_gate(1))
        engine.call_at(start + 0.1, lambda: engine.open_gate(1, SIZE))
        result = one(engine, gated(1, start, head=SIZE))
        assert told == [0]
        assert (result.failed, result.received) == (None, SIZE)
        assert result.head_delivered == result.delivered


def test_a_head_whose_tail_follows_at_once_is_told_of_once_and_before_the_end() -> None:
    with ready() as engine:
        start = monotonic() + SOON_S
        order: list[str] = []
        engine.on_head = lambda _spec, _now: order.append("head")
        engine.call_at(start + 1e-3, lambda: engine.open_gate(1, SIZE))
        result = one(engine, gated(1, start))
        order.append("done")
        engine.run(monotonic() + 0.05)
        assert order == ["head", "done"]
        assert result.head_delivered is not None
        assert result.head_delivered < result.delivered


def test_a_gate_of_a_flow_that_is_over_or_unknown_is_nobodys() -> None:
    with ready() as engine:
        start = monotonic() + SOON_S
        engine.call_at(start + 1e-3, lambda: engine.open_gate(1, SIZE))
        results = replay(engine, gated(1, start))
        for number in (1, 99):
            engine.open_gate(number, SIZE)
            engine.close_gate(number)
            assert engine.outstanding(number) == 0
        assert results[0].failed is None


def test_a_gated_flow_without_an_open_connection_fails_and_says_what_to_do() -> None:
    with ready() as engine:
        start = monotonic() + SOON_S
        engine.call_at(start + 0.05, lambda: engine.open_gate(1, SIZE))
        first, second = replay(engine, gated(1, start), gated(2, start))
        assert (first.spec.id, second.spec.id) == (2, 1)
        assert (first.failed, second.failed) == ("no open connection from p0g0 to d0g0 is left; raise emulation.classes", None)


def test_a_gated_flow_takes_an_idle_connection_of_another_slot() -> None:
    with ready() as engine:
        start = monotonic() + SOON_S
        engine.call_at(start + 1e-3, lambda: engine.open_gate(1, SIZE))
        assert one(engine, gated(1, start, slot=5)).failed is None


def test_a_flow_that_is_given_up_has_failed() -> None:
    with ready() as engine:
        start = monotonic() + SOON_S
        engine.call_at(start + 1e-3, lambda: engine.give_up(1, "the circuit is lost"))
        assert one(engine, gated(1, start)).failed == "the circuit is lost"
