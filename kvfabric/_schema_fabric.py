"""The network's sections of a scenario: the leaf-spine, and the optical circuit switch beside it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from kvfabric._quantities import PositiveTime, Rate
from kvfabric._section import KeyConflictError, Section
from topo.fabric import FabricError
from topo.leafspine import parse_ratio, uplinks_for

MAX_TAU_S = 0.1
"""The slowest optical switch that anybody would build this with: fabrics.md of the design gives 0.01 to 100 ms."""
MIN_TAU_S = 1e-5


class OcsSpec(Section):
    """The optical circuit switch and who gets its circuits when."""

    tau: PositiveTime = Field(default=0.025, description="reconfiguration delay of the real switch, 10us to 100ms")
    planes: int | None = Field(
        default=None, ge=1, le=128, description="planes, which divide the GPU positions of an instance; left out: one a position"
    )
    policy: Literal["reservation", "admission", "none", "after"] = Field(
        default="reservation",
        description="a circuit is booked as the prefill starts, or on arrival; none: asked for once KV is ready; after: once the "
        "prefill has ended",
    )
    reuse: bool = Field(default=True, description="a circuit that stands is used again, or every one is set up anew")
    decode: Literal["load", "circuit"] | None = Field(
        default=None,
        description="choice of decode: least loaded, or where a circuit is or will be; left out: circuit where policy books",
    )
    slack: float = Field(default=0.1, ge=0, le=10, description="load above the mean at which decode: circuit looks elsewhere")
    overrun: Literal["slide", "rebook"] = Field(
        default="slide", description="a late transfer keeps its ports, or gives them up and books what is left"
    )
    prediction_error: float = Field(
        default=0.0, ge=0, le=1, description="median |error| of the prefill times that the scheduler is told, like 0.046"
    )
    datapath: Literal["user", "kernel", "auto"] = Field(
        default="auto", description="Open vSwitch in user space or in the kernel; auto: the kernel's where it is loaded"
    )

    @model_validator(mode="after")
    def _keys_agree(self) -> OcsSpec:
        if not MIN_TAU_S <= self.tau <= MAX_TAU_S:
            raise KeyConflictError(("tau",), f"is {self.tau * 1e3:g} ms; a switch needs 0.01 to 100 ms", "write it like 25ms")
        if self.decode == "circuit" and not self.books:
            raise KeyConflictError(
                ("decode",),
                f"is circuit, but policy {self.policy} books no circuit that it could go by",
                "write decode: load, or leave it out",
                also=(("policy",),),
            )
        return self

    @property
    def books(self) -> bool:
        """Whether circuits are booked ahead, so that there are calendars."""
        return self.policy in ("reservation", "admission")


class FabricSpec(Section):
    """The network between the GPUs."""

    kind: Literal["leaf-spine", "ocs"] = Field(
        default="leaf-spine", description="what KV crosses; with ocs the leaf-spine is the host network beside the planes"
    )
    ratio: str | None = Field(default=None, description="hosts per uplink of a leaf, like 2:1; this or uplinks")
    uplinks: int | None = Field(default=None, ge=1, le=1024, description="uplinks of a leaf, one to each spine; this or ratio")
    rate: Rate = Field(description="goodput of every link of the real cluster: 45GB/s is 0.9 x 400G")
    routing: Literal["ecmp", "pinned", "adaptive", "srpt", "ceiling"] = Field(
        default="ecmp",
        description="how a flow gets its path: ecmp, by hash; simulated only: pinned, one after the other; adaptive, uplinks "
        "pooled; srpt, pooled and the transfer with the least left first; ceiling, no limit",
    )
    dataplane: Literal["router"] = Field(default="router", description="what forwards: router is the Linux kernel's L3")
    ocs: OcsSpec | None = Field(default=None, description="the optical circuit switch, with kind: ocs")

    @model_validator(mode="after")
    def _ocs_is_for_circuits(self) -> FabricSpec:
        if self.ocs is not None and self.kind != "ocs":
            raise KeyConflictError(
                ("ocs",), f"means nothing to kind: {self.kind}", "write kind: ocs, or remove it", also=(("kind",),)
            )
        return self

    @property
    def circuits(self) -> OcsSpec | None:
        """The optical circuit switch of this fabric; None where KV crosses packets."""
        return None if self.kind != "ocs" else self.ocs or OcsSpec()

    def optical_switch(self) -> OcsSpec:
        """The same, for whoever has nothing to do without one. Raises ValueError over packets."""
        if self.circuits is None:
            raise ValueError(f"kind: {self.kind} has no optical circuit switch")
        return self.circuits

    @model_validator(mode="after")
    def _one_of_ratio_and_uplinks(self) -> FabricSpec:
        if self.ratio is None and self.uplinks is None:
            raise KeyConflictError(("ratio",), "is missing", 'write ratio: "2:1" (hosts per uplink), or uplinks: 2')
        if self.ratio is not None and self.uplinks is not None:
            raise KeyConflictError(
                ("uplinks",),
                "is given beside ratio",
                "remove one of them (--set fabric.ratio=null)",
            )
        if self.ratio is not None:
            try:
                parse_ratio(self.ratio)
            except FabricError as error:
                problem, _, remedy = str(error).partition("; ")
                raise KeyConflictError(("ratio",), problem, remedy) from None
        return self

    def uplinks_of(self, hosts_per_leaf: int) -> int:
        """Uplinks of a leaf with that many hosts. Raises FabricError if no whole number gives the ratio."""
        if self.uplinks is not None:
            return self.uplinks
        assert self.ratio is not None  # by the validator
        return uplinks_for(hosts_per_leaf, parse_ratio(self.ratio))
