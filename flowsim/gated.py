"""A transfer that has a circuit to itself: its bytes leave at the port's rate once they are released and its gate is open.

Nobody shares the circuit, so all is exact and nothing has to be recomputed while time passes. Instants are seconds, bytes
are per flow; the flows of a transfer are equal and count as one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sending:
    """Bytes left without a stop from ``start_s`` to ``end_s``."""

    start_s: float
    end_s: float


class GatedFlow:
    """From ``at_s[i]`` on up to ``released[i]`` bytes (cumulative) may leave, as far as a gate lets them, at ``rate_Bps``."""

    def __init__(self, at_s: Sequence[float], released: Sequence[int], rate_Bps: float) -> None:
        self._at_s = at_s
        self._released = released
        self._rate_Bps = rate_Bps
        self._sent = 0.0
        self._since_s = -math.inf
        self._gates: list[tuple[float, float]] = []  # (instant, bytes) that rise both

    @property
    def size(self) -> int:
        return self._released[-1]

    def open(self, at_s: float, upto: float) -> None:
        """From ``at_s`` on up to ``upto`` bytes may leave, besides what a gate opened before lets pass."""
        gates, self._gates = sorted([*self._gates, (at_s, upto)]), []
        for gate in gates:
            if not self._gates or gate[1] > self._gates[-1][1]:
                self._gates.append(gate)

    def close(self, now_s: float) -> tuple[Sending, ...]:
        """Let nothing leave from now on; what was sent since the gate was last closed."""
        sending = tuple(
            Sending(start_s, min(end_s, now_s)) for start_s, end_s, _, _ in self._parts() if start_s < min(end_s, now_s)
        )
        self._sent, self._since_s, self._gates = self.sent(now_s), now_s, []
        return sending

    def sent(self, now_s: float) -> float:
        """The bytes that have left by ``now_s``, which is not before the last closing."""
        sent = self._sent
        for start_s, end_s, _, upto in self._parts():
            if end_s > now_s:
                return min(upto, sent + max(0.0, now_s - start_s) * self._rate_Bps)
            sent = upto
        return sent

    def arrival_s(self, upto: float) -> float:
        """When byte ``upto`` leaves and, as there is no delay, arrives, as the gates are now; infinity if none lets it pass."""
        at_s = self._since_s
        if upto <= self._sent:
            return at_s
        for start_s, end_s, before, part in self._parts():
            if upto <= part:
                return end_s if upto == part else start_s + (upto - before) / self._rate_Bps
        return math.inf

    def _parts(self) -> Iterator[tuple[float, float, float, float]]:
        """What leaves without a stop: from when to when, from which byte to which."""
        sent, at_s = self._sent, self._since_s
        for gate_s, gate in self._gates:
            for released_s, released in zip(self._at_s, self._released, strict=True):
                upto = min(gate, released)
                if upto <= sent:
                    continue
                start_s = max(at_s, gate_s, released_s)
                at_s = start_s + (upto - sent) / self._rate_Bps
                yield start_s, at_s, sent, upto
                sent = upto
                if upto == gate:
                    break
