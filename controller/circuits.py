"""What the ports of a circuit-switched network point to, as far as it has been commanded and told. Pure.

The calendars say what is planned; this says what is. A pair of instances counts as one circuit, on all its planes together.
"""

from __future__ import annotations

import math


class Circuits:
    """The commanded circuits between prefill and decode instances, each with the instant from which it carries light."""

    def __init__(self) -> None:
        self._up_s: dict[tuple[int, int], float] = {}  # infinity: commanded, and its light not told of yet
        self._decode_of: dict[int, int] = {}
        self._prefill_of: dict[int, int] = {}

    def stands(self, prefill: int, decode: int) -> bool:
        """Whether the two point to each other, lit or still moving."""
        return (prefill, decode) in self._up_s

    def up_s(self, prefill: int, decode: int) -> float:
        """From when on the circuit carries light; infinity while that is not known, or no such circuit was commanded."""
        return self._up_s.get((prefill, decode), math.inf)

    def free_s(self, prefill: int, decode: int) -> float:
        """When the ports of both can be moved: minus infinity if none moves, infinity while that is not known."""
        ends_s = [-math.inf]
        if prefill in self._decode_of:
            ends_s.append(self._up_s[prefill, self._decode_of[prefill]])
        if decode in self._prefill_of:
            ends_s.append(self._up_s[self._prefill_of[decode], decode])
        return max(ends_s)

    def command(self, prefill: int, decode: int) -> None:
        """The two are being pointed at each other: what their ports were in is no more."""
        if prefill in self._decode_of:
            self.drop(prefill, self._decode_of[prefill])
        if decode in self._prefill_of:
            self.drop(self._prefill_of[decode], decode)
        self._decode_of[prefill], self._prefill_of[decode] = decode, prefill
        self._up_s[prefill, decode] = math.inf

    def light(self, prefill: int, decode: int, up_s: float) -> bool:
        """The network tells from when on a circuit carries light; False if that is known, or the circuit is no more."""
        if self._up_s.get((prefill, decode)) != math.inf:
            return False
        self._up_s[prefill, decode] = up_s
        return True

    def drop(self, prefill: int, decode: int) -> None:
        """The circuit is no more, if it was there."""
        if self._up_s.pop((prefill, decode), None) is not None:
            del self._decode_of[prefill], self._prefill_of[decode]
