"""Which path policies each engine has."""

from __future__ import annotations

from collections.abc import Sequence

from kvfabric.errors import BadInput
from kvfabric.scenario import Scenario

_EMULATED = ("ecmp",)
"""What routes by itself in the kernel; the other names of ``fabric.routing`` are simulated only."""


def refuse_what_is_only_simulated(chosen: Sequence[tuple[str, Scenario]]) -> None:
    """Raises BadInput for a path policy that no emulation has."""
    for name, one in chosen:
        if one.fabric.circuits is None and one.fabric.routing not in _EMULATED:
            raise BadInput(
                f"run: {name}: fabric.routing {one.fabric.routing} is simulated only",
                "write --engine simulation, or --set fabric.routing=ecmp",
            )
