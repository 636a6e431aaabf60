"""Before the window opens: do bytes arrive as they were sent, and does one link alone carry what it should?

Ping would say yes where TCP says no (checksum offload), and a legal setting can make a single link slow; so the preflight is
real transfers, compared byte by byte, and the calibration one flow alone against bytes / rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from topo.cluster import Cluster, Gpu
from topo.leafspine import host_name
from topo.units import format_rate
from workloads.replay.engine import ReplayEngine, run_flows
from workloads.replay.flows import FlowResult, FlowSpec

PREFLIGHT_BYTES = 100_000
CALIBRATION_S = 0.4
TOLERANCE = 0.01
_ATTEMPTS = 5
_HOPELESS = 0.5
"""A share below this is no passing disturbance, nor a cold connection: more attempts would only take time."""
_GRACE_S = 10.0
_FIRST_ID = 1 << 40
"""Flow ids far above those of any turn."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found: failures of delivery, failures of calibration, and the best calibration as a share of the rate."""

    delivery: tuple[str, ...]
    calibration: tuple[str, ...]
    calibrated: float | None


def host_pairs(cluster: Cluster) -> tuple[tuple[str, str, str], ...]:
    """One pair of each class: (class, source, destination)."""
    gpus = cluster.gpus()
    first = gpus[0]
    found = []
    for name, candidates in (
        ("same leaf", [gpu for gpu in gpus[1:] if gpu.rack == first.rack]),
        ("other leaf", [gpu for gpu in gpus if gpu.rack != first.rack]),
    ):
        if candidates:
            found.append((name, _name(first), _name(candidates[-1])))
    return tuple(found)


def _name(gpu: Gpu) -> str:
    return host_name(gpu.role, gpu.instance, gpu.position)


def preflight(engine: ReplayEngine, pairs: Sequence[tuple[str, str, str]], rate_Bps: float) -> Preflight:
    """Delivery between every pair (class, source, destination), then calibration on the last.

    ``rate_Bps`` is the emulated goodput of a link. Leaves the engine idle; raises OSError for a socket refused.
    """
    delivery = tuple(fault for place, pair in enumerate(pairs) if (fault := _delivers(engine, place, pair, rate_Bps)))
    if delivery:
        return Preflight(delivery, (), None)
    kind, source, destination = pairs[-1]
    size = max(50_000, int(rate_Bps * CALIBRATION_S))
    shares = []
    for attempt in range(_ATTEMPTS + 1):  # the first is cold and only warms the connection
        at = monotonic() + 0.01
        spec = FlowSpec(_FIRST_ID + 100 + attempt, source, destination, 0, (at,), (size,))
        results = _run(engine, [spec], size / rate_Bps)
        if results and results[0].failed is None:
            share = size / results[0].fct / rate_Bps
            if attempt or share < _HOPELESS:
                shares.append(share)
            if share < _HOPELESS or (attempt and abs(share - 1) <= TOLERANCE):
                break
    if not shares:
        return Preflight((), (f"one flow alone from {source} to {destination} ({kind}) did not end",), None)
    best = min(shares, key=lambda share: abs(share - 1))
    if abs(best - 1) <= TOLERANCE:
        return Preflight((), (), best)
    fault = (
        f"one flow alone from {source} to {destination} got {format_rate(best * rate_Bps)} of {format_rate(rate_Bps)} "
        f"({best:.1%}; the limit is {TOLERANCE:.0%} off): this machine does not carry that link"
    )
    return Preflight((), (fault,), best)


def _delivers(engine: ReplayEngine, place: int, pair: tuple[str, str, str], rate_Bps: float) -> str | None:
    kind, source, destination = pair
    at = monotonic() + 0.001
    spec = FlowSpec(_FIRST_ID + place, source, destination, place, (at,), (PREFLIGHT_BYTES,), check=True)
    results = _run(engine, [spec], PREFLIGHT_BYTES / rate_Bps)
    if not results:
        return f"TCP from {source} to {destination} ({kind}) did not deliver {PREFLIGHT_BYTES} bytes"
    if results[0].failed is not None:
        return f"TCP from {source} to {destination} ({kind}): {results[0].failed}"
    if not results[0].content_ok:
        return f"TCP from {source} to {destination} ({kind}) delivered other bytes than were sent"
    return None


def _run(engine: ReplayEngine, specs: Sequence[FlowSpec], ideal_s: float) -> list[FlowResult]:
    return run_flows(engine, specs, give_up_at=monotonic() + 4 * ideal_s + _GRACE_S)
