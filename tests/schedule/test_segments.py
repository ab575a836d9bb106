"""The drawn block against the timed one."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.schedule import block_segments
from mfabric_jax.schedule.block import Blocks, Compute, run_pass

PARTS = {"attention_s": 2.0, "moe_s": 3.0, "tp_s": 1.0, "exchange_s": 0.5}


def lengths(segments, **where):
    return [one["end_s"] - one["start_s"] for one in segments if where.items() <= one.items()]


@pytest.mark.parametrize(("delay", "switches"), [(0.0, True), (4.0, True), (7.0, True), (7.0, False)])
def test_segments_last_as_long_as_the_passes(delay, switches):
    segments = block_segments(**PARTS, delay_s=delay, switches=switches)
    # Forward: 2 + 1 + delay + 0.5 + 3 + 0.5.
    blocked = delay if switches else 0.0
    forward = max(one["end_s"] for one in segments if one["direction"] == "forward")
    np.testing.assert_allclose(forward, 7 + blocked, rtol=1e-9)
    # Backward: the block before leaves 4 + 1 of cover, then what is not covered, 0.5 + 6 + 0.5 + 4 + 1.
    paid = max(0.0, blocked - 5)
    end = max(one["end_s"] for one in segments)
    np.testing.assert_allclose(end - forward, 5 + paid + 12, rtol=1e-9)
    compute = Compute(*(jnp.asarray(part) for part in (2.0, 3.0, 0.0, 1.0)))
    two = Blocks(jnp.ones(2, bool), jnp.ones(2, bool), jnp.full((2, 2), 0.5), jnp.asarray([False, switches]))
    got = run_pass(compute, two, jnp.asarray(True), jnp.asarray(delay))
    np.testing.assert_allclose(end - forward + 7, got.duration_s, rtol=1e-9)     # the block before: 7 s until its cover


def test_tracks_do_not_overlap_and_hold_every_part():
    segments = block_segments(**PARTS, delay_s=7.0, switches=True)
    for track in ("compute", "network", "reconfiguration"):
        mine = sorted((one["start_s"], one["end_s"]) for one in segments if one["track"] == track)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(mine))
    assert lengths(segments, kind="all-to-all") == [0.5] * 4
    assert lengths(segments, kind="experts") == [3.0, 6.0]
    assert lengths(segments, kind="attention") == [2.0, 4.0, 4.0]
    assert lengths(segments, kind="reconfigure") == [7.0, 7.0]
    assert lengths(block_segments(**PARTS, delay_s=7.0, switches=False), kind="reconfigure") == []
