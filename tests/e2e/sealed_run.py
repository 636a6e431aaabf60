"""``kvfabric run`` as a user starts it, looked at and disturbed from outside its sandbox."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 10.0  # the kernel removes namespaces in the background
RUN_S = 90.0
LONGER = ("--set", "window=5s", "--set", "drain=2s")
"""Smoke with a window long enough to be disturbed in, and to flush records in."""


class Marked:
    """Processes that carry a variable of this test in their environment, as all descendants of a command do."""

    def __init__(self) -> None:
        self.name = f"KVTEST_{uuid.uuid4().hex}"
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), self.name: "1"}

    def pids(self) -> set[int]:
        found = set()
        for entry in Path("/proc").glob("[0-9]*"):
            # A process that is gone meanwhile, or a zombie, has no environment to read.
            with contextlib.suppress(OSError):
                if self.name.encode() in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
        return found

    def kill_all(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kvfabric", *arguments]


def call(*arguments: str, prefix: tuple[str, ...] = (), **options: Any) -> subprocess.CompletedProcess[str]:
    """A command that needs no disturbing."""
    settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": RUN_S, "stdin": subprocess.DEVNULL, **options}
    settings.setdefault("env", Marked().env)
    return subprocess.run([*prefix, *command(*arguments)], check=False, **settings)


def until(condition: Callable[[], bool], bound_s: float = BOUND_S, step_s: float = 0.02) -> bool:
    """Wait for a condition; whether it came true in time."""
    end = time.monotonic() + bound_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step_s)
    return True


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def held_namespaces(pid: int) -> set[str]:
    """The network namespaces a process holds by descriptor: ``net:[4026532000]``."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{entry}")
                if target.startswith("net:["):
                    found.add(target)
    return found


def known_namespaces() -> set[str]:
    """Every network namespace of the machine that a process is in, holds open, or has mounted."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(entry / "ns/net"))
        found |= held_namespaces(int(entry.name))
        with contextlib.suppress(OSError):
            for line in (entry / "mountinfo").read_text().splitlines():
                if " nsfs " in line:
                    found.add(line.split()[3])
    return found


class Running:
    """A run in progress."""

    def __init__(self, process: subprocess.Popen[str], out: Path, marked: Marked) -> None:
        self.process = process
        self.out = out
        self.marked = marked

    @property
    def user(self) -> int:
        """The process that the user started."""
        return self.process.pid

    @property
    def init(self) -> int | None:
        """PID 1 of the sandbox, as seen from outside."""
        return next(iter(children(self.process.pid)), None)

    @property
    def replay(self) -> int | None:
        init = self.init
        return None if init is None else next(iter(children(init)), None)

    @property
    def observer(self) -> int | None:
        """The replay's child that lasts: nft and other tools come and go within a fraction of a second."""
        replay = self.replay
        if replay is None or not (self.out / "manifest.json").exists():
            return None
        for child in children(replay):
            with contextlib.suppress(OSError):
                if b"kvfabric.run" in Path(f"/proc/{child}/cmdline").read_bytes() and _age_s(child) > 0.2:
                    return child
        return None

    def await_observer(self) -> int:
        """Wait until the network is up and the observer has been forked."""
        assert until(lambda: self.observer is not None, 60), f"no observer came up: {self.result()}"
        observer = self.observer
        assert observer is not None
        return observer

    def inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the sandbox, where ``ip netns`` finds the nodes by name."""
        replay = self.replay
        assert replay is not None
        return subprocess.run(
            ["nsenter", "-t", str(replay), "-m", "-n", *words], capture_output=True, text=True, timeout=20, check=True
        )

    def connections(self) -> int:
        """TCP connections that a decode host has now."""
        with contextlib.suppress(subprocess.CalledProcessError, AssertionError):  # the run has ended
            shown = self.inside("ip", "netns", "exec", "d1g0", "ss", "-Htn", "state", "established").stdout
            return len(shown.splitlines())
        return 0

    def result(self) -> tuple[int, str, str]:
        """Exit code, standard output and standard error, once it has ended."""
        out, error = self.process.communicate(timeout=RUN_S)
        return self.process.returncode, out, error

    def status(self) -> str:
        return str(json.loads((self.out / "manifest.json").read_text())["status"])

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found


def _age_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def started(out: Path, *arguments: str, scenario: str = "smoke", marked: Marked | None = None) -> Iterator[Running]:
    """A run, killed with everything in it if the test leaves it behind."""
    marked = marked or Marked()
    with subprocess.Popen(
        command("run", scenario, "--out", str(out), *arguments),
        env=marked.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Running(process, out, marked)
        finally:
            process.kill()
            process.communicate()
            marked.kill_all()


@contextlib.contextmanager
def started_in_window(base: Path, *arguments: str, attempts: int = 4) -> Iterator[Running]:
    """A longer run with turns on the wire.

    A run opens its connections when its calibration has succeeded, and begins its window within two seconds then. One that
    fails its calibration, as on a machine that has other things to do, ends before; then another is started.
    """
    for attempt in range(attempts):
        with started(base / f"out{attempt}", *LONGER, *arguments) as run:
            run.await_observer()
            assert until(lambda: run.process.poll() is not None or run.connections() >= 64, 60, 0.2)
            if not until(lambda: run.process.poll() is not None, 2.0):
                yield run
                return
    raise AssertionError(f"{attempts} runs ended before their window: this machine is too busy for calibration")
