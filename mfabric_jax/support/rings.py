"""Ring collectives: partners, bytes and steps. Source: Patarasu & Yuan, JPDC 2009."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def onward(members: ArrayLike, axis: int = -1, stride: int = 1) -> np.ndarray:
    """Return the member that each member sends to, `stride` positions ahead."""
    return np.roll(members, -stride, axis=axis)


def ring_bytes(size: Any, members: int) -> Any:
    """Return the bytes that each member sends in a ring all-reduce of `size` bytes."""
    return 2 * size * (members - 1) / members


def ring_steps(members: int) -> int:
    return 2 * (members - 1)
