"""Algorithm 1: what is booked when, and what a wrong prediction does."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_calendar import check

from controller.bookings import Booked, BookingError, Bookings, Change, Freed, Moved
from controller.calendar import Part, Window
from controller.reservation import Job, LastChunk, Overrun, Policy, ReservationScheduler, streaming_start
from ocs_switch.crossbar import Crossbar, Refused

pytestmark = pytest.mark.unit

TAU_S = 0.25
RATE_BPS = 8.0
LAYERS = 4


def scheduler(policy: Policy = "reservation", overrun: Overrun = "slide", *, reuse: bool = True) -> ReservationScheduler:
    bookings = Bookings(3, 3, rate_Bps=RATE_BPS, tau_s=TAU_S, reuse=reuse)
    return ReservationScheduler(bookings, layers=LAYERS, policy=policy, overrun=overrun)


def windows(changes: tuple[Change, ...]) -> list[tuple[Part, float, float, float]]:
    new = [change.window for change in changes if isinstance(change, Booked | Moved)]
    return [(w.part, w.start_s, w.setup_s, w.end_s) for w in new]


# s*


def starves(start_s: float, chunk: LastChunk, layers: int, tail_bytes: float, rate_Bps: float) -> bool:
    """Whether a continuous send from ``start_s`` on wants a byte before the layer that holds it is computed."""
    earlier = tail_bytes - chunk.bytes
    return any(
        start_s + (earlier + (i - 1) * chunk.bytes / layers) / rate_Bps < chunk.start_s + i * chunk.duration_s / layers - 1e-9
        for i in range(1, layers + 1)
    )


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_the_start_of_a_single_chunks_tail_is_the_published_formula(size: float) -> None:
    chunk = LastChunk(3.0, 0.8, size)
    layer_s, layer_bytes = 0.8 / LAYERS, size / LAYERS
    expected = 3.0 + max(layer_s, LAYERS * layer_s - (LAYERS - 1) * layer_bytes / RATE_BPS)
    assert streaming_start(chunk, LAYERS, size, RATE_BPS) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.01, 10), st.floats(0.1, 100), st.floats(0, 200), st.integers(1, 80))
def test_a_tail_never_starves_from_its_start_on_and_would_any_earlier(
    duration_s: float, size: float, earlier: float, layers: int
) -> None:
    chunk = LastChunk(5.0, duration_s, size)
    start_s = streaming_start(chunk, layers, size + earlier, RATE_BPS)
    assert start_s >= 5.0
    assert not starves(start_s, chunk, layers, size + earlier, RATE_BPS)
    assert start_s == 5.0 or starves(start_s - 1e-6, chunk, layers, size + earlier, RATE_BPS)


# What is booked when


def test_layerwise_books_the_head_at_prefill_start_and_the_tail_behind_it_at_the_last_chunk() -> None:
    one = scheduler()
    job = Job(7, 0, 1, head_bytes=8.0, tail_bytes=4.0)
    assert one.arrival(job, start_s=9.0, last_chunk=LastChunk(9.0, 1.0, 4.0), now_s=1.0) == ()
    assert windows(one.prefill_start(job, now_s=2.0)) == [("head", 2.0, TAU_S, 3.25)]
    assert windows(one.last_chunk(7, LastChunk(2.0, 0.5, 4.0), now_s=2.0)) == [("tail", 3.25, 0.0, 3.75)]
    assert isinstance(one.head_end(7, now_s=3.25)[-1], Freed)
    assert isinstance(one.transfer_end(7, now_s=3.75)[-1], Freed)
    assert one.bookings.windows() == ()


def test_a_tail_whose_layers_come_late_starts_at_the_first_instant_from_which_it_never_starves() -> None:
    one = scheduler()
    one.prefill_start(Job(7, 0, 1, head_bytes=0.0, tail_bytes=4.0), now_s=0.0)
    start_s = 10.0 + 2.0 - 3 * (1.0 / RATE_BPS)
    assert windows(one.last_chunk(7, LastChunk(10.0, 2.0, 4.0), now_s=10.0)) == [
        ("tail", start_s - TAU_S, TAU_S, start_s + 0.5)  # the circuit is set up while the layers are computed
    ]


def test_pull_books_everything_at_the_predicted_prefill_end() -> None:
    one = scheduler()
    job = Job(7, 0, 1, head_bytes=8.0, tail_bytes=4.0, pull=True)
    assert one.prefill_start(job, now_s=0.0) == ()
    assert windows(one.last_chunk(7, LastChunk(1.0, 2.0, 4.0), now_s=1.0)) == [("all", 3.0 - TAU_S, TAU_S, 4.5)]


def test_admission_books_behind_the_predicted_queue_and_again_what_it_missed() -> None:
    one = scheduler("admission")
    job = Job(7, 0, 1, head_bytes=8.0, tail_bytes=4.0)
    first = one.arrival(job, start_s=5.0, last_chunk=LastChunk(6.0, 1.0, 4.0), now_s=0.0)
    assert windows(first) == [("head", 4.75, TAU_S, 6.0), ("tail", 6.625, 0.0, 7.125)]
    # The prefill starts late: head anew from now, over the circuit that was set up in vain.
    late = one.prefill_start(job, now_s=5.5)
    assert windows(late) == [("head", 5.5, 0.0, 6.5)]
    assert windows(one.last_chunk(7, LastChunk(6.5, 1.0, 4.0), now_s=6.5)) == [("tail", 7.125, 0.0, 7.625)]


def test_admission_keeps_a_window_whose_data_are_ready_before_it() -> None:
    one = scheduler("admission")
    job = Job(7, 0, 1, head_bytes=8.0, tail_bytes=4.0, pull=True)
    assert windows(one.arrival(job, start_s=5.0, last_chunk=LastChunk(5.0, 1.0, 4.0), now_s=0.0)) == [("all", 5.75, TAU_S, 7.5)]
    assert one.prefill_start(job, now_s=4.0) == ()
    assert one.last_chunk(7, LastChunk(4.0, 1.0, 4.0), now_s=4.0) == ()
    assert windows(one.miss(7, "all", 9.0, now_s=6.0)) == [("all", 9.0, 0.0, 10.5)]


def test_an_early_end_trims_and_a_late_one_lets_those_behind_slide() -> None:
    one = scheduler()
    for transfer, decode in ((1, 0), (2, 1), (3, 2)):
        one.prefill_start(Job(transfer, 0, decode, head_bytes=8.0, tail_bytes=0.0), now_s=0.0)
    assert one.transfer_end(1, now_s=0.5) == (Freed(window := Window(1, "head", 0, 0, 8.0, 0.0, 0.0, 0.25, 1.25), 0.5),)
    assert window.end_s == 1.25
    # 2 is still on its booked place, 1.25 to 2.5, and then ends half a second late.
    assert windows(one.transfer_end(2, now_s=3.0)) == [("head", 1.25, 0.25, 3.0), ("head", 3.0, 0.25, 4.25)]


def test_an_overrun_slides_those_behind_or_books_what_is_left_anew() -> None:
    for policy, expected in (
        ("slide", [("head", 0.0, 0.25, 1.75), ("head", 1.75, 0.25, 3.0)]),
        ("rebook", [("head", 2.5, 0.25, 3.25)]),
    ):
        one = scheduler(overrun="slide" if policy == "slide" else "rebook")
        for transfer, decode in ((1, 0), (2, 1)):
            one.prefill_start(Job(transfer, 0, decode, head_bytes=8.0, tail_bytes=0.0), now_s=0.0)
        assert windows(one.overrun(1, "head", 4.0, now_s=1.25)) == expected


def test_a_transfer_that_fails_takes_all_its_windows_with_it() -> None:
    one = scheduler()
    job = Job(1, 0, 0, head_bytes=8.0, tail_bytes=4.0)
    one.prefill_start(job, now_s=0.0)
    one.last_chunk(1, LastChunk(0.0, 1.0, 4.0), now_s=0.0)
    changes = one.transfer_end(1, now_s=0.75)
    assert sorted(change.window.part for change in changes) == ["head", "tail"]
    assert one.bookings.windows() == ()


def test_an_unknown_transfer_is_a_bug_of_the_caller() -> None:
    one = scheduler()
    with pytest.raises(BookingError, match="transfer 5 is not under way"):
        one.transfer_end(5, now_s=0.0)
    one.prefill_start(Job(5, 0, 0, 1.0, 1.0), now_s=0.0)
    with pytest.raises(BookingError, match="transfer 5 is under way already"):
        one.prefill_start(Job(5, 0, 0, 1.0, 1.0), now_s=0.0)
    with pytest.raises(BookingError, match="the tail of transfer 5 is not booked"):
        one.miss(5, "tail", 1.0, now_s=0.0)


# Whole runs with wrong predictions, on a switch

eighths = st.integers(0, 40).map(lambda n: n / 8)
rows = st.lists(
    st.tuples(eighths, st.integers(0, 2), st.integers(0, 2), st.integers(0, 12), st.integers(1, 6), st.integers(1, 12), eighths),
    max_size=10,
)


@dataclass
class Flow:
    """A transfer of the run below: what is true of it, where the scheduler only predicts."""

    job: Job
    arrival_s: float
    prefill_s: float
    predicted_s: float
    start_s: float = 0.0
    left: dict[Part, float] = field(default_factory=dict)

    def true_ready_s(self, part: Part) -> float:
        """When a part can be sent without a stop, in truth."""
        if part == "head":
            return self.start_s
        if part == "all":
            return self.start_s + self.prefill_s
        chunk = LastChunk(self.start_s, self.prefill_s, self.job.tail_bytes)
        return streaming_start(chunk, LAYERS, self.job.tail_bytes, RATE_BPS)


@settings(max_examples=80, deadline=None)
@given(rows, st.sampled_from(["reservation", "admission"]), st.sampled_from(["slide", "rebook"]), st.booleans(), st.booleans())
def test_whatever_is_mispredicted_all_bytes_arrive_over_circuits_that_are_up(
    given_rows: list[tuple[float, int, int, int, int, int, float]], policy: Policy, overrun: Overrun, reuse: bool, pull: bool
) -> None:
    one, plane, history = scheduler(policy, overrun, reuse=reuse), Crossbar(6, TAU_S), list[Window]()
    flows: dict[int, Flow] = {}
    free_s, predicted_free_s = [0.0] * 3, [0.0] * 3
    todo: list[tuple[float, int, int]] = []  # (time, kind, transfer): 1 arrival, 2 prefill start
    for transfer, (at_s, prefill, decode, head, tail, eighth, predicted_s) in enumerate(sorted(given_rows)):
        flow = Flow(Job(transfer, prefill, decode, head, tail, pull), at_s, eighth / 8, predicted_s)
        flow.start_s = max(at_s, free_s[prefill])
        free_s[prefill] = flow.start_s + flow.prefill_s
        flows[transfer] = flow
        todo += [(at_s, 1, transfer), (flow.start_s, 2, transfer)]
    todo.sort()
    running: dict[tuple[int, Part], Window] = {}
    delivered = 0
    for _ in range(10_000):
        steps = [(at_s, kind, transfer, "") for at_s, kind, transfer in todo[:1]]
        for w in one.bookings.windows():
            if (w.transfer, w.part) not in running:
                steps.append((w.start_s, 3, w.transfer, w.part))
                continue
            flow = flows[w.transfer]
            end_s = max(w.data_s, flow.true_ready_s(w.part)) + flow.left[w.part] / RATE_BPS
            steps.append((min(end_s, w.end_s), 0, w.transfer, w.part))
        if not steps:
            break
        now_s, kind, transfer, name = min(steps)
        flow, job = flows[transfer], flows[transfer].job
        if kind in (1, 2):
            todo.pop(0)
        if kind == 1:
            start_s = max(now_s, predicted_free_s[job.prefill])
            predicted_free_s[job.prefill] = start_s + flow.predicted_s
            one.arrival(job, start_s=start_s, last_chunk=LastChunk(start_s, flow.predicted_s, job.tail_bytes), now_s=now_s)
        elif kind == 2:
            before = {(w.transfer, w.part): w for w in one.bookings.windows()}
            one.prefill_start(job, now_s=now_s)
            one.last_chunk(transfer, LastChunk(now_s, flow.predicted_s, job.tail_bytes), now_s=now_s)
            parts: dict[Part, float] = {"all": job.head_bytes + job.tail_bytes}
            flow.left = parts if pull else {"head": job.head_bytes, "tail": job.tail_bytes}
            for key, was in list(running.items()):  # missed: its circuit was set up in vain, and stays
                if one.bookings.window(*key) is not before[key]:
                    history.append(was)
                    del running[key]
        else:
            part: Part = "head" if name == "head" else "tail" if name == "tail" else "all"
            window = one.bookings.window(transfer, part)
            assert window is not None
            if kind == 3:
                # A switch that moves anew would keep a circuit that stands; without reuse it is taken down first.
                if window.setup_s > 0:
                    plane.disconnect(job.prefill, 3 + job.decode, now_s)
                events = plane.connect(job.prefill, 3 + job.decode, now_s, replace=window.setup_s > 0)
                assert not any(isinstance(event, Refused) for event in events)
                running[transfer, part] = window
                if part not in flow.left:  # admission, and the prefill has not started: a miss, for when it is predicted
                    flow.left[part] = window.size
            else:
                plane.advance(now_s)
                begun_s = max(window.data_s, flow.true_ready_s(part))
                sent = max(0.0, now_s - begun_s) * RATE_BPS
                assert sent == 0 or plane.peer(job.prefill) == 3 + job.decode
                history.append(window)
                if sent >= flow.left[part]:
                    delivered += 1
                    del running[transfer, part], flow.left[part]
                    end = one.head_end if part == "head" else one.transfer_end
                    end(transfer, now_s=now_s)
                elif overrun == "slide":
                    one.overrun(transfer, part, flow.left[part] - sent, now_s=now_s)
                    history.pop()
                    begun = one.bookings.window(transfer, part)
                    assert begun is not None
                    assert begun.start_s == window.start_s
                    running[transfer, part] = begun
                else:
                    flow.left[part] -= sent
                    one.overrun(transfer, part, flow.left[part], now_s=now_s)
                    del running[transfer, part]
        check(one.bookings, history)
    assert not steps
    assert delivered == sum(1 + (not pull and flow.job.head_bytes > 0) for flow in flows.values())
