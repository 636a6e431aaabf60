"""What the serving model is told of the cluster and its policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from workloads.events import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """What the serving model is told of the cluster. Raises ValueError, naming the field.

    ``bytes_per_token_per_gpu`` is the KV of one token on one GPU. ``mode`` holds for tenants that ``tenant_modes`` does
    not name. ``affinity_slack`` is ε of the decode choice ``affinity``. ``load_counts`` says what a turn adds to the
    load of its decode, on which the source is silent: ``kv`` all of its KV tokens, ``moved`` those that are sent there.
    ``choose_decode_at`` says when a turn's decode is chosen: as its prefill starts, or as it arrives, which TurnQueued tells.
    ``lookahead_s`` is by how much an arrival or a timer may be handed in before its time: the rounding of a scaled clock, or
    the moment a real driver needs to have a transfer ready when it is due. What is planned does not depend on it.
    """

    prefill: int
    decode: int
    layers: int
    bytes_per_token_per_gpu: float
    mode: Mode = "layerwise"
    tenant_modes: Mapping[str, Mode] = field(default_factory=dict)
    decode_choice: Literal["load", "affinity"] = "load"
    affinity_slack: float = 0.1
    load_counts: Literal["kv", "moved"] = "kv"
    choose_decode_at: Literal["start", "arrival"] = "start"
    lookahead_s: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("prefill", "decode", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"serving.{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 < self.bytes_per_token_per_gpu < math.inf:
            raise ValueError(f"serving.bytes_per_token_per_gpu is {self.bytes_per_token_per_gpu}; it must be above 0 and finite")
        if not 0 <= self.affinity_slack < math.inf:
            raise ValueError(f"serving.affinity_slack is {self.affinity_slack}; it must be 0 or more and finite")
        if not 0 <= self.lookahead_s < math.inf:
            raise ValueError(f"serving.lookahead_s is {self.lookahead_s}; it must be 0 or more and finite")
        _one_of("serving.mode", self.mode, get_args(Mode))
        for tenant, mode in self.tenant_modes.items():
            _one_of(f"serving.tenant_modes[{tenant!r}]", mode, get_args(Mode))
        _one_of("serving.decode_choice", self.decode_choice, ("load", "affinity"))
        _one_of("serving.load_counts", self.load_counts, ("kv", "moved"))
        _one_of("serving.choose_decode_at", self.choose_decode_at, ("start", "arrival"))

    def mode_of(self, tenant: str) -> Mode:
        """When the KV of a tenant's turns leaves."""
        return self.tenant_modes.get(tenant, self.mode)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
