"""What every section of a scenario is: frozen, with unknown keys refused; and the error for keys that disagree."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

NOT_YET: dict[str, tuple[str, ...]] = {
    "fabric.routing": ("pinned", "adaptive", "hedera", "ark", "srpt", "ceiling"),
    "fabric.dataplane": ("openflow",),
    "workload.loop": ("closed",),
}
"""Values the design has and this version lacks: refused by name, so that nobody takes them for a typing mistake."""

Key = tuple[str | int, ...]


class KeyConflictError(ValueError):
    """A value that is right by itself and wrong beside others.

    ``key`` (and ``also``, the keys it disagrees with) are relative to the section that found it.
    """

    def __init__(self, key: Key, problem: str, remedy: str, *, also: tuple[Key, ...] = ()) -> None:
        super().__init__(problem)
        self.key = key
        self.remedy = remedy
        self.also = also


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,  # "4" is not 4 and true is not 1
        allow_inf_nan=False,
        regex_engine="python-re",
    )
