"""Compile everything that is compiled, so that no simulation waits for it: ``python -m flowsim.warm``."""

from __future__ import annotations

import math
from typing import get_args

from flowsim.solver import FastNetwork, Rule


def warm() -> None:
    """Calls every compiled function once, with the types it is called with."""
    for rule in get_args(Rule):
        network = FastNetwork([1.0, 1.0], rule=rule)
        network.add(0, range(2), [(0, 1), (0,)], [0.0, 1.0], [1.0, 2.0], 1.0)
        network.advance(0.5)
        network.remove(0)
        network.rates()
        while network.advance(math.inf):
            pass


if __name__ == "__main__":
    warm()
