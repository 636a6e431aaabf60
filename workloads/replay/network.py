"""What may stand between the serving model and the wire: a network that transfers have to wait for."""

from __future__ import annotations

from typing import Protocol

from workloads.events import ReleaseSchedule, StartTransfer, TurnQueued
from workloads.replay.flows import FlowResult, FlowSpec


class TransferNetwork(Protocol):
    """Hears of every transfer, in the loop, after the serving model has; it opens and closes the gates of the flows.

    Instants are real-cluster seconds, the past ones exact.
    """

    def queued(self, notice: TurnQueued) -> None:
        """A turn has arrived and its decode is chosen (only where decodes are chosen at the arrival)."""

    def started(self, start: StartTransfer, schedule: ReleaseSchedule, specs: tuple[FlowSpec, ...]) -> None:
        """The flows of a transfer are with the engine, their gates closed."""

    def head_delivered(self, transfer: int, at_s: float) -> None:
        """The last head byte of every flow has arrived."""

    def flow_ended(self, result: FlowResult) -> None:
        """One of a transfer's flows has ended, well or not."""

    def ended(self, transfer: int, at_s: float) -> None:
        """All of a transfer's flows have ended."""
