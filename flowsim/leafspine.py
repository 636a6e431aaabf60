"""A leaf-spine as links of a fluid network: which links a flow between two GPUs crosses.

Links are counted: every host's up, every host's down, then every leaf's uplinks, then the same from the spines down to it. With
pooled uplinks a leaf has one link up and one down, of the capacity of all: that is what perfect load balancing could reach.
"""

from __future__ import annotations

from topo.cluster import Gpu
from topo.leafspine import LeafSpine


class LeafSpineLinks:
    """The links of a leaf-spine. ``pooled``: the uplinks of a leaf are one."""

    def __init__(self, fabric: LeafSpine, *, pooled: bool = False) -> None:
        self.uplinks = fabric.uplinks
        self._hosts = fabric.cluster.size
        self._lanes = 1 if pooled else fabric.uplinks
        self._down = 2 * self._hosts + fabric.cluster.racks * self._lanes
        lane_Bps = fabric.rate_Bps * (fabric.uplinks if pooled else 1)
        self.capacity_Bps = [fabric.rate_Bps] * (2 * self._hosts) + [lane_Bps] * (2 * fabric.cluster.racks * self._lanes)

    def path(self, source: Gpu, destination: Gpu, spine: int) -> tuple[int, ...]:
        """The links from one GPU to another; ``spine`` says nothing to two of one leaf, or to pooled uplinks."""
        up, down = source.index, self._hosts + destination.index
        if source.rack == destination.rack:
            return up, down
        lane = spine if self._lanes > 1 else 0
        return up, 2 * self._hosts + source.rack * self._lanes + lane, self._down + destination.rack * self._lanes + lane, down
