"""PID 1 of a sandbox: starts the inner program, reaps orphans, hands signals on, and takes everything down with it.

The inner program is a child of this small init and not PID 1 itself, for three reasons. The kernel drops signals sent to
PID 1 that it has no handler for, so a plain ``sleep`` could not be terminated. Orphans become children of PID 1, and a
program that does not expect them collects zombies or trips over their exits. And a program that kills itself by a signal
cannot do so as PID 1, so its exit code would be wrong.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from kvfabric import _libc
from kvfabric.sandbox._errors import SandboxError, refused
from kvfabric.sandbox._inside import MARK, pid_namespace, prepare_inside

PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
"""What the outer process hands on. Stopping and continuing (Ctrl-Z, ``fg``) reach the whole job without its help."""

COURIER = signal.SIGRTMIN
"""Signal n comes from the outer process as number ``COURIER + n``, so that it is not taken for one sent to the group."""

_SENT_TO_GROUP_S = 1.0  # for so long a signal seen here explains one from the outer process, which may be slow
_GRACE_S = 0.05  # for so long one from the outer process waits to be explained: it can overtake, by microseconds
_INTERNAL_ERROR = 125


def run_init(argv: Sequence[str], env: Mapping[str, str], report: int, mask: Iterable[int]) -> NoReturn:
    """Be PID 1 until the inner program ends, then exit with its code (128 + n if signal n ended it).

    Call it in the first process of a new PID namespace, with ``PASSED_ON`` and SIGCHLD blocked. ``report`` is the
    writing end of a pipe: the text of a SandboxError goes there, and nothing if the inner program could be started.
    ``mask`` is the signal mask the inner program gets. Never returns: what the kernel does at the exit of PID 1 is the
    clean-up.
    """
    code = _INTERNAL_ERROR
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # unblocked, PID 1 would lose them
        _close_all_but_standard(report)
        _die_with_outer(report)
        _enter_namespaces(env)
        inner = os.fork()
        if inner == 0:
            _exec(argv, {**env, MARK: pid_namespace()}, report, mask)
        # Sent to the group before the inner program was part of it. Should it have come a moment later, the program has
        # it twice, and ends by the first: it has no handlers yet.
        for number in signal.sigpending() & set(PASSED_ON):
            signal.sigwait({number})
            os.kill(inner, number)
        os.close(report)
        code = _Init(inner).run()
    except SandboxError as error:
        os.write(report, str(error).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _close_all_but_standard(report: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != report:
            with contextlib.suppress(OSError):  # the one of the listing itself
                os.close(int(name))


def _die_with_outer(report: int) -> None:
    _libc.die_with_parent()
    # If the outer process died before that call, nobody holds the reading end of the pipe any more. Its PID would not
    # tell: getppid() is 0 in a new PID namespace, with the parent alive or dead.
    poll = select.poll()
    poll.register(report, 0)
    if poll.poll(0):
        os._exit(_INTERNAL_ERROR)


def _enter_namespaces(env: Mapping[str, str]) -> None:
    try:
        _libc.unshare(_libc.CLONE_NEWNET | _libc.CLONE_NEWNS | _libc.CLONE_NEWIPC | _libc.CLONE_NEWUTS)
    except OSError as error:
        raise refused("making namespaces", error) from error
    os.environ.clear()
    os.environ.update({**env, MARK: pid_namespace()})
    prepare_inside()


def _exec(argv: Sequence[str], env: Mapping[str, str], report: int, mask: Iterable[int]) -> NoReturn:
    try:
        for number in signal.valid_signals():
            # Python's own handlers must not run here; SIGPIPE and SIGXFSZ are ignored by Python, not by the user.
            # Other ignored signals stay so: that is how nohup works.
            if callable(signal.getsignal(number)) or number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(argv[0], list(argv), env)
    except OSError as error:
        text = f"cannot run {argv[0]!r} in the sandbox: {error.strerror}\ncheck the command's name and its PATH"
        os.write(report, text.encode())
    finally:
        os._exit(127)


class _Init:
    """The loop of PID 1 around its one child ``inner``.

    A signal may reach the inner program twice: by itself, because it was sent to the whole process group (a terminal,
    a shell's ``kill %1``, ``timeout``), and through the outer process, which cannot tell how it was addressed. PID 1 is
    in the same group, so it is the witness: if the signal came here too, the inner program has it already.
    """

    def __init__(self, inner: int) -> None:
        self._inner = inner
        self._seen: dict[int, float] = {}  # signal -> when it last came to the whole group
        self._due: dict[int, float] = {}  # signal -> when to hand it on, unless it comes to the whole group till then

    def run(self) -> int:
        """Reap and hand on until the inner program ends; its exit code."""
        wanted = {signal.SIGCHLD, *PASSED_ON, *(COURIER + number for number in PASSED_ON)}
        while True:
            received = self._wait(wanted)
            now = time.monotonic()
            if received == signal.SIGCHLD:
                code = self._reap()
                if code is not None:
                    return code
            elif received >= COURIER:
                self._accept(received - COURIER, now)
            elif received:
                self._seen[received] = now
                self._due.pop(received, None)
            for number in [number for number, at in self._due.items() if at <= now]:
                del self._due[number]
                os.kill(self._inner, number)

    def _wait(self, wanted: set[int]) -> int:
        """The next signal's number, or 0 when it is time to hand one on."""
        if not self._due:
            return signal.sigwaitinfo(wanted).si_signo
        info = signal.sigtimedwait(wanted, max(0.0, min(self._due.values()) - time.monotonic()))
        return 0 if info is None else info.si_signo

    def _accept(self, number: int, now: float) -> None:
        if os.getpgid(self._inner) != os.getpgrp():  # an interactive shell: what is sent to our group misses it
            os.kill(self._inner, number)
        elif now - self._seen.get(number, -_SENT_TO_GROUP_S) >= _SENT_TO_GROUP_S:
            self._due.setdefault(number, now + _GRACE_S)

    def _reap(self) -> int | None:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == self._inner:
                return exit_code(status)
            if pid == 0:
                return None


def exit_code(status: int) -> int:
    """A wait status as a shell's exit code: 128 + n for a death by signal n."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
