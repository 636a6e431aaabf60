"""Which CPU works for whom: hosts and the replay on one, routers on the others.

Left alone, a veth delivers in the sender's own context: one CPU carries a packet through every router of its path while the
process that sends waits, and the other CPUs idle. Receive packet steering hands the routers' part over, so that sends are
punctual and the machine carries about twice as much. Pure; the masks become a sysctl or sysfs writes elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Steering:
    """``host_cpu`` for the hosts' packets and the replay; the routers are dealt out over ``router_cpus``."""

    host_cpu: int
    router_cpus: tuple[int, ...]

    def router_cpu(self, index: int) -> int:
        """The CPU of the ``index``-th router."""
        return self.router_cpus[index % len(self.router_cpus)]


def steering_for(idle: Mapping[int, float]) -> Steering | None:
    """How to use CPUs of which the idle share is known: the idlest goes to the hosts and the replay, which must be punctual,
    so that two testbeds side by side do not meet on one. None where there is nothing to split (a single CPU)."""
    if len(idle) < 2:
        return None
    host_cpu = max(sorted(idle), key=lambda cpu: idle[cpu])
    return Steering(host_cpu, tuple(cpu for cpu in sorted(idle) if cpu != host_cpu))


def cpu_mask(cpu: int) -> str:
    """A CPU as the kernel writes masks: hexadecimal, in groups of 32 bits."""
    digits = f"{1 << cpu:x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8) if len(digits) > 8 else digits
    return ",".join(digits[place : place + 8] for place in range(0, len(digits), 8)) if len(digits) > 8 else digits


def same_mask(a: str, b: str) -> bool:
    """Whether two masks name the same CPUs, whatever the padding. Raises ValueError for what is no mask."""
    return int(a.replace(",", ""), 16) == int(b.replace(",", ""), 16)
