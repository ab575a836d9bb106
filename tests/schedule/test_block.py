"""One pass of one stage by hand: what blocks, what is hidden, what is paid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.schedule.block import Blocks, Compute, run_pass

# Forward 2 s of attention, 3 s of experts, 5 s of a dense FFN, 1 s of tensor-parallel all-reduce. Backward computation
# takes twice that, its all-reduce the same: 4 + 1 = 5 s of attention lie behind each block's last all-to-all.
COMPUTE = Compute(*(jnp.asarray(part) for part in (2.0, 3.0, 5.0, 1.0)))
EXCHANGE = (0.5, 0.25)
MOE, SWITCHED, DENSE, PADDING = "moe", "switched", "dense", "padding"


def blocks(*kinds, slack=0.0):
    """`slack`: of each block, or of all. Padding carries numbers that must not count."""
    here = np.array([kind != PADDING for kind in kinds])
    moe = np.array([kind in (MOE, SWITCHED, PADDING) for kind in kinds])
    switch = np.array([kind in (SWITCHED, PADDING) for kind in kinds])
    exchange = np.array([EXCHANGE if kind != PADDING else (100.0, 100.0) for kind in kinds])
    slack = np.where(here, slack, 0.5)
    return Blocks(*(jnp.asarray(field) for field in (here, moe, exchange, slack, switch)))


@jax.jit
def _run(blocks, backward, delay_s):
    return run_pass(COMPUTE, blocks, backward, delay_s)


def run(kinds, delay, *, backward, slack=0.0):
    return _run(blocks(*kinds, slack=slack), jnp.asarray(backward), jnp.asarray(delay))


def assert_pass(got, **want):
    for field, value in want.items():
        np.testing.assert_allclose(getattr(got, field), value, rtol=1e-9, err_msg=field)


def test_forward_waits_for_the_whole_delay_at_every_switch():
    # Block: 2 attention + 1 all-reduce, then the gate; 7 s of delay where circuits change; 0.5 + 3 + 0.25.
    # Three blocks, two with new circuits: 3 * 6.75 + 2 * 7 = 34.25. However long the delay, nothing covers it.
    got = run((SWITCHED, MOE, SWITCHED), 7.0, backward=False)
    assert_pass(got, duration_s=34.25, compute_s=15, tp_s=3, exchange_s=2.25, paid_s=14, tail_s=0)
    assert not got.opens
    assert got.exchanges
    for delay in (0.0, 1.0, 1000.0):
        got = run((SWITCHED, MOE, SWITCHED), delay, backward=False)
        assert_pass(got, paid_s=2 * delay, duration_s=20.25 + 2 * delay)


@pytest.mark.parametrize(
    ("delay", "paid"),
    [
        (0.0, 0.0),
        (4.0, 0.0),                # 5 s of attention and all-reduce behind the block before: hidden
        (5.0, 0.0),                # just hidden
        (7.0, 2.0),                # partly hidden
        (25.0, 20.0),              # mostly exposed
    ],
)  # fmt: skip
def test_backward_attention_hides_the_switch_of_the_next_block(delay, paid):
    # First block: its switch began before this pass, so the pipeline settles it: `opens`, nothing paid here.
    # Block: 0.5 + 6 + 0.25 + 4 + 1 = 11.75.
    got = run((SWITCHED, SWITCHED), delay, backward=True)
    assert_pass(got, duration_s=23.5 + paid, compute_s=20, tp_s=2, exchange_s=1.5, paid_s=paid, head_s=0, tail_s=5)
    assert got.opens
    # Every further block has the same cover.
    assert_pass(run((SWITCHED, SWITCHED, MOE, SWITCHED), delay, backward=True), paid_s=2 * paid)


@pytest.mark.parametrize("backward", [False, True])
def test_circuits_that_stay_cost_nothing(backward):
    got = run((MOE, MOE, MOE), 25.0, backward=backward)
    assert_pass(got, duration_s=3 * (11.75 if backward else 6.75), paid_s=0)
    assert not got.opens


# -------------------------------------------------------------------------- packets that take longer than circuits
@pytest.mark.parametrize(
    ("delay", "slack", "paid"),
    [
        (0.2, 0.3, 0.0),               # circuits 0.2 s, packets 0.5 s: [0.2, 0.4] lies within
        (0.3, 0.3, 0.0),               # just hidden
        (0.3, 0.0, 0.3),               # as if packets waited too
        (7.0, 0.3, 6.7),               # [7, 7.2] instead of 0.5
        (7.0, 0.4, 6.6),               # [7, 7.1]
    ],
)  # fmt: skip
def test_forward_the_delay_runs_beside_the_packets(delay, slack, paid):
    # The last block's circuits stay, so its slack is of no use.
    got = run((SWITCHED, SWITCHED, MOE), delay, backward=False, slack=(slack, slack, 0.4))
    assert_pass(got, duration_s=20.25 + 2 * paid, compute_s=15, tp_s=3, exchange_s=2.25, paid_s=2 * paid, tail_s=0)
    assert_pass(got, slack_s=slack)


def test_every_block_has_its_own_slack():
    # Forward 7 - 0.1, 7 - 0.3, 7 - 0.5; backward the first is the pipeline's to charge: 2 - 0.3, 2 - 0.5.
    slack = (0.1, 0.3, 0.5)
    assert_pass(run((SWITCHED,) * 3, 7.0, backward=False, slack=slack), paid_s=20.1, duration_s=20.25 + 20.1)
    got = run((SWITCHED,) * 3, 7.0, backward=True, slack=slack)
    assert_pass(got, paid_s=3.2, duration_s=35.25 + 3.2, head_s=0, slack_s=0.1, tail_s=5)
    assert got.opens


@pytest.mark.parametrize(
    ("delay", "slack", "paid"),
    [
        (4.0, 0.3, 0.0),               # all under the 5 s of the block before: slack is no gain
        (5.2, 0.3, 0.0),               # 0.2 s left, beside the packets
        (5.3, 0.3, 0.0),               # just hidden
        (5.3, 0.0, 0.3),               # as if packets waited too
        (7.0, 0.3, 1.7),
    ],
)  # fmt: skip
def test_backward_what_computation_leaves_runs_beside_the_packets(delay, slack, paid):
    got = run((SWITCHED, SWITCHED), delay, backward=True, slack=(0.4, slack))
    assert_pass(got, duration_s=23.5 + paid, compute_s=20, tp_s=2, exchange_s=1.5, paid_s=paid, head_s=0, tail_s=5)
    assert_pass(got, slack_s=0.4)                                       # for the pipeline: not spent here
    assert got.opens


def test_the_slack_of_a_pass_is_that_of_its_first_all_to_all():
    kinds, slack = (PADDING, DENSE, MOE, SWITCHED, DENSE), (0.1, 0.2, 0.3, 0.4, 0.5)
    for backward in (False, True):
        assert_pass(run(kinds, 0.0, backward=backward, slack=slack), slack_s=0.3)
    assert_pass(run((DENSE, DENSE), 7.0, backward=True, slack=0.5), slack_s=0, paid_s=0)


def test_without_cover_the_whole_delay_is_paid():
    none = Compute(*(jnp.zeros(()) for _ in range(4)))
    got = run_pass(none, blocks(SWITCHED, SWITCHED), jnp.asarray(True), jnp.asarray(7.0))
    assert_pass(got, paid_s=7, duration_s=8.5, tail_s=0)


@pytest.mark.parametrize(("delay", "paid"), [(10.0, 0.0), (20.0, 0.0), (24.0, 4.0)])
def test_dense_blocks_between_cover_the_switch(delay, paid):
    # Backward: 5 s behind the first block, then a dense block of 10 + 4 + 1 = 15 s: 20 s of cover.
    got = run((SWITCHED, DENSE, SWITCHED), delay, backward=True)
    assert_pass(got, duration_s=2 * 11.75 + 15 + paid, compute_s=34, tp_s=3, exchange_s=1.5, paid_s=paid, tail_s=5)


def test_dense_blocks_before_and_behind():
    # Backward, dense first: 15 s until the first all-to-all, which only the pipeline can charge.
    got = run((DENSE, SWITCHED), 40.0, backward=True)
    assert_pass(got, duration_s=26.75, paid_s=0, head_s=15, tail_s=5)
    assert got.opens
    # Dense last, as the first blocks of a model are: they lengthen the tail to 5 + 15.
    got = run((MOE, DENSE), 40.0, backward=True)
    assert_pass(got, duration_s=26.75, paid_s=0, head_s=0, tail_s=20)
    assert not got.opens
    # Forward a dense block takes 2 + 5 + 1 = 8 s, and covers nothing.
    got = run((DENSE, SWITCHED, DENSE), 40.0, backward=False)
    assert_pass(got, duration_s=8 + 6.75 + 8 + 40, compute_s=19, tp_s=3, exchange_s=0.75, paid_s=40, tail_s=8)
    assert not got.opens


@pytest.mark.parametrize(("backward", "duration"), [(False, 16.0), (True, 30.0)])
def test_dense_blocks_alone_have_no_all_to_all(backward, duration):
    got = run((DENSE, DENSE), 40.0, backward=backward)
    assert_pass(got, duration_s=duration, exchange_s=0, paid_s=0)
    assert not got.opens
    assert not got.exchanges


@pytest.mark.parametrize("backward", [False, True])
def test_padding_changes_nothing(backward):
    kinds = (SWITCHED, DENSE, SWITCHED, MOE)
    want = run(kinds, 24.0, backward=backward, slack=0.25)
    padded = [(*kinds, PADDING, PADDING), (PADDING, *kinds), (SWITCHED, PADDING, DENSE, PADDING, SWITCHED, MOE)]
    for longer in padded:
        for field, value in want._asdict().items():
            got = run(longer, 24.0, backward=backward, slack=0.25)
            np.testing.assert_allclose(getattr(got, field), value, err_msg=field)
    empty = run((PADDING,) * 4, 24.0, backward=backward)
    assert_pass(empty, duration_s=0, compute_s=0, tp_s=0, exchange_s=0, paid_s=0)
    assert not empty.exchanges
    assert not empty.opens
