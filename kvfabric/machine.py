"""What the machine did during a run: processor idle time, packets the kernel dropped, and what machine it is.

The parsers take text; the readers below them open the files.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from kvfabric.evidence import CpuSample

_U32 = 1 << 32


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Ticks one core (or all of them) has spent idle and in total since boot."""

    idle: int
    total: int


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """``/proc/stat``: all cores together, and each by its number."""

    all: CoreTimes
    cores: dict[int, CoreTimes]


@dataclass(frozen=True, slots=True)
class Softnet:
    """``/proc/net/softnet_stat`` summed over the cores: packets dropped because a core's backlog was full, and how often a
    core ran out of its time for receiving (time_squeeze)."""

    drops: int
    time_squeeze: int


SoftnetRows = tuple[tuple[int, int, int], ...]
"""(core, dropped, time_squeeze) of every core, as counted since boot, modulo 2**32."""


class MachineFormatError(ValueError):
    """A file of the kernel does not look as documented."""


def parse_cpu_times(text: str) -> CpuTimes:
    """``/proc/stat``. Time waiting for I/O is idle (the core could have worked); stolen time is busy (it could not).

    Guest time is part of user time already. Raises MachineFormatError.
    """
    total: CoreTimes | None = None
    cores: dict[int, CoreTimes] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if not name.startswith("cpu"):
            continue
        ticks = [int(word) for word in rest.split()[:8]]  # user nice system idle iowait irq softirq steal
        if len(ticks) < 4:
            raise MachineFormatError(f"/proc/stat: {line!r}")
        times = CoreTimes(sum(ticks[3:5]), sum(ticks))
        if name == "cpu":
            total = times
        else:
            cores[int(name[3:])] = times
    if total is None:
        raise MachineFormatError("/proc/stat has no line 'cpu'")
    return CpuTimes(total, cores)


def _idle_share(before: CoreTimes, after: CoreTimes) -> float | None:
    spent = after.total - before.total
    if spent <= 0:
        return None
    # The kernel lets iowait fall now and then.
    return min(1.0, max(0.0, (after.idle - before.idle) / spent))


def cpu_sample(before: CpuTimes, after: CpuTimes, *, time_s: float, interval_s: float) -> CpuSample | None:
    """The idle shares between two readings; None when no tick has passed. Cores that came or went are left out."""
    idle = _idle_share(before.all, after.all)
    if idle is None:
        return None
    shares = ((core, _idle_share(times, after.cores[core])) for core, times in before.cores.items() if core in after.cores)
    return CpuSample(time_s, interval_s, idle, tuple((core, share) for core, share in shares if share is not None))


def parse_softnet(text: str) -> SoftnetRows:
    """``/proc/net/softnet_stat``: hexadecimal, a line a core; column 13 is the core's number where the kernel gives it.

    Raises MachineFormatError.
    """
    rows = []
    for index, line in enumerate(text.splitlines()):
        words = line.split()
        if len(words) < 3:
            raise MachineFormatError(f"/proc/net/softnet_stat: {line!r}")
        rows.append((int(words[12], 16) if len(words) > 12 else index, int(words[1], 16), int(words[2], 16)))
    return tuple(rows)


def softnet_delta(before: SoftnetRows, after: SoftnetRows) -> Softnet:
    """What was counted between two readings; the kernel's 32-bit counters may have wrapped once."""
    old = {core: (drops, squeeze) for core, drops, squeeze in before}
    drops = squeezes = 0
    for core, now_drops, now_squeeze in after:
        was_drops, was_squeeze = old.get(core, (0, 0))
        drops += (now_drops - was_drops) % _U32
        squeezes += (now_squeeze - was_squeeze) % _U32
    return Softnet(drops, squeezes)


def read_cpu_times() -> CpuTimes:
    return parse_cpu_times(Path("/proc/stat").read_text(encoding="ascii"))


def read_softnet() -> SoftnetRows:
    return parse_softnet(Path("/proc/net/softnet_stat").read_text(encoding="ascii"))


class CpuSampler:
    """Idle shares since the last call. ``read`` and the times are passed in."""

    def __init__(self, now_s: float, read: Callable[[], CpuTimes] = read_cpu_times) -> None:
        self._read = read
        self._then_s = now_s
        self._times = read()

    def sample(self, now_s: float, *, label_s: float | None = None) -> CpuSample | None:
        """The sample that ends now, its time given as ``label_s`` if other than the clock's."""
        times = self._read()
        label = now_s if label_s is None else label_s
        found = cpu_sample(self._times, times, time_s=label, interval_s=now_s - self._then_s)
        self._then_s, self._times = now_s, times
        return found


def parse_cpu_model(text: str) -> str:
    """The processor's name in ``/proc/cpuinfo``; empty where it has none (ARM)."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return ""


def parse_memory_bytes(text: str) -> int | None:
    """MemTotal of ``/proc/meminfo``."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "MemTotal:":
            return int(words[1]) * 1024
    return None


_PACKAGES = ("kvfabric", "mininet", "numpy", "os-ken", "pyarrow", "pydantic", "pyroute2", "PyYAML", "rich")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def host_facts(packages: Iterable[str] = _PACKAGES) -> dict[str, object]:
    """What the manifest says of the machine: JSON-ready; null for what is not known."""
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "system": next(
            (
                line.partition("=")[2].strip('"')
                for line in _text("/etc/os-release").splitlines()
                if line.startswith("PRETTY_NAME=")
            ),
            None,
        ),
        "cpu": parse_cpu_model(_text("/proc/cpuinfo")) or None,
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": parse_memory_bytes(_text("/proc/meminfo")),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
    }
