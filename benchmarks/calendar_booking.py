"""What one booking costs: 768 instances (384 prefill, 384 decode) with 100 windows each, in microseconds.

    python -m benchmarks.calendar_booking [bookings]

Two fillings: ``sparse`` has gaps in which most bookings fit, ``dense`` has none, so that every search runs to the end of both
calendars. A booking is GAP, the insertion on both calendars and its change; each is freed again, so that the calendars keep
their size. The circuit-aware choice searches up to 384 decodes and is printed beside.
"""

from __future__ import annotations

import random
import statistics
import sys
from time import perf_counter

from controller.bookings import Bookings
from controller.circuit_aware import CircuitAware

INSTANCES = 384
WINDOWS = 100
RATE_BPS = 45e9
TAU_S = 0.025
HEAD = 5.46e9  # bytes: 66.7K tokens of context, 121 ms


def filled(rng: random.Random, gap_s: float) -> Bookings:
    """100 windows on every calendar, in rounds of one a pair, ``gap_s`` apart."""
    bookings = Bookings(INSTANCES, INSTANCES, rate_Bps=RATE_BPS, tau_s=TAU_S)
    ready_s = 0.0
    for turn in range(WINDOWS):
        peers = rng.sample(range(INSTANCES), INSTANCES)
        for prefill, decode in enumerate(peers):
            bookings.book(turn * INSTANCES + prefill, "all", prefill, decode, ready_s=ready_s, size=HEAD, now_s=0.0)
        ready_s = max(window.end_s for window in bookings.windows()[-INSTANCES:]) + gap_s
    return bookings


def show(name: str, times_s: list[float]) -> None:
    cuts = statistics.quantiles(times_s, n=100)
    print(f"{name:32} mean {1e6 * statistics.fmean(times_s):7.1f}   p50 {1e6 * cuts[49]:7.1f}   p99 {1e6 * cuts[98]:7.1f} µs")


def measure(name: str, gap_s: float, count: int) -> None:
    rng = random.Random(1)
    bookings = filled(rng, gap_s)
    assert all(len(calendar.windows) == WINDOWS for calendar in (*bookings.prefill, *bookings.decode))
    took: list[float] = []
    for i in range(count):
        prefill, decode = rng.randrange(INSTANCES), rng.randrange(INSTANCES)
        ready_s = rng.random()
        begin = perf_counter()
        bookings.book(-1 - i, "all", prefill, decode, ready_s=ready_s, size=HEAD, now_s=0.0)
        took.append(perf_counter() - begin)
        bookings.free(-1 - i, "all", -1.0)
    show(f"{name}: one booking", took)
    choose = CircuitAware(bookings)
    loads = [rng.randrange(10**6) for _ in range(INSTANCES)]
    took = []
    for _ in range(max(2, count // 100)):
        prefill = rng.randrange(INSTANCES)
        begin = perf_counter()
        choose(prefill=prefill, holder=None, loads=loads, head_bytes=int(HEAD), now_s=0.0)
        took.append(perf_counter() - begin)
    show(f"{name}: one choice of 384 decodes", took)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    measure("sparse", 0.3, count)
    measure("dense", 0.0, count)


if __name__ == "__main__":
    main()
