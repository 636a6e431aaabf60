"""How long a prefill takes: a fixed part and the FLOPs, chunk by chunk, and how well it can be predicted.

A chunk of n new tokens on a prefix of ctx costs 2 · params · n for the matrices and 4 · n · (ctx + n/2) · heads · head_dim ·
layers for attention; both can be fitted to measured runs. Source: serving.md of the design; the default is anchored at its
191 ms for 1.1K new tokens on a context of 66.7K (Llama-3.1-70B, TP4, H100).
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.errors import TraceError
from workloads.kvsize import KvModel
from workloads.readers._fields import Row
from workloads.readers._trace import unreadable
from workloads.readers.azure import cell_value

H100_BF16_FLOPS = 989e12
"""Dense BF16 peak of one H100 SXM, FLOP/s (its data sheet)."""

DEFAULT_MFU = 0.462
"""The published 0.46 gives 191.9 ms at the anchor; this third digit gives 191.0."""

MAX_CHUNK = 2048
LEAST_SHARE = 0.01
"""The least share of the true time that a wrong prediction may come to: a predicted time stays above zero."""


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """Prefill times of a model on an instance of ``tp`` GPUs of ``peak_flops`` each.

    ``mfu`` is the share of the peak reached; ``mfu_attention``, where given, is that of the attention part alone.
    ``fixed_s`` is paid by every chunk of at most ``max_chunk`` tokens.
    """

    model: KvModel
    tp: int
    fixed_s: float = 0.0
    mfu: float = DEFAULT_MFU
    peak_flops: float = H100_BF16_FLOPS
    mfu_attention: float | None = None
    max_chunk: int = MAX_CHUNK

    def __post_init__(self) -> None:
        if not (self.tp >= 1 and self.max_chunk >= 1):
            raise ValueError(f"prefill: tp {self.tp} and max_chunk {self.max_chunk} must be at least 1")
        if not 0 <= self.fixed_s < math.inf:
            raise ValueError(f"prefill: fixed_s is {self.fixed_s}; it must be zero or more")
        attention = self.mfu if self.mfu_attention is None else self.mfu_attention
        if not (self.mfu > 0 and attention > 0 and 0 < self.peak_flops < math.inf):
            raise ValueError("prefill: mfu, mfu_attention and peak_flops must be above 0")

    def matrix_flops(self, new: float) -> float:
        """FLOPs of the matrices for ``new`` tokens."""
        return 2.0 * self.model.params * new

    def attention_flops(self, context: float, new: float) -> float:
        """FLOPs of attention for ``new`` tokens on a prefix, each on all before it."""
        return self.model.attention_flops_per_pair * new * (context + new / 2)

    def chunk_time(self, context: int, new: int) -> float:
        """Seconds for one chunk of ``new`` tokens (≥ 1) on ``context`` tokens already there."""
        if new < 1 or context < 0:
            raise ValueError(f"a chunk of {new} tokens on {context}: it needs at least one token, on zero or more")
        attention_mfu = self.mfu if self.mfu_attention is None else self.mfu_attention
        peak = self.peak_flops * self.tp
        matrices_s = self.matrix_flops(new) / (self.mfu * peak)
        return self.fixed_s + matrices_s + self.attention_flops(context, new) / (attention_mfu * peak)

    def chunks(self, new: int) -> tuple[int, ...]:
        """The chunks ``new`` tokens (≥ 1) are computed in: full ones, then the rest."""
        if new < 1:
            raise ValueError(f"{new} new tokens; a turn has at least one")
        full, rest = divmod(new, self.max_chunk)
        return (self.max_chunk,) * full + ((rest,) if rest else ())

    def chunk_times(self, context: int, new: int) -> tuple[float, ...]:
        """Seconds of each chunk of a turn, each on the context and the chunks before it."""
        times = []
        for chunk in self.chunks(new):
            times.append(self.chunk_time(context, chunk))
            context += chunk
        return tuple(times)

    def total(self, context: int, new: int) -> float:
        """Seconds of a turn's prefill when nothing else runs."""
        return math.fsum(self.chunk_times(context, new))


def predict(true_s: float, median_abs_error: float, rng: np.random.Generator) -> float:
    """A prediction of a time: T · (1 + e), e from a Laplace distribution whose median |e| is ``median_abs_error``.

    One number is drawn in any case, so that runs that differ in the error alone share the rest of their stream.
    """
    if not 0 <= median_abs_error < math.inf:
        raise ValueError(f"median_abs_error is {median_abs_error}; it must be zero or more (0.05 is 5 %)")
    unit = float(rng.laplace())  # median |unit| is ln 2
    return true_s * max(LEAST_SHARE, 1.0 + unit * median_abs_error / math.log(2))


@dataclass(frozen=True, slots=True)
class PrefillFit:
    """A fitted model and how far it is from the runs it was fitted to (relative errors, |fit − measured| / measured)."""

    model: PrefillModel
    rows: int
    median_relative_error: float
    worst_relative_error: float


def fit_csv(path: str | Path, base: PrefillModel) -> PrefillFit:
    """Fit ``fixed_s``, ``mfu`` and ``mfu_attention`` of ``base`` to a CSV with columns ``n`` (new tokens), ``ms`` and, where
    measured, ``prefix`` (tokens before them, else 0).

    Every row is taken as one pass, as operator sums and single-batch runs are. A part that would come out negative is left
    out. Raises TraceError: file, line and column of a bad row, or fewer than three rows of different n.
    """
    path = Path(path)
    rows = _rows(path)
    if len({new for new, _, _ in rows}) < 3:
        raise TraceError(str(path), None, "n", "has fewer than three different values; measure at least three lengths")
    measured = np.array([seconds for _, _, seconds in rows])
    peak = base.peak_flops * base.tp
    parts = np.array([[1.0, base.matrix_flops(new) / peak, base.attention_flops(prefix, new) / peak] for new, prefix, _ in rows])
    weights = _least_relative_squares(parts, measured)
    if weights[1] <= 0:
        raise TraceError(str(path), None, "ms", "does not grow with n; check the columns")
    fitted = replace(
        base,
        fixed_s=float(weights[0]),
        mfu=float(1 / weights[1]),
        mfu_attention=float(1 / weights[2]) if weights[2] > 0 else math.inf,
    )
    errors = np.abs(parts @ weights - measured) / measured
    return PrefillFit(fitted, len(rows), float(np.median(errors)), float(np.max(errors)))


def _least_relative_squares(parts: NDArray[np.float64], measured: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights ≥ 0 that minimise Σ ((parts·w − measured)/measured)²; the most negative one is dropped until none is."""
    scale = parts.max(axis=0)  # columns of 1 and of 1e-2: scaled, or the solver takes the small ones for nothing
    columns = parts / scale / measured[:, None]
    kept = list(range(parts.shape[1]))
    weights = np.zeros(parts.shape[1])
    while kept:
        solution, *_ = np.linalg.lstsq(columns[:, kept], np.ones(len(measured)), rcond=None)
        if solution.min() >= 0:
            weights[kept] = solution
            break
        kept.pop(int(solution.argmin()))
    result: NDArray[np.float64] = weights / scale
    return result


def _rows(path: Path) -> list[tuple[int, int, float]]:
    rows = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or []
            for needed in ("n", "ms"):
                if needed not in names:
                    raise TraceError(str(path), 1, needed, "is not in the header; it must be n,ms or n,prefix,ms")
            for cells in reader:
                values = {str(name): cell_value(str(cell).strip()) for name, cell in cells.items() if cell is not None}
                row = Row(str(path), reader.line_num, values)
                prefix = row.count("prefix") if "prefix" in names else 0
                rows.append((row.count("n", low=1), prefix, row.number("ms", low=1e-6) / 1e3))
    except OSError as error:
        raise unreadable(path, error) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(str(path), None, None, f"is not CSV ({error}); give columns n,ms or n,prefix,ms") from error
    return rows
