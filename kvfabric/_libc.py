"""The few calls of the C library that Python 3.10 does not offer: ``unshare``, ``setns``, ``mount``, ``prctl``.

Each raises OSError with the kernel's errno, as the functions of ``os`` do.
"""

from __future__ import annotations

import ctypes
import os
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    """Put the calling process (for ``CLONE_NEWPID``: its next children) into new namespaces, unshare(2)."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace open at ``fd``; ``kind`` is its ``CLONE_NEW*`` flag, setns(2)."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2). ``kind`` is the file system's name, or None for a bind mount or a change of propagation."""
    encoded = (None if kind is None else kind.encode(), flags, options.encode() or None)
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), *encoded), target)


def die_with_parent() -> None:
    """Have the kernel kill the calling process when the thread that forked it ends (``PR_SET_PDEATHSIG``, SIGKILL).

    A parent that was dead already is not noticed: the caller must look for itself after this call.
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")
