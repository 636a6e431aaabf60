"""What a plane of the optical switch wants done: instructions to shutters, switch and northbound. Instants as in messages."""

from __future__ import annotations

from dataclasses import dataclass

from controller.ocs_messages import Event
from ocs_switch.rules import RuleChange


@dataclass(frozen=True, slots=True)
class Shut:
    """The port is dark from ``from_ns`` until ``until_ns``, for ever if that is None."""

    port: int
    from_ns: int
    until_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """The port is lit."""

    port: int


@dataclass(frozen=True, slots=True)
class Send:
    """Change rules, then a barrier; its reply is ``Plane.confirmed(token)``."""

    token: int
    change: RuleChange


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell the northbound's readers."""

    event: Event


@dataclass(frozen=True, slots=True)
class Drop:
    """Disconnect the switch."""

    reason: str


Instruction = Shut | Open | Send | Emit | Drop
