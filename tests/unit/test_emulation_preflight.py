"""Which pairs the preflight tries."""

from __future__ import annotations

import pytest

from kvfabric.preflight import host_pairs
from topo.cluster import Cluster
from topo.leafspine import host_name

pytestmark = pytest.mark.unit


def racks(cluster: Cluster) -> dict[str, int]:
    return {host_name(gpu.role, gpu.instance, gpu.position): gpu.rack for gpu in cluster.gpus()}


def test_a_pair_within_a_leaf_and_one_across_are_tried() -> None:
    cluster = Cluster(2, 2, 4, 4)
    rack = racks(cluster)
    (same, a, b), (other, c, d) = host_pairs(cluster)
    assert (same, other) == ("same leaf", "other leaf")
    assert rack[a] == rack[b]
    assert rack[c] != rack[d]
    assert a != b
    assert c != d


def test_racks_of_one_have_no_pair_within() -> None:
    assert [kind for kind, _, _ in host_pairs(Cluster(1, 1, 1, 1))] == ["other leaf"]
