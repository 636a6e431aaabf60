"""What a run is offered: tenants' traces cut, warped or paced to a load, merged, numbered, and summed up in a digest.

Open loop throughout: when a turn arrives never depends on how the cluster copes. Every row of every trace is accounted for.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from workloads.generator import TurnSource
from workloads.pacing import Arrivals, cut, pace
from workloads.prefill import PrefillModel
from workloads.readers import Trace
from workloads.turns import TraceTurn, Turn

LIVE_SESSIONS = 16
_FIRST_DRAW, _LAST_DRAW = 2_048, 1 << 22
LOAD_TOLERANCE = 0.05


class OfferError(ValueError):
    """A tenant that cannot be offered as asked. The message says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """One tenant: its turns, its prefill, and how much of the prefill instances it is to keep busy.

    ``trace`` is a trace, or a generator that makes as many turns as the load takes. ``load`` is the utilisation of
    ``instances_share`` of the prefill instances; None keeps a trace's own times (which only absolute ones have).
    ``start_s`` and ``duration_s`` choose a window of an absolute trace. ``live_sessions`` are the sessions that take turns at
    a time, where times are relative to sessions. Turns of more than ``max_tokens`` (context and new: what the model can hold;
    None is no limit) are left outside.
    """

    name: str
    trace: Trace | TurnSource
    prefill: PrefillModel
    load: float | None
    instances_share: float = 1.0
    start_s: float = 0.0
    duration_s: float | None = None
    live_sessions: int = LIVE_SESSIONS
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RowCount:
    """Where a tenant's rows went: ``rows == in_window + outside + over_limit + skipped``, always.

    ``outside`` are rows the window or the load left over, ``over_limit`` those cut by the limit on turns, ``skipped`` those
    that could not be read.
    """

    rows: int
    in_window: int
    outside: int
    over_limit: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Offered:
    """What a run is offered. ``turns`` by arrival, ids from 0; ``digest`` is the same exactly when the offered load is.

    ``realised_load`` per tenant is Σ unloaded prefill seconds / (window · instances · share); ``time_factor`` is run seconds
    per trace second (1 where times were kept, None where arrivals were synthesised).
    """

    turns: tuple[Turn, ...]
    digest: str
    rows_in: dict[str, RowCount]
    realised_load: dict[str, float]
    time_factor: dict[str, float | None]
    notes: tuple[str, ...]

    def accounts(self) -> dict[str, dict[str, float | None]]:
        """Per tenant where its rows went, its load and its time factor: plain values for a manifest."""
        return {
            name: {**asdict(count), "realised_load": self.realised_load[name], "time_factor": self.time_factor[name]}
            for name, count in self.rows_in.items()
        }


def offer(
    tenants: Sequence[TenantLoad],
    *,
    window_s: float,
    prefill_instances: int,
    rng: np.random.Generator,
    max_turns: int | None = None,
) -> Offered:
    """Place the tenants' turns in a window of ``window_s`` real-cluster seconds.

    Absolute times: [start, start + duration) of the trace is cut; without a load the times are kept, with one they are
    stretched or shrunk by one constant factor, chosen so that the turns that then fall into the window make up the load.
    Times relative to sessions, and generators: as many turns as make up the load arrive as a Poisson process conditioned on
    their number, each the next turn of one of ``live_sessions`` sessions chosen at random, in order within a session. That
    compresses think times: sessions last hours, and in a window of seconds or minutes no second turn would come. The
    sessions that are live at the start are met somewhere in their life.

    ``max_turns`` keeps the first ones. ``rng`` is drawn from once; each tenant has a stream of its own, derived from its
    name, so that adding a tenant changes no other's turns. Raises OfferError.
    """
    _check(tenants, window_s, prefill_instances, max_turns)
    entropy = [int(word) for word in rng.integers(0, 1 << 32, size=4)]
    notes: list[str] = []
    placed: list[tuple[int, str, int, TraceTurn]] = []
    traces: dict[str, Trace] = {}
    factors: dict[str, float | None] = {}
    for tenant in tenants:
        capacity_s = window_s * prefill_instances * tenant.instances_share
        seed = [*entropy, *hashlib.sha256(tenant.name.encode()).digest()]
        trace, arrivals = _arrivals(tenant, window_s, capacity_s, seed)
        traces[tenant.name], factors[tenant.name] = trace, arrivals.time_factor
        notes += [f"{tenant.name}: {note}" for note in (*trace.notes, *arrivals.notes)]
        placed += [
            (round(time_s * 1e9), tenant.name, at, turn)
            for at, (time_s, turn) in enumerate(zip(arrivals.times_s, arrivals.turns, strict=True))
        ]
    placed.sort(key=lambda entry: entry[:3])
    kept = placed[:max_turns]
    over_limit = _count(name for _, name, _, _ in placed[len(kept) :])
    if over_limit:
        notes.append(f"the limit of {max_turns} turns left out {len(placed) - len(kept)} that were due")
    turns = tuple(
        Turn(id, name, turn.session, arrival_ns / 1e9, turn.context, turn.new, turn.output, turn.source)
        for id, (arrival_ns, name, _, turn) in enumerate(kept)
    )
    if not turns:
        raise OfferError(f"no turn falls into the window of {window_s:g} s; move its start, lengthen it, or raise the load")
    in_window = _count(turn.tenant for turn in turns)
    rows_in, realised = {}, {}
    for tenant in tenants:
        trace, inside = traces[tenant.name], in_window.get(tenant.name, 0)
        over, skipped = over_limit.get(tenant.name, 0), len(trace.skipped)
        too_long = len(trace.turns) - len(_fitting(tenant, trace))
        if too_long:
            notes.append(f"{tenant.name}: {too_long} turns of more than {tenant.max_tokens} tokens are outside")
        rows_in[tenant.name] = RowCount(trace.rows, inside, trace.rows - inside - over - skipped, over, skipped)
        capacity_s = window_s * prefill_instances * tenant.instances_share
        busy_s = math.fsum(tenant.prefill.total(t.context, t.new) for t in turns if t.tenant == tenant.name)
        realised[tenant.name] = busy_s / capacity_s
        notes += _load_notes(tenant, inside, realised[tenant.name])
    return Offered(turns, digest_of(turns), rows_in, realised, factors, tuple(notes))


def digest_of(turns: Sequence[Turn]) -> str:
    """SHA-256 over one line a turn: tenant, session, arrival in ns, context, new, output (as a JSON list)."""
    digest = hashlib.sha256()
    for turn in turns:
        row = [turn.tenant, turn.session, round(turn.arrival_s * 1e9), turn.context, turn.new, turn.output]
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def _check(tenants: Sequence[TenantLoad], window_s: float, prefill_instances: int, max_turns: int | None) -> None:
    if not 0 < window_s < math.inf:
        raise OfferError(f"the window is {window_s} s; it must be above 0")
    if prefill_instances < 1:
        raise OfferError(f"there are {prefill_instances} prefill instances; there must be at least one")
    if max_turns is not None and max_turns < 1:
        raise OfferError(f"the limit on turns is {max_turns}; it must be at least 1")
    if not tenants:
        raise OfferError("there is no tenant; name at least one")
    names = [tenant.name for tenant in tenants]
    for tenant in tenants:
        where = f"tenant {tenant.name!r}"
        if names.count(tenant.name) > 1:
            raise OfferError(f"{where} is there twice; give every tenant a name of its own")
        if tenant.load is not None and not 0 < tenant.load < math.inf:
            raise OfferError(f"{where}: load is {tenant.load}; it must be above 0 (0.6 keeps its instances busy 60 %)")
        if not 0 < tenant.instances_share <= 1:
            raise OfferError(f"{where}: share is {tenant.instances_share}; it must be above 0 and at most 1")
        if not 0 <= tenant.start_s < math.inf or not (tenant.duration_s is None or 0 < tenant.duration_s < math.inf):
            raise OfferError(f"{where}: start must be zero or more and duration above 0")
        if tenant.max_tokens is not None and tenant.max_tokens < 1:
            raise OfferError(f"{where}: max_tokens is {tenant.max_tokens}; it must be at least 1")
        if tenant.live_sessions < 1:
            raise OfferError(f"{where}: live_sessions is {tenant.live_sessions}; it must be at least 1")
        relative = not isinstance(tenant.trace, Trace) or tenant.trace.session_relative
        if relative and tenant.load is None:
            raise OfferError(f"{where}: its turns have no absolute times; give it a load (0.6, say)")
        if relative and (tenant.start_s or tenant.duration_s is not None):
            raise OfferError(f"{where}: its turns have no absolute times, so it has no start or duration; leave them out")
    if math.fsum(tenant.instances_share for tenant in tenants) > 1 + 1e-9:
        raise OfferError("the tenants' shares add up to more than 1; they divide the prefill instances")


def _arrivals(tenant: TenantLoad, window_s: float, capacity_s: float, seed: list[int]) -> tuple[Trace, Arrivals]:
    work, live = tenant.prefill.total, tenant.live_sessions
    if isinstance(tenant.trace, Trace) and not tenant.trace.session_relative:
        target_s = None if tenant.load is None else tenant.load * capacity_s
        return tenant.trace, cut(_fitting(tenant, tenant.trace), work, window_s, target_s, tenant.start_s, tenant.duration_s)
    target_s = (tenant.load or 0.0) * capacity_s
    if isinstance(tenant.trace, Trace):
        return tenant.trace, pace(_fitting(tenant, tenant.trace), work, window_s, target_s, live, np.random.default_rng(seed))
    count = _FIRST_DRAW
    while True:  # each time from the same seed: how many turns are enough is known only once they are placed
        drawing, choosing = np.random.default_rng(seed).spawn(2)
        trace = tenant.trace.trace(count, drawing)
        arrivals = pace(_fitting(tenant, trace), work, window_s, target_s, live, choosing)
        if not arrivals.exhausted:
            return trace, arrivals
        if count >= _LAST_DRAW:
            raise OfferError(f"tenant {tenant.name!r}: over {count} turns for its load; shorten the window or lower the load")
        count *= 4


def _fitting(tenant: TenantLoad, trace: Trace) -> list[TraceTurn]:
    return [turn for turn in trace.turns if tenant.max_tokens is None or turn.context + turn.new <= tenant.max_tokens]


def _load_notes(tenant: TenantLoad, inside: int, realised: float) -> list[str]:
    if inside == 0:
        return [f"{tenant.name}: no turn of this tenant is in the run"]
    if tenant.load is not None and abs(realised - tenant.load) > LOAD_TOLERANCE * tenant.load:
        return [f"{tenant.name}: the load is {realised:.3g}, not the {tenant.load:g} asked for"]
    return []


def _count(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts
