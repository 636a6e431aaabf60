"""Between the serving model and a circuit-switched network: which circuit is commanded when, and which bytes may use it.

Stimuli and the time go in, instructions come out (controller/optical_events.py). No clock and no I/O, so the testbed and the
simulator drive the very same code. A window's circuit is commanded at its start and not before; its bytes may leave from
its data's instant on, once the network has told that the circuit carries light. Source: serving.md of the design;
docs/reservation.md says how to drive it and what was decided where the design is silent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from controller.agenda import Agenda, Do
from controller.bookings import Bookings, Change
from controller.calendar import Part, Window
from controller.circuit_aware import CircuitAware
from controller.circuits import Circuits
from controller.optical_config import OpticalConfig, OpticalError
from controller.optical_events import (
    CloseGate,
    Connect,
    GiveUp,
    OpenGate,
    OpticalCounts,
    OpticalInstruction,
    QueuedNotice,
    Releases,
    SetTimer,
    TransferNotice,
    WindowRecord,
)
from controller.optical_plan import Errors, Flow, Reserved, plan_of
from controller.optical_windows import Held, Windows


class OpticalNetwork:
    """Every method takes one stimulus and returns what is to be done about it, in this order.

    ``left_bytes`` is asked for the undelivered bytes per port of a started transfer, the largest of its flows. ``errors``
    gives each transfer its errors of prediction: drawn for it alone, they are the same in every engine. Times that fall are
    taken as the present, so reports may be older than what was told before.
    Raises OpticalError or BookingError for a stimulus that makes no sense; the network is not to be used after that.
    """

    def __init__(self, config: OpticalConfig, *, left_bytes: Callable[[int], float], errors: Errors | None = None) -> None:
        c = self.config = config
        self.bookings = Bookings(c.prefill, c.decode, rate_Bps=c.rate_Bps, tau_s=c.tau_s, reuse=c.reuse)
        self._left_bytes = left_bytes
        self._errors = errors
        self._plan = plan_of(c, self.bookings)
        self._reserved = self._plan if isinstance(self._plan, Reserved) else None
        self._now_s = -math.inf
        self._flows: dict[int, Flow] = {}
        self._doomed: dict[int, str] = {}  # given up by us; their ends, or even starts, are still to be told
        self._circuits = Circuits()
        self._out: list[OpticalInstruction] = []
        self._windows = Windows(self._planned, self._out.append)
        self._agenda: Agenda[Window | Flow] = Agenda(self._is_void)
        self._counts = OpticalCounts()

    @property
    def counts(self) -> OpticalCounts:
        return replace(self._counts, booked=self._windows.booked)

    def decode_choice(self, choice: Literal["load", "circuit"], *, slack: float = 0.1) -> CircuitAware | None:
        """What the ServingModel takes as ``choose_decode``: circuit-aware on this network's calendars, or its own by load.

        Raises ValueError for ``circuit`` without calendars.
        """
        if choice == "load":
            return None
        if self._reserved is None:
            raise ValueError(f"ocs.policy {self.config.policy} books nothing, so no decode can be chosen by it; use load")
        return CircuitAware(self.bookings, slack=slack)

    def held(self, now_s: float) -> tuple[WindowRecord, ...]:
        """The windows that are not over, as if they were at ``now_s``: for the records of a run that is stopped."""
        return tuple(held.record(now_s) for held in self._windows.all())

    def turn_queued(self, notice: QueuedNotice, now_s: float) -> tuple[OpticalInstruction, ...]:
        """A turn has arrived; of use under ``admission`` alone."""
        self._enter(now_s)
        if self.config.policy == "admission" and self._reserved is not None:
            flow = self._flows[notice.transfer] = Flow.of(notice, notice.last_chunk_bytes, self._errors)
            self._apply(self._reserved.queued(flow, self._now_s))
        return self._leave()

    def transfer_started(self, notice: TransferNotice, releases: Releases, now_s: float) -> tuple[OpticalInstruction, ...]:
        """A prefill starts, now or within the driver's lookahead."""
        self._enter(now_s)
        transfer = notice.transfer
        if transfer in self._doomed:
            self._out.append(GiveUp(transfer, self._doomed[transfer]))
        elif notice.head_bytes + notice.tail_bytes > 0:
            self._start(notice, releases)
        return self._leave()

    def timer_fired(self, token: int, now_s: float) -> tuple[OpticalInstruction, ...]:
        """A timer is due. If what it was set for has moved, nothing comes of it."""
        self._enter(now_s)
        self._agenda.fired(token)
        return self._leave()

    def head_delivered(self, transfer: int, now_s: float) -> tuple[OpticalInstruction, ...]:
        """The last head byte of every flow has arrived."""
        self._enter(now_s)
        flow = self._reported(transfer)
        if flow is not None and self._reserved is not None:
            self._apply(self._reserved.head_end(flow, self._now_s), now_s)
        return self._leave()

    def transfer_ended(self, transfer: int, now_s: float) -> tuple[OpticalInstruction, ...]:
        """The last byte of every flow has arrived, or the transfer failed, by itself or as GiveUp told: what it holds is free."""
        flow = self._reported(transfer)
        self._doomed.pop(transfer, None)
        if flow is not None:
            flow.over = True
        self._enter(now_s)
        if flow is not None:
            del self._flows[transfer]
            self._apply(self._plan.end(flow, self._now_s), now_s)
        return self._leave()

    def circuit_up(self, prefill: int, decode: int, up_s: float, now_s: float) -> tuple[OpticalInstruction, ...]:
        """The circuit carries light on all its planes from ``up_s`` on; to be told as soon as that is known."""
        self._enter(now_s)
        if self._circuits.light(prefill, decode, up_s):
            self._retry(up_s)
            for held in self._windows.all():
                self._gate(held)
        return self._leave()

    def circuit_failed(self, prefill: int, decode: int, reason: str, now_s: float) -> tuple[OpticalInstruction, ...]:
        """The circuit could not be set up, or was lost, and its ports rest: the transfer that has its window is given up."""
        self._enter(now_s)
        self._circuits.drop(prefill, decode)
        for held in self._windows.all():
            w = held.window
            began = held.began_s is not None and w.transfer in self._flows
            if began and (w.prefill, w.decode) == (prefill, decode):
                self._doomed[w.transfer] = reason
                if self._flows[w.transfer].started:
                    self._out.append(GiveUp(w.transfer, reason))
                self._apply(self._plan.end(self._flows.pop(w.transfer), self._now_s))
        self._retry(self._now_s)
        return self._leave()

    def gate_drained(self, transfer: int, delivered_bytes: float, now_s: float) -> tuple[OpticalInstruction, ...]:
        """After CloseGate: ``delivered_bytes`` (of each flow; the least of them) have arrived, and nothing is under way."""
        self._enter(now_s)
        flow = self._flows.get(transfer)
        if flow is not None and self._reserved is not None:
            flow.closing -= 1
            flow.delivered = max(flow.delivered, delivered_bytes)
            for held in self._windows.of_transfer(transfer):
                left = flow.upto(held.window.part) - delivered_bytes
                if held.draining and flow.closing == 0 and left <= 0:
                    self._apply(self._reserved.free(held.window, self._now_s))
                elif held.draining and flow.closing == 0:
                    self._late(self._reserved, held, left)
        return self._leave()

    # What the stimuli have in common

    def _enter(self, now_s: float) -> None:
        """Let time pass: what was due before this instant is done first, what is due just now after the stimulus."""
        self._now_s = max(self._now_s, now_s)
        self._run(lambda at_s: at_s < self._now_s)

    def _leave(self) -> tuple[OpticalInstruction, ...]:
        self._run(lambda at_s: at_s <= self._now_s)
        timer = self._agenda.timer()
        if timer is not None:
            self._out.append(SetTimer(*timer))
        out = tuple(self._out)
        self._out.clear()
        return out

    def _run(self, is_due: Callable[[float], bool]) -> None:
        while (due := self._agenda.pop(is_due)) is not None:
            what, subject = due
            if isinstance(subject, Flow):
                self._ask(subject)
                continue
            held = self._windows.of(subject)
            assert held is not None
            if what is Do.BEGIN:
                self._begin(held)
            elif self._reserved is not None:
                if what is Do.END:
                    self._overrun(self._reserved, held)
                else:
                    self._miss(self._reserved, held)

    def _is_void(self, subject: Window | Flow) -> bool:
        if isinstance(subject, Flow):
            return subject.asked or self._flows.get(subject.job.transfer) is not subject
        return self._windows.of(subject) is None

    def _apply(self, changes: tuple[Change, ...], told_s: float = math.inf) -> None:
        self._windows.apply(changes, self._now_s, min(told_s, self._now_s))

    def _planned(self, held: Held) -> None:
        """A window is new or has moved: what is to happen, and when."""
        window = held.window
        if held.began_s is None:
            self._agenda.push(window.start_s, Do.BEGIN, window)
            if not self._flows[window.transfer].known(window.part):
                self._agenda.push(window.data_s + self.config.grace_s, Do.MISS, window)
        if window.end_s < math.inf:
            self._agenda.push(window.end_s, Do.END, window)

    # Transfers

    def _start(self, notice: TransferNotice, releases: Releases) -> None:
        flow = self._flows.get(notice.transfer)
        if self.config.policy == "admission":
            if flow is None:
                raise OpticalError(f"transfer {notice.transfer} was not queued: admission needs decodes chosen at the arrival")
        elif flow is not None:
            raise OpticalError(f"transfer {notice.transfer} has started before")
        else:
            flow = self._flows[notice.transfer] = Flow.of(notice, notice.tail_bytes, self._errors)
        flow.start(notice, releases)
        if self._reserved is not None:
            self._apply(self._reserved.started(flow, self._now_s))
        ask_s = self._plan.ask_s(flow)
        if ask_s <= self._now_s:
            self._ask(flow)
        else:
            self._agenda.push(ask_s, Do.ASK, flow)
        for held in self._windows.of_transfer(notice.transfer):
            self._gate(held)

    def _ask(self, flow: Flow) -> None:
        flow.asked = True
        part: Part = "all" if flow.job.pull else "tail"
        held = self._windows.get((flow.job.transfer, part))
        if held is not None and self._leaves(flow, held):
            return  # booked at the arrival: what has begun to leave is not moved
        self._apply(self._plan.ask(flow, self._now_s))
        if held is not None:
            self._close_if_moved(flow, held)

    def _reported(self, transfer: int) -> Flow | None:
        flow = self._flows.get(transfer)
        if flow is None and transfer not in self._doomed:
            raise OpticalError(f"transfer {transfer} is not under way")
        return flow

    # Windows

    def _retry(self, at_s: float) -> None:
        """Windows that have come and wait for ports that were moving are to try again."""
        for held in self._windows.all():
            if held.began_s is None and held.window.start_s <= self._now_s:
                self._agenda.push(at_s, Do.BEGIN, held.window)

    def _begin(self, held: Held) -> None:
        w = held.window
        free_s = self._circuits.free_s(w.prefill, w.decode)
        stands = self._circuits.stands(w.prefill, w.decode) and self.config.reuse
        if held.began_s is not None or (free_s == math.inf and not stands):
            return
        if free_s > self._now_s and not stands:
            self._agenda.push(free_s, Do.BEGIN, w)
            return
        held.began_s, held.reused = self._now_s, stands
        if stands:
            self._counts = replace(self._counts, reused=self._counts.reused + 1)
        else:
            self._circuits.command(w.prefill, w.decode)
            self._counts = replace(self._counts, reconfigurations=self._counts.reconfigurations + 1)
            self._out.append(Connect(w.prefill, w.decode, max(w.start_s, free_s), fresh=not self.config.reuse))
        self._gate(held)

    def _gate(self, held: Held) -> None:
        """Open the window's gate as soon as all is known that it takes."""
        w = held.window
        flow, up_s = self._flows[w.transfer], self._circuits.up_s(w.prefill, w.decode)
        if held.began_s is None or not flow.started or up_s == math.inf or held.gate_s is not None or held.draining:
            return
        held.up_s, held.gate_s = up_s, max(up_s, w.data_s)
        held.data_s = max(held.gate_s, flow.first_release_s(w.part))
        self._out.append(OpenGate(w.transfer, held.gate_s, flow.upto(w.part)))

    def _leaves(self, flow: Flow, held: Held) -> bool:
        """Whether some of what the window carries may have left."""
        return held.gate_s is not None and max(held.gate_s, flow.first_release_s(held.window.part)) <= self._now_s

    def _close_if_moved(self, flow: Flow, held: Held) -> None:
        if held.gate_s is not None and self._windows.of(held.window) is not held:
            self._close(flow)

    def _close(self, flow: Flow) -> None:
        flow.closing += 1
        self._out.append(CloseGate(flow.job.transfer))

    def _miss(self, plan: Reserved, held: Held) -> None:
        """A window booked at the arrival has come and its prefill (or last chunk) has not: predict anew."""
        flow, w = self._flows[held.window.transfer], held.window
        if flow.known(w.part) or self._leaves(flow, held):
            return
        self._counts = replace(self._counts, misses=self._counts.misses + 1)
        self._apply(plan.miss(flow, w.part, self._now_s + self.config.grace_s, self._now_s))
        self._close_if_moved(flow, held)

    def _overrun(self, plan: Reserved, held: Held) -> None:
        """A window ends and is still held."""
        w, c = held.window, self.config
        flow = self._flows[w.transfer]
        if not flow.started:
            self._miss(plan, held)
            return
        if flow.over:  # its end is being told just now
            self._apply(plan.hold(w, self._now_s, self._now_s))
            return
        if held.draining:  # until the driver tells, twice as long each time
            held.holds += 1
            self._apply(plan.hold(w, self._now_s + c.grace_s * 2**held.holds, self._now_s))
            return
        left = self._left_bytes(w.transfer) - (flow.notice.tail_bytes if w.part == "head" else 0)
        if w.part == "head" and left <= 0:
            self._apply(plan.head_end(flow, self._now_s))
        elif c.overrun == "rebook" and held.gate_s is not None:
            if held.holds > 0 or left > c.grace_s * c.rate_Bps:  # else the grace may do, and nothing has to stop
                held.draining = True
                self._close(flow)
            held.holds = 0 if held.draining else 1
            self._apply(plan.hold(w, self._now_s + c.grace_s, self._now_s))
        else:
            self._late(plan, held, left)

    def _late(self, plan: Reserved, held: Held, left: float) -> None:
        """What is left of a late window goes on in it, or in another: as the policy says, but never in next to no time."""
        least = self.config.grace_s * self.config.rate_Bps
        self._counts = replace(self._counts, overruns=self._counts.overruns + (left > least))
        self._apply(plan.overrun(held.window, max(left, least), self._now_s))
