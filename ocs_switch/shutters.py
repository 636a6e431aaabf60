"""The shutters of a cluster's planes: light by plane and port instead of by interface.

The process that builds the network makes them and attaches them. Another one (the controller) is given the array's
descriptor and the indices, and then cuts and restores light by itself: ``Shutters(Light(fd), indices)``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from ocs_switch.light import FOR_EVER, Light, Lost, Window
from topo.netlink import NetlinkSocket
from topo.optical import PlanePort


class Shutters:
    """One shutter at every port of ``indices``: the interface index of each. Every port is dark until it is opened."""

    def __init__(self, light: Light, indices: Mapping[PlanePort, int]) -> None:
        self.light = light
        self.indices = dict(indices)

    @classmethod
    def attached_to(cls, netlink: NetlinkSocket, indices: Mapping[PlanePort, int]) -> Shutters:
        """Make the array and put a shutter on every port. Raises LightError, BpfError or NetlinkError."""
        made = cls(Light.create(max(indices.values(), default=0) + 1), indices)
        try:
            for index in made.indices.values():
                made.light.attach(netlink, index)
        except BaseException:
            made.close()
            raise
        return made

    def __enter__(self) -> Shutters:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the array. Ports keep the light they have."""
        self.light.close()

    def shut(self, places: Iterable[PlanePort], from_ns: int | None = None, until_ns: int = FOR_EVER) -> int:
        """Cut the light of ports at one instant, by default now; what that instant is. Raises KeyError for no port.

        To be exact to the instant ``from_ns`` has to be a little ahead (a fifth of a millisecond): a process may be interrupted
        between reading the clock and storing. So has the ``until_ns`` of a port that is dark.
        """
        at = time.monotonic_ns() if from_ns is None else from_ns
        for place in places:
            self.light.shut(self.indices[place], at, until_ns)
        return at

    def open(self, places: Iterable[PlanePort]) -> None:
        """Let light through ports from now on. Raises KeyError for no port."""
        for place in places:
            self.light.open(self.indices[place])

    def state(self, place: PlanePort) -> Window:
        """The window in which a port is dark."""
        return self.light.state(self.indices[place])

    def lost(self) -> dict[PlanePort, Lost]:
        """What every port has swallowed so far."""
        return {place: self.light.lost(index) for place, index in self.indices.items()}

    def faults(self, netlink: NetlinkSocket) -> list[str]:
        """Every port whose shutter is gone or another, in words; asked of the kernel now."""
        return [
            f"plane {place.plane} port {place.port}: no shutter of ours on interface {index}"
            for place, index in self.indices.items()
            if not self._attached(netlink, index)
        ]

    def _attached(self, netlink: NetlinkSocket, index: int) -> bool:
        try:
            return self.light.attached(netlink, index)
        except OSError:  # no such interface any more
            return False
