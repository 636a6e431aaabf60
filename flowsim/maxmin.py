"""Max-min fair rates of flows over arbitrary paths, by progressive filling, and the certificate that rates are max-min fair.

All flows rise together from zero; when a link is full, the flows on it stop at that level, and the others rise on. Exact up
to rounding, and free of any order of the flows. Source: Bertsekas and Gallager, "Data Networks", section 6.5.2; the
certificate (a bottleneck link for every flow) is the theorem there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

Rates = npt.NDArray[np.float64]


def max_min_rates(capacity_Bps: npt.ArrayLike, paths: Sequence[Sequence[int]]) -> Rates:
    """The rate of every flow, in bytes per second: ``paths[i]`` are the links of flow i, in any order, none of them twice.

    ``capacity_Bps`` holds each link's capacity, zero or more (zero: dark). A flow without links has an infinite rate. Raises
    ValueError for a negative or unknown capacity, IndexError for a link that is not there.
    """
    capacity = np.asarray(capacity_Bps, dtype=np.float64)
    flow, link = _incidence(capacity, paths)
    rates = np.full(len(paths), np.inf)
    used = np.zeros(len(capacity))  # by the flows that have stopped
    level = 0.0
    while len(flow) > 0:  # the pairs of flows that still rise
        count = np.bincount(link, minlength=len(capacity))
        share = np.full(len(capacity), np.inf)
        np.divide(capacity - used, count, out=share, where=count > 0)
        # Rounding must not let the level fall: what has stopped, stopped at the lowest level there was.
        level = max(level, float(share.min()))
        stops = np.zeros(len(paths), dtype=bool)
        stops[flow[(share <= level)[link]]] = True
        rates[stops] = level
        stopped = stops[flow]
        used += level * np.bincount(link[stopped], minlength=len(capacity))
        flow, link = flow[~stopped], link[~stopped]
    return rates


def max_min_violations(
    capacity_Bps: npt.ArrayLike, paths: Sequence[Sequence[int]], rates_Bps: npt.ArrayLike, tolerance: float = 1e-9
) -> tuple[str, ...]:
    """What keeps rates from being max-min fair, in words; empty if they are.

    They are if no link carries more than its capacity and every flow has a full link on which no flow is faster. The
    tolerance is relative to each link's capacity.
    """
    capacity, rates = np.asarray(capacity_Bps, dtype=np.float64), np.asarray(rates_Bps, dtype=np.float64)
    flow, link = _incidence(capacity, paths)
    load = np.bincount(link, weights=rates[flow], minlength=len(capacity))
    fastest = np.zeros(len(capacity))
    np.maximum.at(fastest, link, rates[flow])
    slack = tolerance * capacity
    over = np.flatnonzero(load > capacity + slack).tolist()
    found = [f"link {i} carries {load[i]:.17g} of {capacity[i]:.17g} B/s" for i in over]
    bottleneck = (load[link] >= (capacity - slack)[link]) & (rates[flow] >= (fastest - slack)[link])
    held = np.zeros(len(paths), dtype=bool)
    held[flow[bottleneck]] = True
    for i in np.flatnonzero(~held).tolist():
        if len(paths[i]) > 0:
            found.append(f"flow {i} at {rates[i]:.17g} B/s has no full link on which it is the fastest")
        elif rates[i] != np.inf:
            found.append(f"flow {i} crosses no link and has {rates[i]:.17g} B/s")
    return tuple(found)


def _incidence(capacity: Rates, paths: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """All pairs of a flow and a link it crosses, as two arrays."""
    if not (capacity >= 0).all() or np.isinf(capacity).any():
        raise ValueError("a link's capacity is zero or more, and finite; leave a link out of the paths if it does not limit")
    flow = np.repeat(np.arange(len(paths), dtype=np.intp), [len(path) for path in paths] if paths else 0)
    link = np.fromiter(chain.from_iterable(paths), dtype=np.intp, count=len(flow))
    if len(link) > 0 and (link.min() < 0 or link.max() >= len(capacity)):
        raise IndexError(f"a path names a link that is not among the {len(capacity)}")
    return flow, link
