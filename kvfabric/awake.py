"""Keeping the processors from sleeping while packets are paced.

Paced traffic leaves a CPU idle for some tens of microseconds at a time. In a virtual machine each of these naps hands the CPU
back to the hypervisor, and it comes back late: a shaper's timer, a packet handed to another CPU. Asking the kernel's power
management for a latency of zero makes idle CPUs poll instead. It is no load (idle time stays idle time), it costs power, it
holds for the whole machine, and the kernel forgets it when the file is closed, so also when the process is killed.
Source: Documentation/power/pm_qos_interface.rst.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEVICE = Path("/dev/cpu_dma_latency")


@contextmanager
def cpus_awake(device: Path = DEVICE) -> Iterator[bool]:
    """Idle CPUs poll inside. Yields whether the kernel took the wish; where it has no such device nothing changes."""
    try:
        fd = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _ask(fd)
    finally:
        os.close(fd)


def _ask(fd: int) -> bool:
    try:
        return os.write(fd, struct.pack("=i", 0)) == 4
    except OSError:
        return False
