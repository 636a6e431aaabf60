"""The shortest reconfiguration that an emulated switch can keep, and why. Pure.

Shutters keep any dark time to the microsecond, but behind them the rules must have changed before light comes back, or it would
go to the old port. So τ' (emulated seconds) is bounded by how long it takes to know that they have. Figures:
benchmarks/dark_time.py on two cores, userspace Open vSwitch 3.1, with everything that measures on the same cores.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from topo.units import format_time


class Keeper(enum.Enum):
    """What makes a port dark for τ', and what tells that the rules have changed behind it."""

    FENCE = "shutters, rules fenced"
    """Shutters; the switch's cache is purged and its answer awaited (``ocs_switch.fence``)."""
    SETTLE = "shutters, rules settled"
    """Shutters; a fixed time is waited after the barrier, in which the switch has always caught up."""
    RULES = "rules alone"
    """No shutters on this machine: rules are removed and, τ' later, added."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The least τ' in emulated seconds, how far dark times then are from it, and what the bound comes from."""

    least_s: float
    error_s: float
    why: str


_LIMITS = {
    Keeper.FENCE: Limit(10e-3, 0.5e-3, "rules are in place 2 to 3 ms after the order, at times 10, and the answer proves it"),
    Keeper.SETTLE: Limit(
        15e-3, 0.5e-3, "rules are in place 1 to 5 ms after the order, and the data path follows up to 6 ms after them"
    ),
    Keeper.RULES: Limit(20e-3, 2.5e-3, "the data path follows its rules within 5 ms, at both ends of the dark time"),
}


def limit(keeper: Keeper) -> Limit:
    """What a way of keeping the dark time can do."""
    return _LIMITS[keeper]


def keeper_for(*, shutters: bool, fence: bool) -> Keeper:
    """The best of what a machine and mode have. The fence is the userspace datapath's: in the kernel's a purge loses packets."""
    if not shutters:
        return Keeper.RULES
    return Keeper.FENCE if fence else Keeper.SETTLE


def refusal(tau_s: float, time_scale: float, keeper: Keeper) -> str | None:
    """Why a reconfiguration of ``tau_s`` real seconds cannot be emulated at this time scale; None where it can.

    Without a reconfiguration delay there is nothing to keep, but the rules take their time all the same: τ = 0 is refused too.
    """
    bound = _LIMITS[keeper]
    tau_emu_s = tau_s * time_scale
    if tau_emu_s >= bound.least_s:
        return None
    text = f"τ = {format_time(tau_s)} is {format_time(tau_emu_s)} emulated, and {format_time(bound.least_s)} is the least"
    remedy = f"; use scale.time {bound.least_s / tau_s:.3g} or more" if tau_s else "; simulate it instead"
    return f"{text} with {keeper.value}: {bound.why}{remedy}"
