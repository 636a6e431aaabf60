"""What an optical switch must have done for a run to be believed. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvfabric._wording import capped, count, ms, percent
from kvfabric.evidence import CircuitEvidence, Evidence, Limits


def circuit_reasons(evidence: Evidence, limits: Limits) -> list[str]:
    """Why a run over circuits is not to be believed; nothing over packets."""
    circuits = evidence.circuits
    if circuits is None:
        return []
    found = capped("circuit faults", (f"circuits: {item}" for item in circuits.faults))
    if circuits.lost_packets != 0:
        found.append(f"{count(circuits.lost_packets, 'packet')} ran into the dark of a moving port")
    errors = [abs(error) for error in circuits.dark_errors_emu_s]
    for rank, name, limit in ((50, "the median", limits.dark_median_emu_s), (99, "p99", limits.dark_p99_emu_s)):
        if errors and not (off := float(np.percentile(errors, rank))) <= limit:
            found.append(f"ports were dark {ms(off)} off τ at {name} (limit {ms(limit)}, τ {ms(circuits.tau_emu_s)})")
    bound = limits.control_share * circuits.tau_emu_s
    if circuits.control_emu_s and not (late := float(np.percentile(circuits.control_emu_s, 99))) <= bound:
        found.append(f"circuits were commanded {ms(late)} late at p99 (limit {ms(bound)}, {percent(limits.control_share)} of τ)")
    if circuits.carried and not (share := float(np.percentile(circuits.carried, 5))) >= 1 - limits.circuit_below:
        found.append(
            f"circuits carried {percent(share)} of their rate in the slowest 5 % of windows (tolerance "
            f"{percent(limits.circuit_below)}): this machine is too slow for the rate, or emulation.receive_window too small"
        )
    if circuits.reconfigurations and not errors:
        found.append("no reconfiguration's dark time was measured")
    return found


def circuit_figures(circuits: CircuitEvidence | None, limits: Limits) -> dict[str, object]:
    """Every figure beside its limit, JSON-ready."""
    if circuits is None:
        return {}
    errors = [abs(error) for error in circuits.dark_errors_emu_s]

    def at(values: Sequence[float], share: float) -> float | None:
        value = float(np.percentile(values, share)) if values else math.nan
        return value if math.isfinite(value) else None

    bound = limits.control_share * circuits.tau_emu_s
    return {
        "circuit_faults": {"value": float(len(circuits.faults)), "limit": 0},
        "lost_in_the_dark": {"value": float(circuits.lost_packets), "limit": 0},
        "dark_error_p50_emu_s": {"value": at(errors, 50), "limit": limits.dark_median_emu_s},
        "dark_error_p99_emu_s": {"value": at(errors, 99), "limit": limits.dark_p99_emu_s},
        "circuit_carried_p05": {"value": at(circuits.carried, 5), "limit": 1 - limits.circuit_below},
        "control_p99_emu_s": {"value": at(circuits.control_emu_s, 99), "limit": bound},
    }
