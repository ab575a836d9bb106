"""Generated traffic by the statistics of recordings: each knob moves its own."""

import dataclasses

import numpy as np

from mfabric_jax.apps.recordings import statistics
from mfabric_jax.traffic.generator import TrafficShape, draw
from mfabric_jax.traffic.tokens import max_over_mean
from tests.traffic.test_generator import BASE

SHAPE = TrafficShape(layers=6, micro_batches=3, ranks=4, experts=16, selections=10_000)


def seen(iterations=40, **moved):
    """Load, source rows, micro-batches and correlation of `BASE` with some knobs moved."""
    count = draw(SHAPE, dataclasses.replace(BASE, **moved), 1, np.arange(iterations))
    load = count.sum(axis=(2, 3))
    return {
        "load": max_over_mean(load).mean(),
        "rows": statistics.source_variation(count)[0].mean(),
        "micro": statistics.source_variation(count.sum(axis=3))[0].mean(),
        "near": 1 - statistics.correlation(load, 1).mean(),
        "far": 1 - statistics.correlation(load, 10).mean(),
    }


def test_a_knob_moves_its_own_statistics():
    before, over_time = seen(), {"near", "far"}
    for moved, up in (
        ({"skew": 1.5}, {"load"}),
        ({"row_noise": 0.1}, {"rows"}),
        ({"micro_drift": 0.1}, {"micro"}),
        ({"drift": 0.1}, over_time),
        ({"persistence": 0.1, "drift": 0.05 * np.sqrt((1 - 0.1**2) / (1 - 0.9**2))}, over_time),  # equal spread
        ({"jitter": 0.1}, over_time),
    ):
        after = seen(**moved)
        for name, value in before.items():
            change = after[name] / value - 1
            if name in up:
                assert change > 0.3, (moved, name, change)
            elif name not in over_time:  # noise within iterations tells them apart too
                assert abs(change) < 0.15, (moved, name, change)
