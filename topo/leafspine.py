"""Leaf-spine: one leaf a rack, one uplink from each leaf to each spine, at any oversubscription.

Source: fabrics.md of the design, 32-GPU racks with 32, 16 or 11 uplinks (1:1, 2:1 and what the literature calls 3:1,
which is 2.91:1). Small clusters keep the ratio hosts/uplinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from topo.cluster import Cluster, Role
from topo.fabric import Fabric, FabricError, Link, Node, NodeKind, Port

RATIO_TOLERANCE = Fraction(1, 10)
"""How far the ratio of whole ports may stray from the one asked for before it is refused."""

RATIOS = {"1:1": Fraction(1), "2:1": Fraction(2), "3:1": Fraction(32, 11)}
"""Named ratios; "3:1" is 32 hosts on 11 uplinks."""


def parse_ratio(text: str) -> Fraction:
    """``"2:1"`` as hosts per uplink. Raises FabricError."""
    if text in RATIOS:
        return RATIOS[text]
    hosts, _, uplinks = text.partition(":")
    try:
        ratio = Fraction(hosts) / Fraction(uplinks)
    except (ValueError, ZeroDivisionError):
        raise FabricError(f"{text!r} is not an oversubscription; write it like 2:1") from None
    if ratio < 1:
        raise FabricError(f"{text!r} has more uplinks than hosts; write hosts first, like 2:1")
    return ratio


def uplinks_for(hosts_per_leaf: int, ratio: Fraction) -> int:
    """Uplinks (spines) that give a leaf the ratio. Raises FabricError if whole ports stray over 10 % from it."""
    uplinks = max(1, round(hosts_per_leaf / ratio))
    got = Fraction(hosts_per_leaf, uplinks)
    if abs(got / ratio - 1) > RATIO_TOLERANCE:
        raise FabricError(
            f"{hosts_per_leaf} hosts on a leaf cannot be {float(ratio):.2f}:1: {uplinks} uplinks give {float(got):.2f}:1; "
            "set fabric.uplinks, or other racks"
        )
    return uplinks


@dataclass(frozen=True, slots=True)
class LeafSpine:
    """A cluster's leaf-spine: ``uplinks`` spines, links of ``rate_Bps`` goodput throughout."""

    cluster: Cluster
    uplinks: int
    rate_Bps: float

    @property
    def ratio(self) -> float:
        """Hosts of a full leaf per uplink."""
        return self.cluster.rack / self.uplinks

    def build(self) -> Fabric:
        """The graph. Host ports are numbered 0; a leaf's ports count its slots, then its uplinks; a spine's, the leaves."""
        hosts = tuple(
            Node(host_name(gpu.role, gpu.instance, gpu.position), NodeKind.HOST, gpu.index) for gpu in self.cluster.gpus()
        )
        leaves = tuple(Node(f"leaf{index}", NodeKind.LEAF, index) for index in range(self.cluster.racks))
        spines = tuple(Node(f"spine{index}", NodeKind.SPINE, index) for index in range(self.uplinks))
        down = tuple(
            Link(Port(host.name, 0), Port(leaves[gpu.rack].name, gpu.slot), self.rate_Bps)
            for host, gpu in zip(hosts, self.cluster.gpus(), strict=True)
        )
        up = tuple(
            Link(Port(leaf.name, self.cluster.rack + spine.index), Port(spine.name, leaf.index), self.rate_Bps)
            for leaf in leaves
            for spine in spines
        )
        return Fabric(hosts + leaves + spines, down + up)


def host_name(role: Role, instance: int, position: int) -> str:
    """``p0g3`` is GPU 3 of prefill instance 0, ``d1g0`` GPU 0 of decode instance 1."""
    return f"{role.value[0]}{instance}g{position}"
