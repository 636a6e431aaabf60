"""Whether a flow can be: its release schedule and its path. Compiled, because every flow of a long window is asked."""

from __future__ import annotations

import numpy as np

from flowsim.compiled import compiled
from flowsim.state import Floats, State, Table


@compiled
def bad_schedule(at: Floats, upto: Floats, head: float) -> bool:
    """Whether times fall or are none, bytes do not rise from zero, or the head is none of them."""
    if len(at) == 0 or len(at) != len(upto) or not 0 <= head <= upto[-1] < np.inf or not -np.inf < at[0] <= at[-1] < np.inf:
        return True
    before_s, before = at[0], 0.0
    for i in range(len(at)):
        if not at[i] >= before_s or not upto[i] > before:
            return True
        before_s, before = at[i], upto[i]
    return False


@compiled
def bad_path(state: State, paths: Table) -> int:
    """The first row of ``paths`` (-1: no more links) that crosses a link twice or one that is not there; -1 if there is none."""
    for i in range(paths.shape[0]):
        for k in range(paths.shape[1]):
            link = paths[i, k]
            if link >= len(state.links) or link < -1 or (link >= 0 and k > 0 and paths[i, k - 1] < 0):
                return i
            for other in range(k):
                if link >= 0 and paths[i, other] == link:
                    return i
    return -1
