"""One plane of the optical circuit switch as a state machine: commands and the time go in, events come out.

A plane joins ports in pairs. A circuit is symmetric, a port is in one circuit at most. Connecting two ports moves both:
they carry no light for τ, then the circuit is up and stands until one of its ports is moved or it is taken down. Ports that
a command does not name keep their light, except the peers that a ``replace`` leaves behind. Times are seconds on the
caller's clock, ports count from 0. Source: fabrics.md of the design, "Optical fabric".

A real mechanism may take longer than τ, or break. Whoever drives one says so: ``connect`` with ``until_s``, then ``settle``
or ``abandon``.
"""

from __future__ import annotations

import enum
import heapq
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Circuit:
    """Two joined ports, ``a`` < ``b``; ``Circuit.of`` takes them in either order."""

    a: int
    b: int

    @classmethod
    def of(cls, a: int, b: int) -> Circuit:
        return cls(min(a, b), max(a, b))


class Refusal(enum.Enum):
    """Why a command was refused. A refused command changes nothing."""

    OUT_OF_RANGE = "out of range"
    HAIRPIN = "hairpin"
    MOVING = "moving port"
    BUSY = "busy port"


@dataclass(frozen=True, slots=True)
class Down:
    """A standing circuit is no more; its ports carry no light from now on."""

    at_s: float
    circuit: Circuit


@dataclass(frozen=True, slots=True)
class Dark:
    """The ports of ``circuit`` have started to move toward each other; what is sent before ``until_s`` is lost."""

    at_s: float
    circuit: Circuit
    until_s: float


@dataclass(frozen=True, slots=True)
class Up:
    """The circuit carries light from ``at_s`` on: the exact instant, however late the state machine was asked."""

    at_s: float
    circuit: Circuit


@dataclass(frozen=True, slots=True)
class Refused:
    """The command that wanted ``a``–``b`` was refused; ``port`` is the one it failed on."""

    at_s: float
    a: int
    b: int
    port: int
    reason: Refusal

    def __str__(self) -> str:
        return f"circuit {self.a}-{self.b} refused: {self.reason.value} {self.port}"


Event = Down | Dark | Up | Refused


class Crossbar:
    """The state of one plane of ``ports`` ports that needs ``tau_s`` to move a pair of them. Starts without circuits.

    Every method that takes ``now_s`` first reports the circuits that have come up by then, in the order of time; a
    ``now_s`` before the last one raises ValueError.
    """

    def __init__(self, ports: int, tau_s: float) -> None:
        if ports < 2:
            raise ValueError(f"a plane of {ports} ports can join none; it needs at least 2")
        if not 0 <= tau_s < math.inf:
            raise ValueError(f"a reconfiguration delay of {tau_s} s is not a time")
        self.ports = ports
        self.tau_s = tau_s
        self._now_s = -math.inf
        self._lit: dict[int, int] = {}  # port → its peer, both ways
        self._moving: dict[int, int] = {}  # the same, of ports that are dark because they move
        self._due: list[tuple[float, Circuit]] = []  # heap: when each moving circuit comes up

    @property
    def circuits(self) -> frozenset[Circuit]:
        """The circuits that carry light."""
        return frozenset(Circuit(a, b) for a, b in self._lit.items() if a < b)

    @property
    def moving(self) -> frozenset[Circuit]:
        """The circuits that are being set up."""
        return frozenset(Circuit(a, b) for a, b in self._moving.items() if a < b)

    @property
    def next_up_s(self) -> float | None:
        """When the next circuit comes up; None while no port moves."""
        return self._due[0][0] if self._due else None

    def peer(self, port: int) -> int | None:
        """Where light that enters ``port`` comes out; None if nowhere."""
        return self._lit.get(port)

    def advance(self, now_s: float) -> tuple[Event, ...]:
        """Let time pass."""
        if not now_s >= self._now_s:
            raise ValueError(f"time went from {self._now_s!r} s back to {now_s!r} s")
        self._now_s = now_s
        events: list[Event] = []
        while self._due and self._due[0][0] <= now_s:
            at_s, circuit = heapq.heappop(self._due)
            del self._moving[circuit.a], self._moving[circuit.b]
            self._lit[circuit.a], self._lit[circuit.b] = circuit.b, circuit.a
            events.append(Up(at_s, circuit))
        return tuple(events)

    def refusal(self, a: int, b: int, now_s: float, *, replace: bool = False) -> Refused | None:
        """What ``connect`` would refuse at the time that was last given; nothing changes. ``now_s`` only dates the answer."""
        found = self._problem(a, b, replace)
        return None if found is None else Refused(now_s, a, b, *found)

    def connect(self, a: int, b: int, now_s: float, *, replace: bool = False, until_s: float | None = None) -> tuple[Event, ...]:
        """Join two ports: Dark now, Up after τ. Nothing to do, and no event, where they are joined or being joined.

        ``until_s`` says when it comes up instead of τ; infinity: not known yet, ``settle`` will tell.

        Refused: a port out of range, a hairpin, a port that is moving, and a port with another circuit, unless
        ``replace`` says that its standing circuit may go (Down). The port that such a circuit leaves behind does not
        move; it is without light and can be connected at once.
        """
        events = list(self.advance(now_s))
        if self._refused(a, b, events, replace):
            return tuple(events)
        circuit = Circuit.of(a, b)
        if self._lit.get(a) != b and self._moving.get(a) != b:
            for lost in sorted({Circuit.of(port, self._lit[port]) for port in (a, b) if port in self._lit}):
                events.append(self._take_down(lost))
            self._moving[a], self._moving[b] = b, a
            until_s = now_s + self.tau_s if until_s is None else until_s
            heapq.heappush(self._due, (until_s, circuit))
            events.append(Dark(now_s, circuit, until_s))
        return (*events, *self.advance(now_s))  # τ = 0 is up at once

    def disconnect(self, a: int, b: int, now_s: float) -> tuple[Event, ...]:
        """Take a circuit down, at once. Nothing to do, and no event, where the two are not joined.

        Refused: a port out of range, a hairpin, and a circuit that is being set up: a mirror in motion takes no command.
        """
        events = list(self.advance(now_s))
        if not self._refused(a, b, events, replace=True) and self._lit.get(a) == b:
            events.append(self._take_down(Circuit.of(a, b)))
        elif self._moving.get(a) == b:
            events.append(Refused(now_s, a, b, a, Refusal.MOVING))
        return tuple(events)

    def settle(self, a: int, b: int, until_s: float) -> None:
        """Say when a moving circuit comes up, in place of what was said before. Raises ValueError if it is not moving."""
        self._forget_due(a, b)
        heapq.heappush(self._due, (until_s, Circuit.of(a, b)))

    def abandon(self, a: int, b: int) -> None:
        """A moving circuit will not come up: its ports are without light and free. Raises ValueError if it is not moving."""
        self._forget_due(a, b)
        del self._moving[a], self._moving[b]

    def _forget_due(self, a: int, b: int) -> None:
        if self._moving.get(a) != b:
            raise ValueError(f"circuit {a}-{b} is not being set up")
        self._due = [entry for entry in self._due if entry[1] != Circuit.of(a, b)]
        heapq.heapify(self._due)

    def _problem(self, a: int, b: int, replace: bool) -> tuple[int, Refusal] | None:
        for port in (a, b):
            if not 0 <= port < self.ports:
                return port, Refusal.OUT_OF_RANGE
        if a == b:
            return a, Refusal.HAIRPIN
        for port, other in ((a, b), (b, a)):
            if self._moving.get(port, other) != other:
                return port, Refusal.MOVING
        for port, other in ((a, b), (b, a)):
            if self._lit.get(port, other) != other and not replace:
                return port, Refusal.BUSY
        return None

    def _refused(self, a: int, b: int, events: list[Event], replace: bool) -> bool:
        found = self._problem(a, b, replace)
        if found is not None:
            events.append(Refused(self._now_s, a, b, *found))
        return found is not None

    def _take_down(self, circuit: Circuit) -> Down:
        del self._lit[circuit.a], self._lit[circuit.b]
        return Down(self._now_s, circuit)
