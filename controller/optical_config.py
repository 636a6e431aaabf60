"""What the optical network's state machine is told of the cluster and its policies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from controller.reservation import Overrun

Policy = Literal["reservation", "admission", "none", "after"]


class OpticalError(RuntimeError):
    """A stimulus that makes no sense: a bug in whatever drives the network, never a user's mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpticalConfig:
    """A circuit-switched network of ``prefill`` and ``decode`` instances and its policies. Raises ValueError.

    Ports carry ``rate_Bps`` and move in ``tau_s``. ``policy``: ``reservation``, ``admission``, ``none`` (a circuit is asked
    for once any KV is ready) or ``after`` (once the prefill has ended); ``overrun`` and ``grace_s`` say what a late window
    does, and the least by which it is extended. ``reuse`` off sets every circuit up anew.
    """

    prefill: int
    decode: int
    layers: int
    rate_Bps: float
    tau_s: float
    policy: Policy = "reservation"
    reuse: bool = True
    overrun: Overrun = "slide"
    grace_s: float = 1e-4

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy) or self.overrun not in get_args(Overrun):
            raise ValueError(f"ocs: there is no policy {self.policy!r} with overrun {self.overrun!r}")
        if not 0 < self.grace_s < math.inf:
            raise ValueError(f"ocs.grace_s is {self.grace_s}; it must be above 0, or a late window would be asked for ever")
