"""Which uplink of its leaf a flow takes, among those that cost the same. Pure; asked once, when the flow begins.

Source: fabrics.md of the design, the table of path policies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FiveTuple:
    """A TCP connection by what routers hash: names of hosts stand for their addresses."""

    source: str
    destination: str
    sport: int
    dport: int


class UplinkChoice(Protocol):
    """A policy. ``leaf`` and ``other`` are the indices of the leaves of the two hosts, which differ."""

    def __call__(self, flow: int, tuple_: FiveTuple, leaf: int, other: int) -> int:
        """The index of the spine."""
        ...  # pragma: no cover


class Ecmp:
    """By a hash of the 5-tuple with a seed of each leaf's own, for the life of a connection.

    Not the kernel's hash: only its statistics are alike. Where a run's realised paths are known, use ``Given``.
    """

    def __init__(self, uplinks: int, seed: int) -> None:
        self._uplinks = uplinks
        self._seed = seed
        self._known: dict[tuple[FiveTuple, int], int] = {}

    def __call__(self, flow: int, tuple_: FiveTuple, leaf: int, other: int) -> int:
        """See UplinkChoice."""
        del flow, other
        known = self._known.get((tuple_, leaf))
        if known is None:
            text = f"{self._seed} {leaf} {tuple_.source} {tuple_.destination} {tuple_.sport} {tuple_.dport}"
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            known = self._known[tuple_, leaf] = int.from_bytes(digest, "big") % self._uplinks
        return known


class Pinned:
    """One after the other for each pair of leaves: no two flows share an uplink while a pair has no more flows than uplinks.

    Pairs begin at different uplinks, so that the first flows of a leaf to several others do not meet.
    """

    def __init__(self, uplinks: int) -> None:
        self._uplinks = uplinks
        self._next: dict[tuple[int, int], int] = {}

    def __call__(self, flow: int, tuple_: FiveTuple, leaf: int, other: int) -> int:
        """See UplinkChoice."""
        del flow, tuple_
        turn = self._next.get((leaf, other), leaf + other)
        self._next[leaf, other] = turn + 1
        return turn % self._uplinks


class Given:
    """The uplinks that another run's flows took, by flow; what it does not know is for ``otherwise`` to choose."""

    def __init__(self, spine_of: Mapping[int, int], otherwise: UplinkChoice) -> None:
        self._spine_of = spine_of
        self._otherwise = otherwise

    def __call__(self, flow: int, tuple_: FiveTuple, leaf: int, other: int) -> int:
        """See UplinkChoice."""
        spine = self._spine_of.get(flow)
        return self._otherwise(flow, tuple_, leaf, other) if spine is None else spine
