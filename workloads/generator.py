"""Seeded synthetic turns with published statistics: agentic sessions, and lengths by Zipf's law. Labelled synthetic."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workloads.readers import Trace
from workloads.turns import TraceTurn

Floats = NDArray[np.float64]

APPENDED_BY_PREFIX = (
    (0, 78_400, 344_300, 871_900),
    (4_000, 17_200, 385_300, 881_300),
    (8_000, 3_500, 108_500, 549_100),
    (16_000, 1_300, 30_700, 661_000),
    (32_000, 951, 5_300, 27_300),
    (64_000, 793, 3_700, 12_800),
    (128_000, 710, 3_200, 10_100),
    (256_000, 762, 3_100, 8_800),
)
"""Tokens appended by a round: (prefix of at least, p50, p90, p99).

Source: uw-syfi/TraceLab 0b8a262, published table of appended tokens by prefix bin, provider claude, 140,338 rounds; its two
rounds at 2–4k are left out, and that bin counts with the one below."""

_EDGES = np.array([row[0] for row in APPENDED_BY_PREFIX[1:]], dtype=float)
_LOGS = np.log(np.array([row[1:] for row in APPENDED_BY_PREFIX], dtype=float))
_Z90, _Z99 = 1.2815515655446004, 2.3263478740408408
"""Standard normal quantiles of 0.9 and 0.99."""

CYCLE_START, CYCLE_END = 0.35, 1.6
"""Where a context starts and is compacted, as multiples of its cycle's size; they give the log-sigma of WEKA's contexts."""

_BATCH = 64
_PILOT_SESSIONS, _PILOT_TURNS, _PILOT_SEED, _PILOT_ROUNDS = 2000, 40, 20_240_601, 20
_PILOT_CLOSE = 0.003


class TurnSource(Protocol):
    """Something that makes as many turns as are asked for: the first n of them are the same, however many follow."""

    def trace(self, count: int, rng: np.random.Generator) -> Trace:
        """``count`` turns as a trace labelled synthetic."""
        ...


def appended_tokens(prefix: Floats, z: Floats) -> Floats:
    """Quantile function of the appended tokens for a prefix, at the standard normal quantile ``z``, before any scaling.

    Piecewise log-linear in z through the published p50, p90 and p99; continued below p50 with the slope above it.
    """
    logs = _LOGS[np.searchsorted(_EDGES, prefix, side="right")]
    p50, p90, p99 = logs[..., 0], logs[..., 1], logs[..., 2]
    body = p50 + (p90 - p50) * z / _Z90
    tail = p90 + (p99 - p90) * (z - _Z90) / (_Z99 - _Z90)
    return np.asarray(np.exp(np.where(z <= _Z90, body, tail)))


@dataclass(frozen=True, slots=True)
class AgenticSessions:
    """Agentic coding sessions: a context that grows turn by turn with what was new and what was generated, and is compacted.

    ``context_median`` and ``new_median`` hold over all turns (source: the medians of the OCS paper's agent trace); new
    tokens follow the published quantiles by prefix, scaled as a whole to that median. A context grows from CYCLE_START to
    CYCLE_END times a lognormal size (``context_sigma``, at most ``max_context``) and is then compacted to the start of another;
    a session is met somewhere in such a cycle, and has a geometric number of turns. Outputs and think times are lognormal.
    Their defaults and the turns per session are those of 115 public WEKA sessions (output median 204 and log-sigma 0.92,
    think median 8 s, 35 turns, log-sigma of the context 0.52).
    """

    context_median: float = 66_700.0
    new_median: float = 1_100.0
    context_sigma: float = 0.3
    max_context: int = 200_000
    min_context: int = 2_048
    turns_mean: float = 35.0
    output_median: float = 204.0
    output_sigma: float = 0.92
    think_median_s: float = 8.0
    think_sigma: float = 1.5

    def __post_init__(self) -> None:
        if not 0 < self.min_context < self.context_median < self.max_context / CYCLE_END:
            raise ValueError(f"generator: needs 0 < min_context < context_median < max_context / {CYCLE_END}")
        if not 1 <= self.new_median < self.context_median:
            raise ValueError("generator: new_median must be at least 1 and below context_median")
        if not 1 <= self.turns_mean <= 10_000:
            raise ValueError("generator: turns_mean must be from 1 to 10000")
        for name in ("output_median", "think_median_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"generator: {name} must be above 0")
        for name in ("context_sigma", "output_sigma", "think_sigma"):
            if not 0 <= getattr(self, name) <= 3:
                raise ValueError(f"generator: {name} must be from 0 to 3")

    def iterate(self, rng: np.random.Generator) -> Iterator[TraceTurn]:
        """Turns without end, session after session; ``time_s`` counts from the session's start."""
        scales = _calibrate(self)
        for batch in itertools.count():
            length = rng.geometric(1.0 / self.turns_mean, _BATCH)
            sessions = _simulate(self, rng, length, *scales)
            for column in range(_BATCH):
                yield from sessions.turns(column, batch * _BATCH + column)

    def turns(self, count: int, rng: np.random.Generator) -> tuple[TraceTurn, ...]:
        """The first ``count`` turns."""
        return tuple(itertools.islice(self.iterate(rng), count))

    def trace(self, count: int, rng: np.random.Generator) -> Trace:
        return _as_trace("synthetic:agentic", self.turns(count, rng))


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Sessions side by side: row = turn, column = session; ``length`` turns of a column are real."""

    context: NDArray[np.int64]
    new: NDArray[np.int64]
    output: NDArray[np.int64]
    think_s: Floats
    length: NDArray[np.int64]

    def turns(self, column: int, index: int) -> Iterator[TraceTurn]:
        time_s = 0.0
        for turn in range(int(self.length[column])):
            time_s += float(self.think_s[turn, column]) if turn else 0.0
            yield TraceTurn(
                time_s=time_s,
                session=f"agentic{index}",
                context=int(self.context[turn, column]),
                new=int(self.new[turn, column]),
                output=int(self.output[turn, column]),
                source=f"synthetic:agentic#{index}.{turn}",
            )


def _simulate(
    what: AgenticSessions, rng: np.random.Generator, length: NDArray[np.int64], size_median: float, new_scale: float
) -> _Sessions:
    shape = (int(length.max()), len(length))
    size = size_median * np.exp(what.context_sigma * rng.standard_normal(shape))
    z_new, z_output, z_think = rng.standard_normal((3, *shape))
    output = np.maximum(1, np.rint(what.output_median * np.exp(what.output_sigma * z_output))).astype(np.int64)
    think_s = what.think_median_s * np.exp(what.think_sigma * z_think)
    context = np.zeros(shape, dtype=np.int64)
    new = np.ones(shape, dtype=np.int64)
    start = np.clip(CYCLE_START * size, what.min_context, what.max_context / 2).astype(np.int64)
    end = np.clip(CYCLE_END * size, start + 1, what.max_context - 1).astype(np.int64)
    limit = end[0]
    now = (start[0] + (limit - start[0]) * rng.random(len(length))).astype(np.int64)  # met somewhere in the cycle
    for turn in range(shape[0]):
        full = now > limit
        now, limit = np.where(full, start[turn], now), np.where(full, end[turn], limit)
        wanted = np.rint(new_scale * appended_tokens(now.astype(float), z_new[turn])).astype(np.int64)
        context[turn] = now
        new[turn] = np.clip(wanted, 1, what.max_context - now)
        now = now + new[turn] + output[turn]
    return _Sessions(context, new, output, think_s, length)


@functools.lru_cache(maxsize=32)
def _calibrate(what: AgenticSessions) -> tuple[float, float]:
    """Median size of the cycles, and scale of the new tokens, that give the medians asked for over all turns.

    Found on a pilot with a seed of its own, the same for everybody, so that the result depends on the parameters alone.
    Raises ValueError where no sessions have these medians.
    """
    size_median, new_scale = what.context_median, 1.0
    length = np.full(_PILOT_SESSIONS, _PILOT_TURNS)
    for _ in range(_PILOT_ROUNDS):
        pilot = _simulate(what, np.random.default_rng(_PILOT_SEED), length, size_median, new_scale)
        context_off = what.context_median / float(np.median(pilot.context))
        new_off = what.new_median / float(np.median(pilot.new))
        if max(abs(math.log(context_off)), abs(math.log(new_off))) < _PILOT_CLOSE:
            return size_median, new_scale
        size_median *= context_off
        new_scale *= new_off
    raise ValueError(
        f"generator: no sessions have context_median {what.context_median:g} and new_median {what.new_median:g} with a "
        f"max_context of {what.max_context}; ask for a longer context or fewer new tokens"
    )


@dataclass(frozen=True, slots=True)
class ZipfLengths:
    """Independent requests without a prefix: new tokens between ``shortest`` and ``longest`` in steps of ``step``, the k-th
    shortest with probability ∝ k^−``exponent`` (bounded Zipf). Every request is a session of its own."""

    shortest: int = 512
    longest: int = 32_768
    step: int = 64
    exponent: float = 1.0
    output: int = 128

    def __post_init__(self) -> None:
        if not (1 <= self.shortest <= self.longest and self.step >= 1 and self.output >= 0 and math.isfinite(self.exponent)):
            raise ValueError("generator: needs 1 <= shortest <= longest, step >= 1, output >= 0 and a finite exponent")

    def turns(self, count: int, rng: np.random.Generator) -> tuple[TraceTurn, ...]:
        """The first ``count`` turns."""
        lengths = np.arange(self.shortest, self.longest + 1, self.step)
        below = np.cumsum(np.arange(1, len(lengths) + 1, dtype=float) ** -self.exponent)
        drawn = lengths[np.searchsorted(below / below[-1], rng.random(count), side="right")]
        return tuple(
            TraceTurn(0.0, f"zipf{at}", 0, int(new), self.output, f"synthetic:zipf#{at}") for at, new in enumerate(drawn)
        )

    def trace(self, count: int, rng: np.random.Generator) -> Trace:
        return _as_trace("synthetic:zipf", self.turns(count, rng))


def _as_trace(name: str, turns: tuple[TraceTurn, ...]) -> Trace:
    if not turns:
        raise ValueError("generator: ask for at least one turn")
    return Trace(
        format=name,
        path=name,
        turns=turns,
        rows=len(turns),
        skipped=(),
        session_relative=True,
        notes=("synthetic: generated from published statistics, not recorded",),
    )
