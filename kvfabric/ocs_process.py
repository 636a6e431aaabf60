"""The optical switch's controller as a process of the run's own, and the connection to it.

What is asked here is asked outside of any window and waited for; inside one ``kvfabric.circuit_driver`` asks, and never waits.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

from controller.client import ControllerGone, OcsClient, Planes, Received
from controller.ocs_config import OcsConfig, PlaneConfig, Timing, to_text
from controller.ocs_messages import Event, EventKind, Order, PlaneState, Verb
from kvfabric.errors import MachineCannot
from topo.optical import Optical, PlaneCircuit, PlanePort

OPENFLOW_PORT = 6653
NICE = -15
"""Before the switch, whose CPU it shares: it takes little, and a circuit waits for it."""
FENCED_S = 0.5e-3
"""Between the proof that the data plane follows and light: the instant is written before it is there."""
_READY_S = 15.0
_ANSWER_S = 5.0


class OcsController:
    """``python -m controller.ocs_app`` for the planes of ``optical``, with a client of it in ``client``. To be closed.

    ``indices`` has the interface of every port, ``light_fd`` is the shutters' array; files go to ``directory``. ``tau_s`` is on
    this machine's clock. ``fence``: see OcsConfig. Raises MachineCannot when the process, or a switch, does not answer in time.
    """

    def __init__(self, optical: Optical, indices: Mapping[PlanePort, int], light_fd: int, tau_s: float, directory: Path,
                 cpus: Collection[int] | None, fence: Path | None) -> None:  # fmt: skip
        self.tau_s = tau_s
        self.noticed: list[str] = []
        self._moves = 0
        self._log = directory / "controller.log"
        self._undo = ExitStack()
        northbound = str(directory / "northbound.sock")
        config = OcsConfig(
            planes=tuple(
                PlaneConfig(
                    optical.switch(plane).dpid, tau_s, tuple(port + 1 for port in range(optical.ports)),
                    tuple(indices[PlanePort(plane, port)] for port in range(optical.ports)),
                )
                for plane in range(optical.planes)
            ),
            northbound=northbound,
            openflow_port=OPENFLOW_PORT,
            light_fd=light_fd,
            fence=None if fence is None else str(fence),
            timing=Timing() if fence is None else Timing(settle_s=FENCED_S),
        )  # fmt: skip
        path = directory / "controller.json"
        path.write_text(to_text(config), encoding="utf-8")
        try:
            self._process = self._launch(path, light_fd, cpus)
            self._undo.callback(self._end)
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)
            until = monotonic() + _READY_S
            self.client = self._undo.enter_context(self._connect(northbound, until))
            ready: set[int | None] = set()
            while len(ready) < optical.planes:
                for one in self._wait(until, "the switches did not connect to their controller"):
                    if isinstance(one, Event) and one.kind is EventKind.READY:
                        ready.add(one.plane)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> OcsController:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection, then end the process. Circuits stay."""
        self._undo.close()

    def _launch(self, config: Path, light_fd: int, cpus: Collection[int] | None) -> subprocess.Popen[bytes]:
        had = os.sched_getaffinity(0)
        with self._log.open("wb") as log:
            try:
                if cpus is not None:
                    os.sched_setaffinity(0, cpus)  # inherited
                return subprocess.Popen(
                    [sys.executable, "-m", "controller.ocs_app", str(config)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[light_fd], start_new_session=True,
                )  # fmt: skip
            finally:
                os.sched_setaffinity(0, had)

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(3)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def _connect(self, address: str, until: float) -> OcsClient:
        while True:
            try:
                return OcsClient(address)
            except OSError:
                if self._process.poll() is not None or monotonic() > until:
                    raise MachineCannot(
                        f"the controller of the optical switch did not start: {self._last_words()}", "see kvfabric doctor"
                    ) from None
                sleep(0.01)

    def _wait(self, until: float, otherwise: str) -> tuple[Received, ...]:
        """What has been received by the time; errors among it are kept in ``noticed``, whoever waited for what."""
        left = until - monotonic()
        if left <= 0 or self._process.poll() is not None:
            raise MachineCannot(f"{otherwise}: {self._last_words()}", "see kvfabric doctor; run it again with --debug")
        select.select(self.client.filenos, [], [], min(left, 0.5))
        try:
            received = self.client.receive()
        except ControllerGone as gone:
            raise MachineCannot(f"{otherwise}: {gone}: {self._last_words()}", "run it again with --debug") from None
        self.noticed += [fault for one in received if (fault := complaint(one)) is not None]
        return received

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return lines[-1] if lines else "it said nothing"

    @property
    def ended(self) -> str | None:
        """How the process ended, in words; None while it runs."""
        code = self._process.poll()
        return None if code is None else f"the controller has ended ({code}): {self._last_words()}"

    def join(self, circuits: Iterable[PlaneCircuit]) -> None:
        """Have circuits set up anew and wait until all carry light. Raises MachineCannot if they do not."""
        orders = [
            Order(a=one.prefill_port, b=one.decode_port, planes=(one.plane,), replace=True, force=True, tag="join")
            for one in circuits
        ]
        self.client.connect(*orders)
        up, until = 0, monotonic() + self.tau_s + _ANSWER_S
        while up < len(orders):
            for one in self._wait(until, f"{len(orders)} circuits did not come up"):
                if isinstance(one, Event) and one.tag == "join":
                    up += one.kind is EventKind.UP
                    if one.kind in (EventKind.ERROR, EventKind.REFUSED) and one.up_ns is None:
                        raise MachineCannot(f"a circuit did not come up: {one.detail}", "run it again with --debug")

    def move(self, plane: int, a: int, b: int) -> Event:
        """Have one circuit set up anew, whatever it replaces; its event ARMED, which tells when it is dark and when it is up.

        Raises MachineCannot if it does not come.
        """
        self._moves += 1
        tag = f"move {self._moves}"
        self.client.connect(Order(a=a, b=b, planes=(plane,), replace=True, force=True, tag=tag))
        until = monotonic() + self.tau_s + _ANSWER_S
        while True:
            for one in self._wait(until, f"circuit {a}-{b} of plane {plane} did not come up"):
                if isinstance(one, Event) and one.tag == tag and one.kind is EventKind.ARMED:
                    return one

    def part(self) -> None:
        """Take every circuit down and wait, for those too that are still to come up. Raises MachineCannot if one stays."""
        until = monotonic() + self.tau_s + _ANSWER_S
        while True:
            planes = self.planes()
            if not any(plane.circuits or plane.moving or plane.announced for plane in planes):
                return
            if monotonic() > until:
                raise MachineCannot("circuits could not be taken down", "run it again with --debug")
            orders = [Order(a=a, b=b, planes=(plane.plane,), verb=Verb.DISCONNECT) for plane in planes for a, b in plane.circuits]
            if orders:
                self.client.disconnect(*orders)
            sleep(1e-3)

    def planes(self) -> tuple[PlaneState, ...]:
        """All planes as the controller holds them, now. Raises MachineCannot."""
        request, until = self.client.planes(), monotonic() + _ANSWER_S
        while True:
            for one in self._wait(until, "the controller did not say how its planes are"):
                if isinstance(one, Planes) and one.request == request:
                    return one.planes


def complaint(one: Received) -> str | None:
    """What is wrong, in words, where an event tells of something that is."""
    if not isinstance(one, Event) or one.kind not in (EventKind.ERROR, EventKind.DISCONNECTED):
        return None
    where = "" if one.plane is None else f"plane {one.plane}: "
    return f"{where}{'the switch lost its controller: ' if one.kind is EventKind.DISCONNECTED else ''}{one.detail}"
