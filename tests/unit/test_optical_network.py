"""The state machine between the serving model and circuits, by hand: what is commanded when, and which gate opens when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from optical_driver import simulate

from controller.optical import OpticalNetwork
from controller.optical_config import OpticalConfig, OpticalError, Policy
from controller.optical_events import CloseGate, Connect, GiveUp, OpenGate, OpticalInstruction, SetTimer, WindowRecord
from workloads.events import ReleaseSchedule, StartTransfer, TurnFinished, TurnQueued
from workloads.serving_config import ServingConfig
from workloads.turns import Turn

pytestmark = pytest.mark.unit

# The anchor of the design: 70B on TP4, 66.7K tokens of context, 1.1K new in 191 ms, 45 GB/s, τ 25 ms.
CONTEXT, NEW, LAYERS, TOKEN_BYTES = 66_700, 1_100, 80, 81_920
PREFILL_S, RATE_BPS, TAU_S = 0.191, 45e9, 0.025
HEAD_S = CONTEXT * TOKEN_BYTES / RATE_BPS  # 121.4 ms
TAIL_S = NEW * TOKEN_BYTES / RATE_BPS  # 2.0 ms
LAYER_S = TAIL_S / LAYERS


def anchor(
    policy: Policy, *, context: int = CONTEXT, tau_s: float = TAU_S, pull: bool = False
) -> tuple[TurnFinished, list[WindowRecord]]:
    """One such turn that arrives at 1 s, alone."""
    serving = ServingConfig(
        prefill=2, decode=2, layers=LAYERS, bytes_per_token_per_gpu=TOKEN_BYTES, mode="pull" if pull else "layerwise",
        choose_decode_at="arrival" if policy == "admission" else "start",
    )  # fmt: skip
    optical = OpticalConfig(
        prefill=2, decode=2, layers=LAYERS, rate_Bps=RATE_BPS, tau_s=tau_s, policy=policy, grace_s=1e-6
    )  # fmt: skip
    turn = Turn(0, "t", "s", 1.0, context, NEW, 1, "test")
    run = simulate(serving, optical, lambda context, new: (PREFILL_S,), lambda new: (new,), [turn]).run
    (done,) = run.finished
    return done, run.windows


@pytest.mark.parametrize("policy", ["reservation", "admission"])
def test_the_anchor_turns_head_goes_tau_after_its_prefills_start_and_its_tail_just_in_time(policy: Policy) -> None:
    done, (head, tail) = anchor(policy)
    assert (head.part, head.start_s, head.setup_s, head.data_s) == ("head", 1.0, TAU_S, 1.0 + TAU_S)
    assert head.end_s == pytest.approx(1.0 + TAU_S + HEAD_S)  # 1.1464 s: 45 ms before the prefill ends
    # s*: the last layer is computed when the 79 before it have been sent; all over the circuit of the head.
    assert (tail.part, tail.setup_s, tail.reused) == ("tail", 0.0, True)
    assert tail.start_s == tail.data_s == pytest.approx(1.0 + PREFILL_S - (LAYERS - 1) * LAYER_S)
    assert tail.end_s == pytest.approx(1.0 + PREFILL_S + LAYER_S)
    assert done.ttft_s == pytest.approx(PREFILL_S + LAYER_S)  # 191.025 ms
    assert done.exposed_s == pytest.approx(25.03e-6, rel=1e-3)


def test_the_anchor_turn_without_reservation_is_as_fast_when_alone_but_holds_its_ports_throughout() -> None:
    done, (only,) = anchor("none")
    assert (only.part, only.booked_s, only.start_s, only.data_s) == ("all", 1.0, 1.0, 1.0 + TAU_S)
    assert only.end_s == done.last_byte_s == pytest.approx(1.0 + PREFILL_S + LAYER_S)


@pytest.mark.parametrize(
    ("policy", "pull", "exposed_s"),
    [("after", False, TAU_S + HEAD_S + TAIL_S), ("after", True, TAU_S + HEAD_S + TAIL_S), ("none", True, TAU_S + HEAD_S + TAIL_S),
     ("reservation", True, HEAD_S + TAIL_S), ("admission", True, HEAD_S + TAIL_S)],
)  # fmt: skip
def test_the_anchor_turn_that_leaves_after_its_prefill_exposes_all_of_itself_and_tau_unless_it_is_booked(
    policy: Policy, pull: bool, exposed_s: float
) -> None:
    done, (only,) = anchor(policy, pull=pull)
    assert done.exposed_s == pytest.approx(exposed_s)
    assert done.ttft_s == pytest.approx(PREFILL_S + exposed_s)
    assert only.data_s == pytest.approx(1.0 + PREFILL_S + (TAU_S if exposed_s > HEAD_S + TAIL_S else 0.0))


def test_a_tau_of_most_of_the_prefill_is_hidden_with_reservation_and_shown_in_full_after_it() -> None:
    tau_s = 0.8 * PREFILL_S
    hidden, (tail,) = anchor("reservation", context=0, tau_s=tau_s)
    assert hidden.exposed_s == pytest.approx(LAYER_S)
    assert hidden.exposed_s < 0.02 * PREFILL_S
    assert tail.start_s == pytest.approx(1.0 + PREFILL_S - (LAYERS - 1) * LAYER_S - tau_s)
    shown, _ = anchor("after", context=0, tau_s=tau_s)
    assert shown.exposed_s == pytest.approx(tau_s + TAIL_S)
    # Beyond the prefill, what does not fit into it is exposed.
    longer, _ = anchor("reservation", context=0, tau_s=1.2 * PREFILL_S)
    assert longer.exposed_s == pytest.approx(0.2 * PREFILL_S + TAIL_S)


# Stimulus by stimulus, with round numbers: 8 bytes a second, τ 0.25 s, one chunk of one second in 4 layers

CONFIG = OpticalConfig(prefill=2, decode=2, layers=4, rate_Bps=8.0, tau_s=0.25, grace_s=0.125)


class Said:
    """An optical network and the bytes it is told are left."""

    def __init__(self, config: OpticalConfig) -> None:
        self.left: dict[int, float] = {}
        self.network = OpticalNetwork(config, left_bytes=self.left.__getitem__)

    def start(
        self, transfer: int, *, head: int = 8, tail: int = 4, at_s: float = 0.0, decode: int = 0, now_s: float | None = None
    ) -> list[OpticalInstruction]:
        notice = StartTransfer(transfer, transfer, 0, decode, head, tail, "layerwise", at_s, (at_s + 1.0,))
        layers = range(1, 5) if tail else range(0)
        heads = range(1) if head else range(0)
        times = (*(at_s for _ in heads), *(at_s + i / 4 for i in layers))
        schedule = ReleaseSchedule(transfer, times, (*(head for _ in heads), *(head + i * tail // 4 for i in layers)))
        return plain(self.network.transfer_started(notice, schedule, at_s if now_s is None else now_s))

    def tick(self, now_s: float) -> list[OpticalInstruction]:
        """A timer, whichever it is."""
        return plain(self.network.timer_fired(-1, now_s))


def plain(instructions: tuple[OpticalInstruction, ...]) -> list[OpticalInstruction]:
    return [one for one in instructions if not isinstance(one, SetTimer)]


def test_a_gate_waits_for_the_light_and_for_the_window_and_opens_for_its_part_alone() -> None:
    one = Said(CONFIG)
    assert one.start(1) == [Connect(0, 0, 0.0, fresh=False)]
    assert one.tick(0.25) == []  # the network has not told yet
    assert plain(one.network.circuit_up(0, 0, 0.3, now_s=0.28)) == [OpenGate(1, 0.3, 8)]
    # The head's window ends at 1.25 and was lit 0.05 late: 0.4 bytes are left.
    one.left[1] = 4.4
    assert one.tick(1.25) == []
    (record,) = plain(one.network.head_delivered(1, 1.3))
    assert isinstance(record, WindowRecord)
    assert (record.part, record.start_s, record.up_s, record.data_s, record.end_s) == ("head", 0.0, 0.3, 0.3, 1.3)
    assert (record.extended, record.reused) == (1, False)
    # They take less than the grace of 0.125 s. The tail is pushed behind the extension and finds its circuit standing.
    assert one.tick(1.3) == []
    assert one.tick(1.375) == [OpenGate(1, 1.375, 12)]
    (record,) = plain(one.network.transfer_ended(1, 1.8))
    assert isinstance(record, WindowRecord)
    assert (record.part, record.start_s, record.end_s, record.moved, record.reused) == ("tail", 1.375, 1.8, 1, True)
    assert one.network.counts == replace(one.network.counts, booked=2, reconfigurations=1, reused=1, overruns=0)


def test_without_reuse_a_standing_circuit_is_set_up_anew_and_its_old_light_counts_for_nothing() -> None:
    one = Said(replace(CONFIG, reuse=False))
    assert one.start(1) == [Connect(0, 0, 0.0, fresh=True)]
    assert plain(one.network.circuit_up(0, 0, 0.25, now_s=0.0)) == [OpenGate(1, 0.25, 8)]
    assert plain(one.network.head_delivered(1, 1.25))[1:] == [Connect(0, 0, 1.25, fresh=True)]
    assert one.tick(1.5) == []
    assert plain(one.network.circuit_up(0, 0, 1.55, now_s=1.5)) == [OpenGate(1, 1.55, 12)]


def test_a_transfer_given_to_the_model_ahead_of_its_start_is_booked_from_its_start() -> None:
    one = Said(CONFIG)
    assert one.start(1, at_s=5.0, now_s=4.99) == []
    assert one.tick(5.0) == [Connect(0, 0, 5.0, fresh=False)]


def test_what_moves_nothing_needs_nothing() -> None:
    one = Said(CONFIG)
    notice = StartTransfer(1, 1, 0, 0, 0, 0, "layerwise", 0.0, (1.0,))
    assert one.network.transfer_started(notice, ReleaseSchedule(1, (1.0,), (0,)), 0.0) == ()


def test_a_report_that_is_older_than_the_present_ends_its_window_when_it_happened() -> None:
    one = Said(CONFIG)
    one.start(1)
    one.network.circuit_up(0, 0, 0.25, now_s=0.0)
    one.tick(1.2)
    (record,) = plain(one.network.head_delivered(1, 1.1))
    assert isinstance(record, WindowRecord)
    assert record.end_s == 1.1


def test_rebooking_closes_the_gate_holds_the_ports_until_it_has_drained_and_goes_behind_who_waits() -> None:
    one = Said(replace(CONFIG, overrun="rebook"))
    one.start(1, tail=0)
    one.network.circuit_up(0, 0, 0.25, now_s=0.0)
    one.start(2, tail=0, at_s=0.5, decode=1)
    one.left[1] = 2.0
    assert one.tick(1.25) == [CloseGate(1)]
    assert one.tick(1.375) == []  # nothing is commanded before it has drained
    # 5 of 8 bytes had left: the rest does not fit before transfer 2, which begins at 1.625 and takes 1.25 s.
    (over,) = plain(one.network.gate_drained(1, 5.0, 1.5))
    assert isinstance(over, WindowRecord)
    assert (over.transfer, over.end_s) == (1, 1.5)
    assert one.tick(1.625) == [Connect(0, 1, 1.625, fresh=False)]
    one.network.circuit_up(0, 1, 1.875, now_s=1.625)
    assert plain(one.network.transfer_ended(2, 2.875))[1:] == [Connect(0, 0, 2.875, fresh=False)]
    assert plain(one.network.circuit_up(0, 0, 3.125, now_s=2.875)) == [OpenGate(1, 3.125, 8)]


def test_rebooking_leaves_a_window_alone_that_lacks_no_more_than_the_grace_and_does_so_once() -> None:
    one = Said(replace(CONFIG, overrun="rebook"))
    one.start(1, tail=0)
    one.network.circuit_up(0, 0, 0.25, now_s=0.0)
    one.left[1] = 1.0
    assert one.tick(1.25) == []
    assert one.tick(1.375) == [CloseGate(1)]


def test_a_circuit_that_fails_gives_its_transfer_up_and_lets_the_next_one_have_the_ports() -> None:
    one = Said(CONFIG)
    one.start(1, tail=0)
    one.start(2, tail=0, at_s=0.5, decode=1)
    given_up = plain(one.network.circuit_failed(0, 0, "a mirror is stuck", 0.6))
    assert given_up[0] == GiveUp(1, "a mirror is stuck")
    assert isinstance(given_up[1], WindowRecord)
    assert plain(one.network.transfer_ended(1, 0.7)) == []
    with pytest.raises(OpticalError, match="transfer 1 is not under way"):
        one.network.transfer_ended(1, 0.8)
    assert one.tick(1.25) == [Connect(0, 1, 1.25, fresh=False)]


def test_a_port_that_still_moves_is_not_commanded_until_its_light_is_known() -> None:
    one = Said(replace(CONFIG, policy="none"))
    one.start(1, tail=0)
    one.start(2, tail=0, decode=1)
    assert [type(said) for said in plain(one.network.transfer_ended(1, 0.1))] == [WindowRecord]
    assert one.tick(0.2) == []
    assert plain(one.network.circuit_up(0, 0, 0.26, now_s=0.2)) == []
    assert one.tick(0.26) == [Connect(0, 1, 0.26, fresh=False)]


def queued(transfer: int, start_s: float) -> TurnQueued:
    return TurnQueued(transfer, 0, 0, 8, 4, "layerwise", start_s, (start_s + 1.0,), 4)


def test_admission_books_behind_the_queue_and_anew_when_the_prefill_is_not_there() -> None:
    one = Said(replace(CONFIG, policy="admission"))
    assert plain(one.network.turn_queued(queued(1, 2.0), 0.0)) == []
    assert [(w.part, w.start_s, w.data_s) for w in one.network.bookings.windows()] == [("head", 1.75, 2.0), ("tail", 3.0, 3.0)]
    assert one.tick(1.75) == [Connect(0, 0, 1.75, fresh=False)]
    assert plain(one.network.circuit_up(0, 0, 2.0, now_s=1.75)) == []  # its transfer has not started
    (over,) = one.tick(2.125)  # and does not: the window is booked anew, over the circuit that stands
    assert isinstance(over, WindowRecord)
    assert one.network.counts.misses == 1
    assert one.start(1, at_s=2.2) == []
    assert one.tick(2.25) == [OpenGate(1, 2.25, 8)]


def test_admission_needs_the_decode_at_the_arrival_and_says_so() -> None:
    with pytest.raises(OpticalError, match="transfer 1 was not queued"):
        Said(replace(CONFIG, policy="admission")).start(1)


def test_what_makes_no_sense_is_refused() -> None:
    one = Said(CONFIG)
    with pytest.raises(OpticalError, match="transfer 3 is not under way"):
        one.network.head_delivered(3, 0.0)
    one.start(1)
    with pytest.raises(OpticalError, match="has started before"):
        one.start(1)
    with pytest.raises(ValueError, match="above 0"):
        replace(CONFIG, grace_s=0.0)
    with pytest.raises(ValueError, match="no policy"):
        replace(CONFIG, overrun="wait")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="books nothing"):
        Said(replace(CONFIG, policy="after")).network.decode_choice("circuit")
    assert one.network.decode_choice("load") is None
    assert one.network.decode_choice("circuit", slack=0.2) is not None
