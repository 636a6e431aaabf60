"""A scenario's turns and the models they are priced with: the same for every engine and fabric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvfabric.errors import BadInput
from kvfabric.scenario import Scenario, TenantSpec
from workloads.generator import AgenticSessions
from workloads.kvsize import KvModel, load_model
from workloads.offered import Offered, TenantLoad, offer
from workloads.prefill import PrefillModel
from workloads.readers import Trace, read_trace
from workloads.serving import ServingModel
from workloads.serving_config import ServingConfig

_PEAK_FLOPS = {"h100": 989e12, "h200": 989e12, "a100": 312e12}
"""Dense BF16 FLOP/s of a GPU, from the makers' data sheets; FP8 doubles it where the GPU has FP8."""
_SPARE = 1.5
"""A generator makes this many times the turns the load should need; what arrives after the window is counted as outside."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is offered, and the models of KV size and prefill time that priced it."""

    offered: Offered
    model: KvModel
    prefill: PrefillModel
    bytes_per_token_per_gpu: int
    traces: tuple[Trace, ...]

    def describe(self) -> dict[str, Any]:
        """For the manifest: where every row went."""
        return {
            "turns": len(self.offered.turns),
            "tenants": [account.to_json() for account in self.offered.tenants],
            "synthetic": [trace.format for trace in self.traces if trace.synthetic],
            "notes": [*self.offered.notes, *(note for trace in self.traces for note in trace.notes)],
            "model": self.model.name,
            "kv_bytes_per_token_per_gpu": self.bytes_per_token_per_gpu,
        }


def prefill_model(scenario: Scenario, model: KvModel) -> PrefillModel:
    """The prefill model of a scenario. Raises BadInput for a GPU whose peak is not known."""
    gpu = scenario.cluster.gpu.lower()
    if gpu not in _PEAK_FLOPS:
        raise BadInput(f"cluster.gpu: no peak FLOP/s is known for {gpu!r}", f"known: {', '.join(_PEAK_FLOPS)}")
    peak = _PEAK_FLOPS[gpu] * (2 if scenario.cluster.dtype == "fp8" and gpu != "a100" else 1)
    return PrefillModel(model, scenario.cluster.tp, mfu=scenario.cluster.mfu, peak_flops=peak)


def build_workload(scenario: Scenario) -> Workload:
    """Read the traces, generate what is synthetic, cut the window, meet the load.

    Raises TraceError for a bad trace, ModelError for an unknown model, BadInput for a window without a turn. The same
    scenario and seed give the same turns, byte for byte.
    """
    model = load_model(scenario.cluster.model, dtype=scenario.cluster.dtype)
    prefill = prefill_model(scenario, model)
    traces = tuple(_trace(scenario, place, tenant, prefill) for place, tenant in enumerate(scenario.workload.tenants))
    loads = tuple(
        TenantLoad(
            name=tenant.name,
            trace=trace,
            prefill=prefill,
            load=None if tenant.load == "as-recorded" else float(tenant.load),
            share=tenant.share,
            start_s=tenant.start,
            duration_s=tenant.window,
        )
        for tenant, trace in zip(scenario.workload.tenants, traces, strict=True)
    )
    offered = offer(loads, window_s=scenario.window, prefill_instances=scenario.cluster.prefill, seed=scenario.seed)
    if not offered.turns:
        raise BadInput("no turn arrives in the window", "choose another --start, a longer window or a higher load")
    return Workload(offered, model, prefill, model.bytes_per_token_per_gpu(scenario.cluster.tp), traces)


def _trace(scenario: Scenario, place: int, tenant: TenantSpec, prefill: PrefillModel) -> Trace:
    if tenant.trace is not None:
        return read_trace(tenant.trace, format=tenant.format, skip_bad=tenant.skip_bad, spread=tenant.spread)
    source = AgenticSessions()
    mean_s = prefill.total(int(source.context_median), int(source.new_median))
    load = 1.0 if tenant.load == "as-recorded" else float(tenant.load)
    count = math.ceil(_SPARE * load * tenant.share * scenario.cluster.prefill * scenario.window / mean_s) + 50
    return source.trace(count, np.random.default_rng([scenario.seed, 1, place]))


def serving_model(scenario: Scenario, workload: Workload) -> ServingModel:
    """The serving model of a run, new."""
    config = ServingConfig(
        prefill=scenario.cluster.prefill,
        decode=scenario.cluster.decode,
        layers=workload.model.layers,
        bytes_per_token_per_gpu=workload.bytes_per_token_per_gpu,
        mode=scenario.workload.mode,
        tenant_modes={tenant.name: tenant.mode for tenant in scenario.workload.tenants if tenant.mode is not None},
        decode_choice=scenario.workload.decode,
    )
    return ServingModel(config, workload.prefill.chunk_times, workload.prefill.chunks)
