"""An Open vSwitch of one's own: database, daemon, sockets and log in a directory, processes that end with it.

The system's Open vSwitch, its database and its bridges are never touched: every command is given this one's socket. One
vswitchd wants a network namespace for itself, so one of these belongs in one sandbox.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from topo.flowtext import Flow, parse_flows

START_S = 15.0
"""Longest a daemon may take to answer, and a command to be carried out."""

BUFFER = 64 << 20
"""Bytes of each packet socket of the userspace datapath: it reads every port through one and sends through one. At the kernel's
default (208 KiB) the dozen jumbo frames that arrive while it looks elsewhere are lost without a counter, and so is what waits
behind a shaper. The default itself (``net.core.wmem_default``) belongs to the whole machine, and cannot be set in a namespace."""

_MALLOC = {"MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_TOP_PAD_": "67108864", "MALLOC_MMAP_THRESHOLD_": "33554432"}
"""glibc keeps what vswitchd frees. For each batch of packets userspace TSO allocates room for 64 KB frames and frees it again; by
default each time the heap is given back to the kernel and asked for anew, which is half of all its system calls."""

Datapath = Literal["user", "kernel", "auto"]
_NICE = -15
_COMMANDS = ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl", "ovs-appctl")
_PIDFD_GETFD = 438
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_PROTOCOLS = "OpenFlow13,OpenFlow15"
_MAX_SOCKET_PATH = 100


class OvsError(RuntimeError):
    """Open vSwitch is missing, did not start in time, or did not do what it was asked; the message carries its own words."""


@dataclass(frozen=True, slots=True)
class ControllerState:
    """A bridge's connection to its controller as the database has it: vswitchd refreshes that every 5 s."""

    target: str
    connected: bool


def kernel_datapath() -> bool:
    """Whether this kernel has the openvswitch module, loaded or built in."""
    return Path("/sys/module/openvswitch").exists()


def choose_datapath(wanted: Datapath) -> Literal["user", "kernel"]:
    """What ``auto`` is on this machine. Raises OvsError where the kernel's is demanded and there is none."""
    if wanted == "kernel" and not kernel_datapath():
        raise OvsError("this kernel has no openvswitch module (modprobe openvswitch), which datapath: kernel needs")
    if wanted == "auto":
        return "kernel" if kernel_datapath() else "user"
    return wanted


class PrivateOvs:
    """An ovsdb-server and an ovs-vswitchd in ``directory``, in the present namespaces. A context manager.

    ``datapath`` afterwards says which one it is. ``userspace_tso`` lets the userspace datapath carry segmented frames and
    partial checksums between ports, as the kernel does. ``cpus`` pins both daemons. Raises OvsError within START_S.
    """

    def __init__(self, directory: Path, *, userspace_tso: bool = True, datapath: Datapath = "auto",
                 cpus: Collection[int] | None = None) -> None:  # fmt: skip
        lacking = [name for name in _COMMANDS if shutil.which(name) is None]
        if lacking:
            raise OvsError(f"{', '.join(lacking)} not found; install openvswitch-switch")
        self.datapath = choose_datapath(datapath)
        self.directory = directory.resolve()
        if len(os.fsencode(self.directory)) > _MAX_SOCKET_PATH - len("/ovs-vswitchd.ctl"):
            raise OvsError(f"{self.directory}: the path is too long for a Unix socket; choose a shorter one")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.environment = (
            os.environ
            | _MALLOC
            | {name: str(self.directory) for name in ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR")}
        )
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._database = f"unix:{self.directory / 'db.sock'}"
        self._control = {name: self.directory / f"{name}.ctl" for name in ("ovsdb-server", "ovs-vswitchd")}
        self._reading: set[int] = set()
        had = os.sched_getaffinity(0)
        try:
            if cpus is not None:
                os.sched_setaffinity(0, cpus)  # inherited by the daemons and all their threads
            self._start(userspace_tso)
        except BaseException:
            self.close()
            raise
        finally:
            os.sched_setaffinity(0, had)

    def __enter__(self) -> PrivateOvs:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def control(self) -> Path:
        """The socket by which vswitchd takes commands."""
        return self._control["ovs-vswitchd"]

    @property
    def pids(self) -> tuple[int, ...]:
        """The daemons, the database's first."""
        return tuple(daemon.pid for daemon in self._daemons)

    def _start(self, userspace_tso: bool) -> None:
        database = self.directory / "conf.db"
        database.unlink(missing_ok=True)
        self._run("ovsdb-tool", "create", str(database))
        remote = f"--remote=p{self._database}"
        self._daemon("ovsdb-server", str(database), remote, f"--unixctl={self._control['ovsdb-server']}")
        self._run("ovs-vsctl", f"--db={self._database}", "--no-wait", "init")
        if userspace_tso:
            self._vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true")
        self._daemon("ovs-vswitchd", self._database, f"--unixctl={self._control['ovs-vswitchd']}")
        with suppress(PermissionError):  # a packet waits for whoever has the CPU before it
            os.setpriority(os.PRIO_PROCESS, self._daemons[-1].pid, _NICE)

    def _daemon(self, name: str, *arguments: str) -> None:
        """Start a daemon in the foreground, so that its pid is known, and wait until it answers."""
        log = self.directory / f"{name}.log"
        command = [name, *arguments, f"--log-file={log}", "-vconsole:off", "--no-chdir"]
        with open(self.directory / f"{name}.out", "wb") as output:
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.environment,
                                      start_new_session=True)  # fmt: skip
        self._daemons.append(daemon)
        until = time.monotonic() + START_S
        while not _answers(self._control[name]):
            if daemon.poll() is not None or time.monotonic() > until:
                state = f"ended with {daemon.returncode}" if daemon.returncode is not None else f"silent for {START_S:g} s"
                raise OvsError(f"{name} {state}: {self._last_words(name)}")
            time.sleep(0.002)

    def _last_words(self, name: str) -> str:
        said = "".join(
            path.read_text(errors="replace") for end in ("log", "out") if (path := self.directory / f"{name}.{end}").exists()
        )
        return " | ".join(said.strip().splitlines()[-3:]) or "it said nothing"

    def _run(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=START_S,
                check=False,
                env=self.environment,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise OvsError(f"{command[0]} did not end within {START_S:g} s: {' '.join(command[1:])[:200]}") from None
        if done.returncode != 0:
            raise OvsError(f"{command[0]}: {done.stderr.strip() or f'ended with {done.returncode}'}")
        return done.stdout

    def _vsctl(self, *words: str) -> str:
        return self._run("ovs-vsctl", f"--db={self._database}", f"--timeout={START_S:.0f}", *words)

    def appctl(self, *words: str) -> str:
        """Ask the running vswitchd. Raises OvsError."""
        return self._run("ovs-appctl", "-t", str(self._control["ovs-vswitchd"]), *words)

    def ofctl(self, verb: str, bridge: str, *words: str) -> str:
        """``ovs-ofctl VERB`` on a bridge's management socket. Raises OvsError."""
        return self._run("ovs-ofctl", "-O", "OpenFlow15", "--no-names", verb, self.management(bridge), *words)

    def management(self, bridge: str) -> str:
        """The OpenFlow connection of a bridge that needs no controller."""
        return f"unix:{self.directory / bridge}.mgmt"

    def add_bridge(self, name: str, dpid: int, ports: Sequence[tuple[str, int]], controller: str | None) -> None:
        """A bridge that forwards nothing by itself, with (device, OpenFlow port) each where it was asked, in one transaction.

        ``controller`` like ``tcp:127.0.0.1:6653``; it is never reached in band. Raises OvsError, also when the switch has
        made something else of it.
        """
        kind = "netdev" if self.datapath == "user" else "system"
        words = ["--", "add-br", name, "--", "set", "bridge", name, f"datapath_type={kind}", "fail_mode=secure"]
        words += [f"protocols={_PROTOCOLS}", f"other-config:datapath-id={dpid:016x}", "other-config:disable-in-band=true"]
        for device, number in ports:
            words += ["--", "add-port", name, device, "--", "set", "interface", device, f"ofport_request={number}"]
        if controller is not None:
            words += ["--", "set-controller", name, controller, "--", "set", "controller", name, "connection-mode=out-of-band"]
            words += ["max_backoff=1000", "inactivity_probe=5000"]
        self._vsctl(*words)
        self._read_back(name, dpid, ports, kind)
        if self.datapath == "user" and ports:
            self._grow_buffers(name, ports)

    def _read_back(self, name: str, dpid: int, ports: Sequence[tuple[str, int]], kind: str) -> None:
        bridge = self._rows("Bridge", "name,datapath_type,datapath_id,fail_mode,protocols", name)[0]
        wanted = {"datapath_type": kind, "datapath_id": f"{dpid:016x}", "fail_mode": "secure"}
        for column, value in wanted.items():
            if bridge[column] != value:
                raise OvsError(f"{name}: {column} was set to {value} and reads {bridge[column]!r}")
        have = {str(row["name"]): row for row in self._rows("Interface", "name,ofport,error")}
        for device, number in ports:
            row = have.get(device)
            if row is None or row["error"] not in ([], ""):
                raise OvsError(f"{name}: {device}: {row['error'] if row else 'no such interface'}")
            if row["ofport"] != number:
                raise OvsError(f"{name}: {device} was to be OpenFlow port {number} and is {row['ofport']}")

    def _rows(self, table: str, columns: str, *records: str) -> list[dict[str, object]]:
        answer = json.loads(self._vsctl("--format=json", f"--columns={columns}", "list", table, *records))
        return [dict(zip(answer["headings"], map(_plain, row), strict=True)) for row in answer["data"]]

    def bridges(self) -> tuple[str, ...]:
        """The names of all bridges."""
        return tuple(self._vsctl("list-br").split())

    def flows(self, bridge: str) -> tuple[Flow, ...]:
        """The flow table of a bridge, now. Raises OvsError."""
        return parse_flows(self.ofctl("dump-flows", bridge))

    def controllers(self) -> dict[str, ControllerState]:
        """Of every bridge that has one, the controller. Up to 5 s old."""
        rows = {str(row["_uuid"]): row for row in self._rows("Controller", "_uuid,target,is_connected")}
        found = {}
        for bridge in self._rows("Bridge", "name,controller"):
            row = rows.get(str(bridge["controller"]))
            if row is not None:
                found[str(bridge["name"])] = ControllerState(str(row["target"]), bool(row["is_connected"]))
        return found

    def _grow_buffers(self, bridge: str, ports: Sequence[tuple[str, int]]) -> None:
        """Give vswitchd's packet sockets buffers of BUFFER.

        The one that sends is made when the first packet leaves, so one does: a frame of the ethertype for experiments, to nobody.
        """
        frame = "01005e00000002000000000088b5" + "00" * 46
        self.ofctl("packet-out", bridge, f"in_port=controller packet={frame} actions=output:{ports[0][1]}")
        self._reading |= {socket.if_nametoindex(device) for device, _ in ports}
        until = time.monotonic() + START_S
        while not self._reading | {0} <= _grow_packet_sockets(self._daemons[-1].pid):
            if time.monotonic() > until:
                raise OvsError(f"{bridge}: vswitchd did not open a packet socket for every port within {START_S:g} s")
            time.sleep(0.002)

    def buffer_faults(self) -> list[str]:
        """Ports whose packet socket was made anew since, and has the kernel's small buffer; read now. None in the kernel's."""
        if self.datapath == "kernel":
            return []
        small = self._reading - _grow_packet_sockets(self._daemons[-1].pid, grow=False)
        return [f"interface {index}: vswitchd reads it through a small buffer" for index in sorted(small)]

    def close(self) -> None:
        """End both daemons, the switch first, and wait for them.

        The switch is asked to take its own interfaces down, which outlive it otherwise; no answer is no reason not to end it.
        """
        if len(self._daemons) > 1 and self._daemons[-1].poll() is None:
            with suppress(OvsError, subprocess.TimeoutExpired):
                self.appctl("--timeout=5", "exit", "--cleanup")
                self._daemons[-1].wait(5)
        for daemon in reversed(self._daemons):
            if daemon.poll() is None:
                daemon.terminate()
                try:
                    daemon.wait(5)
                except subprocess.TimeoutExpired:
                    daemon.kill()
            daemon.wait()
        self._daemons.clear()


def _answers(control: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.connect(str(control))
        return True
    return False


def _plain(cell: object) -> object:
    """A cell of OVSDB's JSON: sets of one as their element, maps as dicts, uuids as text."""
    if not isinstance(cell, list) or len(cell) != 2:
        return cell
    kind, value = cell
    if kind == "map":
        return {key: _plain(one) for key, one in value}
    if kind == "set":
        return _plain(value[0]) if len(value) == 1 else [_plain(one) for one in value]
    return value


def _grow_packet_sockets(pid: int, *, grow: bool = True) -> set[int]:
    """Interface indices (0: the one that sends) of a process's packet sockets whose buffers, grown if they may be, are BUFFER.

    The descriptors are copies that this process closes again. Raises OvsError where the kernel forbids copying them.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
                fd = libc.syscall(_PIDFD_GETFD, pidfd, int(name), 0)
                if fd < 0:
                    raise OvsError(f"vswitchd's sockets cannot be reached: {os.strerror(ctypes.get_errno())}")
                with socket.socket(fileno=fd) as copy:
                    if copy.family != socket.AF_PACKET:
                        continue
                    device = copy.getsockname()[0]
                    for grown, read in ((_SO_SNDBUFFORCE, socket.SO_SNDBUF), (_SO_RCVBUFFORCE, socket.SO_RCVBUF)):
                        if grow:
                            copy.setsockopt(socket.SOL_SOCKET, grown, BUFFER)
                        if copy.getsockopt(socket.SOL_SOCKET, read) < BUFFER:
                            break
                    else:
                        found.add(socket.if_nametoindex(device) if device else 0)
    finally:
        os.close(pidfd)
    return found
