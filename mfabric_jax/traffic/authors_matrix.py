"""The token matrix that stands in the packet simulator which mFabric's authors released, for any number of ranks."""

import numpy as np

from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Workload

SIZE = 8
# Selections of 8 sources (rows) for 8 destinations; a row is one micro-batch of 8 x 4096 tokens. Source: mixnet.cpp,
# Mixnet::weighted_connect, of the simulator released with arXiv 2501.03905. That it made the figures is a guess.
MATRIX = np.array(
    [
        [9810, 5338, 1231, 3042, 4452, 2004, 841, 6050],
        [9278, 6282, 839, 3722, 3821, 2903, 909, 5014],
        [10684, 5165, 1044, 2634, 4344, 3333, 675, 4889],
        [10897, 5629, 1086, 2114, 2762, 3463, 1059, 5758],
        [8684, 5666, 1046, 3955, 4334, 2952, 944, 5187],
        [8361, 5908, 777, 3043, 3984, 3422, 897, 6376],
        [10208, 5507, 1117, 4148, 3967, 3119, 904, 3798],
        [9781, 5211, 902, 3343, 4289, 2839, 1008, 5395],
    ]
)


def authors(workload: Workload, iterations: int = 1) -> Tokens:
    """Expected selections [iteration layer 1 R E], the same in every iteration, layer and micro-batch.

    Rank s sends rank d in proportion to the matrix at (s mod 8, d mod 8), and all experts of a rank get the same; every
    source rank sends `workload.selections` (the released code scales rows by the number of ranks instead).
    """
    ranks, experts = workload.ep, workload.architecture.experts
    place = np.arange(ranks) % SIZE
    weight = np.repeat(MATRIX[np.ix_(place, place)], experts // ranks, axis=1).astype(float)
    count = workload.selections * weight / weight.sum(axis=1, keepdims=True)
    shape = (iterations, workload.moe_layers, 1, ranks, experts)
    return Tokens(np.broadcast_to(count, shape), "the authors' 8 x 8 matrix, tiled")
