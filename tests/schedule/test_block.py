"""Single blocks by hand: what blocks, what is hidden, what is paid, what overlaps, what is computed again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.schedule.order import order
from mfabric_jax.schedule.timeline import Blocks, Compute, Rules, run

# Forward 2 s of attention, 3 s of experts, 5 s of a dense FFN, 1 s of tensor-parallel all-reduce. Backward computation
# takes twice that, its all-reduce the same: 4 + 1 = 5 s of attention lie behind each block's last all-to-all.
# Forward all-to-alls take 0.5 and 0.25 s on circuits: 3 + 0.5 + 3 + 0.25 = 6.75; backward 0.5 + 6 + 0.25 + 5 = 11.75.
COMPUTE = Compute(*(jnp.asarray(part) for part in (2.0, 3.0, 5.0, 1.0)))
MOST = 4
FORWARD, BACKWARD = 0, 1
DENSE, PADDING = {"moe": False}, {"present": False, "moe": False, "circuits": (100.0, 100.0), "switch": (True, True)}


def moe(*switch, circuits=(0.5, 0.25), packets=(0.0, 0.0), ahead=False):
    """A block with experts; `switch`: which of its all-to-alls (0, 1) want other circuits."""
    return {"switch": (0 in switch, 1 in switch), "circuits": circuits, "packets": packets, "ahead": ahead}


MOE, SWITCHED = moe(), moe(0)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _walk(blocks, delay_s, eps_waits, parts, recompute):
    return run(order("1f1b", 1, 1), blocks, COMPUTE, jnp.zeros(1), delay_s, Rules(eps_waits, parts, recompute))


def walk(forward, backward, delay, *, eps_waits=False, parts=1, recompute="none"):
    """A stage that runs one pass forward and one backward: slots [pass block], without the padding behind."""
    rows = [[*row, *[PADDING] * (MOST - len(row))] for row in (forward, backward)]

    def field(name, default):
        return jnp.asarray([[[one.get(name, default) for one in row] for row in rows]])

    blocks = Blocks(
        field("present", True),
        field("moe", True),
        field("circuits", (0.5, 0.25)),
        field("packets", (0.0, 0.0)),
        field("switch", (False, False)),
        jnp.asarray(field("ahead", False)).at[:, BACKWARD].set(True),
    )
    got = _walk(blocks, jnp.asarray(float(delay)), eps_waits, parts, recompute)
    return type(got)(*(np.asarray(x)[0] for x in got))


def sums(got, kind):
    """(duration, compute, all-reduce, all-to-alls, paid) of one pass."""
    parts = [part[kind].sum() for part in (got.compute_s, got.tp_s, got.exchange_s, got.paid_s)]
    duration = got.end[kind, -1] - got.begin[kind, 0]
    np.testing.assert_allclose(sum(parts), duration, rtol=1e-9)
    return [duration, *parts]


def assert_pass(got, kind, *, paid, **want):
    duration, *parts = sums(got, kind)
    np.testing.assert_allclose(parts[-1], paid, rtol=1e-9, atol=1e-12)
    named = dict(zip(("compute", "tp", "exchange"), parts, strict=False), duration=duration)
    for name, value in want.items():
        np.testing.assert_allclose(named[name], value, rtol=1e-9, err_msg=name)


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------------------------------------- first all-to-alls
def test_forward_waits_for_the_whole_delay_at_every_switch():
    for delay in (0.0, 7.0, 1000.0):
        got = walk((SWITCHED, MOE, SWITCHED), (), delay)
        assert_pass(got, FORWARD, duration=20.25 + 2 * delay, compute=15, tp=3, exchange=2.25, paid=2 * delay)
        # Gates at 3, 9.75 + d, 16.5 + d.
        close(got.turn[FORWARD, [0, 2], 0], [3, 16.5 + delay])
        close(got.active[FORWARD, :3, 0], [3 + delay, 3 + delay, 16.5 + 2 * delay])
        close(got.over[FORWARD, 0], [3.5 + delay, 6.75 + delay])
        close(got.inner[FORWARD, 0], [3.5 + delay, 6.5 + delay])


def test_forward_attention_hides_what_is_known_ahead():
    # 3 s of attention and all-reduce hide the second switch; the first of the iteration has had all the time there is.
    early = moe(0, ahead=True)
    for delay in (0.0, 2.0, 3.0, 7.0, 25.0):
        paid, got = max(delay - 3, 0), walk((early, early, MOE), (), delay)
        assert_pass(got, FORWARD, duration=20.25 + paid, compute=15, tp=3, exchange=2.25, paid=paid)
        close(got.turn[FORWARD, 1, 0], 6.75)
        close(got.paid_s[FORWARD, :3], [0, paid, 0])


def test_backward_attention_hides_the_switch_of_the_next_block():
    # 5 s of attention and all-reduce lie behind the block before. The switch for the first block has turned since the
    # forward pass was over, just now: it pays all.
    for delay in (0.0, 4.0, 5.0, 7.0, 25.0):
        paid, got = max(delay - 5, 0), walk((MOE,), (SWITCHED, SWITCHED, MOE), delay)
        assert_pass(got, BACKWARD, duration=35.25 + delay + paid, compute=30, tp=3, exchange=2.25, paid=delay + paid)
        close(got.turn[BACKWARD, :2, 0], [6.75, 6.75 + delay + 6.75])
        close(got.paid_s[BACKWARD, :3], [delay, paid, 0])


def test_experts_hide_the_switch_between_the_two():
    # 3 s of experts forward, 6 s backward, from the end of the first all-to-all on: 3.5, and 6.75 + forward + 0.5.
    for delay in (2.0, 5.0, 25.0):
        forward, backward = max(delay - 3, 0), max(delay - 6, 0)
        got = walk((moe(1),), (moe(1),), delay)
        assert_pass(got, FORWARD, duration=6.75 + forward, exchange=0.75, paid=forward)
        assert_pass(got, BACKWARD, duration=11.75 + backward, exchange=0.75, paid=backward)
        close(got.turn[:, 0, 1], [3.5, 7.25 + forward])
        close(got.active[:, 0, 1], got.turn[:, 0, 1] + delay)


# ------------------------------------------------------------------------------------------- a switch that is inactive
def test_a_dark_switch_is_waited_for_by_whoever_needs_circuits_next():
    # Delay 10. The first block tells the switch at 3 and sends nothing over circuits: it is over at 3 + 3. The second
    # wants no others, but those are inactive until 13: its gate is at 9, and it pays 4.
    nothing = moe(0, circuits=(0.0, 0.0))
    got = walk((nothing, MOE), (), 10.0)
    close(got.paid_s[FORWARD, :2], [0, 4])
    close(got.over[FORWARD, 1], [13.5, 16.75])
    # So does the second all-to-all of a block of which only that uses circuits: after the experts, at 6.
    got = walk((moe(0, circuits=(0.0, 0.25)),), (), 10.0)
    close(got.over[FORWARD, 0], [3, 13.25])
    close(got.paid_s[FORWARD, 0], 7)


def test_told_again_while_it_turns_it_starts_anew():
    # As before, but the second block wants others: told at 9 while it turns, inactive until 19. Known ahead it is told
    # when the first block is over, at 6: inactive until 16.
    nothing = moe(0, circuits=(0.0, 0.0))
    close(walk((nothing, SWITCHED), (), 10.0).over[FORWARD, 1, 0], 19.5)
    close(walk((nothing, moe(0, ahead=True)), (), 10.0).over[FORWARD, 1, 0], 16.5)
    # Over packets for 1 s, and others for the second all-to-all: from 4 on, until 14; the experts end at 7.
    got = walk((moe(0, 1, circuits=(0.0, 0.25), packets=(1.0, 0.0)),), (), 10.0)
    close(got.over[FORWARD, 0], [4, 14.25])


# -------------------------------------------------------------------------- packets that take longer than circuits
def test_forward_the_delay_runs_beside_the_packets():
    for delay, packet_s, paid in [
        (0.2, 0.8, 0.0),  # circuits 0.5 s, packets 0.8 s: [0.2, 0.7] lies within
        (0.3, 0.8, 0.0),  # just hidden
        (0.3, 0.5, 0.3),  # as if packets waited too
        (7.0, 0.8, 6.7),  # [7, 7.5] instead of 0.8
        (7.0, 0.9, 6.6),
    ]:
        # In the last block circuits stay, so that its packets take longer is of no use.
        packets = {"packets": (packet_s, 0.0)}
        got, exchange = walk((moe(0, **packets), moe(0, **packets), moe(**packets)), (), delay), 3 * (packet_s + 0.25)
        assert_pass(got, FORWARD, duration=18 + exchange + 2 * paid, compute=15, tp=3, exchange=exchange, paid=2 * paid)


# ------------------------------------------------------------------------------------------------------ dense blocks
def test_dense_blocks_between_cover_the_switch():
    # Backward: 5 s behind the first block, then a dense block of 10 + 4 + 1 = 15 s: 20 s of cover.
    for delay in (10.0, 20.0, 24.0):
        paid, got = max(delay - 20, 0), walk((), (MOE, DENSE, SWITCHED), delay)
        assert_pass(got, BACKWARD, duration=2 * 11.75 + 15 + paid, compute=34, tp=3, exchange=1.5, paid=paid)


def test_dense_blocks_before_and_behind():
    # Forward a dense block takes 2 + 5 + 1 = 8 s, and covers nothing; backward, first, its 15 s cover part.
    got = walk((DENSE, SWITCHED, DENSE), (DENSE, SWITCHED), 40.0)
    assert_pass(got, FORWARD, duration=8 + 6.75 + 8 + 40, compute=19, tp=3, exchange=0.75, paid=40)
    assert_pass(got, BACKWARD, duration=26.75 + 40 - 23, paid=40 - 8 - 15)
    # Alone they have no all-to-all, and a switch that nobody tells: switches of dense blocks mean nothing.
    dense = DENSE | {"switch": (True, True)}
    got = walk((dense, dense), (dense, dense), 40.0)
    assert_pass(got, FORWARD, duration=16, exchange=0, paid=0)
    assert_pass(got, BACKWARD, duration=30, exchange=0, paid=0)


# ----------------------------------------------------------------------------------------------- what runs once more
def test_a_block_computed_again():
    # Backward begins with the forward pass of the block: 2 + 1, dispatch 0.25 (that of the gradient, the last), experts
    # 3, combine 0.5; then its own 11.75. The 3 s hide the switch, which was told when the forward pass was over.
    for delay in (2.0, 3.0, 10.0):
        paid, got = max(delay - 3, 0), walk((MOE,), (SWITCHED,), delay, recompute="block")
        assert_pass(got, FORWARD, duration=6.75, paid=0)
        assert_pass(got, BACKWARD, duration=18.5 + paid, compute=15, tp=2, exchange=1.5, paid=paid)
        close(got.start[BACKWARD, 0], 6.75 + paid + np.array([6.75, 6.75 + 6.5]))
    # A dense one: 8 + 15.
    assert_pass(walk((), (DENSE,), delay, recompute="block"), BACKWARD, duration=23, compute=21, tp=2, paid=0)


# ------------------------------------------------------------------------------------------------- overlap in parts
def test_three_parts_by_hand():
    for circuits, experts, second, end in [
        # Gate at 3, experts 3 s, three parts. Dispatch 3 s: parts there at 4, 5, 6: experts [4, 5], [5, 6], [6, 7];
        # combine 3 s: [6, 7] (after all dispatches), [7, 8], [8, 9]: as if at a stretch from 6 on.
        ((3.0, 3.0), (4, 7), 6, 9),
        # Dispatch 0.3: experts [3.1, 6.1]; combine 0.3: [4.1, 4.2], [5.1, 5.2], [6.1, 6.2]: from 5.9 on.
        ((0.3, 0.3), (3.1, 6.1), 5.9, 6.2),
        # Dispatch 6 s: 5, 7, 9; experts [5, 6], [7, 8], [9, 10]; combine 6 s: from 9 on.
        ((6.0, 6.0), (5, 10), 9, 15),
        # Dispatch 6 s, combine 0.3 s: the last part from 10 on.
        ((6.0, 0.3), (5, 10), 9.8, 10.1),
        # Dispatch 0.3 s, combine 6 s: from 4.1 on.
        ((0.3, 6.0), (3.1, 6.1), 4.1, 10.1),
    ]:
        got = walk((moe(circuits=circuits),), (), 0.0, parts=3)
        close(got.inner[FORWARD, 0], experts)
        close(got.start[FORWARD, 0], [3, second])
        close(got.over[FORWARD, 0], [3 + circuits[0], end])
        assert_pass(got, FORWARD, duration=end, compute=5, tp=1, exchange=end - 6, paid=0)


def test_a_switch_between_overlapping_parts():
    # Told when the last dispatch is over, at 3.3: active at 5.3, in time, or at 8.3: 2.4 s after 5.9.
    for delay, paid in ((2.0, 0.0), (5.0, 2.4)):
        got = walk((moe(1, circuits=(0.3, 0.3)),), (), delay, parts=3)
        close(got.start[FORWARD, 0, 1], 5.9)
        close(got.active[FORWARD, 0, 1], 3.3 + delay)
        assert_pass(got, FORWARD, duration=6.2 + paid, exchange=0.2, paid=paid)
