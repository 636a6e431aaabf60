"""The observer: a child process that watches machine and links, writes the records and draws progress.

A process of its own, so that neither sampling nor Parquet nor the terminal ever stands in the way of the replay. It is
forked before the replay opens a socket, reads the ports over netlink sockets of its own, and receives rows through a pipe
that the replay never waits for. If it dies the replay is told; if the replay dies the kernel kills it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import select
import signal
import struct
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvfabric import _observer_child as child
from kvfabric._drawing import ProgressPlan, wants_progress
from kvfabric._watch import Observation
from kvfabric.errors import EXIT_MACHINE, KvfabricError
from kvfabric.fabric_ports import PortReader
from kvfabric.ports import PortPlan
from kvfabric.records import RecordWriter
from kvfabric.rows import TABLE_OF, Row, values

__all__ = ["Observation", "Observer", "ObserverFailed", "ObserverSettings", "ProgressPlan", "wants_progress"]

_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 1 << 20
_MAX_BACKLOG = 256 << 20
_LENGTH = struct.Struct("=I")


class ObserverFailed(KvfabricError):  # noqa: N818 - the name says it where it is raised
    """The observer has died or does not answer: the run has no records and no evidence."""

    exit_code = EXIT_MACHINE


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverSettings:
    """``interval_s`` between readings, with ``looks`` looks at waiting packets in each; rows are flushed every ``flush_s``.

    ``progress`` is drawn on standard error where given.
    """

    interval_s: float = 1.0
    looks: int = 10
    flush_s: float = 5.0
    progress: ProgressPlan | None = None


class Observer:
    """The replay's end. Every method but ``end`` and ``stop`` returns at once; all raise ObserverFailed once it is dead."""

    def __init__(self, pid: int, feed: int, answers: int) -> None:
        self.pid = pid
        self._feed = feed
        self._answers = answers
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._received = bytearray()
        self._dead: str | None = None
        self._reaped = False
        self._status = 0

    @classmethod
    def start(cls, writer: RecordWriter, plans: Iterable[PortPlan], open_reader: Callable[[], PortReader],
              settings: ObserverSettings = ObserverSettings()) -> Observer:  # fmt: skip
        """Fork it. ``open_reader`` is called in the child and makes netlink sockets of its own; the writer is the child's
        from now on. Returns once the child can read the ports. Raises ObserverFailed."""
        feed_out, feed_in = os.pipe()
        answers_out, answers_in = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        parent = os.getpid()
        with warnings.catch_warnings():
            # numpy's and pyarrow's worker threads make Python 3.12 warn of any fork; neither is at work here.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            child.main(parent, feed_out, answers_in, writer, tuple(plans), open_reader, settings)
        os.close(feed_out)
        os.close(answers_in)
        os.set_blocking(feed_in, False)
        os.set_blocking(answers_out, False)
        with contextlib.suppress(OSError):  # pipe-max-size is smaller here: more waits in this process instead
            fcntl.fcntl(feed_in, _F_SETPIPE_SZ, _PIPE_BYTES)
        self = cls(pid, feed_in, answers_out)
        self._await("ready", 60)
        return self

    def fileno(self) -> int:
        """Readable when the observer has died: for an event loop that wants to know at once (then call ``check``)."""
        return self._answers

    def begin(self, epoch_s: float) -> None:
        """Measure from ``epoch_s`` (time.monotonic) on, which is second 0 of the run; it may lie ahead."""
        self._send("begin", epoch_s)

    def send(self, *rows: Row) -> None:
        """Have rows written. Never waits: what the pipe does not take is kept, and goes out with the next call."""
        self._send("rows", [(TABLE_OF[type(row)], values(row)) for row in rows])

    def pump(self) -> None:
        """Push on what ``send`` had to keep."""
        while self._backlog:
            head = self._backlog[0]
            try:
                written = os.write(self._feed, head)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._reap(0)
                self._read_answers()  # its last words
                self._died()
            self._backlog_bytes -= written
            if written == len(head):
                self._backlog.popleft()
            else:
                self._backlog[0] = head[written:]

    def check(self) -> None:
        """Raises ObserverFailed if the observer has died."""
        if self._dead is not None:
            raise ObserverFailed(*self._words())
        self._reap(os.WNOHANG)  # before the answers are read: its last words are in the pipe when it is gone
        self._read_answers()
        if self._reaped:
            self._died()

    def end(self, timeout_s: float = 30) -> None:
        """The replay is over: the last reading is taken before this returns, and what follows is not measured."""
        self._send("end", None)
        self._await("ended", timeout_s)

    def stop(self, timeout_s: float = 120) -> Observation:
        """Write what is left, merge the tables, and end. The observer is gone when this returns."""
        self._send("stop", None)
        answer = self._await("done", timeout_s)
        self._reap(0)
        self._close()
        assert isinstance(answer, Observation)
        return answer

    def kill(self) -> None:
        """End it without ceremony (the run has failed already). What was flushed stays readable."""
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._reap(0)
        self._close()

    def _send(self, kind: str, payload: object) -> None:
        self.check()
        data = pickle.dumps((kind, payload), protocol=pickle.HIGHEST_PROTOCOL)
        self._backlog.append(memoryview(_LENGTH.pack(len(data)) + data))
        self._backlog_bytes += _LENGTH.size + len(data)
        if self._backlog_bytes > _MAX_BACKLOG:
            self._dead = "it has stopped taking rows"
            raise ObserverFailed(*self._words())
        self.pump()

    def _await(self, kind: str, timeout_s: float) -> object:
        until = time.monotonic() + timeout_s
        while True:
            if (answer := self._read_answers()) is not None and answer[0] == kind:
                return answer[1]
            left = until - time.monotonic()
            if left <= 0:
                self._dead = f"it has not answered for {timeout_s:g} s"
                raise ObserverFailed(*self._words())
            self.pump()
            select.select([self._answers], [self._feed] if self._backlog else [], [], left)

    def _read_answers(self) -> tuple[str, object] | None:
        """The next answer, if a whole one has come. Raises ObserverFailed for bad news and for the end of the pipe."""
        while self._answers >= 0:
            try:
                data = os.read(self._answers, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                self._died()
            self._received += data
            if answer := self._decode():
                return answer
        return self._decode()

    def _decode(self) -> tuple[str, object] | None:
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if len(self._received) < _LENGTH.size + length:
            return None
        kind, payload = pickle.loads(bytes(self._received[_LENGTH.size : _LENGTH.size + length]))
        del self._received[: _LENGTH.size + length]
        if kind == "failed":
            self._dead = str(payload)
            self._reap(0)
            raise ObserverFailed(*self._words())
        return kind, payload

    def _died(self) -> None:
        self._reap(0)
        if self._dead is None:
            self._dead = f"process {self.pid} has gone (status {self._status})"
        raise ObserverFailed(*self._words())

    def _reap(self, options: int) -> None:
        if self._reaped:
            return
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            pid, status = self.pid, 0
        if pid:
            self._reaped = True
            self._status = os.waitstatus_to_exitcode(status)

    def _words(self) -> tuple[str, str]:
        return f"the observer of the run failed: {self._dead}", "the records end here; run again"

    def _close(self) -> None:
        for fd in (self._feed, self._answers):
            if fd >= 0:
                os.close(fd)
        self._feed = self._answers = -1
        self._dead = self._dead or "it has been stopped"
