"""The serving cluster as data: instances, GPUs, and the rack every GPU stands in."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.Enum):
    """What an instance does with a turn: compute its KV, or receive it."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, which is one host of the fabric.

    ``index`` counts over the cluster, ``position`` within the instance (0 ≤ position < tp): KV moves between equal
    positions. ``rack`` is the leaf it hangs on, ``slot`` its port there.
    """

    index: int
    role: Role
    instance: int
    position: int
    rack: int
    slot: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """``prefill`` and ``decode`` instances of ``tp`` GPUs each, in racks of ``rack`` GPUs; no rack mixes the roles.

    Source: fabrics.md of the design ("32-GPU racks, prefill and decode in separate racks").
    """

    prefill: int
    decode: int
    tp: int
    rack: int

    def __post_init__(self) -> None:
        for name in ("prefill", "decode", "tp", "rack"):
            if getattr(self, name) < 1:
                raise ValueError(f"cluster.{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return (self.prefill + self.decode) * self.tp

    def racks_of(self, role: Role) -> int:
        """Number of racks that hold the GPUs of a role, the last one possibly not full."""
        count = self.prefill if role is Role.PREFILL else self.decode
        return -(-count * self.tp // self.rack)

    @property
    def racks(self) -> int:
        return self.racks_of(Role.PREFILL) + self.racks_of(Role.DECODE)

    def gpu(self, role: Role, instance: int, position: int) -> Gpu:
        """The GPU at a position of an instance. Raises IndexError outside the cluster."""
        count = self.prefill if role is Role.PREFILL else self.decode
        if not (0 <= instance < count and 0 <= position < self.tp):
            raise IndexError(f"no GPU {role.value} {instance}.{position} in this cluster")
        within = instance * self.tp + position
        offset, rack_offset = (0, 0) if role is Role.PREFILL else (self.prefill * self.tp, self.racks_of(Role.PREFILL))
        return Gpu(offset + within, role, instance, position, rack_offset + within // self.rack, within % self.rack)

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs, in the order of their index."""
        return tuple(
            self.gpu(role, instance, position)
            for role, count in ((Role.PREFILL, self.prefill), (Role.DECODE, self.decode))
            for instance in range(count)
            for position in range(self.tp)
        )
