"""Arrays that compiled loops read and write, and codes for how the loops end. Importing this file loads no compiler."""

from typing import NamedTuple

import numpy as np

# How a programme ended: solved; cannot end before the limit; circuits reach too few pairs; out of pivots.
ENDED, LATER, NEVER, LOST = 0, 1, 2, 3


class CircuitLists(NamedTuple):
    """Circuits of configurations; configuration k has the circuits with numbers first[k] to before first[k + 1]."""

    first: np.ndarray  # [K + 1]
    row: np.ndarray  # [N]
    column: np.ndarray  # [N]
    count: np.ndarray  # [N]
    switch: np.ndarray  # [K]


class SimplexWork(NamedTuple):
    """Working arrays of `duration_loops`; the dual has n = K + 1 rows."""

    inverse: np.ndarray  # [n n] of the basis
    level: np.ndarray  # [n] values of the basic variables: prices
    gain: np.ndarray  # [n] objective coefficients of the basic variables
    line: np.ndarray  # [n] line of a basic cut; -1: none
    members: np.ndarray  # [n S] partners of a basic cut
    primal: np.ndarray  # [n] t, T
    entering: np.ndarray  # [n] column
    partners: np.ndarray  # [S] of the entering cut
    left: np.ndarray  # [S S]
    clock: np.ndarray  # [switches]


class MatchingPlan(NamedTuple):
    """At most K matchings, and the configurations that show them: groups of `ports` matchings, the longest first."""

    column: np.ndarray  # [K S]
    seconds: np.ndarray  # [K] of each matching
    order: np.ndarray  # [K] matchings, the longest first: group g begins at position g * ports
    shown: np.ndarray  # [K] the group that every configuration shows
    length: np.ndarray  # [K] seconds of every configuration
    switch: np.ndarray  # [K]


class QuickWork(NamedTuple):
    """Working arrays of `quick_loops`."""

    left: np.ndarray  # [S S]
    cost: np.ndarray  # [S S]
    uncovered: np.ndarray  # [S S]
    price: np.ndarray  # [S] of columns
    column: np.ndarray  # [S] of rows
    row: np.ndarray  # [S] of columns
    spare: np.ndarray  # [2 S] numbers
    index: np.ndarray  # [4 S] whole numbers
    lines: np.ndarray  # [2 S] sums of rows and columns
    free: np.ndarray  # [switches]


class Facts(NamedTuple):
    packet: float
    switches: int
    ports: int
    delay: float
    first_free: bool
