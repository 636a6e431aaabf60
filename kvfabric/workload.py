"""A scenario's turns and the models they are priced with: the same for every engine and fabric."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from kvfabric.scenario import Scenario, TenantSpec
from workloads.decode_choice import DecodeChoice
from workloads.generator import AgenticSessions, TurnSource
from workloads.kvsize import KvModel, load_model
from workloads.offered import Offered, TenantLoad, offer
from workloads.prefill import PrefillModel
from workloads.readers import Trace, read_trace
from workloads.serving import ServingModel
from workloads.serving_config import ServingConfig

_PEAK_FLOPS = {"h100": 989e12, "h200": 989e12, "a100": 312e12}
"""Dense BF16 FLOP/s of a GPU, from the makers' data sheets; FP8 doubles it where the GPU has FP8."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is offered, and the models of KV size and prefill time that priced it."""

    offered: Offered
    model: KvModel
    prefill: PrefillModel
    bytes_per_token_per_gpu: int
    synthetic: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Rows of all traces, and turns of all generators."""
        return sum(count.rows for count in self.offered.rows_in.values())

    @property
    def rows_left_out(self) -> int:
        """Rows that became no turn, each for a stated reason: outside the window, over a limit, skipped as malformed."""
        return sum(count.outside + count.over_limit + count.skipped for count in self.offered.rows_in.values())

    def describe(self) -> dict[str, Any]:
        """For the manifest: where every row went."""
        return {
            "turns": len(self.offered.turns),
            "tenants": self.offered.accounts(),
            "synthetic": list(self.synthetic),
            "notes": list(self.offered.notes),
            "model": self.model.name,
            "kv_bytes_per_token_per_gpu": self.bytes_per_token_per_gpu,
        }


def prefill_model(scenario: Scenario, model: KvModel) -> PrefillModel:
    """The prefill model of a scenario, whose schema admits only GPUs of which the peak is known."""
    gpu = scenario.cluster.gpu
    peak = _PEAK_FLOPS[gpu] * (2 if scenario.cluster.dtype == "fp8" and gpu != "a100" else 1)
    return PrefillModel(model, scenario.cluster.tp, mfu=scenario.cluster.mfu, peak_flops=peak)


def build_workload(scenario: Scenario) -> Workload:
    """Read the traces, generate what is synthetic, cut the window, meet the load.

    Raises TraceError for a bad trace, ModelError for an unknown model, OfferError for a window without a turn. The same
    scenario and seed give the same turns, byte for byte.
    """
    model = load_model(scenario.cluster.model, dtype=scenario.cluster.dtype)
    prefill = prefill_model(scenario, model)
    loads = tuple(
        TenantLoad(
            name=tenant.name,
            trace=_source(tenant),
            prefill=prefill,
            load=None if tenant.load == "as-recorded" else float(tenant.load),
            instances_share=tenant.share,
            start_s=tenant.start,
            duration_s=tenant.window,
        )
        for tenant in scenario.workload.tenants
    )
    rng = np.random.default_rng(scenario.seed)
    offered = offer(loads, window_s=scenario.window, prefill_instances=scenario.cluster.prefill, rng=rng)
    synthetic = tuple(tenant.name for tenant in scenario.workload.tenants if tenant.trace is None)
    return Workload(offered, model, prefill, model.bytes_per_token_per_gpu(scenario.cluster.tp), synthetic)


def _source(tenant: TenantSpec) -> Trace | TurnSource:
    if tenant.trace is None:
        return AgenticSessions()
    trace = read_trace(tenant.trace, format=tenant.format, skip_bad=tenant.skip_bad, spread=tenant.spread)
    if tenant.limit is None or tenant.limit >= len(trace.turns):
        return trace
    note = f"the limit takes the first {tenant.limit} of {trace.rows} rows"
    return replace(trace, turns=trace.turns[: tenant.limit], rows=tenant.limit + len(trace.skipped), notes=(*trace.notes, note))


def serving_model(scenario: Scenario, workload: Workload, lookahead_s: float = 0.0, *, choose: DecodeChoice | None = None,
                  choose_at: Literal["start", "arrival"] = "start") -> ServingModel:  # fmt: skip
    """The serving model of a run, new. ``lookahead_s`` (real seconds): see ServingConfig; a virtual clock needs none.

    ``choose`` chooses decodes in place of the scenario's ``workload.decode``, ``choose_at`` says when.
    """
    config = ServingConfig(
        prefill=scenario.cluster.prefill,
        decode=scenario.cluster.decode,
        layers=workload.model.layers,
        bytes_per_token_per_gpu=workload.bytes_per_token_per_gpu,
        mode=scenario.workload.mode,
        tenant_modes={tenant.name: tenant.mode for tenant in scenario.workload.tenants if tenant.mode is not None},
        decode_choice=scenario.workload.decode,
        choose_decode_at=choose_at,
        lookahead_s=lookahead_s + 1e-6,  # and the rounding of a scaled clock
    )
    return ServingModel(config, workload.prefill.chunk_times, workload.prefill.chunks, choose)
