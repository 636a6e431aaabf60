"""Who gets a circuit when: the reservation scheduler, or first come first served, behind one face for the state machine.

Both answer with changes of windows (controller/bookings.py). Without reservation a window has no planned end: it is booked
as it is granted and freed with the last byte. Source: serving.md of the design.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.bookings import Booked, Bookings, Change, Freed
from controller.calendar import Part, Window
from controller.fifo import CircuitFifo, Granted
from controller.optical_config import OpticalConfig
from controller.optical_events import Releases, TransferNotice
from controller.prediction import LaplaceError
from controller.reservation import Job, LastChunk, ReservationScheduler, streaming_start

Predict = Callable[[float], float]
"""A true time in seconds → what is predicted for it (controller/prediction.py)."""

Errors = Callable[[int], LaplaceError]
"""A transfer → the errors of what is predicted of it."""


def exact(true_s: float) -> float:
    """A prediction without an error."""
    return true_s


@dataclass(slots=True)
class Flow:
    """A transfer that is known to the state machine and has not ended.

    ``notice`` is what was told last; ``asked`` says that all its windows have been asked for, ``over`` that its end is being
    told, ``delivered`` what is known to have arrived when its gate was closed, ``closing`` how many closed gates have not
    been reported drained.
    """

    notice: TransferNotice
    last_chunk_bytes: int
    predict: Predict
    released_at_s: tuple[float, ...] = ()
    released_bytes: tuple[int, ...] = ()
    started: bool = False
    asked: bool = False
    over: bool = False
    delivered: float = 0.0
    closing: int = 0
    job: Job = field(init=False)

    def __post_init__(self) -> None:
        n = self.notice
        self.job = Job(n.transfer, n.prefill, n.decode, n.head_bytes, n.tail_bytes, n.mode == "pull")

    @classmethod
    def of(cls, notice: TransferNotice, last_chunk_bytes: int, errors: Errors | None) -> Flow:
        return cls(notice, last_chunk_bytes, exact if errors is None else errors(notice.transfer).predict)

    def start(self, notice: TransferNotice, releases: Releases) -> None:
        """The transfer has started: from here on everything is known exactly."""
        total = notice.head_bytes + notice.tail_bytes
        self.notice, self.started = notice, True
        self.released_at_s, self.released_bytes = releases.at_s, releases.released_bytes
        before = bisect_right(releases.at_s, notice.last_chunk_start_s)
        released = releases.released_bytes[before - 1] if before else 0
        self.last_chunk_bytes = total - max(released, notice.head_bytes)

    def known(self, part: Part) -> bool:
        """Whether the event that tells when the part's data are ready has come."""
        return self.started if part == "head" else self.asked

    def upto(self, part: Part) -> int:
        """Where the part ends, in cumulative bytes."""
        return self.notice.head_bytes + (0 if part == "head" else self.notice.tail_bytes)

    def first_release_s(self, part: Part) -> float:
        """When the first byte of the part that is not known to have arrived is released; infinity before the start."""
        before = max(self.notice.head_bytes if part == "tail" else 0, self.delivered)
        i = bisect_right(self.released_bytes, before)
        return self.released_at_s[i] if i < len(self.released_at_s) else math.inf


class Reserved:
    """Windows booked by the reservation scheduler, which is told of the future what a flow's ``predict`` makes of it."""

    def __init__(self, scheduler: ReservationScheduler, *, layers: int) -> None:
        self.scheduler = scheduler
        self._layers = layers

    def queued(self, flow: Flow, now_s: float) -> tuple[Change, ...]:
        """The turn has arrived."""
        start_s = self._start_s(flow, now_s)
        return self.scheduler.arrival(flow.job, start_s=start_s, last_chunk=self._chunk(flow, start_s), now_s=now_s)

    def started(self, flow: Flow, now_s: float) -> tuple[Change, ...]:
        """The prefill starts, now or within the driver's lookahead."""
        return self.scheduler.prefill_start(flow.job, now_s=max(now_s, flow.notice.prefill_start_s))

    def ask_s(self, flow: Flow) -> float:
        """When the rest is to be asked for: as the last chunk starts, at once if there is but one."""
        notice = flow.notice
        return notice.last_chunk_start_s if notice.last_chunk_start_s > notice.prefill_start_s else -math.inf

    def ask(self, flow: Flow, now_s: float) -> tuple[Change, ...]:
        """The last chunk starts."""
        at_s = flow.notice.last_chunk_start_s
        duration_s = flow.predict(flow.notice.prefill_end_s - at_s)
        chunk = LastChunk(at_s, duration_s, flow.last_chunk_bytes)
        return self.scheduler.last_chunk(flow.job.transfer, chunk, now_s=max(now_s, at_s))

    def head_end(self, flow: Flow, now_s: float) -> tuple[Change, ...]:
        return self.scheduler.head_end(flow.job.transfer, now_s=now_s)

    def end(self, flow: Flow, now_s: float) -> tuple[Change, ...]:
        """The transfer has ended, delivered or failed."""
        return self.scheduler.transfer_end(flow.job.transfer, now_s=now_s)

    def free(self, window: Window, now_s: float) -> tuple[Change, ...]:
        """All that the window carries has arrived, and the transfer's end is still to be told."""
        return self.scheduler.bookings.free(window.transfer, window.part, now_s)

    def hold(self, window: Window, until_s: float, now_s: float) -> tuple[Change, ...]:
        """Keep the ports of a late window until ``until_s``, whatever the policy."""
        return self.scheduler.bookings.extend(window.transfer, window.part, until_s, now_s)

    def overrun(self, window: Window, left_bytes: float, now_s: float) -> tuple[Change, ...]:
        return self.scheduler.overrun(window.transfer, window.part, left_bytes, now_s=now_s)

    def miss(self, flow: Flow, part: Part, least_s: float, now_s: float) -> tuple[Change, ...]:
        """The window has come and its prefill has not: predict anew, not before ``least_s``, and book for then."""
        start_s = self._start_s(flow, now_s)
        if part == "head":
            ready_s = start_s
        else:
            chunk = self._chunk(flow, start_s)
            ends_s = chunk.start_s + chunk.duration_s
            rate_Bps = self.scheduler.bookings.rate_Bps
            ready_s = ends_s if part == "all" else streaming_start(chunk, self._layers, flow.job.tail_bytes, rate_Bps)
        return self.scheduler.miss(flow.job.transfer, part, max(ready_s, least_s), now_s=now_s)

    def _start_s(self, flow: Flow, now_s: float) -> float:
        """The predicted start of the prefill: the error is that of the wait until then."""
        true_s = flow.notice.prefill_start_s
        wait_s = max(0.0, true_s - now_s)
        predicted_s = flow.predict(wait_s)
        return max(now_s, true_s) if predicted_s == wait_s else now_s + predicted_s

    def _chunk(self, flow: Flow, start_s: float) -> LastChunk:
        """The last chunk of a prefill that is predicted to start at ``start_s``."""
        notice = flow.notice
        begin_s, last_s = notice.prefill_start_s, notice.last_chunk_start_s
        before_s = flow.predict(last_s - begin_s)
        duration_s = flow.predict(notice.prefill_end_s - last_s)
        exact = start_s == begin_s and before_s == last_s - begin_s
        return LastChunk(last_s if exact else start_s + before_s, duration_s, flow.last_chunk_bytes)


class Asked:
    """Windows granted first come, first served: asked for when the first KV is ready, or ``after`` the prefill."""

    def __init__(self, fifo: CircuitFifo, *, after: bool) -> None:
        self._fifo = fifo
        self._after = after
        self._flows: dict[int, tuple[Flow, float]] = {}  # with when it asked
        self._held: dict[int, Window] = {}

    def ask_s(self, flow: Flow) -> float:
        return flow.notice.prefill_end_s if self._after else flow.released_at_s[0]

    def ask(self, flow: Flow, now_s: float) -> tuple[Change, ...]:
        job = flow.job
        self._flows[job.transfer] = flow, now_s
        return self._granted(self._fifo.request(job.transfer, job.prefill, job.decode, now_s=now_s))

    def end(self, flow: Flow, now_s: float) -> tuple[Change, ...]:
        transfer = flow.job.transfer
        if self._flows.pop(transfer, None) is None:
            return ()
        held = self._held.pop(transfer, None)
        freed: tuple[Change, ...] = () if held is None else (Freed(held, now_s),)
        return freed + self._granted(self._fifo.release(transfer, now_s=now_s))

    def _granted(self, grants: tuple[Granted, ...]) -> tuple[Change, ...]:
        changes = []
        for grant in grants:
            flow, asked_s = self._flows[grant.transfer]
            size, p, d = flow.job.head_bytes + flow.job.tail_bytes, grant.prefill, grant.decode
            window = Window(grant.transfer, "all", p, d, size, asked_s, grant.start_s, grant.setup_s, math.inf)
            self._held[grant.transfer] = window
            changes.append(Booked(window))
        return tuple(changes)


Plan = Reserved | Asked


def plan_of(config: OpticalConfig, bookings: Bookings) -> Plan:
    """The plan of a policy. ``bookings`` stays empty without reservation."""
    if config.policy == "none" or config.policy == "after":
        return Asked(CircuitFifo(tau_s=config.tau_s, reuse=config.reuse), after=config.policy == "after")
    scheduler = ReservationScheduler(bookings, layers=config.layers, policy=config.policy, overrun=config.overrun)
    return Reserved(scheduler, layers=config.layers)
