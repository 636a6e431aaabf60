"""A scenario's optical cluster made real: the network, a shutter at every port, the controller in a process of its own.

The controller is the Ryu app of ``controller.ocs_app``. Nothing here knows when a circuit is wanted.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from kvfabric.errors import KvfabricError
from kvfabric.ocs_process import OPENFLOW_PORT, OcsController
from kvfabric.scenario import Scenario
from kvfabric.testbed import fabric_of, host_sysctls, link_settings, optical_of
from ocs_switch.crossbar import Circuit
from ocs_switch.rules import rules
from ocs_switch.shutters import Shutters
from topo.emulated_optical import EmulatedOptical, SwitchSettings
from topo.fabric import NodeKind
from topo.netlink import NetlinkSocket
from topo.ovs import OvsError
from topo.steering import Steering
from workloads.replay.connections import Endpoint

_DIRECTORY = Path("/run/kvfabric-ocs")


class OpticalTestbed:
    """A context manager, inside a sandbox. Raises OSError, OvsError or ObserveError when the machine refuses any of it, and
    MachineCannot when the controller or a switch does not answer in time."""

    def __init__(self, scenario: Scenario, publish: Path | None, steering: Steering | None,
                 directory: Path = _DIRECTORY) -> None:  # fmt: skip
        ocs = scenario.fabric.optical_switch()
        self.tau_emu_s = ocs.tau * scenario.scale.time
        self.optical = optical_of(scenario)
        self._undo = ExitStack()
        switch_cpus = None if steering is None else {steering.router_cpu(0)}
        try:
            settings = link_settings(scenario)
            self.fabric = self._undo.enter_context(
                EmulatedOptical(
                    fabric_of(scenario), settings, self.optical, settings,
                    SwitchSettings(
                        directory, controller=f"tcp:127.0.0.1:{OPENFLOW_PORT}", datapath=ocs.datapath, cpus=switch_cpus,
                        receive_cpu=None if steering is None else steering.router_cpu(0),
                    ),
                    host_sysctls=host_sysctls(scenario), seed=scenario.seed, publish=publish, steering=steering, observed=False,
                )
            )  # fmt: skip
            self._netlink = NetlinkSocket()
            self._undo.callback(self._netlink.close)
            self.shutters = self._undo.enter_context(Shutters.attached_to(self._netlink, self.fabric.switch_indices()))
            self.controller = self._undo.enter_context(
                OcsController(
                    self.optical,
                    self.fabric.switch_indices(),
                    self.shutters.light.fd,
                    self.tau_emu_s,
                    directory,
                    switch_cpus,
                    self.fabric.switch.control if self.fabric.switch.datapath == "user" else None,
                )
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> OpticalTestbed:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the controller, then the network."""
        self._undo.close()

    def join(self, pairs: dict[int, int]) -> None:
        """Have circuits set up between prefill and decode instances, outside any window, and wait until they carry light.

        Raises MachineCannot if they do not.
        """
        self.controller.join(circuit for prefill, decode in pairs.items() for circuit in self.optical.circuits(prefill, decode))

    def endpoints(self) -> dict[str, Endpoint]:
        """Every host as the replay sees it: by its KV NIC."""
        return {
            node.name: Endpoint(node.name, self.fabric.kv_address(node.name), self.fabric.node(node.name).namespace)
            for node in self.fabric.fabric.of_kind(NodeKind.HOST)
        }

    def faults(self) -> list[str]:
        """In words, every shutter that is gone, every flow table that is not the rules of the circuits the controller holds,
        and every switch without its controller; as it is now, while nothing moves. Never raises: what cannot be asked is a fault.
        """
        found: list[str] = []
        for look in (self._shutter_faults, self._switch_faults, self._table_faults):
            try:
                found += look()
            except (KvfabricError, OvsError, OSError) as error:
                found.append(" ".join(str(error).split()))
        return found

    def _shutter_faults(self) -> list[str]:
        return self.shutters.faults(self._netlink)

    def _switch_faults(self) -> list[str]:
        return list(self.fabric.switch.buffer_faults())

    def _table_faults(self) -> list[str]:
        if self.controller.ended is not None:
            return [self.controller.ended]
        found = []
        for plane in self.controller.planes():
            where = f"plane {plane.plane}"
            if plane.state != "ready":
                found.append(f"{where}: its switch is {plane.state}")
                continue
            wanted = {(rule.in_port + 1, rule.out_port + 1) for rule in rules(Circuit.of(a, b) for a, b in plane.circuits)}
            table = self.fabric.switch.flows(self.optical.switch(plane.plane).name)
            have = {(flow.in_port, flow.output) for flow in table}
            if have != wanted or len(table) != len(wanted):
                extra = sorted(map(str, have - wanted))
                found.append(f"{where}: the switch has rules {extra} too many, lacks {sorted(wanted - have)}")
        return found
