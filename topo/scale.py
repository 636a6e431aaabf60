"""Dimensional scaling between the real cluster and the emulated one, and whether what does not scale is still negligible.

Rates go by α, times by γ, bytes by γ/α; counts (hosts, uplinks, flows) are kept, and so is every ratio of two of these.
Source: design.md, "Scale-down". Pure arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from topo.shaping import TCP_IP_HEADERS

WINDOW_SHARE = 1 / 100
"""Largest window per flow: with a new bottleneck downstream, a flow keeps its old share till its window has filled there."""
RTT_SHARE = 0.005
"""Largest loaded round trip per transfer."""
BDP_SEGMENTS = 10
"""Largest bandwidth-delay product without queues, in segments: a short flow is over before a larger one has ramped up."""
CONTROL_SHARE = 0.05
"""Largest control latency per reconfiguration delay."""


@dataclass(frozen=True, slots=True)
class Scale:
    """α = rate_real_Bps / rate_emu_Bps, γ = ``time`` (emulated seconds = γ × real seconds); all above zero.

    Raises ValueError for anything else.
    """

    rate_real_Bps: float
    rate_emu_Bps: float
    time: float

    def __post_init__(self) -> None:
        for name in ("rate_real_Bps", "rate_emu_Bps", "time"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"scale: {name} is {getattr(self, name)}; it must be above zero")

    @property
    def alpha(self) -> float:
        """How many times slower emulated links are."""
        return self.rate_real_Bps / self.rate_emu_Bps

    def to_emu_time(self, real_s: float) -> float:
        """Real seconds as emulated seconds."""
        return real_s * self.time

    def to_real_time(self, emu_s: float) -> float:
        """Emulated seconds as real seconds."""
        return emu_s / self.time

    def to_emu_rate(self, real_Bps: float) -> float:
        """A real rate as an emulated one."""
        return real_Bps * self.rate_emu_Bps / self.rate_real_Bps

    def to_real_rate(self, emu_Bps: float) -> float:
        """An emulated rate as a real one."""
        return emu_Bps * self.rate_real_Bps / self.rate_emu_Bps

    def to_emu_bytes(self, real_bytes: float) -> int:
        """Real bytes as emulated bytes, rounded once; at least 1 where there is any."""
        return max(1, round(real_bytes * self.rate_emu_Bps / self.rate_real_Bps * self.time)) if real_bytes > 0 else 0

    def to_real_bytes(self, emu_bytes: float) -> float:
        """Emulated bytes as real bytes, as far as the rounding allows."""
        return emu_bytes * self.rate_real_Bps / self.rate_emu_Bps / self.time


@dataclass(frozen=True, slots=True)
class Circuits:
    """An OCS: ``tau_s``, the real delay of a reconfiguration; ``control_s``, from the decision to the switch, and
    ``rto_s``, TCP's least retransmission timeout, both in emulated seconds because neither scales. ``rto_s`` is None where
    senders wait for light, so that no packet is lost to a moving port."""

    tau_s: float
    control_s: float
    rto_s: float | None = None


@dataclass(frozen=True, slots=True)
class ScaleInputs:
    """What the sheet is about. Of the real cluster, per GPU and median turn: ``head_bytes``, ``tail_bytes``, ``prefill_s``
    and ``layer_s`` (one layer of the last prefill chunk, T_ℓ).

    Of the emulated network: ``mtu``; ``window_bytes`` a flow may have in flight; ``queue_s``, the longest wait of one flow's
    packet in queues (fair: window / rate); ``rtt_s`` without queues; ``offered_Bps`` of payload over all hosts;
    and what this machine carries: ``packets_per_s`` on a link, ``carried_Bps`` over all hosts.
    """

    head_bytes: float
    tail_bytes: float
    prefill_s: float
    layer_s: float
    mtu: int
    window_bytes: int
    queue_s: float
    rtt_s: float
    offered_Bps: float
    packets_per_s: float
    carried_Bps: float
    circuits: Circuits | None = None

    def __post_init__(self) -> None:
        for name in ("head_bytes", "prefill_s", "layer_s", "window_bytes", "packets_per_s", "carried_Bps"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"scale inputs: {name} is {getattr(self, name)}; it must be above zero")
        for name in ("tail_bytes", "queue_s", "rtt_s", "offered_Bps"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"scale inputs: {name} is {getattr(self, name)}; it must not be negative")
        if self.mtu <= TCP_IP_HEADERS:
            raise ValueError(f"scale inputs: an MTU of {self.mtu} holds no payload")

    @property
    def transfer_bytes(self) -> float:
        """Bytes of one GPU's flow when a median turn migrates."""
        return self.head_bytes + self.tail_bytes


@dataclass(frozen=True, slots=True)
class KeptRatio:
    """A ratio that matters, in both clusters; they differ only by the rounding of emulated bytes."""

    name: str
    real: float
    emulated: float


@dataclass(frozen=True, slots=True)
class ScaleCheck:
    """A row of the sheet: a quantity that does not scale. ``real`` is None where the real cluster has none; ``ok`` is
    emulated ≤ ``bound``; ``note`` says what to change."""

    name: str
    real: float | None
    emulated: float
    bound: float
    ok: bool
    note: str


def kept(scale: Scale, inputs: ScaleInputs) -> tuple[KeptRatio, ...]:
    """The ratios that the scaling keeps."""

    def ratio(name: str, size: float, time_s: float) -> KeptRatio:
        emulated = scale.to_emu_bytes(size) / scale.rate_emu_Bps / scale.to_emu_time(time_s)
        return KeptRatio(name, size / scale.rate_real_Bps / time_s, emulated)

    layers = max(1.0, inputs.prefill_s / inputs.layer_s)
    found = [
        ratio("transfer / prefill", inputs.transfer_bytes, inputs.prefill_s),
        ratio("layer transfer / layer time", inputs.tail_bytes / layers, inputs.layer_s),
    ]
    if inputs.circuits is not None:
        found.append(ratio("transfer / reconfiguration", inputs.transfer_bytes, inputs.circuits.tau_s))
    return tuple(found)


def checks(scale: Scale, inputs: ScaleInputs) -> tuple[ScaleCheck, ...]:
    """What the scaling does not keep, against its bounds, in the order of the sheet."""

    def at_most(name: str, real: float | None, emulated: float, bound: float, note: str) -> ScaleCheck:
        return ScaleCheck(name, real, emulated, bound, emulated <= bound, note)

    rate = scale.rate_emu_Bps
    transfer = scale.to_emu_bytes(inputs.transfer_bytes)
    segment = inputs.mtu - TCP_IP_HEADERS
    shared = [
        at_most("window / transfer", None, inputs.window_bytes / transfer, WINDOW_SHARE,
                "a smaller receive window, or a longer scale.time, which makes flows longer"),
        at_most("loaded RTT / transfer", None, (inputs.rtt_s + inputs.queue_s) * rate / transfer, RTT_SHARE,
                "a smaller receive window, the fair queue, or a longer scale.time"),
    ]  # fmt: skip
    found = [
        *(shared if inputs.circuits is None else ()),  # nobody else waits behind a circuit's window
        at_most("bandwidth-delay product, segments", None, rate * inputs.rtt_s / segment, BDP_SEGMENTS,
                "a lower scale.rate"),
        at_most("packets/s of one link", scale.rate_real_Bps / segment, rate / segment, inputs.packets_per_s,
                "a larger MTU or a lower scale.rate"),
        at_most("offered load of all hosts, B/s", scale.to_real_rate(inputs.offered_Bps), inputs.offered_Bps, inputs.carried_Bps,
                "a lower scale.rate, or fewer hosts"),
    ]  # fmt: skip
    if inputs.circuits is not None:
        circuits, tau = inputs.circuits, scale.to_emu_time(inputs.circuits.tau_s)
        if circuits.rto_s is not None:
            note = "a smaller rto_min, or a longer scale.time: a packet lost to a moving port must not cost more than the move"
            found.append(at_most("least RTO, s", None, circuits.rto_s, tau, note))
        found.append(at_most("control latency, s", None, circuits.control_s, CONTROL_SHARE * tau, "a longer scale.time"))
    return tuple(found)
