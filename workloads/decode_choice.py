"""Which decode instance receives a turn: the policies that need no network.

A policy is a callable of plain values, so that one that knows circuits can live beside its calendars and be handed to
the serving model in place of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


class DecodeChoice(Protocol):
    """Called once a turn, in the order of prefill starts: at each start, or at each arrival if the configuration says so."""

    def __call__(self, *, prefill: int, holder: int | None, loads: Sequence[int], head_bytes: int, now_s: float) -> int:
        """The index of a decode instance, 0 ≤ index < ``len(loads)``.

        ``prefill`` is where the turn is computed, ``holder`` the decode that holds its session's prefix, ``loads`` the
        KV tokens assigned to each decode so far, ``head_bytes`` (per GPU) what moves besides the new KV unless the
        holder is chosen, ``now_s`` that start or arrival.
        """
        ...  # pragma: no cover


def least_loaded(*, prefill: int, holder: int | None, loads: Sequence[int], head_bytes: int, now_s: float) -> int:
    """The decode with the fewest KV tokens assigned so far; of equals the one of lowest index."""
    return min(range(len(loads)), key=loads.__getitem__)


@dataclass(frozen=True, slots=True)
class Affinity:
    """The decode that holds the session's prefix while its load ≤ (1 + ``slack``) · mean, else the least loaded.

    Source: serving.md of the design, the first half of the circuit-aware choice (its ε is ``slack``).
    """

    slack: float = 0.1

    def __call__(self, *, prefill: int, holder: int | None, loads: Sequence[int], head_bytes: int, now_s: float) -> int:
        if holder is not None and loads[holder] * len(loads) <= (1 + self.slack) * sum(loads):
            return holder
        return least_loaded(prefill=prefill, holder=holder, loads=loads, head_bytes=head_bytes, now_s=now_s)


def named_choice(name: Literal["load", "affinity"], slack: float = 0.1) -> DecodeChoice:
    """The choice of that name; ``slack`` is that of affinity."""
    return least_loaded if name == "load" else Affinity(slack)
