"""What a verdict rests on, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from kvfabric.rows import FlowRow


@dataclass(frozen=True, slots=True)
class CpuSample:
    """Idle share, 0 to 1, over the ``interval_s`` seconds that ended at ``time_s``; ``cores`` is (core, idle share)."""

    time_s: float
    interval_s: float
    idle: float
    cores: tuple[tuple[int, float], ...]

    @property
    def worst_core(self) -> tuple[int, float]:
        """The busiest core and its idle share."""
        return min(self.cores, key=lambda item: item[1], default=(-1, self.idle))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run is held to. Shares are 0 to 1, times emulated seconds."""

    cpu_idle: float = 0.05
    lateness_p99_emu_s: float = 0.002
    lateness_max_emu_s: float = 0.050
    early_emu_s: float = 0.001
    link_below: float = 0.03
    link_above: float = 0.01
    sampling_gap_emu_s: float = 3.0
    dark_median_emu_s: float = 0.0005
    dark_p99_emu_s: float = 0.002
    control_share: float = 0.05
    circuit_below: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PortEvidence:
    """What an egress port did over the run.

    ``max_use`` is the most it carried in any interval, as a share of its wire rate, after the shaper's burst and the
    uncertainty of the reading have been taken off; ``max_use_at_s`` when. ``saturated_use`` is what it carried, as a share,
    over the intervals that began with packets waiting (``saturated_s`` seconds); ``waiting`` of ``looks`` looks within
    and at the end of those intervals found packets waiting. A port that works while packets wait has ``saturated_use`` ≥
    waiting / looks, whatever the traffic.
    """

    port: str
    wire_Bps: float
    sent_bytes: int
    drops: int
    max_use: float
    max_use_at_s: float
    saturated_s: float
    saturated_use: float | None
    waiting: int
    looks: int

    @property
    def waiting_share_low(self) -> float:
        """A lower bound (99.9 %, Wilson) of the share of the saturated intervals in which packets waited."""
        if self.looks <= 0:
            return 0.0
        z, n, share = 3.09, self.looks, self.waiting / self.looks
        middle = share + z * z / (2 * n)
        half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        return max(0.0, (middle - half) / (1 + z * z / n))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEvidence:
    """What is held against one flow. ``slowdown_credit`` is how far below 1 its slowdown may lie (burst credit, lateness
    and the clock's precision, as a share of its ideal FCT)."""

    flow: int
    status: str
    lateness_emu_s: float | None
    path_predicted: str | None
    path_realised: str | None
    content_checked: bool
    content_ok: bool | None
    slowdown: float | None
    slowdown_credit: float

    @classmethod
    def of(cls, row: FlowRow, slowdown_credit: float) -> FlowEvidence:
        names = [item.name for item in fields(cls) if item.name != "slowdown_credit"]
        return cls(**{name: getattr(row, name) for name in names}, slowdown_credit=slowdown_credit)


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitEvidence:
    """What an optical switch did over the run. Times are emulated seconds.

    ``faults`` in words; ``lost_packets`` ran into the dark, which the gates are to prevent; ``dark_errors_emu_s`` by how much
    each reconfiguration was dark longer than ``tau_emu_s``, ``control_emu_s`` by how much later than planned it began.
    ``carried`` is what each circuit carried while it had all of its window's bytes to carry, as a share of its rate.
    """

    faults: tuple[str, ...]
    lost_packets: int
    tau_emu_s: float
    dark_errors_emu_s: tuple[float, ...]
    control_emu_s: tuple[float, ...]
    carried: tuple[float, ...]
    booked: int
    reconfigurations: int
    reused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything a verdict rests on. No field has a default: what was not looked at has to be said.

    ``rows_in`` are the rows of the traces in the window, ``rows_accounted`` those that became a turn or were declared
    skipped. ``interrupted`` names the signal. ``observer_faults`` say where the observer itself failed.
    ``missing_capabilities`` are those the run needed. ``empty_classes`` are classes of traffic without a flow: a note, no
    reason. ``circuits`` is None over packets. ``cpu`` has one sample a second; ``duration_emu_s`` is how long was to be observed.
    """

    interrupted: str | None
    observer_faults: tuple[str, ...]
    preflight_failures: tuple[str, ...]
    calibration_failures: tuple[str, ...]
    missing_capabilities: tuple[str, ...]
    shaping_faults_start: tuple[str, ...]
    shaping_faults_end: tuple[str, ...]
    sysctl_faults: tuple[str, ...]
    rows_in: int
    rows_accounted: int
    offered: int
    completed: int
    failed: int
    unfinished: int
    request_rows: int
    failure_reasons: tuple[str, ...]
    flows: tuple[FlowEvidence, ...]
    queue: Literal["fair", "fifo"]
    ports: tuple[PortEvidence, ...]
    cpu: tuple[CpuSample, ...]
    duration_emu_s: float
    longest_gap_emu_s: float
    softnet_drops: int
    time_squeeze: int
    empty_classes: tuple[str, ...]
    circuits: CircuitEvidence | None
