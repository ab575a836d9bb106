"""MLTCP: a flow that has sent more of its iteration's bytes takes more of a link, so competing jobs drift apart.

Published: arXiv 2402.09589 and HotNets 2024 (10.1145/3696348.3696878). A window grows by F(bytes_ratio) where it would
grow by 1; bytes_ratio is the part of the iteration's bytes that the flow has sent; F is linear. Its analysis of two
equal jobs gives each a rate in proportion to F: that is weighted max-min sharing, which is what runs here. Slope 1.75
and intercept 0.25 are remembered from the papers' text, which is not public in full where we could look; code for ns-3
by one of its authors has 4 and 0.25. Both are settings.

Deviation: the weight is constant over pieces of a flow of equal bytes, F at the middle of each, and what a congestion
control needs to reach a rate (round trips, losses) is not there.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mfabric_jax.checks import not_negative, positive, whole


@dataclass(frozen=True)
class Mltcp:
    """F(part) = slope * part + intercept, in `pieces` pieces of equal bytes for every flow."""

    slope: float = 1.75
    intercept: float = 0.25
    pieces: int = 16

    def __post_init__(self):
        not_negative("slope", self.slope)
        positive("intercept", self.intercept)
        whole("pieces", self.pieces)

    def weight(self, part: ArrayLike) -> np.ndarray:
        """Of a flow that has sent this part of its iteration's bytes, in the shape of `part`."""
        return self.slope * np.asarray(part, float) + self.intercept

    def piece_weights(self, before: ArrayLike, size: ArrayLike, total: ArrayLike) -> np.ndarray:
        """[F K] weights of the pieces of flows.

        - `before` [F] bytes of the iteration that the connection has sent when the flow starts; `size` [F] its own;
          `total` [F] those of the connection's whole iteration.
        """
        before, size, total = (np.asarray(x, float)[:, None] for x in (before, size, total))
        sent = before + size * ((np.arange(self.pieces) + 0.5) / self.pieces)
        return self.weight(sent / np.where(total > 0, total, 1))

    def next_offset(self, offset_s: float, communication_s: float) -> float:
        """By how much the second of two equal jobs starts to communicate behind the first one iteration later.

        - `offset_s`: now, 0 to `communication_s`, which each takes alone.

        Exact for weights that grow without steps, where no job computes for less than it communicates:
        offset + slope * offset * (c - offset) / (c * intercept + slope * offset) (HotNets 2024, equation 2).
        """
        moved = self.slope * offset_s * (communication_s - offset_s)
        return offset_s + moved / (communication_s * self.intercept + self.slope * offset_s)
