"""What the controller of the optical switch is started with, as data; docs/northbound.md has it as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any


class ConfigError(ValueError):
    """A configuration that cannot be; the text names the key."""


@dataclass(frozen=True, slots=True)
class PlaneConfig:
    """One plane. ``ofports`` and ``ifindexes``: the switch's port number and the interface of each crossbar port, in order; the
    interfaces are needed where there is light."""

    dpid: int
    tau_s: float
    ofports: tuple[int, ...]
    ifindexes: tuple[int, ...] = ()

    @property
    def ports(self) -> int:
        return len(self.ofports)


@dataclass(frozen=True, slots=True)
class Timing:
    """``settle_s``: by how much the data plane may lag behind a barrier's reply: Open vSwitch revalidates every 5 ms, and its
    threads have to get a CPU. ``barrier_s``: how long a switch may take to reply."""

    settle_s: float = 0.010
    barrier_s: float = 1.0


@dataclass(frozen=True, slots=True)
class OcsConfig:
    """All of it. ``northbound``: a Unix socket's path, or ``127.0.0.1:PORT``. ``light_fd``: the shutters' map, inherited; None:
    there are none, and a timer keeps the dark window. ``fence``: the control socket of the vswitchd that has the planes, in
    user space, to be asked whether its data plane follows; None: it is given ``settle_s`` instead.
    ``queue``: events that a reader may be behind before it is dropped."""

    planes: tuple[PlaneConfig, ...]
    northbound: str
    openflow_port: int
    openflow_host: str = "127.0.0.1"
    light_fd: int | None = None
    fence: str | None = None
    timing: Timing = dataclasses.field(default_factory=Timing)
    queue: int = 4096


def parse_config(text: str) -> OcsConfig:
    """From JSON with the names of the fields above. Raises ConfigError."""
    try:
        said = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}") from None
    _check_keys(said, OcsConfig, "the configuration")
    if not isinstance(said["planes"], list) or not said["planes"]:
        raise ConfigError("planes is not a list of at least one plane")
    planes = tuple(_plane(item, f"planes[{index}]", "light_fd" in said) for index, item in enumerate(said["planes"]))
    if len({plane.dpid for plane in planes}) != len(planes):
        raise ConfigError("planes: two have the same dpid")
    timing = said.get("timing", {})
    _check_keys(timing, Timing, "timing")
    for key, value in timing.items():
        _check_seconds(value, f"timing.{key}")
    for key, low in (("openflow_port", 1), ("queue", 1), ("light_fd", 0)):
        if key in said and (type(said[key]) is not int or said[key] < low):
            raise ConfigError(f"{key} is not an integer of at least {low}: {said[key]!r}")
    host = said.get("openflow_host", "127.0.0.1")
    if not isinstance(said.get("fence", ""), str):
        raise ConfigError(f"fence is not a path: {said['fence']!r}")
    if not isinstance(said["northbound"], str) or not isinstance(host, str):
        raise ConfigError("northbound and openflow_host are strings")
    return OcsConfig(**{**said, "planes": planes, "timing": Timing(**timing)})


def to_text(config: OcsConfig) -> str:
    """The inverse of ``parse_config``, for whoever starts the controller."""
    said = dataclasses.asdict(config)
    return json.dumps({key: value for key, value in said.items() if value is not None})


def _plane(said: Any, where: str, light: bool) -> PlaneConfig:
    _check_keys(said, PlaneConfig, where)
    if type(said["dpid"]) is not int or not 0 < said["dpid"] < 1 << 64:
        raise ConfigError(f"{where}.dpid is not an integer of 1 to 64 bits: {said['dpid']!r}")
    _check_seconds(said["tau_s"], f"{where}.tau_s")
    numbers: dict[str, tuple[int, ...]] = {}
    for key in ("ofports", "ifindexes"):
        value = said.get(key, [])
        if not isinstance(value, list) or not all(type(one) is int and one > 0 for one in value) or len(set(value)) != len(value):
            raise ConfigError(f"{where}.{key} is not a list of different positive integers")
        numbers[key] = tuple(value)
    if len(numbers["ofports"]) < 2:
        raise ConfigError(f"{where}.ofports: a plane needs at least 2 ports")
    if light and len(numbers["ifindexes"]) != len(numbers["ofports"]):
        raise ConfigError(f"{where}.ifindexes: with light_fd each of the {len(numbers['ofports'])} ports needs its interface")
    return PlaneConfig(said["dpid"], float(said["tau_s"]), numbers["ofports"], numbers["ifindexes"])


def _check_keys(said: Any, kind: type, where: str) -> None:
    if not isinstance(said, dict):
        raise ConfigError(f"{where} is not an object")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in said:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {key!r}; known: {', '.join(fields)}")
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in said:
            raise ConfigError(f"{where}: {name} is missing")


def _check_seconds(value: Any, where: str) -> None:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ConfigError(f"{where} is not a time in seconds: {value!r}")
