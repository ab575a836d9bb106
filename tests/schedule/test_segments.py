"""The drawn block against the timed one."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.schedule import block_segments
from mfabric_jax.schedule.block import Blocks, Compute, run_pass

PARTS = {"attention_s": 2.0, "moe_s": 3.0, "tp_s": 1.0}
TRACKS = ("compute", "NVSwitch", "OCS", "EPS")


def spans(segments, **where):
    return [(one["start_s"], one["end_s"]) for one in segments if where.items() <= one.items()]


def lengths(segments, **where):
    return [end - start for start, end in spans(segments, **where)]


@jax.jit
def timed(exchange_s, slack_s, switches, delay_s, backward):
    """Two blocks, of which the second switches."""
    compute = Compute(*(jnp.asarray(part) for part in (2.0, 3.0, 0.0, 1.0)))
    here = jnp.ones(2, bool)
    switch = jnp.stack([jnp.asarray(False), switches])
    blocks = Blocks(here, here, jnp.full((2, 2), exchange_s), jnp.full(2, slack_s), switch)
    return run_pass(compute, blocks, backward, delay_s).duration_s


@pytest.mark.parametrize(("optical", "packets"), [(0.5, 0.0), (0.5, 0.25), (0.5, 0.5), (0.5, 2.0), (0.25, 5.0)])
@pytest.mark.parametrize("eps_waits", [False, True])
@pytest.mark.parametrize(("delay", "switches"), [(0.0, True), (1.0, True), (4.0, True), (7.0, True), (7.0, False)])
def test_segments_last_as_long_as_the_passes(optical, packets, eps_waits, delay, switches):
    settings = {"optical_s": optical, "packet_s": packets, "eps_waits": eps_waits}
    segments = block_segments(**PARTS, **settings, delay_s=delay, switches=switches)
    both = max(optical, packets)
    slack = 0.0 if eps_waits else both - optical
    # Forward: 2 + 1 + what packets do not cover + an all-to-all + 3 + an all-to-all.
    blocked = delay if switches else 0.0
    forward = max(one["end_s"] for one in segments if one["direction"] == "forward")
    paid = max(0.0, blocked - slack)
    np.testing.assert_allclose(forward, 6 + 2 * both + paid, rtol=1e-9)
    numbers = (jnp.asarray(both), jnp.asarray(slack), jnp.asarray(switches), jnp.asarray(delay))
    np.testing.assert_allclose(6 + 2 * both + forward, timed(*numbers, jnp.asarray(False)), rtol=1e-9)
    # Backward: the block before leaves 4 + 1 of cover, then what is not covered, all-to-all, 6, all-to-all, 4 + 1.
    paid = max(0.0, blocked - 5 - slack)
    end = max(one["end_s"] for one in segments)
    np.testing.assert_allclose(end - forward, 5 + paid + 11 + 2 * both, rtol=1e-9)
    before = 6 + 2 * both                                                        # of the block before: until its cover
    np.testing.assert_allclose(before + end - forward, timed(*numbers, jnp.asarray(True)), rtol=1e-9)


def test_tracks_do_not_overlap_and_hold_every_part():
    settings = PARTS | {"optical_s": 0.5, "packet_s": 2.0}
    for eps_waits in (False, True):
        segments = block_segments(**settings, delay_s=7.0, switches=True, eps_waits=eps_waits)
        assert {one["track"] for one in segments} == set(TRACKS)
        for track in TRACKS:
            mine = sorted(spans(segments, track=track))
            assert all(first[1] <= second[0] for first, second in itertools.pairwise(mine))
        for track, kind, want in [
            ("OCS", "all-to-all", [0.5] * 4),
            ("EPS", "all-to-all", [2.0] * 4),
            ("compute", "experts", [3.0, 6.0]),
            ("compute", "attention", [2.0, 4.0, 4.0]),
            ("NVSwitch", "tp", [1.0, 1.0, 1.0]),
            ("OCS", "reconfigure", [7.0, 7.0]),
        ]:
            np.testing.assert_allclose(lengths(segments, track=track, kind=kind), want, rtol=1e-9)
            assert len(spans(segments, kind=kind)) == len(want) * (2 if kind == "all-to-all" else 1)
    assert lengths(block_segments(**settings, delay_s=7.0, switches=False), kind="reconfigure") == []


def test_only_circuits_wait_for_the_switch():
    # Forward: gate at 3, reconfiguration [3, 10]; dispatch on packets [3, 5], on circuits [10, 10.5]; experts until
    # 13.5, combine until 15.5. Backward: reconfiguration [15.5, 22.5], gradients of the next block and its all-reduce
    # until 20.5: packets [20.5, 22.5], circuits [22.5, 23]; experts until 29.
    settings = PARTS | {"optical_s": 0.5, "packet_s": 2.0, "delay_s": 7.0, "switches": True}
    got = block_segments(**settings)
    want = {"dispatch": ((3, 5), (10, 10.5)), "combine": ((13.5, 15.5), (13.5, 14))}
    want |= {"combine grad": ((20.5, 22.5), (22.5, 23)), "dispatch grad": ((29, 31), (29, 29.5))}
    for label, (packets, circuits) in want.items():
        np.testing.assert_allclose(spans(got, label=label, track="EPS"), [packets], rtol=1e-9, err_msg=label)
        np.testing.assert_allclose(spans(got, label=label, track="OCS"), [circuits], rtol=1e-9, err_msg=label)
    np.testing.assert_allclose(spans(got, kind="reconfigure"), [(3, 10), (15.5, 22.5)], rtol=1e-9)
    # If packets wait, both parts of an all-to-all begin together: dispatch at 10, the experts' gradients at 17 + 7.
    got = block_segments(**settings, eps_waits=True)
    for label, start in {"dispatch": 10, "combine": 15, "combine grad": 24, "dispatch grad": 32}.items():
        begins = [span[0] for span in spans(got, label=label)]
        np.testing.assert_allclose(begins, [start, start], rtol=1e-9, err_msg=label)


def test_a_packet_switched_fabric_has_no_circuits():
    got = block_segments(**PARTS, optical_s=0.0, packet_s=2.0, delay_s=0.0, switches=False)
    assert spans(got, track="OCS") == []
    np.testing.assert_allclose(lengths(got, kind="all-to-all"), [2.0] * 4, rtol=1e-9)
    np.testing.assert_allclose(max(one["end_s"] for one in got), 10 + 5 + 15, rtol=1e-9)
