"""The driver between the serving model and the engine, on a clock and an engine of the test's own."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from serving_driver import chunk_times, chunk_tokens, turn

from topo.scale import Scale
from workloads.events import TurnFinished
from workloads.replay import driver
from workloads.replay.driver import LiveTransfer, TurnReplay
from workloads.replay.engine import ReplayEngine
from workloads.replay.flows import FlowResult, FlowSpec, ideal_fct
from workloads.serving import ServingModel
from workloads.serving_config import ServingConfig
from workloads.turns import Turn

pytestmark = pytest.mark.unit

EPOCH = 1000.0
TIME = 4.0
SCALE = Scale(100e6, 1e6, TIME)


class FakeEngine:
    """Flows take their ideal time at ``rate_Bps``, whatever else is on the wire; the ids in ``broken`` fail half way."""

    def __init__(self, broken: frozenset[int] = frozenset()) -> None:
        self.now = EPOCH - 1
        self.settings = SimpleNamespace(classes=8, reuse=True)
        self.started: list[FlowSpec] = []
        self.on_head: Callable[[FlowSpec, float], None] | None = None
        self.on_done: Callable[[FlowResult], None] | None = None
        self._broken = broken
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopped = False

    def call_at(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._order), action))

    def stop(self) -> None:
        self._stopped = True

    def run(self, until: float) -> None:
        self._stopped = False
        while not self._stopped and self._due and self._due[0][0] <= until:
            at, _, action = heapq.heappop(self._due)
            self.now = max(self.now, at)
            action()
        if not self._stopped:
            self.now = max(self.now, until)

    def start(self, spec: FlowSpec) -> None:
        self.started.append(spec)
        rate = SCALE.rate_emu_Bps
        done_at = spec.released_at[0] + ideal_fct(spec.released_at, spec.released_bytes, rate)
        if spec.head_bytes:
            self.call_at(spec.released_at[0] + spec.head_bytes / rate, lambda: self._head(spec))
        if spec.id in self._broken:
            self.call_at((self.now + done_at) / 2, lambda: self._done(spec, "reset"))
        else:
            self.call_at(done_at, lambda: self._done(spec, None))

    def _head(self, spec: FlowSpec) -> None:
        assert self.on_head is not None
        self.on_head(spec, self.now)

    def _done(self, spec: FlowSpec, failed: str | None) -> None:
        assert self.on_done is not None
        sent, received = spec.released_at[0], spec.bytes if failed is None else 0
        result = FlowResult(spec, 8192, 7000, True, sent, None, self.now, received, 0, 0, None, 0.0, None, failed)
        self.on_done(result)


class Replayed:
    """What came out of a run."""

    def __init__(self, turns: list[Turn], monkeypatch: pytest.MonkeyPatch, *, tp: int = 2, broken: frozenset[int] = frozenset(),
                 give_up_s: float = 100.0, bytes_per_token: float = 1000.0) -> None:  # fmt: skip
        self.engine = FakeEngine(broken)
        monkeypatch.setattr(driver, "monotonic", lambda: self.engine.now)
        self.turns: list[TurnFinished] = []
        self.transfers: list[LiveTransfer] = []
        self.flows: list[FlowResult] = []
        config = ServingConfig(prefill=1, decode=2, layers=4, bytes_per_token_per_gpu=bytes_per_token)
        model = ServingModel(config, chunk_times, chunk_tokens)
        self.replay = TurnReplay(
            cast(ReplayEngine, self.engine), model, SCALE,
            tp=tp,
            epoch=EPOCH,
            checked=lambda flow: flow % 3 == 0,
            on_turn=self.turns.append,
            on_transfer=self.transfers.append,
            on_flow=self.flows.append,
        )  # fmt: skip
        self.replay.run(turns, give_up_s=give_up_s)


def test_a_transfer_is_as_many_flows_as_gpus_between_equal_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Replayed([turn(0, 0.5)], monkeypatch, tp=3)
    assert [(spec.id, spec.source, spec.destination) for spec in done.engine.started] == [
        (0, "p0g0", "d0g0"), (1, "p0g1", "d0g1"), (2, "p0g2", "d0g2"),
    ]  # fmt: skip
    assert [spec.check for spec in done.engine.started] == [True, False, False]


def test_layers_are_released_when_they_are_computed_on_the_scaled_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefill of 1 s from 0.5 s on, in 4 layers: a quarter of 750 KB, shrunk 25 times, every emulated second."""
    spec = Replayed([turn(0, 0.5)], monkeypatch, tp=1).engine.started[0]
    assert spec.released_at == pytest.approx([EPOCH + TIME * (0.5 + quarter / 4) for quarter in (1, 2, 3, 4)])
    assert spec.released_bytes == (7500, 15000, 22500, 30000)
    assert spec.head_bytes == 0


def test_every_turn_and_flow_is_accounted_once_and_the_run_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [turn(number, 0.3 * number, session=f"s{number % 3}", context=400 * (number % 3)) for number in range(8)]
    done = Replayed(turns, monkeypatch, tp=2)
    assert sorted(end.turn.id for end in done.turns) == list(range(8))
    assert sorted(flow.spec.id for flow in done.flows) == list(range(16))
    assert sorted(transfer.start.transfer for transfer in done.transfers) == list(range(8))
    assert all(transfer.ended_s is not None and transfer.failed is None for transfer in done.transfers)
    assert done.replay.transfers == {}
    assert done.engine.now < EPOCH + TIME * 100


def test_a_turn_ends_with_the_last_byte_of_its_last_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Replayed([turn(0, 0.5)], monkeypatch, tp=2)
    (transfer,) = done.transfers
    last = max(flow.delivered for flow in done.flows)
    assert transfer.ended_s == pytest.approx((last - EPOCH) / TIME)
    assert done.turns[0].failed is None


def test_one_flow_that_fails_fails_the_transfer_and_the_turn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Replayed([turn(0, 0.0), turn(1, 3.0)], monkeypatch, tp=2, broken=frozenset({0}))
    assert [(transfer.start.transfer, transfer.failed) for transfer in done.transfers] == [(0, "reset"), (1, None)]
    assert [(end.turn.id, end.failed) for end in done.turns] == [(0, "reset"), (1, None)]
    assert len(done.flows) == 4


def test_a_run_that_gives_up_leaves_what_is_on_the_wire_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Replayed([turn(0, 0.0), turn(1, 0.2)], monkeypatch, tp=2, give_up_s=0.9)
    assert done.turns == []
    assert set(done.replay.transfers) == {0}
    assert [spec.id for spec in done.engine.started] == [0, 1]


def test_no_turns_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Replayed([], monkeypatch).engine.now == EPOCH - 1


def test_a_transfer_of_less_than_a_byte_is_one_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Replayed([turn(0, 0.5, new=1)], monkeypatch, tp=1, bytes_per_token=1.0)
    assert [(len(spec.released_at), spec.bytes) for spec in done.engine.started] == [(1, 1)]
    assert len(done.turns) == 1
