"""The scenario as data: frozen pydantic models, every key with its default, its bounds and one line that explains it.

Units inside: seconds, bytes, bytes per second. Times are the real cluster's unless a key says "emulated".
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from kvfabric._quantities import PositiveTime, Rate, Time
from kvfabric._schema_emulation import EmulationSpec
from kvfabric._schema_fabric import FabricSpec, OcsSpec
from kvfabric._section import KeyConflictError, Section
from topo.cluster import Cluster
from topo.fabric import FabricError
from workloads.kvsize import ModelError, load_model

_PACKET_WINDOW, _CIRCUIT_WINDOW = 32 * 1024.0, 256 * 1024.0

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}\Z")]
"""A name that is safe as part of a file's name: 1 to 40 of A-Z a-z 0-9 _ . - and no leading sign."""


def names_a_file(model: str) -> bool:
    """Whether ``cluster.model`` is meant as a path: a config.json, or something with a leading ``/``, ``.`` or ``~``."""
    return model.endswith(".json") or model.startswith(("/", "./", "../", "~"))


class ClusterSpec(Section):
    """The serving cluster: instances of ``tp`` GPUs, in racks that do not mix prefill and decode."""

    model: str = Field(
        min_length=1,
        max_length=4096,
        description="the model served: a built-in name, or the path of a config.json (relative to this file)",
    )
    tp: int = Field(ge=1, le=64, description="GPUs of an instance (tensor parallelism); a transfer is tp flows")
    prefill: int = Field(ge=1, le=4096, description="prefill instances")
    decode: int = Field(ge=1, le=4096, description="decode instances")
    rack: int = Field(ge=1, le=1024, description="GPUs of a rack, which has one leaf")
    gpus: int | None = Field(default=None, ge=2, description="check: (prefill + decode) x tp; left out, not checked")
    gpu: Literal["h100", "h200", "a100"] = Field(default="h100", description="the GPU whose peak FLOP/s prefill uses")
    dtype: Literal["bf16", "fp16", "fp8"] = Field(default="bf16", description="number format of weights and KV")
    mfu: float = Field(default=0.46, gt=0, le=1, description="share of the GPU's peak that prefill reaches")

    @model_validator(mode="after")
    def _model_is_known(self) -> ClusterSpec:
        if not names_a_file(self.model):  # what is in a file is for its reader to judge
            try:
                load_model(self.model, dtype=self.dtype)
            except ModelError as error:
                problem, _, remedy = str(error).partition("; ")
                raise KeyConflictError(("model",), problem, remedy) from None
        return self

    @model_validator(mode="after")
    def _counts_agree(self) -> ClusterSpec:
        size = (self.prefill + self.decode) * self.tp
        if self.gpus is not None and self.gpus != size:
            raise KeyConflictError(
                ("gpus",),
                f"is {self.gpus}, but ({self.prefill} + {self.decode}) instances x tp {self.tp} make {size}",
                f"write gpus: {size}, leave it out, or change prefill, decode or tp",
                also=(("prefill",), ("decode",), ("tp",)),
            )
        return self

    def layout(self) -> Cluster:
        """Where every GPU stands."""
        return Cluster(prefill=self.prefill, decode=self.decode, tp=self.tp, rack=self.rack)


class TenantSpec(Section):
    """One source of turns: a trace or a generator. It offers ``share`` x ``load`` of the prefill instances' time."""

    name: Name = Field(description="name of the tenant in records")
    trace: str | None = Field(
        default=None, min_length=1, max_length=4096, description="file or folder to replay (relative to this file)"
    )
    generator: Literal["agentic"] | None = Field(
        default=None, description="synthetic turns with the published statistics, labelled synthetic in every record"
    )
    mode: Literal["layerwise", "pull"] | None = Field(
        default=None, description="how its KV moves, where that differs from workload.mode"
    )
    share: float = Field(default=1.0, gt=0, le=1, description="share of the cluster that is its own; at most 1 in all")
    load: Annotated[float, Field(gt=0, le=4)] | Literal["as-recorded"] = Field(
        default="as-recorded", description="prefill utilisation of its share, or as-recorded: the trace's own times"
    )
    format: Literal["auto", "weka", "mooncake", "azure", "tracelab"] = Field(
        default="auto", description="format of the trace; auto looks at the file"
    )
    start: Time = Field(default=0.0, description="where in the trace to begin, in the trace's own time")
    window: PositiveTime | None = Field(
        default=None, description="how much of the trace to take, in its own time; left out: to its end"
    )
    limit: int | None = Field(default=None, ge=1, description="rows of the trace at most; left out: all")
    spread: bool = Field(default=True, description="spread rows whose times are rounded (Mooncake: to 3 s) over their interval")
    skip_bad: bool = Field(default=False, description="count malformed rows and go on, or stop at the first")

    @model_validator(mode="after")
    def _one_source(self) -> TenantSpec:
        if self.name == "all":
            raise KeyConflictError(("name",), "'all' is the name of the total in records", "call the tenant something else")
        if self.trace is None and self.generator is None:
            raise KeyConflictError(
                ("trace",),
                f"tenant {self.name} replays a trace and none is set",
                "add --trace PATH (or --set workload.tenants.N.trace=PATH), or write generator: agentic",
            )
        if self.trace is not None and self.generator is not None:
            raise KeyConflictError(
                ("generator",),
                "is given beside trace",
                "keep one of them; --set workload.tenants.N.generator=null",
                also=(("trace",),),
            )
        if self.generator is not None:
            if self.load == "as-recorded":
                raise KeyConflictError(("load",), "a generator has no recorded times", "write a load like 0.6")
            remedies = {"window": "for how long turns arrive: --set window=12s"}
            for key in ("format", "start", "window", "limit", "spread", "skip_bad"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise KeyConflictError(
                        (key,), "means nothing to a generator", remedies.get(key, f"remove {key}, or give a trace")
                    )
        return self


class WorkloadSpec(Section):
    """What is served, and how its KV moves."""

    mode: Literal["layerwise", "pull"] = Field(
        default="layerwise", description="layerwise: layers leave as they are computed; pull: all after the prefill"
    )
    decode: Literal["load", "affinity"] = Field(
        default="load", description="choice of decode instance: least loaded, or the one holding the session"
    )
    loop: Literal["open"] = Field(default="open", description="open: turns arrive whether earlier ones ended or not")
    tenants: tuple[TenantSpec, ...] = Field(strict=False, min_length=1, max_length=64, description="sources of turns")

    @model_validator(mode="after")
    def _tenants_agree(self) -> WorkloadSpec:
        seen: set[str] = set()
        for index, tenant in enumerate(self.tenants):
            if tenant.name in seen:
                raise KeyConflictError(
                    ("tenants", index, "name"), f"a second tenant named {tenant.name}", "give each its own name"
                )
            seen.add(tenant.name)
        total = sum(tenant.share for tenant in self.tenants)
        if total > 1 + 1e-9:
            raise KeyConflictError(
                ("tenants",),
                f"the shares add up to {total:.4g}",
                "shares are of the one cluster: at most 1 in all",
                also=tuple(("tenants", index, "share") for index in range(len(self.tenants))),
            )
        return self


class ScaleSpec(Section):
    """How the real cluster is shrunk onto this machine."""

    rate: Rate = Field(description="emulated goodput of one link")
    time: float = Field(default=1.0, ge=1, le=10_000, description="emulated time per real time: 5 is five times slower")


class SloSpec(Section):
    """When a turn counts as served in time."""

    ttft_over_prefill: float = Field(
        default=5.0, gt=0, le=10_000, description="TTFT at most this many times the tenant's median unloaded prefill"
    )


class VariantSpec(Section):
    """The same turns on another fabric, or with another setting."""

    name: Name = Field(description="name of the variant, and of its folder among the records")
    set: tuple[str, ...] = Field(strict=False, max_length=64, description="what is different, as --set has it: key=value")


class Scenario(Section):
    """One experiment, complete and validated. Hash and equality go by value."""

    name: Name = Field(description="name of the scenario in records")
    about: str = Field(default="", max_length=200, description="one line about it")
    cluster: ClusterSpec = Field(description="the serving cluster")
    fabric: FabricSpec = Field(description="the network between the GPUs")
    workload: WorkloadSpec = Field(description="the turns")
    scale: ScaleSpec = Field(description="how the cluster is shrunk")
    window: PositiveTime = Field(description="how long turns arrive")
    drain: Time = Field(default=30.0, description="how long unfinished turns may still end after the window, at most")
    seed: int = Field(default=1, ge=0, le=2**32 - 1, description="seed of everything drawn at random")
    slo: SloSpec = Field(default_factory=SloSpec, description="service level")
    emulation: EmulationSpec = Field(default_factory=EmulationSpec, description="how packets behave")
    variants: tuple[VariantSpec, ...] = Field(
        default=(),
        strict=False,
        max_length=16,
        description="runs to be made side by side, each with its own settings",
    )

    @model_validator(mode="after")
    def _variants_differ(self) -> Scenario:
        names = [variant.name for variant in self.variants]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise KeyConflictError(("variants", index, "name"), f"a second variant named {name}", "give each its own name")
        return self

    @model_validator(mode="after")
    def _sections_agree(self) -> Scenario:
        if self.scale.rate > self.fabric.rate:
            raise KeyConflictError(
                ("scale", "rate"),
                "is above fabric.rate",
                "it is the emulated link's goodput: write it like 200Mb/s",
                also=(("fabric", "rate"),),
            )
        try:
            self.fabric.uplinks_of(self.cluster.rack)
        except FabricError as error:
            problem, _, remedy = str(error).partition("; ")
            raise KeyConflictError(("fabric", "ratio"), problem, remedy, also=(("cluster", "rack"),)) from None
        if self.fabric.circuits is not None:
            self._check_circuits(self.fabric.circuits)
        return self

    def _check_circuits(self, ocs: OcsSpec) -> None:
        planes = ocs.planes or self.cluster.tp
        if self.cluster.tp % planes:
            raise KeyConflictError(
                ("fabric", "ocs", "planes"),
                f"is {planes}, which does not divide the {self.cluster.tp} GPU positions of an instance",
                "write a divisor of cluster.tp, or leave it out for one plane a position",
                also=(("cluster", "tp"),),
            )
        if self.emulation.connections != "reused":
            raise KeyConflictError(
                ("emulation", "connections"),
                "is fresh, but over circuits connections are opened before the window: a handshake would meet the dark",
                "write connections: reused, or leave it out",
            )
        if self.emulation.classes < self.cluster.tp:
            raise KeyConflictError(
                ("emulation", "classes"),
                f"is {self.emulation.classes}, fewer than the {self.cluster.tp} GPU positions that connections are opened for",
                "write a larger power of two, like 64",
                also=(("cluster", "tp"),),
            )
        if self.workload.decode != "load" and ocs.decode is not None:
            raise KeyConflictError(
                ("fabric", "ocs", "decode"),
                f"is given beside workload.decode: {self.workload.decode}",
                "keep one of them: both choose the decode instance",
                also=(("workload", "decode"),),
            )

    @property
    def receive_window(self) -> float | None:
        """Bytes asked of every receive buffer; None is unbounded. Where flows share a port, a large window keeps an old share for
        too long; a circuit is nobody else's, and a window that the switch's own delay uses up would leave it idle."""
        wanted = self.emulation.receive_window
        if wanted == "auto":
            return _PACKET_WINDOW if self.fabric.circuits is None else _CIRCUIT_WINDOW
        return wanted

    @property
    def uplinks(self) -> int:
        """Uplinks of a leaf, which is the number of spines."""
        return self.fabric.uplinks_of(self.cluster.rack)

    @property
    def oversubscription(self) -> Fraction:
        """Hosts of a full leaf per uplink, as built (3:1 of 32 hosts is 32/11)."""
        return Fraction(self.cluster.rack, self.uplinks)

    @property
    def rate_factor(self) -> float:
        """Emulated rate per real rate (below 1)."""
        return self.scale.rate / self.fabric.rate

    @property
    def byte_factor(self) -> float:
        """Emulated bytes per real byte: rate factor x time factor."""
        return self.rate_factor * self.scale.time

    def cluster_layout(self) -> Cluster:
        """Where every GPU stands."""
        return self.cluster.layout()

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, as plain data with units; reading it back gives an equal scenario."""
        return self.model_dump(mode="json")
