"""The sandbox seen from within: whether we are in one, and how its file system and loopback are set up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path

from kvfabric import _libc
from kvfabric.sandbox._errors import SandboxError, refused

MARK = "KVFABRIC_SANDBOX"
"""Environment variable that every process of a sandbox carries: the inode of the sandbox's PID namespace."""

_SEALED = Path("/run/kvfabric/sealed")
_CGROUPS = "/sys/fs/cgroup"
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ = struct.Struct("16sh22x")


def pid_namespace() -> str:
    """The inode number of this process's PID namespace. The hosts of an emulation share their sandbox's."""
    return str(os.stat("/proc/self/ns/pid").st_ino)


def inside() -> bool:
    """Whether this process runs in a sandbox of ours.

    The mark alone is not believed: a variable can be exported anywhere, but only in the sandbox does it name the PID
    namespace one is in.
    """
    mark = os.environ.get(MARK)
    return mark is not None and mark == pid_namespace()


def prepare_inside() -> None:
    """Give the sandbox its own ``/run``, ``/proc``, ``/sys`` and a loopback that is up.

    ``run_sealed`` has done this before the inner program starts; calling it again does nothing.
    Afterwards ``/run/netns`` is empty, ``/run/kvfabric`` (mode 700) is there for sockets and pid files, and the
    system's network namespaces and Open vSwitch sockets are out of sight.

    Raises SandboxError outside of a sandbox, where it would cover the system's own ``/run``, or where mounts are refused.
    """
    if not inside():
        raise SandboxError(
            "the sandbox can only be prepared from within, and this process is not in one\n"
            "start the command through kvfabric.sandbox.run_sealed"
        )
    if _is_sealed():
        return
    try:
        # First, so that no mount made here ever shows up outside (systemd makes "/" shared).
        _libc.mount("none", "/", None, _libc.MS_REC | _libc.MS_PRIVATE)
        _libc.mount("tmpfs", "/run", "tmpfs", _libc.MS_NOSUID | _libc.MS_NODEV, "mode=755")
        _make_directory("/run/lock", 0o1777)  # /var/lock points here
        _make_directory("/run/netns", 0o755)
        _make_directory("/run/kvfabric", 0o700)
        _libc.mount("proc", "/proc", "proc", _libc.MS_NOSUID | _libc.MS_NODEV | _libc.MS_NOEXEC)
    except OSError as error:
        raise refused("mounting a private /run and /proc", error) from error
    # Only a convenience: /sys/class/net then lists this namespace's interfaces. Where a container forbids it, the old
    # sysfs stays, which shows the names of the machine's interfaces and changes nothing.
    with contextlib.suppress(OSError):
        _mount_sysfs()
    try:
        _raise_loopback()
    except OSError as error:
        raise refused("bringing up the loopback interface", error) from error
    _SEALED.write_text(pid_namespace())


def _is_sealed() -> bool:
    try:
        return _SEALED.read_text() == pid_namespace()
    except FileNotFoundError:
        return False


def _make_directory(path: str, mode: int) -> None:
    os.mkdir(path)
    os.chmod(path, mode)  # mkdir's own mode is subject to the umask


def _mount_sysfs() -> None:
    """Mount the sysfs of this network namespace, keeping the cgroup tree that is mounted within the old one."""
    try:
        cgroups = os.open(_CGROUPS, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        cgroups = -1
    try:
        _libc.mount("sysfs", "/sys", "sysfs", _libc.MS_NOSUID | _libc.MS_NODEV | _libc.MS_NOEXEC)
        if cgroups >= 0:
            _libc.mount(f"/proc/self/fd/{cgroups}", _CGROUPS, None, _libc.MS_BIND | _libc.MS_REC)
    finally:
        if cgroups >= 0:
            os.close(cgroups)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        reply = fcntl.ioctl(sock, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0))
        flags = _IFREQ.unpack(reply)[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP))
