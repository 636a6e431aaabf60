"""What runs in the observer's process: a loop of readings, rows and drawing that ends by ``os._exit``."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import struct
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from kvfabric._drawing import Drawing
from kvfabric._libc import die_with_parent
from kvfabric._watch import Observation, Watch
from kvfabric.errors import one_line
from kvfabric.ports import PortPlan
from kvfabric.records import RecordWriter

if TYPE_CHECKING:
    from kvfabric.fabric_ports import PortReader
    from kvfabric.observer import ObserverSettings

_LENGTH = struct.Struct("=I")
_READ = 1 << 20
_NEVER = float("inf")


def main(parent: int, feed: int, answers: int, writer: RecordWriter, plans: tuple[PortPlan, ...],
         open_reader: Callable[[], PortReader], settings: ObserverSettings) -> NoReturn:  # fmt: skip
    """The child's whole life. Whatever goes wrong is said to the parent."""
    code = 1
    try:
        _become_a_child(parent)
        reader = _without_inherited(open_reader, {0, 1, 2, feed, answers})
        _answer(answers, "ready", None)
        observation = _Loop(feed, answers, writer, Watch(plans, reader, settings.interval_s), settings).run()
        _answer(answers, "done", observation)
        code = 0
    except BaseException as error:
        with contextlib.suppress(OSError):  # the parent has gone as well
            _answer(answers, "failed", one_line(f"{type(error).__name__}: {error}"))
    finally:
        os._exit(code)


def _become_a_child(parent: int) -> None:
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    # Ctrl-C reaches the whole group. The run decides what comes of it, and needs the records until the end.
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def _without_inherited(open_reader: Callable[[], PortReader], keep: Collection[int]) -> PortReader:
    """Open the reader, then let go of every descriptor of the parent: a socket held here as well would not close when
    the parent closes it. The parent's objects that own them must never be collected in this process."""
    gc.freeze()
    # The listing's own descriptor is closed by now, and its number is the next to be given to a socket of the reader.
    inherited = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd not in keep and _is_open(fd)]
    reader = open_reader()
    for fd in inherited:
        os.close(fd)
    return reader


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _answer(answers: int, kind: str, payload: object) -> None:
    data = pickle.dumps((kind, payload), protocol=pickle.HIGHEST_PROTOCOL)
    view = memoryview(_LENGTH.pack(len(data)) + data)
    while view:
        view = view[os.write(answers, view) :]


class _Loop:
    """Wakes at absolute instants of CLOCK_MONOTONIC; rows are read at those too, so that they wake nobody."""

    def __init__(self, feed: int, answers: int, writer: RecordWriter, watch: Watch, settings: ObserverSettings) -> None:
        self._feed, self._answers = feed, answers
        self._writer, self._watch, self._settings = writer, watch, settings
        self._step_s = settings.interval_s / settings.looks
        self._received = bytearray()
        self._epoch_s: float | None = None
        self._steps = 0
        self._measuring = self._ended = self._stopped = False
        self._flush_at_s = _NEVER
        self._drawing: Drawing | None = None
        os.set_blocking(feed, False)

    def run(self) -> Observation:
        observation: Observation | None = None
        while not self._stopped:
            self._wait()
            now_s = time.monotonic()
            if not self._ended:
                self._measure(now_s)
            for kind, payload in self._messages():
                self._take(kind, payload)
            if self._ended and observation is None:
                if self._measuring:
                    self._writer_rows(time.monotonic())
                observation = self._watch.observation({})
                self._undraw()
                _answer(self._answers, "ended", None)
            if now_s >= self._flush_at_s:
                self._writer.flush()
                self._flush_at_s = now_s + self._settings.flush_s
        self._undraw()
        if observation is None:
            observation = self._watch.observation({})
        self._writer.close()
        return replace(observation, rows=dict(self._writer.rows))

    def _wait(self) -> None:
        if self._ended:
            select.select([self._feed], [], [], self._settings.flush_s)
            return
        now_s = time.monotonic()
        if self._epoch_s is None:
            wake_s = now_s + self._step_s
        elif not self._measuring:
            wake_s = min(max(self._epoch_s, now_s), now_s + self._step_s)
        else:
            # A wake-up missed because the processor was taken is gone: the next is the next whole step.
            self._steps = max(self._steps + 1, int((now_s - self._epoch_s) / self._step_s) + 1)
            wake_s = self._epoch_s + self._steps * self._step_s
        time.sleep(max(0.0, wake_s - now_s))

    def _measure(self, now_s: float) -> None:
        if self._epoch_s is None or now_s < self._epoch_s:
            return
        if not self._measuring:
            self._watch.begin(now_s, self._epoch_s)
            self._measuring = True
            self._tick_at = self._next_tick(now_s)
            return
        if now_s >= self._tick_at:
            self._writer_rows(now_s)
            self._tick_at = self._next_tick(now_s)
            if self._drawing is not None:
                self._draw(now_s)
        else:
            self._watch.look()

    def _next_tick(self, now_s: float) -> float:
        assert self._epoch_s is not None
        interval = self._settings.interval_s
        # Half a step of grace: a tick that wakes a hair early is that tick.
        whole = int((now_s - self._epoch_s) / interval + 0.5 / self._settings.looks)
        return self._epoch_s + (whole + 1) * interval

    def _writer_rows(self, now_s: float) -> None:
        self._writer.add(*self._watch.tick(now_s))

    def _draw(self, now_s: float) -> None:
        assert self._drawing is not None
        assert self._epoch_s is not None
        try:
            self._drawing.draw(now_s - self._epoch_s)
        except OSError:
            self._drawing = None  # whoever watched has gone; the run goes on

    def _undraw(self) -> None:
        if self._drawing is not None:
            with contextlib.suppress(OSError):
                self._drawing.close()
            self._drawing = None

    def _take(self, kind: str, payload: object) -> None:
        if kind == "rows":
            assert isinstance(payload, list)
            for table, row in payload:
                self._writer.add_values(table, row)
                if self._drawing is not None and table == "requests":
                    self._drawing.count(row)
        elif kind == "begin":
            assert isinstance(payload, float)
            self._epoch_s = payload
            self._flush_at_s = time.monotonic() + self._settings.flush_s
            if self._settings.progress is not None:
                self._drawing = Drawing.on_stderr(self._settings.progress)
        elif kind == "end":
            self._ended = True
        elif kind == "stop":
            self._ended = self._stopped = True

    def _messages(self) -> Iterator[tuple[str, object]]:
        while True:
            try:
                data = os.read(self._feed, _READ)
            except BlockingIOError:
                return
            if not data:
                raise EOFError("the replay has closed the pipe")
            self._received += data
            offset = 0
            while len(self._received) - offset >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._received, offset)
                if len(self._received) - offset < _LENGTH.size + length:
                    break
                start = offset + _LENGTH.size
                message: tuple[str, object] = pickle.loads(bytes(self._received[start : start + length]))
                offset = start + length
                yield message
            del self._received[:offset]
