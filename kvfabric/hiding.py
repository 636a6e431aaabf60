"""Reconfiguration hiding, measured: the same prompts with their circuit commanded as the prefill starts, and after it.

Prompts come one by one to each prefill instance, so that nothing waits but for its own circuit, and every circuit is set up anew.
What is exposed of τ is then read off the requests. Pure, apart from the trace file that ``write_prompts`` writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvfabric.errors import BadInput
from kvfabric.rows import RequestRow
from kvfabric.scenario import Override, Scenario, load_scenario
from kvfabric.workload import prefill_model
from topo.units import format_time
from workloads.kvsize import load_model

WHEN = ("start", "after")
"""When the circuit is commanded: as the prefill starts, or once it has ended."""
BASE = "demo"
_OWN = (
    "variants=[]",
    "fabric.kind=ocs",
    "fabric.ocs.reuse=false",  # every prompt pays for its circuit
    "fabric.ocs.decode=load",
    "scale.time=5",
    "drain=5s",
    "workload.tenants.0={name: prompts, format: mooncake, spread: false, trace: /dev/null}",
)
"""What makes the demo's cluster the experiment's."""
_POLICY = {"start": "reservation", "after": "after"}
MAX_TAU_SHARE = 0.8
"""Of the prefill: up to here τ is to be hidden."""
EXPOSED_SHARE = 0.02
COST = (0.95, 1.12)
"""What is to come out: the share of the prefill that stays exposed at most, and τ's cost after the prefill in τ."""
_BLOCK = 512
_REST = 1.5
"""From one prompt of an instance to its next, in prefill + τ + transfer: it is over, and something is left for a slow machine."""


@dataclass(frozen=True, slots=True)
class HidingPlan:
    """What is to be run. ``prefill_s`` is a prompt's prefill, ``transfer_s`` its KV at the link's rate; times are the real
    cluster's, all above zero."""

    taus_s: tuple[float, ...]
    prompts: int
    new_tokens: int
    prefill_s: float
    transfer_s: float

    def gap_s(self, tau_s: float) -> float:
        """From one prompt of a prefill instance to its next."""
        return _REST * (self.prefill_s + tau_s + self.transfer_s)


def plan_hiding(scenario: Scenario, taus_s: Sequence[float], prompts: int, new_tokens: int) -> HidingPlan:
    """The experiment for a scenario's cluster. Raises BadInput for a τ that no prefill of that length could hide."""
    model = load_model(scenario.cluster.model, dtype=scenario.cluster.dtype)
    prefill_s = prefill_model(scenario, model).total(0, new_tokens)
    size = new_tokens * model.bytes_per_token_per_gpu(scenario.cluster.tp)
    for tau_s in taus_s:
        if tau_s > MAX_TAU_SHARE * prefill_s:
            raise BadInput(
                f"--tau {format_time(tau_s)} is above {MAX_TAU_SHARE:g} x the prefill of {new_tokens} tokens, "
                f"{format_time(prefill_s)}",
                "a longer prompt (--new) or a smaller --tau",
            )
    return HidingPlan(tuple(taus_s), prompts, new_tokens, prefill_s, size / scenario.fabric.rate)


def write_prompts(plan: HidingPlan, tau_s: float, instances: int, path: Path) -> None:
    """The prompts of one τ as a Mooncake trace: ``prompts`` for each prefill instance, none with a prefix of another."""
    blocks = math.ceil(plan.new_tokens / _BLOCK)
    lines = []
    for turn in range(plan.prompts):
        for instance in range(instances):
            first = (turn * instances + instance) * blocks
            row = {
                "timestamp": round(turn * plan.gap_s(tau_s) * 1e3, 3) + 0.01 * instance,
                "input_length": plan.new_tokens,
                "output_length": 1,
                "hash_ids": list(range(first, first + blocks)),
            }
            lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def base_scenario(overrides: Sequence[str | Override]) -> Scenario:
    """The experiment's cluster, with the user's own settings, still without prompts. Raises BadInput."""
    return load_scenario(BASE, [*_OWN, *overrides])


def scenario_for(plan: HidingPlan, overrides: Sequence[str | Override], tau_s: float, when: str, trace: Path) -> Scenario:
    """The scenario of one run: with this τ, this policy and these prompts. Raises BadInput."""
    last_s = plan.prompts * plan.gap_s(tau_s)
    own: dict[tuple[str | int, ...], object] = {
        ("fabric", "ocs", "tau"): f"{tau_s!r}s",
        ("fabric", "ocs", "policy"): _POLICY[when],
        ("workload", "tenants", 0, "trace"): str(trace),
        ("window",): f"{last_s!r}s",
    }
    return load_scenario(
        BASE, [*_OWN, *overrides, *(Override(path, value, f"hiding's {path[-1]}") for path, value in own.items())]
    )


@dataclass(frozen=True, slots=True)
class Exposure:
    """One prompt: what of its KV's way was exposed, and that in units of τ once the transfer itself is taken off."""

    tau_s: float
    when: str
    turn: int
    prefill_s: float
    exposed_s: float
    cost: float


def exposures(plan: HidingPlan, tau_s: float, when: str, rows: Iterable[RequestRow]) -> tuple[Exposure, ...]:
    """Every completed prompt of a run."""
    return tuple(
        Exposure(tau_s, when, row.turn, row.prefill_end_s - row.prefill_start_s, row.exposed_s,
                 (row.exposed_s - plan.transfer_s) / tau_s)
        for row in rows
        if row.exposed_s is not None and row.prefill_start_s is not None and row.prefill_end_s is not None
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class HidingPoint:
    """One τ. ``start_*``: exposed with the circuit commanded as the prefill starts, seconds; its worst as a share of the
    prefill. ``after_*``: exposed with it commanded afterwards, and τ's cost in τ. Spreads are least and most."""

    tau_s: float
    prompts: Mapping[str, int]
    start_median_s: float
    start_max_s: float
    start_share: float
    after_median_s: float
    after_cost: float
    after_cost_least: float
    after_cost_most: float

    @property
    def hidden(self) -> bool:
        """Whether every prompt's exposed time is within the bound."""
        return self.start_share <= EXPOSED_SHARE

    @property
    def cost_as_expected(self) -> bool:
        """Whether the median cost after the prefill is τ, within the bounds."""
        return COST[0] <= self.after_cost <= COST[1]


def point(found: Sequence[Exposure]) -> HidingPoint:
    """All prompts of one τ. Raises ValueError where one of the two has none."""
    start = [item for item in found if item.when == "start"]
    after = [item for item in found if item.when == "after"]
    if not start or not after:
        raise ValueError("a τ without prompts of both kinds")
    cost = [item.cost for item in after]
    return HidingPoint(
        tau_s=found[0].tau_s,
        prompts={"start": len(start), "after": len(after)},
        start_median_s=float(np.median([item.exposed_s for item in start])),
        start_max_s=max(item.exposed_s for item in start),
        start_share=max(item.exposed_s / item.prefill_s for item in start),
        after_median_s=float(np.median([item.exposed_s for item in after])),
        after_cost=float(np.median(cost)),
        after_cost_least=min(cost),
        after_cost_most=max(cost),
    )
