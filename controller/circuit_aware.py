"""The circuit-aware choice of a decode: where a circuit stands or was booked last, unless that decode has too much already.

Plain values in, an index out: the shape in which the serving model asks for a decode (workloads/decode_choice.py). Source:
Algorithm 1, PREFILL_START, in serving.md of the design.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller.bookings import Bookings


@dataclass(frozen=True, slots=True)
class CircuitAware:
    """A decode with a standing or last-booked circuit to the prefill and load ≤ (1 + ``slack``) · mean; of two the one whose
    gap ends first. Otherwise the decode whose gap for the head ends first, then the less loaded, then the lowest index.

    ``slack`` is ε. With ``affinity`` the decode that holds the session's prefix comes before all others, within the same
    bound. The holder needs no head, so for it the gap ends at once. What was passed over for its load stays out of the
    second search; with ``retake``, as the listing has it, it mostly comes back there, since its standing circuit saves τ.
    """

    bookings: Bookings
    slack: float = 0.1
    affinity: bool = False
    retake: bool = False

    def __call__(self, *, prefill: int, holder: int | None, loads: Sequence[int], head_bytes: int, now_s: float) -> int:
        def within(d: int) -> bool:
            return loads[d] * len(loads) <= (1 + self.slack) * sum(loads)

        if self.affinity and holder is not None and within(holder):
            return holder
        joined = self._joined(prefill, now_s)
        near = [d for d in joined if within(d)]
        if len(near) == 1:
            return near[0]
        far = range(len(loads)) if self.retake else [d for d in range(len(loads)) if d not in joined]
        return self._soonest(near or far or joined, prefill, holder, loads, head_bytes, now_s)

    def _joined(self, prefill: int, now_s: float) -> list[int]:
        """The decodes whose circuit to the prefill stands, or is the last booked, on both calendars."""
        p = self.bookings.prefill[prefill]
        last, standing = p.peer_before(len(p.windows)), p.peer_at(now_s)
        found = []
        if last is not None:
            d = self.bookings.decode[last]
            if d.peer_before(len(d.windows)) == prefill:
                found.append(last)
        if standing is not None and standing != last and self.bookings.decode[standing].peer_at(now_s) == prefill:
            found.append(standing)
        return found

    def _soonest(
        self, decodes: Iterable[int], prefill: int, holder: int | None, loads: Sequence[int], head_bytes: int, now_s: float
    ) -> int:
        best, best_s = -1, float("inf")
        # By load, so that of equal ends the first one found is the one to take, and later ones need not be searched to the end.
        for d in sorted(decodes, key=lambda d: (loads[d], d)):
            if d == holder or head_bytes == 0:
                end_s = now_s
            else:
                found = self.bookings.gap(prefill, d, ready_s=now_s, size=head_bytes, now_s=now_s, before_s=best_s)
                if found is None:
                    continue
                end_s = found.end_s
            if end_s < best_s:
                best, best_s = d, end_s
        return best
