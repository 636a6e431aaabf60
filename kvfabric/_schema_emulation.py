"""The section of a scenario that says how packets are made to behave."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from kvfabric._quantities import PositiveTime, Size
from kvfabric._section import KeyConflictError, Section


class OffloadSpec(Section):
    """Segmentation offloads of the emulated hosts; with them on, packets are up to 64 KB and no link is a fluid."""

    tso: bool = Field(default=False, description="TCP segmentation offload")
    gso: bool = Field(default=False, description="generic segmentation offload")


class EmulationSpec(Section):
    """How packets are made to behave. Sizes and times here are emulated ones."""

    mtu: int = Field(default=9000, ge=576, le=65535, description="bytes of an IP packet")
    queue: Literal["fair", "fifo"] = Field(default="fair", description="queue of a port: per-flow fair, or one FIFO")
    classes: int = Field(default=64, ge=2, le=4096, description="flow classes of the fair queue, a power of two")
    free_acks: bool = Field(
        default=True, description="TCP segments without payload pass a fair queue at once and unshaped, as RDMA's few would"
    )
    queue_packets: int = Field(default=200, ge=1, le=1_000_000, description="packets that wait in a class or FIFO")
    offload: OffloadSpec = Field(default_factory=OffloadSpec, description="segmentation offloads")
    congestion_control: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,15}\Z")] = Field(
        default="cubic", description="TCP congestion control, as the kernel names it"
    )
    receive_window: Size | Literal["auto"] | None = Field(
        default="auto",
        description="receive buffer that bounds a flow's window; auto: 32KiB, over circuits 256KiB; null: too large to bind",
    )
    connections: Literal["fresh", "reused"] = Field(
        default="reused", description="a connection for each flow, or kept for the next one between the same GPUs"
    )
    rto_min: PositiveTime | None = Field(
        default=None, description="TCP's least retransmission timeout (emulated); null: the kernel's own"
    )
    content_check: float = Field(default=0.05, ge=0, le=1, description="share of the flows whose bytes are compared")

    @model_validator(mode="after")
    def _classes_are_a_mask(self) -> EmulationSpec:
        if self.classes & (self.classes - 1):
            raise KeyConflictError(("classes",), f"is {self.classes}, not a power of two", "write 32, 64, 128 or 256")
        return self
