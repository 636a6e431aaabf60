"""How wrong a predicted prefill time is: T · (1 + e), e Laplace-distributed with a given median of |e|.

Source: serving.md of the design, "Prediction error".
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaplaceError:
    """Errors whose median |e| is ``median`` (0.046 is 4.6 %), drawn from ``rng``: one draw a prediction, also of median 0."""

    median: float
    rng: random.Random

    def __post_init__(self) -> None:
        if not 0 <= self.median < math.inf:
            raise ValueError(f"a median error of {self.median} is not zero or more")

    def predict(self, true_s: float) -> float:
        """What would be predicted for something that takes ``true_s``; never below zero."""
        # |e| is exponential with mean median / ln 2, whose median is then median.
        size = -math.log(1.0 - self.rng.random()) * self.median / math.log(2)
        sign = 1.0 if self.rng.random() < 0.5 else -1.0
        return true_s * max(0.0, 1.0 + sign * size)
