"""The optical network's state machine on the real clock: its timers, gates and circuits become the engine's and the controller's.

Nothing is decided here. What the machine says is done at its instant, what the controller and the flows report goes back.
Real-cluster seconds on the machine's side, monotonic seconds and nanoseconds on the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, monotonic_ns

from controller.client import Answers, ControllerGone, OcsClient, Received, Rejected
from controller.ocs_messages import Answer, Event, EventKind, Order, Outcome
from controller.optical import OpticalNetwork
from controller.optical_events import CloseGate, Connect, GiveUp, OpenGate, OpticalInstruction, SetTimer, WindowRecord
from kvfabric.ocs_process import complaint
from topo.optical import Optical
from topo.scale import Scale
from workloads.events import ReleaseSchedule, StartTransfer, TurnQueued
from workloads.replay.engine import ReplayEngine
from workloads.replay.flows import FlowResult, FlowSpec

_ANSWER_S = 5.0
"""How long a circuit may be without news after its instant: beyond any τ and any bound of the controller's own."""


@dataclass(slots=True)
class Command:
    """A circuit that was commanded on all planes of an instance pair, and what came of it, in monotonic nanoseconds.

    ``planned_ns`` is when its ports were to go dark; ``dark_ns`` and ``up_ns`` are the slowest plane's, ``dark_times_ns`` what
    each plane was dark; ``waiting`` counts planes that have not answered.
    """

    prefill: int
    decode: int
    planned_ns: int
    waiting: int
    dark_ns: int = 0
    up_ns: int = 0
    dark_times_ns: list[int] = field(default_factory=list)
    failed: str | None = None


@dataclass(slots=True)
class _Transfer:
    start: StartTransfer
    specs: tuple[FlowSpec, ...]
    gate: int = 0  # counts what was said of its gate: an instruction before the last one is void
    draining: dict[int, int | None] = field(default_factory=dict)  # flow → bytes arrived once drained

    @property
    def size(self) -> int:
        """Real bytes per port."""
        return self.start.head_bytes + self.start.tail_bytes

    def real_bytes(self, emulated: int) -> float:
        """What so many bytes of one of its flows are on the real cluster."""
        return emulated / self.specs[0].bytes * self.size


class CircuitDriver:
    """Drives one window. ``epoch`` is its first second on the monotonic clock; it is the network of a TurnReplay.

    ``on_window`` receives the record of every window that is over with its command (None where the circuit stood), ``on_fault``
    what went wrong, in words.
    """

    def __init__(self, network: OpticalNetwork, engine: ReplayEngine, client: OcsClient, optical: Optical, scale: Scale, *,
                 epoch: float, on_window: Callable[[WindowRecord, Command | None], None],
                 on_fault: Callable[[str], None]) -> None:  # fmt: skip
        self._network = network
        self._engine = engine
        self._client = client
        self._optical = optical
        self._scale = scale
        self._epoch = epoch
        self._on_window = on_window
        self._on_fault = on_fault
        self._transfers: dict[int, _Transfer] = {}
        self._commands: dict[str, Command] = {}
        self._requests: dict[int, str] = {}
        self._last: dict[tuple[int, int], Command] = {}
        self._serial = 0
        self._gone: str | None = None
        engine.on_drained = self._drained

    # TransferNetwork

    def queued(self, notice: TurnQueued) -> None:
        """See TransferNetwork."""
        self._obey(self._network.turn_queued(notice, self._now_s()))

    def started(self, start: StartTransfer, schedule: ReleaseSchedule, specs: tuple[FlowSpec, ...]) -> None:
        """See TransferNetwork."""
        self._transfers[start.transfer] = _Transfer(start, specs)
        self._obey(self._network.transfer_started(start, schedule, self._now_s()))

    def head_delivered(self, transfer: int, at_s: float) -> None:
        """See TransferNetwork."""
        self._obey(self._network.head_delivered(transfer, at_s))

    def flow_ended(self, result: FlowResult) -> None:
        """See TransferNetwork. When one flow of a transfer fails the others are not waited for: they hold a circuit."""
        transfer = result.spec.id // self._optical.cluster.tp
        live = self._transfers.get(transfer)
        if live is None:
            return
        if result.failed is not None:
            self._end_flows(live, result.failed)
        elif result.spec.id in live.draining:
            self._drained(result.spec, result.received)

    def ended(self, transfer: int, at_s: float) -> None:
        """See TransferNetwork."""
        self._obey(self._network.transfer_ended(transfer, at_s))
        del self._transfers[transfer]  # not before: what is overdue is asked about first

    # What the state machine asks

    def left_bytes(self, transfer: int) -> float:
        """Real bytes per port of a transfer that have not arrived: the largest of its flows."""
        live = self._transfers[transfer]
        left = max(self._engine.outstanding(spec.id) for spec in live.specs)
        return live.real_bytes(left)

    # Instructions

    def _now_s(self) -> float:
        return self._scale.to_real_time(monotonic() - self._epoch)

    def _at(self, real_s: float) -> float:
        return self._epoch + self._scale.to_emu_time(real_s)

    def _obey(self, instructions: tuple[OpticalInstruction, ...]) -> None:
        for one in instructions:
            if isinstance(one, SetTimer):
                token = one.token
                self._engine.call_at(self._at(one.at_s), lambda token=token: self._timer(token))  # type: ignore[misc]
            elif isinstance(one, Connect):
                self._connect(one)
            elif isinstance(one, OpenGate):
                self._open(one)
            elif isinstance(one, CloseGate):
                self._close(one.transfer)
            elif isinstance(one, GiveUp):
                self._give_up(one)
            else:
                self._window_over(one)

    def _window_over(self, record: WindowRecord) -> None:
        self._on_window(record, None if record.reused else self._last.get((record.prefill, record.decode)))

    def _timer(self, token: int) -> None:
        self._obey(self._network.timer_fired(token, self._now_s()))

    def _open(self, one: OpenGate) -> None:
        live = self._transfers.get(one.transfer)
        if live is None:
            return
        live.gate += 1
        gate, whole = live.gate, one.upto_bytes >= live.size

        def open_now() -> None:
            if live.gate == gate:
                for spec in live.specs:
                    self._engine.open_gate(spec.id, spec.bytes if whole else spec.head_bytes, at)

        at = self._at(one.at_s)
        if at <= monotonic():
            open_now()
        else:
            self._engine.call_at(at, open_now)

    def _close(self, transfer: int) -> None:
        live = self._transfers.get(transfer)
        if live is None:
            return
        live.gate += 1
        live.draining = {spec.id: None if self._engine.is_gated(spec.id) else spec.bytes for spec in live.specs}
        for spec in live.specs:
            self._engine.close_gate(spec.id)

    def _drained(self, spec: FlowSpec, received: int) -> None:
        transfer = spec.id // self._optical.cluster.tp
        live = self._transfers.get(transfer)
        if live is None or spec.id not in live.draining:
            return
        live.draining[spec.id] = received
        arrived = [count for count in live.draining.values() if count is not None]
        if len(arrived) == len(live.specs):
            live.draining = {}
            self._obey(self._network.gate_drained(transfer, live.real_bytes(min(arrived)), self._now_s()))

    def _give_up(self, one: GiveUp) -> None:
        self._on_fault(f"transfer {one.transfer} was given up: {one.reason}")
        live = self._transfers.get(one.transfer)
        if live is not None:
            self._end_flows(live, one.reason)

    def _end_flows(self, live: _Transfer, reason: str) -> None:
        """From the loop: whoever reports a failure, or gives up, is not done with what it is doing."""
        for spec in live.specs:
            self._engine.call_at(monotonic(), lambda spec=spec: self._engine.give_up(spec.id, reason))  # type: ignore[misc]

    # Circuits

    def _connect(self, one: Connect) -> None:
        self._serial += 1
        tag, at_ns = str(self._serial), round(self._at(one.at_s) * 1e9)
        ports: dict[tuple[int, int], list[int]] = {}
        for circuit in self._optical.circuits(one.prefill, one.decode):
            ports.setdefault((circuit.prefill_port, circuit.decode_port), []).append(circuit.plane)
        orders = tuple(
            Order(a=a, b=b, planes=tuple(planes), at_ns=at_ns, replace=True, force=one.fresh, tag=tag)
            for (a, b), planes in ports.items()
        )
        command = Command(one.prefill, one.decode, at_ns, sum(len(order.planes) for order in orders))
        self._commands[tag] = self._last[one.prefill, one.decode] = command
        reason = self._gone
        if reason is None:
            try:
                self._requests[self._client.connect(*orders)] = tag
            except ControllerGone as gone:
                reason = str(gone)
        if reason is None:
            silent = f"the controller has not answered for {_ANSWER_S:g} s"
            self._engine.call_at(max(monotonic(), at_ns / 1e9) + _ANSWER_S, lambda: self._failed(tag, silent))
        else:
            # From the loop: the state machine is in the middle of its instructions.
            self._engine.call_at(monotonic(), lambda: self._failed(tag, reason))

    def receive(self) -> None:
        """To be called when the client has something to read."""
        try:
            received = self._client.receive()
        except ControllerGone as gone:
            self._lose(f"the controller is gone: {gone}")
            return
        for one in received:
            self._take(one)

    def _lose(self, reason: str) -> None:
        """No circuit will be moved any more; those that stand go on. Told once."""
        if self._gone is None:
            self._gone = reason
            self._on_fault(reason)
            for fileno in self._client.filenos:
                self._engine.forget(fileno)
            for tag in list(self._commands):
                self._failed(tag, reason)

    def _take(self, one: Received) -> None:
        if isinstance(one, Event):
            self._event(one)
        elif isinstance(one, Rejected):
            self._failed(self._requests.pop(one.request), f"the controller rejected a command: {one.error}")
        elif isinstance(one, Answers):
            tag = self._requests.pop(one.request, None)
            for answer in one.answers:
                if tag is not None:
                    self._answer(tag, answer)

    def _answer(self, tag: str, answer: Answer) -> None:
        if answer.outcome is Outcome.REFUSED:
            self._failed(tag, f"plane {answer.plane}: circuit {answer.a}-{answer.b} was refused: {answer.reason}")
        elif answer.outcome is Outcome.STANDING:
            self._arrived(tag, None, answer.up_ns or monotonic_ns())

    def _event(self, event: Event) -> None:
        fault = complaint(event)
        if fault is not None:
            self._on_fault(fault)
        if event.tag not in self._commands:
            return
        if event.kind is EventKind.ARMED and event.up_ns is not None:
            self._arrived(event.tag, event.dark_ns, event.up_ns)
        elif event.kind is EventKind.ERROR and event.up_ns is None:
            self._failed(event.tag, fault or "an error of the controller")

    def _arrived(self, tag: str, dark_ns: int | None, up_ns: int) -> None:
        command = self._commands.get(tag)
        if command is None:  # another plane has failed it
            return
        command.waiting -= 1
        command.up_ns = max(command.up_ns, up_ns)
        if dark_ns is not None:
            command.dark_ns = max(command.dark_ns, dark_ns)
            command.dark_times_ns.append(up_ns - dark_ns)
        if command.waiting == 0:
            del self._commands[tag]
            up_s = self._scale.to_real_time(command.up_ns / 1e9 - self._epoch)
            self._obey(self._network.circuit_up(command.prefill, command.decode, up_s, self._now_s()))

    def _failed(self, tag: str, reason: str) -> None:
        command = self._commands.pop(tag, None)
        if command is not None:
            command.failed = reason
            self._obey(self._network.circuit_failed(command.prefill, command.decode, reason, self._now_s()))

    def close_books(self) -> None:
        """Records of the windows that are not over."""
        for record in self._network.held(self._now_s()):
            self._window_over(record)
