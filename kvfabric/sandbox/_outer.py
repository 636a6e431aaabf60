"""The outside of a sandbox: make its PID 1, wait for it, hand signals in and the exit code out."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType

from kvfabric import _libc
from kvfabric.sandbox._errors import SandboxError, refused
from kvfabric.sandbox._init import COURIER, PASSED_ON, exit_code, run_init

_NOTED = (signal.SIGCHLD, *PASSED_ON)


def run_sealed(argv: Sequence[str], *, env: Mapping[str, str] | None = None, held: Iterable[signal.Signals] = ()) -> int:
    """Run ``argv`` in new network, mount, PID, IPC and UTS namespaces and return its exit code.

    The code is 128 + n if signal n ended the program. Working directory, standard input, output and error are kept; other
    file descriptors are closed. ``env`` (default: this process's) gets one more variable, by which ``inside()`` knows.
    Signals in ``held`` are blocked in it at first: they wait until the program is ready for them and unblocks them.

    When this process, the sandbox's PID 1 or the program ends, by whatever means, the kernel kills every process of the
    sandbox and removes its interfaces and namespaces. SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2 and SIGWINCH are
    handed on; a signal that was sent to the whole process group, as a terminal does, arrives once all the same.

    Raises SandboxError where the machine refuses, or where the program cannot be started; nothing is left then.
    Must be called from the main thread: the kernel ties the sandbox's life to the thread that made it.
    """
    if not argv:
        raise ValueError("argv is empty: name the program to run")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("run_sealed must be called from the main thread")
    environment = dict(os.environ if env is None else env)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the caller
            stream.flush()
    with _standard_descriptors(), _terminal_given_back(), _signals_noted() as notes:
        reading, writing = os.pipe()
        try:
            init = _fork_init(argv, environment, writing, held)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            with open(reading, "rb") as report:
                refusal = report.read()  # ends when the program has been started, or all have given up
            if refusal:
                raise SandboxError(refusal.decode())
            return _wait(init, notes)
        except BaseException:
            _end(init)
            raise


def _fork_init(argv: Sequence[str], env: Mapping[str, str], report: int, held: Iterable[signal.Signals]) -> int:
    """Fork the first process of a new PID namespace; this process's later children are in the old one again."""
    try:
        own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise refused("making namespaces", error) from error
    init = -1
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTED)  # till the init is ready for them
    try:
        _libc.unshare(_libc.CLONE_NEWPID)
        try:
            init = os.fork()
            if init == 0:
                run_init(argv, env, report, {*mask, *held})
        finally:
            _libc.setns(own, _libc.CLONE_NEWPID)
    except OSError as error:
        if init > 0:
            _end(init)
        raise refused("making namespaces", error) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(own)
    return init


def _end(init: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(init, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(init, 0)


def _wait(init: int, notes: int) -> int:
    """The exit code of the sandbox, handing signals on till then. ``notes`` is where their numbers are read."""
    poll = select.poll()
    poll.register(notes, select.POLLIN)
    while True:
        poll.poll()
        for number in os.read(notes, 512):
            if number == signal.SIGCHLD:
                pid, status = os.waitpid(init, os.WNOHANG)
                if pid == init:
                    return exit_code(status)
            elif number in PASSED_ON:
                os.kill(init, COURIER + number)


@contextlib.contextmanager
def _signals_noted() -> Iterator[int]:
    """Have the numbers of all signals that are waited for written to a pipe; yields its reading end.

    Blocking them and waiting with sigwait() would be shorter and say who sent them, but a library's threads (numpy's
    start at its import) do not block them: the kernel would then give SIGTERM to such a thread, and it would kill us.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # Under nohup SIGHUP stays ignored. SIGINT does not: a shell's script ignores it for what it starts with "&", and an
    # emulation that "kill -INT" cannot stop helps nobody.
    noted = [n for n in _NOTED if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = [(number, signal.signal(number, _note)) for number in noted]
    try:
        yield reading
    finally:
        for number, handler in before:
            # None: a handler that was installed from C, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reading)
        os.close(writing)


def _note(_number: int, _frame: FrameType | None) -> None:
    """Python has written the number to the pipe already, in whatever thread the signal came to."""


@contextlib.contextmanager
def _standard_descriptors() -> Iterator[None]:
    """Open /dev/null in place of closed descriptors 0, 1 and 2, so that no pipe of ours is taken for one of them."""
    opened = []
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
        opened.append(fd)
    os.close(fd)
    try:
        yield
    finally:
        for fd in opened:
            os.close(fd)


@contextlib.contextmanager
def _terminal_given_back() -> Iterator[None]:
    """Leave the terminal as it was, if it was ours: a program killed in raw mode, or a shell with groups of its own
    that died, would leave it unusable. Not when output goes to a pipe: a pager there sets the terminal as it likes.
    """
    if not (os.isatty(0) and os.isatty(1)) or os.tcgetpgrp(0) != os.getpgrp():
        yield
        return
    settings = termios.tcgetattr(0)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            if _is_empty(os.tcgetpgrp(0)):
                _take_foreground()
            if os.tcgetpgrp(0) == os.getpgrp():  # else the user has put us in the background
                termios.tcsetattr(0, termios.TCSADRAIN, settings)


def _is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def _take_foreground() -> None:
    # Without this block the kernel would stop us for touching the terminal from the background.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(0, os.getpgrp())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
