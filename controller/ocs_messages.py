"""What is said to the controller of the optical switch and what it says, and the JSON it is said in; docs/northbound.md.

Instants are nanoseconds on CLOCK_MONOTONIC, planes and ports count from 0.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class MessageError(ValueError):
    """A message that does not say what it should; the text names the key."""


class Keeper(enum.Enum):
    """What holds the dark window: shutters in the data plane, exactly, or the controller's timer, about."""

    LIGHT = "light"
    TIMER = "timer"


class Verb(enum.Enum):
    CONNECT = "connect"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Join two ports, or part them, on one or several planes (none named: on all) at ``at_ns`` (None or past: at once).

    ``replace``: circuits in the way may go. ``force``: set it up anew although it stands. ``tag`` comes back in every
    answer and event.
    """

    a: int
    b: int
    planes: tuple[int, ...] = ()
    verb: Verb = Verb.CONNECT
    at_ns: int | None = None
    replace: bool = False
    force: bool = False
    tag: str = ""


class Outcome(enum.Enum):
    """What an order leads to: it is carried out later or now, there is nothing to do, or it is refused."""

    ANNOUNCED = "announced"
    STARTED = "started"
    STANDING = "standing"
    ABSENT = "absent"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To one order on one plane. ``dark_ns``: when its ports go dark; ``up_ns``: when it is up, where that is known."""

    plane: int
    a: int
    b: int
    outcome: Outcome
    tag: str = ""
    reason: str = ""
    dark_ns: int | None = None
    up_ns: int | None = None


class EventKind(enum.Enum):
    """``connected``: a switch, not yet usable. ``ready``: its table is as intended. ``armed``: the instant of up is fixed."""

    CONNECTED = "connected"
    READY = "ready"
    DISCONNECTED = "disconnected"
    DARK = "dark"
    ARMED = "armed"
    UP = "up"
    DOWN = "down"
    REFUSED = "refused"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened at ``at_ns``. Of an order: when it was asked, when the rules were sent (``commanded_ns``), from when its
    ports are dark and when they are up. ``late_ns``: how much longer than τ they are dark. ``plane`` is None for a switch
    that is on none."""

    kind: EventKind
    at_ns: int
    plane: int | None = None
    a: int | None = None
    b: int | None = None
    tag: str = ""
    keeper: Keeper | None = None
    asked_ns: int | None = None
    commanded_ns: int | None = None
    dark_ns: int | None = None
    up_ns: int | None = None
    late_ns: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneState:
    """A plane as it is now: ``state`` is disconnected, synchronising or ready; circuits carry light, are being set up, or are
    announced."""

    plane: int
    dpid: str
    state: str
    ports: int
    tau_s: float
    keeper: Keeper
    circuits: tuple[tuple[int, int], ...] = ()
    moving: tuple[tuple[int, int], ...] = ()
    announced: tuple[tuple[int, int], ...] = ()


def to_json(message: Answer | Event | Order | PlaneState) -> dict[str, Any]:
    """Everything but what has its default, enums by their values."""
    said: dict[str, Any] = {}
    for name, default in _defaults(type(message)):  # type: ignore[arg-type]  # a class is hashable
        value = getattr(message, name)
        if value != default:
            said[name] = value.value if isinstance(value, enum.Enum) else value
    return said


@functools.cache
def _defaults(kind: type) -> tuple[tuple[str, object], ...]:
    return tuple((field.name, field.default) for field in dataclasses.fields(kind))


def encode(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def decode(body: bytes) -> dict[str, Any]:
    """Raises MessageError for what is not one JSON object."""
    try:
        found = json.loads(body)
    except ValueError as error:
        raise MessageError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise MessageError("not a JSON object")
    return found


_ORDER_TYPES: dict[str, type] = {"a": int, "b": int, "planes": list, "at_ns": int, "replace": bool, "force": bool, "tag": str}


def orders_of(body: bytes, verb: Verb) -> tuple[Order, ...]:
    """The orders of a request's body, ``{"circuits": [{"a": 0, "b": 3, …}, …]}``. Raises MessageError."""
    document = decode(body)
    if set(document) != {"circuits"} or not isinstance(document["circuits"], list):
        raise MessageError('the body is {"circuits": [{"a": PORT, "b": PORT, ...}, ...]}')
    return tuple(_order(item, verb, f"circuits[{index}]") for index, item in enumerate(document["circuits"]))


def _order(item: object, verb: Verb, where: str) -> Order:
    if not isinstance(item, dict):
        raise MessageError(f"{where} is not an object")
    for key, value in item.items():
        kind = _ORDER_TYPES.get(key)
        if kind is None:
            raise MessageError(f"{where}: unknown key {key!r}; known: {', '.join(_ORDER_TYPES)}")
        if type(value) is not kind:
            raise MessageError(f"{where}.{key} is not of type {kind.__name__}: {value!r}")
    if "a" not in item or "b" not in item:
        raise MessageError(f"{where} needs the ports a and b")
    planes = item.get("planes", [])
    if not all(type(plane) is int for plane in planes):
        raise MessageError(f"{where}.planes is not a list of integers")
    return Order(**{**item, "planes": tuple(planes), "verb": verb})


def orders_body(orders: Iterable[Order]) -> bytes:
    """The inverse of ``orders_of``; the verb is the request's method."""
    items = [{key: value for key, value in to_json(order).items() if key != "verb"} for order in orders]
    return encode({"circuits": items})


def answer_of(said: Mapping[str, Any]) -> Answer:
    return Answer(**{**said, "outcome": Outcome(said["outcome"])})


def event_of(said: Mapping[str, Any]) -> Event:
    keeper = {"keeper": Keeper(said["keeper"])} if "keeper" in said else {}
    return Event(**{**said, "kind": EventKind(said["kind"]), **keeper})


def plane_state_of(said: Mapping[str, Any]) -> PlaneState:
    pairs = {key: tuple((a, b) for a, b in said.get(key, ())) for key in ("circuits", "moving", "announced")}
    return PlaneState(**{**said, **pairs, "keeper": Keeper(said["keeper"])})
