"""What compiled loops read and write, as tuples of arrays, and how they end: for files that load no compiler."""

from typing import NamedTuple

import numpy as np

# Of a programme: solved; not before the limit; circuits reach too few pairs; out of pivots.
ENDED, LATER, NEVER, LOST = 0, 1, 2, 3


class Circuits(NamedTuple):
    """Circuits of configurations, those of k from first[k] to first[k + 1]."""

    first: np.ndarray  # [K + 1]
    row: np.ndarray  # [N]
    column: np.ndarray  # [N]
    count: np.ndarray  # [N]
    switch: np.ndarray  # [K]


class Room(NamedTuple):
    """What `duration_loops` keep; n = K + 1 rows of the dual."""

    inverse: np.ndarray  # [n n] of the basis
    level: np.ndarray  # [n] of basic variables: prices
    gain: np.ndarray  # [n] what one of each adds
    line: np.ndarray  # [n] of a basic cut; -1: none
    members: np.ndarray  # [n S] partners of a basic cut
    primal: np.ndarray  # [n] t, T
    entering: np.ndarray  # [n] column
    partners: np.ndarray  # [S] of the entering cut
    left: np.ndarray  # [S S]
    clock: np.ndarray  # [switches]


class Plan(NamedTuple):
    """Matchings with room for K, and where they come to be shown: groups of `ports`, the first of them the longest."""

    column: np.ndarray  # [K S]
    seconds: np.ndarray  # [K] of each matching
    order: np.ndarray  # [K] matchings, the longest first: group g holds those from g ports on
    shown: np.ndarray  # [K] which group every configuration is
    length: np.ndarray  # [K] seconds of every configuration
    switch: np.ndarray  # [K]


class Work(NamedTuple):
    """Room for what `quick_loops` keep."""

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
