"""The optical network on the real clock, with an engine and a controller of the test's own: what is asked, told and given up."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from time import monotonic
from typing import Any, cast

import pytest

from controller.client import Answers, ControllerGone, OcsClient, Received, Rejected
from controller.ocs_messages import Answer, Event, EventKind, Order, Outcome
from controller.optical import OpticalNetwork
from controller.optical_config import OpticalConfig
from controller.optical_events import WindowRecord
from kvfabric import circuit_driver
from kvfabric.circuit_driver import CircuitDriver, Command
from topo.cluster import Cluster
from topo.optical import Optical
from topo.scale import Scale
from workloads.events import ReleaseSchedule, StartTransfer
from workloads.replay.engine import ReplayEngine
from workloads.replay.flows import FlowResult, FlowSpec

pytestmark = pytest.mark.unit

TP = 2
SCALE = Scale(1e6, 1e6, 1.0)
TAU_S = 0.05


class FakeEngine:
    def __init__(self) -> None:
        self.said: list[tuple[str, int, int]] = []
        self.left: dict[int, int] = {}
        self.forgotten: list[int] = []
        self.on_drained: Callable[[FlowSpec, int], None] | None = None
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def call_at(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._order), action))

    def run(self, until: float) -> None:
        """What is due until then, at once: the driver reads the real clock, so no test here waits for longer than it must."""
        while self._due and self._due[0][0] <= until:
            heapq.heappop(self._due)[2]()

    def open_gate(self, flow: int, upto: int, planned: float | None = None) -> None:
        del planned
        self.said.append(("open", flow, upto))

    def close_gate(self, flow: int) -> None:
        self.said.append(("close", flow, 0))

    def give_up(self, flow: int, reason: str) -> None:
        self.said.append((f"give up: {reason}", flow, 0))

    def is_gated(self, flow: int) -> bool:
        return flow in self.left

    def outstanding(self, flow: int) -> int:
        return self.left.get(flow, 0)

    def forget(self, fd: int) -> None:
        self.forgotten.append(fd)


class FakeClient:
    filenos = (101, 102)

    def __init__(self) -> None:
        self.orders: list[tuple[Order, ...]] = []
        self.incoming: list[Received] = []
        self.gone: str | None = None

    def connect(self, *orders: Order) -> int:
        if self.gone:
            raise ControllerGone(0, self.gone)
        self.orders.append(orders)
        return len(self.orders)

    def receive(self) -> tuple[Received, ...]:
        if self.gone:
            raise ControllerGone(0, self.gone)
        found, self.incoming = tuple(self.incoming), []
        return found


class Rig:
    """Two prefill and two decode instances of two GPUs, two planes; rate 1 MB/s, real time."""

    def __init__(self, *, planes: int = 2, policy: Any = "reservation", overrun: Any = "slide") -> None:
        self.engine, self.client = FakeEngine(), FakeClient()
        self.windows: list[tuple[WindowRecord, Command | None]] = []
        self.faults: list[str] = []
        config = OpticalConfig(
            prefill=2, decode=2, layers=1, rate_Bps=1e6, tau_s=TAU_S, policy=policy, overrun=overrun, grace_s=1e-3
        )  # fmt: skip
        network = OpticalNetwork(config, left_bytes=lambda t: self.driver.left_bytes(t))  # noqa: PLW0108 - made next
        self.epoch = monotonic()
        self.driver = CircuitDriver(
            network, cast(ReplayEngine, self.engine), cast(OcsClient, self.client),
            Optical(Cluster(2, 2, TP, 2), 1e6, planes), SCALE,
            epoch=self.epoch,
            on_window=lambda record, command: self.windows.append((record, command)),
            on_fault=self.faults.append,
        )  # fmt: skip

    def start(self, transfer: int = 0, *, head: int = 1000, tail: int = 100, prefill: int = 0, decode: int = 1) -> None:
        now_s = monotonic() - self.epoch
        start = StartTransfer(transfer, transfer, prefill, decode, head, tail, "layerwise", now_s, (now_s + 0.5,))
        schedule = ReleaseSchedule(transfer, (now_s, now_s + 0.5), (head, head + tail))
        at = tuple(self.epoch + at_s for at_s in schedule.at_s)
        specs = tuple(
            FlowSpec(transfer * TP + g, f"p{prefill}g{g}", f"d{decode}g{g}", 0, at, (head, head + tail), head, gated=True)
            for g in range(TP)
        )
        self.engine.left |= {spec.id: head + tail for spec in specs}
        self.driver.started(start, schedule, specs)

    def armed(self, planes: tuple[int, ...], up_in_s: float = TAU_S) -> None:
        (order,) = {order.tag for order in self.client.orders[-1]}
        now_ns = round(monotonic() * 1e9)
        for plane in planes:
            up_ns = now_ns + round((up_in_s + plane * 1e-3) * 1e9)
            self.client.incoming.append(
                Event(
                    kind=EventKind.ARMED, at_ns=now_ns, plane=plane, a=0, b=3, tag=order, dark_ns=up_ns - 50_000_000, up_ns=up_ns
                )
            )
        self.driver.receive()

    def result(self, flow: int, failed: str | None = None) -> FlowResult:
        spec = FlowSpec(flow, "", "", 0, (0.0,), (1100,), 1000, gated=True)
        self.engine.left.pop(flow, None)
        now = monotonic()
        return FlowResult(spec, 1, 2, False, now, None, now, 1100, 0, 0, None, 0.0, None, failed)


def test_a_circuit_is_commanded_on_every_plane_in_one_request() -> None:
    rig = Rig()
    rig.start()
    (orders,) = rig.client.orders
    assert sorted(plane for order in orders for plane in order.planes) == [0, 1]
    assert {(order.a, order.b, order.replace, order.force) for order in orders} == {(0, 3, True, False)}
    assert orders[0].at_ns is not None
    assert abs(orders[0].at_ns / 1e9 - monotonic()) < 0.5


def test_gates_open_when_the_slowest_plane_is_up_and_only_as_far_as_the_head() -> None:
    rig = Rig()
    rig.start()
    rig.armed((0,))
    rig.engine.run(monotonic() + 0.4)
    assert rig.engine.said == []
    rig.armed((1,), up_in_s=0.2)
    rig.engine.run(monotonic() + 0.1)
    assert rig.engine.said == []
    rig.engine.run(monotonic() + 0.25)
    assert rig.engine.said == [("open", 0, 1000), ("open", 1, 1000)]


def test_a_refusal_gives_the_transfer_up_with_the_controllers_reason() -> None:
    rig = Rig()
    rig.start()
    answer = Answer(plane=1, a=0, b=3, outcome=Outcome.REFUSED, reason="busy port")
    rig.client.incoming.append(Answers(1, (answer,)))
    rig.driver.receive()
    rig.engine.run(monotonic() + 0.01)
    assert [flow for what, flow, _ in rig.engine.said if "busy port" in what] == [0, 1]
    assert any("transfer 0 was given up" in fault and "busy port" in fault for fault in rig.faults)


@pytest.mark.parametrize(
    "bad",
    [
        Rejected(1, 400, "not JSON"),
        Event(kind=EventKind.ERROR, at_ns=0, plane=0, tag="1", detail="no barrier within 1 s"),
    ],
)
def test_what_the_controller_cannot_do_is_a_fault_and_an_end(bad: Received) -> None:
    rig = Rig()
    rig.start()
    rig.client.incoming.append(bad)
    rig.driver.receive()
    rig.engine.run(monotonic() + 0.01)
    assert len([flow for what, flow, _ in rig.engine.said if what.startswith("give up")]) == TP
    assert rig.faults


def test_a_late_error_whose_circuit_is_up_all_the_same_ends_nothing() -> None:
    rig = Rig()
    rig.start()
    rig.client.incoming.append(Event(kind=EventKind.ERROR, at_ns=0, plane=0, tag="1", detail="2 ms late", up_ns=5))
    rig.driver.receive()
    rig.engine.run(monotonic() + 0.01)
    assert rig.engine.said == []
    assert rig.faults == ["plane 0: 2 ms late"]


def test_a_controller_that_is_gone_is_told_once_and_later_circuits_fail_at_once() -> None:
    rig = Rig()
    rig.start()
    rig.client.gone = "connection reset"
    rig.driver.receive()
    rig.driver.receive()
    assert rig.engine.forgotten == [101, 102]
    assert sum("controller is gone" in fault and "given up" not in fault for fault in rig.faults) == 1
    rig.start(1, prefill=1, decode=0)
    rig.engine.run(monotonic() + 0.01)
    assert {flow for what, flow, _ in rig.engine.said if what.startswith("give up")} == {0, 1, 2, 3}


def test_a_controller_that_never_answers_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_driver, "_ANSWER_S", 0.2)
    rig = Rig()
    rig.start()
    rig.engine.run(monotonic() + 0.3)
    assert any("has not answered" in what for what, _, _ in rig.engine.said)


def test_a_failed_flow_takes_the_others_of_its_transfer_with_it() -> None:
    rig = Rig()
    rig.start()
    rig.driver.flow_ended(rig.result(0, "Connection reset by peer"))
    rig.engine.run(monotonic() + 0.01)
    assert ("give up: Connection reset by peer", 1, 0) in rig.engine.said


def test_a_window_is_recorded_with_its_command_when_its_head_has_arrived() -> None:
    rig = Rig()
    rig.start()
    rig.armed((0, 1), up_in_s=0.0)
    rig.driver.head_delivered(0, monotonic() - rig.epoch)
    ((record, command), *_) = rig.windows
    assert (record.transfer, record.part, record.reused) == (0, "head", False)
    assert command is not None
    assert (command.waiting, len(command.dark_times_ns), max(command.dark_times_ns)) == (0, 2, 50_000_000)
    for flow in (0, 1):
        rig.driver.flow_ended(rig.result(flow))
    rig.driver.ended(0, monotonic() - rig.epoch)
    rig.driver.close_books()
    assert {record.part for record, _ in rig.windows} == {"head", "tail"}


def test_one_plane_for_all_positions_takes_an_order_for_each() -> None:
    rig = Rig(planes=1)
    rig.start()
    assert sorted((order.a, order.b) for order in rig.client.orders[0]) == [(0, 3), (4, 7)]
    assert {order.planes for order in rig.client.orders[0]} == {(0,)}
