"""A scenario's circuit policy as the state machine that both engines drive."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

from controller.optical import OpticalNetwork
from controller.optical_config import OpticalConfig
from controller.prediction import LaplaceError
from kvfabric.scenario import Scenario
from kvfabric.workload import Workload
from topo.scale import Scale
from workloads.decode_choice import DecodeChoice

GRACE_EMU_S = 1e-3
"""The least by which a late window is extended, emulated: asking more often than a loop can answer is of no use."""


def optical_network(
    scenario: Scenario, workload: Workload, scale: Scale, tau_emu_s: float, left_bytes: Callable[[int], float]
) -> OpticalNetwork:
    """The scenario's policy on a new network, on the real cluster's clock. ``tau_emu_s`` is τ on the emulated one."""
    ocs, cluster = scenario.fabric.optical_switch(), scenario.cluster
    config = OpticalConfig(
        prefill=cluster.prefill,
        decode=cluster.decode,
        layers=workload.model.layers,
        rate_Bps=scenario.fabric.rate,
        tau_s=scale.to_real_time(tau_emu_s),
        policy=ocs.policy,
        reuse=ocs.reuse,
        overrun=ocs.overrun,
        grace_s=scale.to_real_time(GRACE_EMU_S),
    )

    def errors(transfer: int) -> LaplaceError:
        """How wrong a transfer's predictions are: its own, so that every engine draws the same."""
        return LaplaceError(ocs.prediction_error, random.Random(f"prediction {scenario.seed} {transfer}"))

    return OpticalNetwork(config, left_bytes=left_bytes, errors=errors)


def choice_of_decode(scenario: Scenario, network: OpticalNetwork) -> DecodeChoice | None:
    """What chooses decodes in place of ``workload.decode``; None where nothing does."""
    ocs = scenario.fabric.optical_switch()
    wanted = ocs.decode or ("circuit" if ocs.books and scenario.workload.decode == "load" else "load")
    return network.decode_choice(wanted, slack=ocs.slack)


def chosen_at(scenario: Scenario) -> Literal["start", "arrival"]:
    """When a decode is chosen."""
    ocs = scenario.fabric.circuits
    return "arrival" if ocs is not None and ocs.policy == "admission" else "start"
