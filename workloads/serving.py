"""The serving model: queues, prefills, the choice of decode, and which KV bytes may leave when. No I/O and no clock.

``ServingModel.handle`` takes a stimulus and the time, and returns instructions (workloads/events.py). What is known
exactly is planned exactly: a prefill starts at its turn's arrival or at the end of the one before it, however late the
driver hands the stimulus in. So without a policy that looks at the network, queues and decodes come out the same in the
emulation and in the simulation. Source: serving.md of the design; docs/serving.md says what was decided where it is
silent.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from workloads import release
from workloads.decode_choice import DecodeChoice, named_choice
from workloads.events import (
    Arrival,
    HeadDelivered,
    Instruction,
    ReleaseSchedule,
    SetTimer,
    Stimulus,
    TimerFired,
    TransferDelivered,
    TransferFailed,
)
from workloads.live_turn import LiveTurn, SessionPlace, TurnState, UnfinishedTurn
from workloads.serving_config import ServingConfig
from workloads.turns import Turn

__all__ = ["ChunkTimes", "ChunkTokens", "ServingConfig", "ServingCounts", "ServingError", "ServingModel"]

ChunkTimes = Callable[[int, int], tuple[float, ...]]
"""(context tokens, new tokens) → seconds of each prefill chunk."""

ChunkTokens = Callable[[int], tuple[int, ...]]
"""New tokens → tokens of each prefill chunk."""


class ServingError(RuntimeError):
    """A stimulus that makes no sense: a bug in whatever drives the model, never a user's mistake."""


@dataclass(frozen=True, slots=True)
class ServingCounts:
    """Turns by what became of them so far.

    ``migrated`` counts those that have started and whose decode lacked the prefix, whatever became of them since.
    """

    queued: int
    prefilling: int
    transferring: int
    completed: int
    failed: int
    migrated: int

    @property
    def unfinished(self) -> int:
        return self.queued + self.prefilling + self.transferring

    @property
    def offered(self) -> int:
        """Every turn that has arrived: completed + failed + unfinished."""
        return self.completed + self.failed + self.unfinished


class ServingModel:
    """Prefill and decode instances serving turns. Memory grows with live turns and with sessions only.

    ``chunk_times`` and ``chunk_tokens`` are the prefill model (seconds and tokens of each chunk, of equal length).
    ``choose_decode`` replaces the choice that the configuration names: a policy that knows circuits goes here.
    """

    def __init__(
        self,
        config: ServingConfig,
        chunk_times: ChunkTimes,
        chunk_tokens: ChunkTokens,
        choose_decode: DecodeChoice | None = None,
    ) -> None:
        self._config = config
        self._chunk_times = chunk_times
        self._chunk_tokens = chunk_tokens
        self._choose_decode = choose_decode or named_choice(config.decode_choice, config.affinity_slack)
        self._now_s = -math.inf
        self._live: dict[int, LiveTurn] = {}
        self._sessions: dict[tuple[str, str], SessionPlace] = {}
        self._queues: tuple[deque[LiveTurn], ...] = tuple(deque() for _ in range(config.prefill))
        self._running: list[LiveTurn | None] = [None] * config.prefill
        self._free_at_s = [-math.inf] * config.prefill  # when all the work assigned so far will be done
        self._loads = [0] * config.decode
        self._ends: list[tuple[float, int]] = []  # heap of running prefills: (end, turn), one an instance at most
        self._ended_ahead: set[int] = set()  # ended while their timers were still to come
        self._seen_below = 0  # every id below has arrived, and of those above it the ones in _seen
        self._seen: set[int] = set()
        self._completed = self._failed = self._migrated = 0

    def handle(self, stimulus: Stimulus, now_s: float) -> tuple[Instruction, ...]:
        """Take one stimulus; return what is to be done about it, in this order.

        Arrivals and timers are to be handed in by the time at which they are due, ``now_s`` never falls. Raises
        ServingError for a stimulus that makes no sense; the model is not to be used after that.
        """
        if not now_s >= self._now_s:
            raise ServingError(f"time went from {self._now_s!r} s back to {now_s!r} s")
        self._now_s = now_s
        out: list[Instruction] = []
        if isinstance(stimulus, Arrival):
            self._arrive(stimulus.turn, out)
        elif isinstance(stimulus, TimerFired):
            self._timer(stimulus.token, out)
        else:
            self._report(stimulus, out)
        return tuple(out)

    def unfinished(self) -> tuple[UnfinishedTurn, ...]:
        """Every turn that has arrived and not finished, in the order of arrival."""
        return tuple(live.unfinished() for live in self._live.values())

    @property
    def counts(self) -> ServingCounts:
        """Turns by what became of them so far."""
        states = [live.state for live in self._live.values()]
        return ServingCounts(
            queued=states.count(TurnState.QUEUED),
            prefilling=states.count(TurnState.PREFILLING),
            transferring=states.count(TurnState.TRANSFERRING),
            completed=self._completed,
            failed=self._failed,
            migrated=self._migrated,
        )

    @property
    def decode_loads(self) -> tuple[int, ...]:
        """KV tokens assigned to each decode so far."""
        return tuple(self._loads)

    def _arrive(self, turn: Turn, out: list[Instruction]) -> None:
        self._check(turn)
        # A prefill that ended before this arrival has ended for it too, even where its timer is late.
        self._end_prefills((turn.arrival_s, math.inf), out)
        place = self._sessions.get((turn.tenant, turn.session))
        if place is None:
            place = self._sessions[turn.tenant, turn.session] = SessionPlace(self._least_backlog(turn.arrival_s))
        prefill = place.prefill
        times, tokens = self._chunks(turn)
        start_s = max(turn.arrival_s, self._free_at_s[prefill])
        ends_s = tuple(accumulate(times, initial=start_s))[1:]
        self._free_at_s[prefill] = ends_s[-1]
        mode = self._config.mode_of(turn.tenant)
        live = LiveTurn(turn, place, mode, start_s, ends_s, tokens, sum(times), prefill)
        self._live[turn.id] = live
        if self._config.choose_decode_at == "arrival":
            self._choose(live, turn.arrival_s)
            if live.head_bytes + live.tail_bytes > 0:
                out.append(live.queued())
        if self._running[prefill] is None:
            self._start_prefill(live, out)
        else:
            self._queues[prefill].append(live)

    def _check(self, turn: Turn) -> None:
        if turn.id < self._seen_below or turn.id in self._seen:
            raise ServingError(f"turn {turn.id} has arrived before")
        if not -math.inf < turn.arrival_s <= self._now_s + self._config.lookahead_s:
            raise ServingError(f"turn {turn.id} of {turn.arrival_s!r} s arrives at {self._now_s!r} s")
        if turn.context < 0 or turn.new < 1:
            raise ServingError(f"turn {turn.id} has {turn.context} context and {turn.new} new tokens")
        self._seen.add(turn.id)
        while self._seen_below in self._seen:
            self._seen.remove(self._seen_below)
            self._seen_below += 1

    def _chunks(self, turn: Turn) -> tuple[tuple[float, ...], tuple[int, ...]]:
        times, tokens = self._chunk_times(turn.context, turn.new), self._chunk_tokens(turn.new)
        sound = all(0 <= time < math.inf for time in times) and all(count > 0 for count in tokens)
        if len(times) != len(tokens) or sum(tokens) != turn.new or not sound:
            raise ServingError(f"prefill of turn {turn.id} ({turn.new} new tokens): chunks {tokens} in {times} s")
        return times, tokens

    def _least_backlog(self, at_s: float) -> int:
        """The prefill instance with the fewest seconds of queued and running work; of equals the lowest index."""
        return min(range(self._config.prefill), key=lambda p: max(0.0, self._free_at_s[p] - at_s))

    def _timer(self, token: int, out: list[Instruction]) -> None:
        if token in self._ended_ahead:
            self._ended_ahead.remove(token)
            return
        live = self._live.get(token)
        if live is None or live.state is not TurnState.PREFILLING:
            raise ServingError(f"timer {token} fired, which was not set")
        if live.end_s > self._now_s + self._config.lookahead_s:
            raise ServingError(f"timer {token} of {live.end_s!r} s fired at {self._now_s!r} s")
        self._end_prefills((live.end_s, token), out)
        self._ended_ahead.remove(token)

    def _end_prefills(self, until: tuple[float, float], out: list[Instruction]) -> None:
        """End every running prefill whose (end, turn) is not after ``until``, in that order: timers may come in any."""
        while self._ends and self._ends[0] <= until:
            _, turn_id = heapq.heappop(self._ends)
            self._ended_ahead.add(turn_id)
            live = self._live[turn_id]
            live.state = TurnState.TRANSFERRING
            if live.last_byte_s is not None or live.head_bytes + live.tail_bytes == 0:
                self._finish(live, out)
            queue = self._queues[live.prefill]
            if queue:
                self._start_prefill(queue.popleft(), out)
            else:
                self._running[live.prefill] = None

    def _start_prefill(self, live: LiveTurn, out: list[Instruction]) -> None:
        if live.decode is None:
            self._choose(live, live.start_s)
        live.state = TurnState.PREFILLING
        self._migrated += live.migrated
        self._running[live.prefill] = live
        heapq.heappush(self._ends, (live.end_s, live.turn.id))
        out.append(SetTimer(live.end_s, live.turn.id))
        if live.head_bytes + live.tail_bytes > 0:
            out += (live.transfer(), ReleaseSchedule(live.turn.id, *self._schedule(live)))

    def _choose(self, live: LiveTurn, at_s: float) -> None:
        """Choose the turn's decode, and with it what moves."""
        turn, place, config = live.turn, live.place, self._config
        head = round(turn.context * config.bytes_per_token_per_gpu)
        decode = self._choose_decode(prefill=live.prefill, holder=place.decode, loads=self._loads, head_bytes=head, now_s=at_s)
        if not 0 <= decode < config.decode:
            raise ServingError(f"the decode choice names decode {decode} of {config.decode}")
        live.decode = decode
        live.migrated = decode != place.decode and turn.context > 0
        live.head_bytes = head if live.migrated else 0
        live.tail_bytes = round(turn.new * config.bytes_per_token_per_gpu)
        # From here on the decode counts as the holder: data of the session's later turns follow this turn's.
        if decode != place.decode:
            place.decode, place.chain = decode, place.chain + 1
        live.chain = place.chain
        moved = turn.new + (turn.context if live.migrated else 0)
        self._loads[decode] += turn.context + turn.new if config.load_counts == "kv" else moved

    def _schedule(self, live: LiveTurn) -> release.Schedule:
        head, tail = live.head_bytes, live.tail_bytes
        if live.mode == "pull":
            return release.pull(live.end_s, head, tail)
        return release.layerwise(live.start_s, live.chunk_ends_s, live.chunk_tokens, self._config.layers, head, tail)

    def _report(self, report: HeadDelivered | TransferDelivered | TransferFailed, out: list[Instruction]) -> None:
        live = self._live.get(report.transfer)
        # A turn has a transfer from its prefill's start on (unless it has no bytes), until its end is first reported.
        begun = live is not None and live.state is not TurnState.QUEUED and live.head_bytes + live.tail_bytes > 0
        if live is None or not begun or live.last_byte_s is not None:
            raise ServingError(f"{report}, but no such transfer is under way")
        if isinstance(report, HeadDelivered):
            if live.head_bytes == 0 or live.head_last_byte_s is not None:
                raise ServingError(f"{report}, but the transfer has no head still to come")
            live.head_last_byte_s = self._now_s
            return
        live.last_byte_s = self._now_s
        if isinstance(report, TransferFailed):
            live.failed = report.reason
            if live.place.chain == live.chain:
                live.place.decode = None
        if live.state is TurnState.TRANSFERRING:
            self._finish(live, out)

    def _finish(self, live: LiveTurn, out: list[Instruction]) -> None:
        del self._live[live.turn.id]
        if live.failed is None:
            self._completed += 1
        else:
            self._failed += 1
        out.append(live.finished())
