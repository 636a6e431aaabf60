"""A scenario's optical cluster made real: the network, a shutter at every port, the controller in a process of its own.

The controller is the Ryu app of ``controller.ocs_app``. Nothing here knows when a circuit is wanted.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

from controller.client import ControllerGone, OcsClient, Planes, Received
from controller.ocs_config import OcsConfig, PlaneConfig, to_text
from controller.ocs_messages import Event, EventKind, Order, PlaneState, Verb
from kvfabric._schema_fabric import OcsSpec
from kvfabric.errors import KvfabricError, MachineCannot
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
_OPENFLOW_PORT = 6653
CONTROLLER_NICE = -15
"""Before the switch, whose CPU it shares: it takes little, and a circuit waits for it."""
_READY_S = 15.0
_ANSWER_S = 5.0


class OpticalTestbed:
    """A context manager, inside a sandbox. Raises OSError, OvsError or ObserveError when the machine refuses any of it, and
    MachineCannot when the controller or a switch does not answer in time."""

    def __init__(self, scenario: Scenario, publish: Path | None, steering: Steering | None,
                 directory: Path = _DIRECTORY) -> None:  # fmt: skip
        ocs = scenario.fabric.circuits or OcsSpec()
        self.tau_emu_s = ocs.tau * scenario.scale.time
        self.optical = optical_of(scenario)
        self._undo = ExitStack()
        self._directory = directory
        switch_cpus = None if steering is None else {steering.router_cpu(0)}
        try:
            settings = link_settings(scenario)
            self.fabric = self._undo.enter_context(
                EmulatedOptical(
                    fabric_of(scenario), settings, self.optical, settings,
                    SwitchSettings(
                        directory, controller=f"tcp:127.0.0.1:{_OPENFLOW_PORT}", datapath=ocs.datapath, cpus=switch_cpus,
                        receive_cpu=None if steering is None else steering.router_cpu(0),
                    ),
                    host_sysctls=host_sysctls(scenario), seed=scenario.seed, publish=publish, steering=steering, observed=False,
                )
            )  # fmt: skip
            self._netlink = NetlinkSocket()
            self._undo.callback(self._netlink.close)
            self.shutters = self._undo.enter_context(Shutters.attached_to(self._netlink, self.fabric.switch_indices()))
            self._start_controller(switch_cpus)
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

    def _start_controller(self, cpus: set[int] | None) -> None:
        indices, ports = self.fabric.switch_indices(), range(self.optical.ports)
        by_plane = {
            plane: tuple(indices[place] for place in sorted(indices) if place.plane == plane)
            for plane in range(self.optical.planes)
        }
        northbound = str(self._directory / "northbound.sock")
        config = OcsConfig(
            planes=tuple(
                PlaneConfig(self.optical.switch(plane).dpid, self.tau_emu_s, tuple(port + 1 for port in ports), by_plane[plane])
                for plane in range(self.optical.planes)
            ),
            northbound=northbound,
            openflow_port=_OPENFLOW_PORT,
            light_fd=self.shutters.light.fd,
        )
        path = self._directory / "controller.json"
        path.write_text(to_text(config), encoding="utf-8")
        self._log = self._directory / "controller.log"
        had = os.sched_getaffinity(0)
        with self._log.open("wb") as log:
            try:
                if cpus is not None:
                    os.sched_setaffinity(0, cpus)
                self.controller = subprocess.Popen(
                    [sys.executable, "-m", "controller.ocs_app", str(path)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[self.shutters.light.fd],
                )  # fmt: skip
            finally:
                os.sched_setaffinity(0, had)
        self._undo.callback(self._end_controller)
        os.setpriority(os.PRIO_PROCESS, self.controller.pid, CONTROLLER_NICE)
        until = monotonic() + _READY_S
        self.client = self._undo.enter_context(self._connect(northbound, until))
        ready: set[int | None] = set()
        while len(ready) < self.optical.planes:
            for one in self._wait(until, "the switches did not connect to their controller"):
                if isinstance(one, Event) and one.kind is EventKind.READY:
                    ready.add(one.plane)

    def _connect(self, address: str, until: float) -> OcsClient:
        while True:
            try:
                return OcsClient(address)
            except OSError:
                if self.controller.poll() is not None or monotonic() > until:
                    raise MachineCannot(
                        f"the controller of the optical switch did not start: {self._last_words()}", "see kvfabric doctor"
                    ) from None
                sleep(0.01)

    def _wait(self, until: float, otherwise: str) -> tuple[Received, ...]:
        left = until - monotonic()
        if left <= 0 or self.controller.poll() is not None:
            raise MachineCannot(f"{otherwise}: {self._last_words()}", "see kvfabric doctor; run it again with --debug")
        select.select(self.client.filenos, [], [], min(left, 0.5))
        try:
            return self.client.receive()
        except ControllerGone as gone:
            raise MachineCannot(f"{otherwise}: {gone}: {self._last_words()}", "run it again with --debug") from None

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return lines[-1] if lines else "it said nothing"

    def _end_controller(self) -> None:
        if self.controller.poll() is None:
            self.controller.terminate()
            try:
                self.controller.wait(3)
            except subprocess.TimeoutExpired:
                self.controller.kill()
        self.controller.wait()

    def join(self, pairs: dict[int, int]) -> None:
        """Have circuits set up between prefill and decode instances, outside any window, and wait until they carry light.

        Raises MachineCannot if they do not.
        """
        tag = f"join {sorted(pairs.items())}"
        orders = [
            Order(a=circuit.prefill_port, b=circuit.decode_port, planes=(circuit.plane,), replace=True, force=True, tag=tag)
            for prefill, decode in pairs.items()
            for circuit in self.optical.circuits(prefill, decode)
        ]
        self.client.connect(*orders)
        up, until = 0, monotonic() + self.tau_emu_s + _ANSWER_S
        while up < len(orders):
            for one in self._wait(until, f"circuits {pairs} did not come up"):
                if isinstance(one, Event) and one.tag == tag:
                    up += one.kind is EventKind.UP
                    if one.kind in (EventKind.ERROR, EventKind.REFUSED):
                        raise MachineCannot(f"circuits {pairs} did not come up: {one.detail}", "run it again with --debug")

    def part(self) -> None:
        """Take every circuit down, outside any window. Raises MachineCannot if one stays."""
        orders = [
            Order(a=a, b=b, planes=(plane.plane,), verb=Verb.DISCONNECT) for plane in self._planes() for a, b in plane.circuits
        ]
        if orders:
            self.client.disconnect(*orders)
        until = monotonic() + _ANSWER_S
        while any(plane.circuits or plane.moving or plane.announced for plane in self._planes()):
            if monotonic() > until:
                raise MachineCannot("circuits could not be taken down", "run it again with --debug")

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
        if self.controller.poll() is not None:
            return [f"the controller has ended ({self.controller.returncode}): {self._last_words()}"]
        found = []
        for plane in self._planes():
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

    def _planes(self) -> tuple[PlaneState, ...]:
        request, until = self.client.planes(), monotonic() + _ANSWER_S
        while True:
            for one in self._wait(until, "the controller did not say how its planes are"):
                if isinstance(one, Planes) and one.request == request:
                    return one.planes
