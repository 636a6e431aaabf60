"""One plane of the optical switch under control: orders, barrier replies and the time go in, instructions come out.

Who may connect what is the crossbar's to say. Here are the steps that carry out what it says, as a switch with rules needs them,
in either of two ways (``Keeper``):

- ``light``: shutters cut the ports off from the instant ordered; rules are exchanged behind them, and when the switch has
  confirmed, the shutters are given the instant of up: τ after dark, or later if the switch was late, which is an error event.
- ``timer``: rules are removed; τ later, less what the switch usually takes, the new ones are added. They may carry light a few
  milliseconds before the circuit is called up.

A barrier's reply can precede the change of the data plane, so a circuit is not called up before ``settle_ns`` after it. Nothing
waits for ever: what is not confirmed within ``barrier_ns`` fails, and the switch is dropped so that it is synchronised anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from controller.ocs_config import PlaneConfig, Timing
from controller.ocs_messages import Answer, Event, EventKind, Keeper, Order, Outcome, PlaneState, Verb
from controller.ocs_steps import Drop, Emit, Instruction, Open, Send, Shut
from ocs_switch.crossbar import Circuit, Crossbar, Dark, Down, Refusal, Refused, Up
from ocs_switch.crossbar import Event as CrossbarEvent
from ocs_switch.rules import Rule, RuleChange, rules

TIMER_TOLERANCE_NS = 1_000_000
"""With the timer, later than this is an error; with light, anything is."""

_FIRST_LATENCY_NS = 500_000
_SHARE, _SPREAD = 8, 4  # a new latency counts 1/8 in the estimate; four mean deviations are allowed for, as TCP does (RFC 6298)


@dataclass(slots=True)
class _Task:
    """An order that was accepted and is not finished. ``wake_ns``: when it does something by itself."""

    order: Order
    ports: frozenset[int]  # the two, and the peers they leave behind
    asked_ns: int
    dark_ns: int  # ordered; with the timer corrected to what the switch confirmed
    wake_ns: int
    started: bool = False
    token: int | None = None  # of the barrier that is waited for
    sent_ns: int = 0
    commanded_ns: int | None = None
    downs: tuple[Circuit, ...] = ()
    add: tuple[Rule, ...] = ()  # to be sent later: the timer's second step
    up_ns: int | None = None  # fixed: armed

    @property
    def circuit(self) -> Circuit:
        return Circuit.of(self.order.a, self.order.b)


class Plane:
    """One plane; ``index`` is its number in messages. No switch at first. Instants never go back."""

    def __init__(self, index: int, config: PlaneConfig, timing: Timing, keeper: Keeper) -> None:
        self.index = index
        self.keeper = keeper
        self.crossbar = Crossbar(config.ports, config.tau_s)
        self.state = "disconnected"
        self._latency_ns, self._deviation_ns = _FIRST_LATENCY_NS, _FIRST_LATENCY_NS // 2
        self._config = config
        self._tau_ns = round(config.tau_s * 1e9)
        self._settle_ns = round(timing.settle_s * 1e9)
        self._barrier_ns = round(timing.barrier_s * 1e9)
        self._tasks: list[_Task] = []
        self._token = 0
        self._watched: tuple[int, int] | None = None  # a reply that is waited for besides the tasks': its token, until when

    @property
    def next_wake_ns(self) -> int | None:
        """When ``advance`` is due."""
        due = [task.wake_ns for task in self._tasks] + ([] if self._watched is None else [self._watched[1]])
        return min(due, default=None)

    def intended(self) -> frozenset[Rule]:
        """The rules the switch must have when it is synchronised: of circuits that are up or sure to come up."""
        armed = {task.circuit for task in self._tasks if task.up_ns is not None}
        return rules(self.crossbar.circuits | armed)

    def describe(self) -> PlaneState:
        config = self._config
        announced = {task.circuit for task in self._tasks if not task.started}
        return PlaneState(
            plane=self.index, dpid=f"{config.dpid:016x}", state=self.state, ports=config.ports, tau_s=config.tau_s,
            keeper=self.keeper, circuits=_pairs(self.crossbar.circuits), moving=_pairs(self.crossbar.moving),
            announced=_pairs(announced),
        )  # fmt: skip

    # The switch.

    def connected(self, now_ns: int) -> list[Instruction]:
        """A switch is there; it takes no orders before it is synchronised, and has as long for that as for a barrier."""
        self.state = "synchronising"
        self._watched = (0, now_ns + self._barrier_ns)
        return [self._say(EventKind.CONNECTED, now_ns)]

    def synchronised(self, now_ns: int) -> list[Instruction]:
        """The switch has exactly the rules of ``intended``."""
        self.state, self._watched = "ready", None
        out = self.advance(now_ns)
        if self.keeper is Keeper.LIGHT:
            lit = {port for one in self.crossbar.circuits for port in (one.a, one.b)}
            armed = {port for task in self._tasks for port in task.ports}
            out += [Open(port) if port in lit else Shut(port, 0) for port in range(self.crossbar.ports) if port not in armed]
        return [*out, self._say(EventKind.READY, now_ns)]

    def lost(self, now_ns: int, reason: str) -> list[Instruction]:
        """The switch is gone. Standing circuits stay, as its rules do; what was not confirmed fails."""
        out: list[Instruction] = []
        self.state, self._watched = "disconnected", None
        for task in [task for task in self._tasks if task.up_ns is None]:
            out += self._fail(task, now_ns, f"the switch was lost: {reason}")
        return [*out, self._say(EventKind.DISCONNECTED, now_ns, detail=reason)]

    def error(self, now_ns: int, detail: str) -> list[Instruction]:
        """The switch cannot be relied on: it is dropped, to be synchronised anew."""
        return [self._say(EventKind.ERROR, now_ns, detail=detail), Drop(detail)]

    def probe(self, now_ns: int) -> list[Instruction]:
        """See whether the switch still answers; if not, it is dropped after the time of a barrier."""
        if self._watched is not None:
            return []
        self._token += 1
        self._watched = (self._token, now_ns + self._barrier_ns)
        return [Send(self._token, RuleChange((), ()))]

    # Orders.

    def ask(self, order: Order, now_ns: int) -> tuple[Answer, list[Instruction]]:
        """Accept or refuse an order for this plane, and begin with it."""
        out = self.advance(now_ns)
        answer, reason = self._outcome(order, now_ns)
        if reason:
            answer = replace(answer, outcome=Outcome.REFUSED, reason=reason)
            out.append(self._say(EventKind.REFUSED, now_ns, order, asked_ns=now_ns, detail=reason))
        if answer.outcome not in (Outcome.ANNOUNCED, Outcome.STARTED) or self._task_of(order) is not None:
            return answer, out
        dark_ns = answer.dark_ns or now_ns
        task = _Task(order, frozenset(self._touched(order)), now_ns, dark_ns, wake_ns=dark_ns)
        self._tasks.append(task)
        if self.keeper is Keeper.LIGHT:
            out += [Shut(port, dark_ns) for port in sorted(task.ports)]
        if dark_ns <= now_ns:
            out += self._start(task, now_ns)
        return answer, out

    def _outcome(self, order: Order, now_ns: int) -> tuple[Answer, str]:
        """The answer, and why it is a refusal. Ports with an announced order are as if moving, so that what is answered now holds
        when the instant comes."""
        answer = Answer(plane=self.index, a=order.a, b=order.b, tag=order.tag, outcome=Outcome.REFUSED)
        if self.state != "ready":
            return answer, "no switch" if self.state == "disconnected" else "the switch is being synchronised"
        connect = order.verb is Verb.CONNECT
        refused = self.crossbar.refusal(order.a, order.b, now_ns / 1e9, replace=order.replace or not connect)
        if refused is not None:
            return answer, f"{refused.reason.value} {refused.port}"
        same = self._task_of(order)
        if same is not None and connect and same.order.verb is Verb.CONNECT:
            outcome = Outcome.STARTED if same.started else Outcome.ANNOUNCED
            return replace(answer, outcome=outcome, dark_ns=same.dark_ns, up_ns=same.up_ns), ""
        if same is not None and same.started:  # the crossbar's rule too: a mirror in motion takes no command
            return answer, f"{Refusal.MOVING.value} {order.a}"
        dark_ns = max(order.at_ns or 0, now_ns)
        locked = self._locked(order, dark_ns)
        if locked:
            return answer, f"{Refusal.MOVING.value} {min(locked)}"
        joined = self.crossbar.peer(order.a) == order.b
        if joined and connect and not order.force:
            return replace(answer, outcome=Outcome.STANDING), ""
        if not joined and not connect:
            return replace(answer, outcome=Outcome.ABSENT), ""
        return replace(answer, outcome=Outcome.ANNOUNCED if dark_ns > now_ns else Outcome.STARTED, dark_ns=dark_ns), ""

    def _locked(self, order: Order, dark_ns: int) -> set[int]:
        """Ports on which an announced order is in the way. Orders for one instant may take over what others leave behind: a plane
        can be joined anew in one request."""
        locked: set[int] = set()
        for task in self._tasks:
            if not task.started:
                own = dark_ns == task.dark_ns
                locked |= {order.a, order.b} & {task.order.a, task.order.b} if own else self._touched(order) & task.ports
        return locked

    def _is_mere_removal(self, task: _Task) -> bool:
        """Rules are on their way out and nothing comes in their place: the switch does things in order, so who comes next may."""
        return task.started and task.order.verb is Verb.DISCONNECT

    def _task_of(self, order: Order) -> _Task | None:
        circuit = Circuit.of(order.a, order.b)
        return next((t for t in self._tasks if t.circuit == circuit and not self._is_mere_removal(t)), None)

    def _touched(self, order: Order) -> set[int]:
        peers = {self.crossbar.peer(port) for port in (order.a, order.b)}
        return {order.a, order.b} | {peer for peer in peers if peer is not None}

    def _start(self, task: _Task, now_ns: int) -> list[Instruction]:
        """The instant has come: tell the crossbar, and the switch what follows from it."""
        order, now_s = task.order, now_ns / 1e9
        events: tuple[CrossbarEvent, ...] = ()
        if order.verb is Verb.DISCONNECT or (order.force and self.crossbar.peer(order.a) == order.b):
            events += self.crossbar.disconnect(order.a, order.b, now_s)
        if order.verb is Verb.CONNECT:
            events += self.crossbar.connect(order.a, order.b, now_s, replace=order.replace, until_s=math.inf)
        task.started, task.commanded_ns = True, now_ns
        task.downs = tuple(event.circuit for event in events if isinstance(event, Down))
        out: list[Instruction] = []
        for event in events:
            if isinstance(event, Up):
                out += self._risen(event.circuit, now_ns)
            assert not isinstance(event, Refused), "nothing may change between an order's answer and its instant"
        remove = tuple(sorted(rules(task.downs)))
        add = tuple(sorted(rules(event.circuit for event in events if isinstance(event, Dark))))
        if self.keeper is Keeper.LIGHT:
            return [*out, self._send(task, RuleChange(remove, add), now_ns), *self._darkened(task, now_ns)]
        task.add = add
        return [*out, self._send(task, RuleChange(remove, ()), now_ns)]

    def _send(self, task: _Task, change: RuleChange, now_ns: int) -> Send:
        self._token += 1
        task.token, task.sent_ns, task.wake_ns = self._token, now_ns, now_ns + self._barrier_ns
        return Send(self._token, change)

    def _darkened(self, task: _Task, now_ns: int) -> list[Instruction]:
        downs = [replace(task.order, a=one.a, b=one.b) for one in task.downs]
        out: list[Instruction] = [self._say(EventKind.DOWN, now_ns, one, task) for one in downs]
        if task.order.verb is Verb.CONNECT:
            out.append(self._say(EventKind.DARK, now_ns, task.order, task))
        return out

    # What follows.

    def confirmed(self, token: int, now_ns: int) -> list[Instruction]:
        """The reply to a barrier. One that belongs to nothing (it was given up) is left alone."""
        if self._watched is not None and self._watched[0] == token:
            self._watched = None
        task = next((task for task in self._tasks if task.token == token), None)
        if task is None:
            return self.advance(now_ns)
        task.token = None
        out: list[Instruction] = []
        timed = self.keeper is Keeper.TIMER and (task.add or task.order.verb is Verb.DISCONNECT)
        if timed:
            task.dark_ns = now_ns
            out += self._darkened(task, now_ns)
        if task.order.verb is Verb.DISCONNECT:
            self._tasks.remove(task)
        elif timed:
            early_ns = self._latency_ns + _SPREAD * self._deviation_ns + self._settle_ns
            task.wake_ns = max(now_ns, now_ns + self._tau_ns - early_ns)
        else:
            error_ns = now_ns - task.sent_ns - self._latency_ns
            self._latency_ns += error_ns // _SHARE
            self._deviation_ns += (abs(error_ns) - self._deviation_ns) // _SHARE
            out += self._arm(task, now_ns)
        return [*out, *self.advance(now_ns)]

    def _arm(self, task: _Task, now_ns: int) -> list[Instruction]:
        due_ns = task.dark_ns + self._tau_ns
        task.up_ns = task.wake_ns = max(due_ns, now_ns + self._settle_ns)
        self.crossbar.settle(task.order.a, task.order.b, task.up_ns / 1e9)
        out: list[Instruction] = []
        if self.keeper is Keeper.LIGHT:
            out += [Shut(port, task.dark_ns, task.up_ns) for port in (task.order.a, task.order.b)]
        late_ns = task.up_ns - due_ns
        out.append(self._say(EventKind.ARMED, now_ns, task.order, task, late_ns=late_ns or None))
        if late_ns > (0 if self.keeper is Keeper.LIGHT else TIMER_TOLERANCE_NS):
            detail = (
                f"up {late_ns / 1e6:.3f} ms late: the switch confirmed {(now_ns - task.sent_ns) / 1e6:.3f} ms after the rules"
            )
            out.append(self._say(EventKind.ERROR, now_ns, task.order, task, late_ns=late_ns, detail=detail))
        return out

    def advance(self, now_ns: int) -> list[Instruction]:
        """Do what is due."""
        out: list[Instruction] = []
        for event in self.crossbar.advance(now_ns / 1e9):
            assert isinstance(event, Up)
            out += self._risen(event.circuit, now_ns)
        for task in [task for task in self._tasks if task.wake_ns <= now_ns and task.up_ns is None]:
            if not task.started:
                out += self._start(task, now_ns)
            elif task.token is None:
                add, task.add = task.add, ()
                out.append(self._send(task, RuleChange((), add), now_ns))
            else:
                detail = f"no reply to a barrier within {self._barrier_ns / 1e9:g} s"
                out += [*self._fail(task, now_ns, detail), Drop(detail)]
        if self._watched is not None and self._watched[1] <= now_ns:
            self._watched = None
            out += self.error(now_ns, f"the switch did not answer within {self._barrier_ns / 1e9:g} s")
        return out

    def _risen(self, circuit: Circuit, now_ns: int) -> Iterator[Instruction]:
        task = next(task for task in self._tasks if task.up_ns is not None and task.circuit == circuit)
        self._tasks.remove(task)
        yield self._say(EventKind.UP, now_ns, task.order, task)

    def _fail(self, task: _Task, now_ns: int, detail: str) -> list[Instruction]:
        """Give an order up. Its ports stay dark once it has begun; if it was only announced, all stays as it was."""
        self._tasks.remove(task)
        out: list[Instruction] = []
        if not task.started and self.keeper is Keeper.LIGHT:
            out += [Open(port) for port in sorted(task.ports) if self.crossbar.peer(port) is not None]
        if task.started and task.order.verb is Verb.CONNECT:
            self.crossbar.abandon(task.order.a, task.order.b)
        return [*out, self._say(EventKind.ERROR, now_ns, task.order, task, detail=detail)]

    def _say(
        self, kind: EventKind, now_ns: int, order: Order | None = None, task: _Task | None = None, *,
        asked_ns: int | None = None, late_ns: int | None = None, detail: str = "",
    ) -> Emit:  # fmt: skip
        event = Event(
            kind=kind, at_ns=now_ns, plane=self.index, keeper=self.keeper, late_ns=late_ns, detail=detail,
            a=order.a if order else None, b=order.b if order else None, tag=order.tag if order else "",
            asked_ns=task.asked_ns if task else asked_ns, commanded_ns=task.commanded_ns if task else None,
            dark_ns=task.dark_ns if task else None, up_ns=task.up_ns if task and kind is not EventKind.DOWN else None,
        )  # fmt: skip
        return Emit(event)


def _pairs(circuits: Iterable[Circuit]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((one.a, one.b) for one in circuits))
