"""Collectives by rings and by switches that reduce: partners, bytes and steps.

Rings: Patarasu & Yuan, JPDC 2009. Switches: Graham et al., COM-HPC 2016 (SHARP).
"""

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


def reduced_bytes(size: Any, members: int) -> Any:
    """Return the bytes that each member sends, and receives, if switches between them reduce `size` bytes (SHARP).

    Each byte goes up once and its sum comes down once, for any number of members.
    """
    return size * float(members > 1)


def nvls_bytes(size: Any, members: int) -> Any:
    """Return the bytes that each member sends, and receives, if NVSwitches reduce `size` bytes (NVLS).

    A member loads the sum of its 1/n of the bytes from all n members, itself included, and stores it to all. So n + 1
    parts of 1/n cross its links each way. Source: nccl-tests, doc/PERFORMANCE.md, factor (n - 1)/(n + 1) of bus
    bandwidth.
    """
    return size * (members + 1) / members * float(members > 1)
