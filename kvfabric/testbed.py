"""A scenario's network and sockets: how the settings of its ``emulation`` section become kernel settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kvfabric._schema_fabric import OcsSpec
from kvfabric.cpu_claim import idle_shares
from kvfabric.scenario import Scenario
from ocs_switch.limits import Keeper, keeper_for
from topo.emulated import EmulatedFabric, LinkSettings
from topo.fabric import Fabric, NodeKind
from topo.leafspine import LeafSpine
from topo.optical import Optical
from topo.ovs import OvsError, choose_datapath
from topo.shaping import Queue
from topo.steering import Steering, steering_for
from workloads.replay.connections import Endpoint, SocketSettings

_UNBOUNDED_WINDOW = 6 << 20
"""``receive_window: null`` asks for as much as the kernel's own tuning would grow to."""


def fabric_of(scenario: Scenario) -> Fabric:
    """The emulated fabric: the scenario's graph at the scenario's emulated rate."""
    return LeafSpine(scenario.cluster_layout(), scenario.uplinks, scenario.scale.rate).build()


def optical_of(scenario: Scenario) -> Optical:
    """The scenario's planes at its emulated rate."""
    ocs = scenario.fabric.optical_switch()
    return Optical(scenario.cluster_layout(), scenario.scale.rate, ocs.planes or 0)


def keeper_of(ocs: OcsSpec) -> Keeper:
    """How the dark time of circuits is kept: behind shutters, by a switch that is asked or, in the kernel, is given time."""
    try:
        fence = choose_datapath(ocs.datapath) == "user"
    except OvsError:  # the kernel's, which this kernel lacks
        fence = False
    return keeper_for(shutters=True, fence=fence)


def link_settings(scenario: Scenario) -> LinkSettings:
    """What every port gets besides its rate."""
    chosen = scenario.emulation
    return LinkSettings(
        mtu=chosen.mtu,
        queue=Queue(chosen.queue),
        classes=chosen.classes,
        limit=chosen.queue_packets,
        free_acks=chosen.free_acks,
        offload={"tso": chosen.offload.tso, "gso": chosen.offload.gso, "gro": False},
    )


def host_sysctls(scenario: Scenario) -> dict[str, str]:
    """TCP of every host. Each is read back inside its namespace."""
    found = {
        "net.ipv4.tcp_no_metrics_save": "1",  # a flow learns nothing from the one before it
        "net.ipv4.tcp_slow_start_after_idle": "0",  # a kept connection is as warm after a pause as before
        "net.ipv4.tcp_moderate_rcvbuf": "0",  # the window is the one that was asked for
        "net.ipv4.tcp_timestamps": "1",  # the header efficiency counts on them
    }
    if scenario.emulation.queue == "fair":
        # Nothing is lost behind a fair queue, and a probe sent because a shaper made a flow wait would be counted as a loss.
        found["net.ipv4.tcp_early_retrans"] = "0"
    if scenario.emulation.rto_min is not None:
        found["net.ipv4.tcp_rto_min_us"] = str(round(scenario.emulation.rto_min * 1e6))
    return found


def socket_settings(scenario: Scenario) -> SocketSettings:
    """How every connection is set up."""
    chosen = scenario.emulation
    asked = scenario.receive_window
    window = _UNBOUNDED_WINDOW if asked is None else int(asked)
    return SocketSettings(
        congestion_control=chosen.congestion_control,
        receive_window=window,
        read_chunk=max(1, min(2 * chosen.mtu, window // 2)),
        classes=chosen.classes,
        reuse=chosen.connections == "reused",
    )


def choose_steering(host_cpu: int | None = None) -> Steering | None:
    """Give the hosts and the replay ``host_cpu``, or the idlest CPU where none is given."""
    idle = idle_shares() if host_cpu is None else {cpu: float(cpu == host_cpu) for cpu in os.sched_getaffinity(0)}
    return steering_for(idle)


def build_testbed(scenario: Scenario, publish: Path | None, steering: Steering | None) -> EmulatedFabric:
    """Bring the network up. Raises OSError or ObserveError when the machine refuses any of it."""
    return EmulatedFabric(
        fabric_of(scenario),
        link_settings(scenario),
        host_sysctls=host_sysctls(scenario),
        seed=scenario.seed,
        publish=publish,
        steering=steering,
    )


def endpoints(fabric: EmulatedFabric) -> Mapping[str, Endpoint]:
    """Every host as the replay sees it."""
    return {
        node.name: Endpoint(node.name, fabric.address(node.name), fabric.node(node.name).namespace)
        for node in fabric.fabric.of_kind(NodeKind.HOST)
    }
