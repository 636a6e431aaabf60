"""Which CPU a run's hosts and replay get: the idlest that no other run of this machine has.

Two runs whose replays share a CPU make each other late. Both start by looking for an idle one, and started together both
would find the same; so a run claims its CPU, by a name in the abstract socket namespace: it is no file, and the kernel lets
go of it however the process ends.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, sleep

from kvfabric.machine import CpuSampler

_LOOK_S = 0.2
_NAME = "\0kvfabric-cpu-{}"


def idle_shares() -> dict[int, float]:
    """Idle share, 0 to 1, of every CPU this process may use, over a moment."""
    sampler = CpuSampler(monotonic())
    sleep(_LOOK_S)
    sample = sampler.sample(monotonic())
    seen = dict(sample.cores) if sample else {}
    return {cpu: seen.get(cpu, 1.0) for cpu in sorted(os.sched_getaffinity(0))}


@contextmanager
def claimed_cpu(idle: Mapping[int, float]) -> Iterator[int]:
    """Hold the idlest CPU that no run in this network namespace holds; where all are held, the idlest, unclaimed."""
    by_idleness = sorted(idle, key=lambda cpu: (-round(idle[cpu], 1), cpu))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        for cpu in by_idleness:
            try:
                claim.bind(_NAME.format(cpu))
            except OSError:
                continue
            yield cpu
            return
        yield by_idleness[0]
