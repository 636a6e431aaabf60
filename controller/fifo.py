"""No reservation (policy ``none``): circuits are asked for once data are ready, and granted in the order of asking.

A transfer gets its ports when both are free and no earlier request waits for either; it pays τ then, and holds both until
its last byte. Source: serving.md of the design, "Baselines".
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from controller.bookings import BookingError


@dataclass(frozen=True, slots=True)
class Granted:
    """Command the circuit at ``start_s``; it is up ``setup_s`` later and stays until the transfer is released."""

    transfer: int
    prefill: int
    decode: int
    start_s: float
    setup_s: float


@dataclass(frozen=True, slots=True)
class _Request:
    order: int
    transfer: int
    prefill: int
    decode: int


class CircuitFifo:
    """The requests of a cluster. ``reuse`` leaves τ out where the circuit stands already."""

    def __init__(self, *, tau_s: float, reuse: bool = True) -> None:
        self._tau_s = tau_s
        self._reuse = reuse
        self._asked: dict[int, _Request] = {}
        self._holding: set[int] = set()
        self._order = 0
        # One queue a port. Whoever is in front of both its queues holds both ports.
        self._at_prefill: defaultdict[int, deque[_Request]] = defaultdict(deque)
        self._at_decode: defaultdict[int, deque[_Request]] = defaultdict(deque)
        self._prefill_peer: dict[int, int] = {}
        self._decode_peer: dict[int, int] = {}

    @property
    def waiting(self) -> tuple[int, ...]:
        """The transfers without ports yet, in the order of asking."""
        return tuple(transfer for transfer in self._asked if transfer not in self._holding)

    def request(self, transfer: int, prefill: int, decode: int, *, now_s: float) -> tuple[Granted, ...]:
        """Some of the transfer's KV is ready. Raises BookingError if it has asked before."""
        if transfer in self._asked:
            raise BookingError(f"transfer {transfer} has asked before")
        asked = self._asked[transfer] = _Request(self._order, transfer, prefill, decode)
        self._order += 1
        for queue in self._queues(asked):
            queue.append(asked)
        return self._grant((asked,), now_s)

    def release(self, transfer: int, *, now_s: float) -> tuple[Granted, ...]:
        """The transfer's last byte has arrived, or it failed, waiting or not. Raises BookingError if it never asked."""
        asked = self._asked.pop(transfer, None)
        if asked is None:
            raise BookingError(f"transfer {transfer} neither holds ports nor waits for them")
        self._holding.discard(transfer)
        for queue in self._queues(asked):
            queue.remove(asked)  # in front, unless it was waiting
        return self._grant((queue[0] for queue in self._queues(asked) if queue), now_s)

    def _queues(self, asked: _Request) -> tuple[deque[_Request], deque[_Request]]:
        return self._at_prefill[asked.prefill], self._at_decode[asked.decode]

    def _grant(self, candidates: Iterable[_Request], now_s: float) -> tuple[Granted, ...]:
        granted = []
        for asked in sorted(candidates, key=lambda asked: asked.order):
            p, d = asked.prefill, asked.decode
            if asked.transfer in self._holding or any(queue[0] is not asked for queue in self._queues(asked)):
                continue
            stands = self._reuse and self._prefill_peer.get(p) == d and self._decode_peer.get(d) == p
            self._prefill_peer[p], self._decode_peer[d] = d, p
            self._holding.add(asked.transfer)
            granted.append(Granted(asked.transfer, p, d, now_s, 0.0 if stands else self._tau_s))
        return tuple(granted)
