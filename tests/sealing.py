"""A test marked ``sealed`` runs in a child of pytest with network, mount and PID namespaces of its own.

Whatever the test makes is gone when it ends, also when it fails half way: the kernel takes interfaces, mounts and
processes down with the namespaces. Fixtures are made outside, before; only the test's own body runs within.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable

import pytest

from kvfabric import _libc

_NAMESPACES = _libc.CLONE_NEWNET | _libc.CLONE_NEWNS | _libc.CLONE_NEWPID


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sealed: the test's body runs in namespaces of its own that vanish with it")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Runs sealed tests; leaves all others to pytest."""
    if pyfuncitem.get_closest_marker("sealed") is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    kind, text = run_sealed_away(lambda: pyfuncitem.obj(**arguments))
    if kind == "skipped":
        pytest.skip(text)
    if kind != "passed":
        pytest.fail(text, pytrace=False)
    return True


def run_sealed_away(body: Callable[[], object]) -> tuple[str, str]:
    """How ``body`` ended in a child in new namespaces: ``passed``, ``skipped`` or ``failed``, and its words."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    outer = os.fork()
    if outer == 0:
        os.close(reader)
        _be_outer(body, writer)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as source:
            said = source.read()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(outer, signal.SIGKILL)
        _, status = os.waitpid(outer, 0)
    if not said:
        return "failed", f"the sealed test ended without a word, wait status {status}"
    kind, text = pickle.loads(said)
    return str(kind), str(text)


def _be_outer(body: Callable[[], object], writer: int) -> None:
    """Make the namespaces and wait for PID 1 in them, which dies with this process."""
    try:
        _libc.die_with_parent()
        _libc.unshare(_NAMESPACES)
        inner = os.fork()
        if inner == 0:
            _libc.die_with_parent()
            _be_inner(body, writer)
        os.close(writer)
        os.waitpid(inner, 0)
    except BaseException:
        os.write(writer, pickle.dumps(("failed", traceback.format_exc())))
    finally:
        os._exit(0)


def _be_inner(body: Callable[[], object], writer: int) -> None:
    try:
        _libc.mount("none", "/", None, _libc.MS_REC | _libc.MS_PRIVATE)
        _libc.mount("tmpfs", "/run", "tmpfs", _libc.MS_NOSUID | _libc.MS_NODEV)
        os.mkdir("/run/netns")
        _libc.mount("proc", "/proc", "proc", _libc.MS_NOSUID | _libc.MS_NODEV | _libc.MS_NOEXEC)
        body()
        answer = ("passed", "")
    except pytest.skip.Exception as skipped:
        answer = ("skipped", str(skipped))
    except BaseException:
        answer = ("failed", traceback.format_exc())
    with os.fdopen(writer, "wb") as sink:
        sink.write(pickle.dumps(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
