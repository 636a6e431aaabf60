"""Dimensional scaling between the real cluster and the emulated one: rates by α, times by γ, bytes by α/γ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """α = rate_real_Bps / rate_emu_Bps, γ = ``time`` (emulated seconds = γ × real seconds)."""

    rate_real_Bps: float
    rate_emu_Bps: float
    time: float

    def to_emu_time(self, real_s: float) -> float:
        """Real seconds as emulated seconds."""
        return real_s * self.time

    def to_real_time(self, emu_s: float) -> float:
        """Emulated seconds as real seconds."""
        return emu_s / self.time

    def to_emu_bytes(self, real_bytes: float) -> int:
        """Real bytes as emulated bytes, rounded once; at least 1 where there is any."""
        return max(1, round(real_bytes * self.rate_emu_Bps / self.rate_real_Bps * self.time)) if real_bytes > 0 else 0
