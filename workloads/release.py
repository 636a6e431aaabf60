"""Which KV bytes of a turn exist when: the release schedule of a transfer, in exact integers.

Source: serving.md of the design ("L layers per chunk, T_ℓ = T_chunk/L"; "layer KV leaves as it is computed; the head
may leave at prefill start"; pull: "everything leaves after prefill").
"""

from __future__ import annotations

from collections.abc import Sequence

Schedule = tuple[tuple[float, ...], tuple[int, ...]]
"""Instants in seconds, and the cumulative bytes that may have left from each of them on."""


def layerwise(
    start_s: float, chunk_ends_s: Sequence[float], chunk_tokens: Sequence[int], layers: int, head: int, tail: int
) -> Schedule:
    """The head at the prefill's start, then one slice of the tail at the end of each layer of each chunk.

    ``head`` and ``tail`` are bytes per GPU. A chunk's share of the tail is its share of the new tokens, a layer's the
    ``layers``-th part of that; cumulative bytes are rounded down, so that no byte leaves before it is computed and the
    sum is exact. Instants that would release nothing (tails of a few bytes) are left out.
    """
    times: list[float] = []
    released: list[int] = []
    if head > 0:
        times.append(start_s)
        released.append(head)
    parts = sum(chunk_tokens) * layers
    begin_s, before = start_s, 0
    for end_s, tokens in zip(chunk_ends_s, chunk_tokens, strict=True):
        layer_s = (end_s - begin_s) / layers
        times += [begin_s + layer * layer_s for layer in range(1, layers)]
        times.append(end_s)  # not begin + layers * layer_s, which is off by a rounding
        released += [head + (before * layers + layer * tokens) * tail // parts for layer in range(1, layers + 1)]
        begin_s, before = end_s, before + tokens
    if tail < parts:
        return _without_repeats(times, released)
    return tuple(times), tuple(released)


def pull(prefill_end_s: float, head: int, tail: int) -> Schedule:
    """Everything at the prefill's end."""
    return (prefill_end_s,), (head + tail,)


def _without_repeats(times: Sequence[float], released: Sequence[int]) -> Schedule:
    kept = [i for i, total in enumerate(released) if total > (released[i - 1] if i else 0)]
    return tuple(times[i] for i in kept), tuple(released[i] for i in kept)
