"""Which way a flow went: predicted for its connection before data, observed by what the spines counted after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def path_name(nodes: Sequence[str]) -> str:
    """``leaf0>spine1>leaf2``: the routers of a path."""
    return ">".join(nodes)


def realised_path(source_leaf: str, destination_leaf: str, counted: Mapping[str, int], carried: int) -> str | None:
    """The path of a connection that delivered ``carried`` bytes, from what each spine ``counted`` of it.

    None when the spines saw less than was delivered: then nobody knows. More than one spine is written ``spine0+spine1``.
    """
    if source_leaf == destination_leaf and not counted:
        return path_name((source_leaf,))
    if sum(counted.values()) < carried or not counted:
        return None
    return path_name((source_leaf, "+".join(sorted(counted)), destination_leaf))
