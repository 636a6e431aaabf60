"""Network namespaces held by file descriptor: made, entered for a moment, and gone when the last holder closes.

A namespace of ours has no name in the kernel unless it is published; nothing survives the process that holds it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from topo.netlink import NetlinkSocket
from topo.steering import same_mask

RPS_DEFAULT = "net.core.rps_default_mask"
"""The receive packet steering that interfaces are born with, per namespace (Linux 6.3 and later)."""

_CLONE_NEWNET = 0x40000000
_CLONE_NEWNS = 0x00020000
_MS_BIND = 4096
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_MNT_DETACH = 2
_SELF = "/proc/thread-self/ns/net"
_SIOCETHTOOL = 0x8946
_ETHTOOL_SET = {"tx": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}
_ETHTOOL_GET = {"tx": 0x16, "sg": 0x18, "tso": 0x1E, "gso": 0x23, "gro": 0x2B}

_libc = ctypes.CDLL(None, use_errno=True)


class SysctlError(OSError):
    """A sysctl that does not exist on this kernel, or did not take the value."""


def _call(name: str, *args: object) -> None:
    if getattr(_libc, name)(*args) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{name}: {os.strerror(errno)}")


class Namespace:
    """One network namespace, with a netlink socket and a control socket that live inside it.

    ``publish`` is a directory (``/run/netns`` of a sandbox) in which the name is made visible to ``ip netns``.
    Raises OSError when the kernel refuses (not root, no memory).
    """

    def __init__(self, name: str, *, publish: Path | None = None) -> None:
        self.name = name
        self._published: Path | None = None
        home = os.open(_SELF, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("unshare", _CLONE_NEWNET)
            try:
                self._hold()
                if publish is not None:
                    self._publish(publish / name)
            finally:
                _call("setns", home, _CLONE_NEWNET)
        finally:
            os.close(home)

    def _publish(self, target: Path) -> None:
        try:
            target.touch(exist_ok=False)
            self._published = target
            _call("mount", _SELF.encode(), str(target).encode(), None, _MS_BIND, None)
        except BaseException:
            if self._published is not None:
                target.unlink()
                self._published = None
            self.close()
            raise

    @classmethod
    def current(cls, name: str) -> Namespace:
        """The namespace this thread is in, for nodes that share it (switches)."""
        self = cls.__new__(cls)
        self.name, self._published = name, None
        self._hold()
        return self

    def _hold(self) -> None:
        self.fd = os.open(_SELF, os.O_RDONLY | os.O_CLOEXEC)
        self.netlink = NetlinkSocket()
        self._control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def index(self, device: str) -> int:
        """The interface index of a device inside. Raises OSError when there is none."""
        with self.entered():
            return socket.if_nametoindex(device)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is inside for the duration: what it opens belongs to the namespace for good."""
        home = os.open(_SELF, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.enter()
            try:
                yield
            finally:
                _call("setns", home, _CLONE_NEWNET)
        finally:
            os.close(home)

    def enter(self) -> None:
        """This thread enters and stays (for a child process about to become something else)."""
        _call("setns", self.fd, _CLONE_NEWNET)

    def enter_with_own_mounts(self) -> None:
        """As ``enter``, with private mounts and the namespace's own ``/sys``, as Mininet's shells have them."""
        self.enter()
        _call("unshare", _CLONE_NEWNS)
        _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        _call("mount", b"sysfs", b"/sys", b"sysfs", 0, None)

    def sysctl(self, values: Mapping[str, str]) -> dict[str, str]:
        """Set sysctls (``net.ipv4.ip_forward``) inside, read each back, and return what was read.

        Namespaces do not inherit most of them, so they are set here and never assumed. Raises SysctlError.
        """
        with self.entered():
            return {key: _set_sysctl(key, value, self.name) for key, value in values.items()}

    def read_sysctls(self, keys: Sequence[str]) -> dict[str, str]:
        """What sysctls read inside, now."""
        with self.entered():
            return {key: _read_sysctl(key) for key in keys}

    def offload(self, device: str, settings: Mapping[str, bool]) -> None:
        """Switch offloads (tx, sg, tso, gso, gro) of a device on or off. Raises OSError."""
        for feature, on in settings.items():
            self._ethtool(device, _ETHTOOL_SET[feature], int(on))

    def offloads(self, device: str) -> dict[str, bool]:
        """The state of every offload that ``offload`` can set."""
        return {feature: bool(self._ethtool(device, code, 0)) for feature, code in _ETHTOOL_GET.items()}

    def steer(self, devices: Sequence[str], mask: str) -> None:
        """Hand what devices receive to the CPUs of ``mask``, by sysfs: for kernels without ``RPS_DEFAULT``.

        Raises OSError, also when a mask does not read back.
        """
        with tempfile.TemporaryDirectory(prefix="kvfabric-sys-") as place, self.entered():
            _call("mount", b"sysfs", place.encode(), b"sysfs", 0, None)
            try:
                for device in devices:
                    path = Path(place, "class/net", device, "queues/rx-0/rps_cpus")
                    path.write_text(mask)
                    if not same_mask(path.read_text().strip(), mask):
                        raise OSError(0, f"{device}: rps_cpus was set to {mask} and reads {path.read_text().strip()}")
            finally:
                _call("umount2", place.encode(), _MNT_DETACH)

    def _ethtool(self, device: str, command: int, value: int) -> int:
        buffer = ctypes.create_string_buffer(struct.pack("II", command, value))
        request = struct.pack("16sP", device.encode(), ctypes.addressof(buffer))
        fcntl.ioctl(self._control, _SIOCETHTOOL, request)
        return int(struct.unpack("II", buffer.raw[:8])[1])

    def close(self) -> None:
        """Let go. The kernel removes the namespace and its interfaces once no process and no socket is left in it."""
        if self.fd < 0:
            return
        if self._published is not None:
            _call("umount2", str(self._published).encode(), _MNT_DETACH)
            self._published.unlink(missing_ok=True)
            self._published = None
        self.netlink.close()
        self._control.close()
        os.close(self.fd)
        self.fd = -1


def has_sysctl(key: str) -> bool:
    """Whether this kernel knows a sysctl."""
    return Path("/proc/sys", key.replace(".", "/")).exists()


def _read_sysctl(key: str) -> str:
    return " ".join((Path("/proc/sys") / key.replace(".", "/")).read_text().split())


def _set_sysctl(key: str, value: str, where: str) -> str:
    path = Path("/proc/sys") / key.replace(".", "/")
    try:
        path.write_text(value)
        read = _read_sysctl(key)
    except OSError as error:
        raise SysctlError(error.errno, f"{where}: sysctl {key}={value}: {error.strerror}") from None
    if read != value and not (key == RPS_DEFAULT and same_mask(read, value)):
        raise SysctlError(0, f"{where}: sysctl {key} was set to {value!r} and reads {read!r}")
    return read
