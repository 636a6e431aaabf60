"""The Ryu app of the optical switch: switches, time and the northbound on one side, one ``Plane`` for each plane on the other.

It decides nothing itself. ``python -m controller.ocs_app CONFIG`` runs it, CONFIG being a JSON file or the number of a descriptor
to read it from, and it ends with the process that started it. Loaded by ``ryu-manager`` it takes the file's name from the
environment, ``KVFABRIC_OCS_CONFIG``. docs/northbound.md has the configuration and what can be asked.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller.northbound import Northbound
from controller.ocs_channel import Channel
from controller.ocs_config import ConfigError, OcsConfig, PlaneConfig, parse_config
from controller.ocs_fence import Fences
from controller.ocs_messages import Event, EventKind, Keeper, MessageError, Order, to_json
from controller.ocs_plane import Plane
from controller.ocs_steps import Drop, Emit, Instruction, Open, Send, Shut
from controller.openflow import DEAD_DISPATCHER, LIBRARY, MAIN_DISPATCHER, App, hub, ofp_event, ofproto_v1_3, run_app, set_ev_cls
from ocs_switch.drain import backlog
from ocs_switch.light import FOR_EVER, Light

CONFIG_VARIABLE = "KVFABRIC_OCS_CONFIG"

_PR_SET_PDEATHSIG = 1
_DRAIN_S = 0.3e-3
_SPIN_NS = 300_000
"""How much early the timer's steps wake up, to wait for their instant awake: the hub's sleep overshoots by 0.1 to 0.2 ms."""


class _Station:
    """A plane and what connects it: the switch, its shutters and its timer."""

    def __init__(self, plane: Plane, config: PlaneConfig) -> None:
        self.plane = plane
        self.config = config
        self.channel: Channel | None = None
        self.barriers: dict[int, int] = {}  # xid → token
        self.sync_xid: int | None = None
        self.sends: Any = hub.Queue()
        self.timer: Any = None
        self.timer_ns: int | None = None


class OcsApp(App):
    """Both libraries find it by its base class."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]  # noqa: RUF012  # the libraries' own declaration

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = _from_environment()
        self._light = None if config.light_fd is None else Light(config.light_fd)
        keeper = Keeper.TIMER if self._light is None else Keeper.LIGHT
        self._fences = None if config.fence is None else Fences(Path(config.fence))
        self._stations = [_Station(Plane(i, c, config.timing, keeper), c) for i, c in enumerate(config.planes)]
        self._by_dpid = {station.config.dpid: station for station in self._stations}
        self._northbound = Northbound(config.northbound, self, config.queue, self._complain)

    def start(self) -> None:
        super().start()
        hub.spawn(self._northbound.serve)  # not one of self.threads: the library waits for those when it ends
        if self._fences is not None:
            hub.spawn(self._fences.serve)
            for station in self._stations:
                hub.spawn(self._send_drained, station)

    # What the northbound asks.

    def planes(self) -> dict[str, object]:
        return {"now_ns": time.monotonic_ns(), "planes": [to_json(station.plane.describe()) for station in self._stations]}

    def health(self) -> tuple[bool, dict[str, object]]:
        states = [station.plane.state for station in self._stations]
        ready = states.count("ready")
        healthy = ready == len(states)
        document = {"healthy": healthy, "ready": ready, "planes": len(states), "library": LIBRARY, "pid": os.getpid()}
        return healthy, document

    def order(self, orders: tuple[Order, ...]) -> dict[str, object]:
        everywhere = tuple(range(len(self._stations)))
        for index, order in enumerate(orders):
            if unknown := set(order.planes) - set(everywhere):
                raise MessageError(f"circuits[{index}].planes: there is no plane {min(unknown)}, only 0 to {everywhere[-1]}")
        answers: list[object] = []
        for order in orders:
            for plane in order.planes or everywhere:
                station = self._stations[plane]
                answer, out = station.plane.ask(order, time.monotonic_ns())
                self._carry_out(station, out)
                answers.append(to_json(answer))
        return {"now_ns": time.monotonic_ns(), "answers": answers}

    def greeting(self) -> list[Event]:
        """What a new reader of events is told first: which planes are ready already."""
        now_ns = time.monotonic_ns()
        ready = [station.plane for station in self._stations if station.plane.state == "ready"]
        return [Event(kind=EventKind.READY, at_ns=now_ns, plane=plane.index, keeper=plane.keeper) for plane in ready]

    # What the switches say.

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def _on_state(self, event: Any) -> None:
        datapath = event.datapath
        station = self._by_dpid.get(datapath.id)
        if event.state == DEAD_DISPATCHER:
            if station is not None and station.channel is not None and station.channel.datapath is datapath:
                self._lose(station, "its connection ended")
            return
        if station is None:
            self._refuse(datapath, f"an unknown switch, dpid {datapath.id:016x}, was refused")
        elif station.channel is not None:
            self._refuse(datapath, "a second connection of this switch was refused", station)
            # If the first is dead without having said so, the barrier finds out, and the switch's next attempt succeeds.
            self._carry_out(station, station.plane.probe(time.monotonic_ns()))
        else:
            station.channel = Channel(datapath, station.config.ofports)
            self._carry_out(station, station.plane.connected(time.monotonic_ns()))
            station.channel.ask_table()

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def _on_table(self, event: Any) -> None:
        station = self._station(event)
        if station is None or station.channel is None or not station.channel.table_part(event.msg):
            return
        _, station.sync_xid = station.channel.repair(station.plane.intended())

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def _on_barrier(self, event: Any) -> None:
        station = self._station(event)
        if station is None:
            return
        channel = station.channel
        if event.msg.xid == station.sync_xid:
            station.sync_xid = None
            self._followed(station, lambda: self._synchronised(station, channel))
        elif (token := station.barriers.pop(event.msg.xid, None)) is not None:
            self._followed(station, lambda: self._confirmed(station, token))

    def _followed(self, station: _Station, done: Callable[[], None]) -> None:
        """A barrier was replied to: go on once the data plane follows, as far as that can be asked."""
        if self._fences is None:
            done()
        else:
            self._fences.add(done, lambda reason: self._carry_out(station, station.plane.error(time.monotonic_ns(), reason)))

    def _synchronised(self, station: _Station, channel: Channel | None) -> None:
        if station.channel is channel:  # else it was lost meanwhile
            self._carry_out(station, station.plane.synchronised(time.monotonic_ns()))

    def _confirmed(self, station: _Station, token: int) -> None:
        self._carry_out(station, station.plane.confirmed(token, time.monotonic_ns()))

    @set_ev_cls(ofp_event.EventOFPErrorMsg, MAIN_DISPATCHER)
    def _on_error(self, event: Any) -> None:
        station = self._station(event)
        if station is not None:
            detail = f"the switch refused a message: OpenFlow error type {event.msg.type} code {event.msg.code}"
            self._carry_out(station, station.plane.error(time.monotonic_ns(), detail))

    def _station(self, event: Any) -> _Station | None:
        """The station of a message's connection; None for one that was refused or given up."""
        datapath = event.msg.datapath
        station = self._by_dpid.get(datapath.id)
        current = station is not None and station.channel is not None and station.channel.datapath is datapath
        return station if current else None

    def _refuse(self, datapath: Any, detail: str, station: _Station | None = None) -> None:
        datapath.close()
        self._complain(detail, None if station is None else station.plane.index)

    def _complain(self, detail: str, plane: int | None = None) -> None:
        self.logger.error("%s", detail)
        self._northbound.emit(Event(kind=EventKind.ERROR, at_ns=time.monotonic_ns(), plane=plane, detail=detail))

    def _lose(self, station: _Station, reason: str) -> None:
        station.channel = station.sync_xid = None
        station.barriers.clear()
        self._carry_out(station, station.plane.lost(time.monotonic_ns(), reason))

    # What a plane wants done.

    def _carry_out(self, station: _Station, instructions: list[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, Shut):
                if self._light is not None:
                    until_ns = FOR_EVER if one.until_ns is None else one.until_ns
                    self._light.shut(station.config.ifindexes[one.port], one.from_ns, until_ns)
            elif isinstance(one, Open):
                if self._light is not None:
                    self._light.open(station.config.ifindexes[one.port])
            elif isinstance(one, Send):
                if station.channel is not None and self._fences is not None and self._light is not None:
                    station.sends.put((station.channel, one))
                elif station.channel is not None:
                    station.barriers[station.channel.change(one.change)] = one.token
            elif isinstance(one, Emit):
                if one.event.kind is EventKind.ERROR:
                    self.logger.error("plane %s: %s", one.event.plane, one.event.detail)
                self._northbound.emit(one.event)
            elif station.channel is not None:
                assert isinstance(one, Drop)
                station.channel.close()
                self._lose(station, one.reason)
        self._set_timer(station)

    def _send_drained(self, station: _Station) -> None:
        """A green thread's body: send each change once the switch has read what dark ports had received. The bound is the
        barrier's, which the plane watches from the order on."""
        while True:
            channel: Channel
            one: Send
            channel, one = station.sends.get()
            while station.channel is channel and self._undrained(station):
                hub.sleep(_DRAIN_S)
            if station.channel is channel:  # else it was lost meanwhile, and its orders have failed
                station.barriers[channel.change(one.change)] = one.token

    def _undrained(self, station: _Station) -> bool:
        light, now_ns = self._light, time.monotonic_ns()
        assert light is not None
        return backlog([index for index in station.config.ifindexes if light.state(index).dark(now_ns)]) > 0

    def _set_timer(self, station: _Station) -> None:
        due_ns = station.plane.next_wake_ns
        if due_ns == station.timer_ns:
            return
        if station.timer is not None:
            station.timer.cancel()
        station.timer, station.timer_ns = None, due_ns
        if due_ns is not None:
            early_ns = _SPIN_NS if station.plane.keeper is Keeper.TIMER else 0
            wait_s = max(0, due_ns - early_ns - time.monotonic_ns()) / 1e9
            station.timer = hub.spawn_after(wait_s, self._wake, station)

    def _wake(self, station: _Station) -> None:
        station.timer, due_ns = None, station.timer_ns
        station.timer_ns = None
        while (now_ns := time.monotonic_ns()) < (due_ns or 0):
            pass
        self._carry_out(station, station.plane.advance(now_ns))


def _from_environment() -> OcsConfig:
    """From the file that the environment names, or the text itself, as ``main`` leaves it there. Raises ConfigError."""
    said = os.environ.get(CONFIG_VARIABLE, "")
    if said.startswith("{"):
        return parse_config(said)
    with open(said, encoding="utf-8") as file:
        return parse_config(file.read())


def _die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def main(argument: str) -> int:
    """Run until killed. 2: the configuration is wrong; 3: it cannot listen. Standard error says what."""
    parent = os.getppid()
    _die_with_parent()
    if os.getppid() != parent:
        return 0
    path = f"/proc/self/fd/{argument}" if argument.isdigit() else argument
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read().strip()
        config = parse_config(text)
    except (OSError, ConfigError) as error:
        print(f"ocs_app: {argument}: {error}", file=sys.stderr)
        return 2
    os.environ[CONFIG_VARIABLE] = text
    try:
        run_app("controller.ocs_app", config.openflow_host, config.openflow_port)
    except OSError as error:
        where = f"{config.openflow_host}:{config.openflow_port} and {config.northbound}"
        print(f"ocs_app: cannot listen at {where}: {error}", file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
