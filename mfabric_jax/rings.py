"""A ring: who sends to whom, how much, in how many steps. Source: Patarasu & Yuan, JPDC 2009."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def onward(members: ArrayLike, axis: int = -1, stride: int = 1) -> np.ndarray:
    """To whom each member sends: the next one in this order, or the one `stride` places on."""
    return np.roll(members, -stride, axis=axis)


def ring_bytes(size: Any, members: int) -> Any:
    """Bytes that each member of a ring all-reduce of `size` bytes (a number or an array) sends, in all of its steps."""
    return 2 * size * (members - 1) / members


def ring_steps(members: int) -> int:
    """Of an all-reduce: a reduce-scatter and an all-gather, each as many as there are other members."""
    return 2 * (members - 1)
