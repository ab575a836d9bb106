"""Placement of experts: published examples, best placements by brute force, what moves, and where tokens go."""

import itertools

import numpy as np
import pytest

from mfabric_jax import traffic, workload
from mfabric_jax.evaluate.forecasts import iterations_before
from mfabric_jax.traffic import Tokens
from mfabric_jax.traffic.placement import (
    MORE,
    REGISTRY,
    SlotLayout,
    expert_moves,
    hierarchical,
    in_slots,
    longest_processing_time,
    placement_policy,
    replicas_by_slot,
    tokens_by_slot,
    with_circuits,
)

# The example of github.com/deepseek-ai/EPLB: 12 experts in 4 groups, 16 slots, 2 servers of 4 GPUs.
WEIGHT = [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]]

PUBLISHED = [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]]

EPLB = SlotLayout(ranks=8, ranks_per_server=4, slots=16, groups=4)


def test_the_published_example_of_eplb():
    assert [hierarchical(np.array([row]), EPLB).tolist() for row in WEIGHT] == PUBLISHED


def busiest(load, slots, ranks):
    """Most load on a rank, the load of an expert in equal parts over its copies."""
    share = [load[expert] / slots.count(expert) for expert in slots]
    each = len(slots) // ranks
    return max(sum(share[rank * each : rank * each + each]) for rank in range(ranks))


def test_longest_processing_time_is_near_the_best_of_all_placements():
    draw = np.random.default_rng(3)
    for _ in range(20):
        load = draw.lognormal(size=6).tolist()
        found = busiest(load, longest_processing_time(np.array([load]), SlotLayout(3, 1, 6, 6)).tolist(), 3)
        best = min(busiest(load, list(some), 3) for some in itertools.permutations(range(6)))
        assert best * (1 - 1e-12) <= found <= best * (4 / 3 - 1 / 9)


def test_copies_go_to_the_heaviest_and_groups_stay_on_a_server():
    heavy = np.array([[1.0, 1, 1, 9]])
    assert sorted(longest_processing_time(heavy, SlotLayout(2, 1, 6, 4)).tolist()) == [0, 1, 2, 3, 3, 3]
    draw = np.random.default_rng(0).lognormal(size=(4, 16))
    slots = hierarchical(draw, SlotLayout(4, 2, 16, 4)).reshape(2, 8)
    assert [len(set(some // 4)) for some in slots] == [2, 2]
    odd = SlotLayout(4, 2, 16, 1)  # one group on two servers: balanced over all ranks
    assert hierarchical(draw, odd).tolist() == longest_processing_time(draw, odd).tolist()


@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "contiguous"])
def test_slots_hold_every_expert_and_what_it_gets(name):
    count = np.random.default_rng(1).integers(0, 50, (3, 2, 2, 4, 8))
    tokens = Tokens(count, "drawn", count[0] + 1)
    layout = SlotLayout(4, 2, 12, 8)
    found = tokens_by_slot(tokens, layout, placement_policy(name), every=2)
    for i, layer in np.ndindex(3, 2):
        slots = found.slots[i, layer].tolist()
        assert sorted(set(slots)) == list(range(8))
        plain = [[[row[e] / slots.count(e) for e in slots] for row in rows] for rows in count[i, layer].tolist()]
        np.testing.assert_allclose(found.count[i, layer], plain, rtol=1e-12)
    # iterations 0 and 1 are placed on the one before the first, 2 on 1
    seen = [tokens.before, count[1]]
    for served, loads in zip((0, 2), seen, strict=True):
        own = [placement_policy(name)(loads[layer].sum(axis=0), layout) for layer in range(2)]
        np.testing.assert_array_equal(found.slots[served], own)
    np.testing.assert_array_equal(found.slots[0], found.slots[1])
    before = np.stack([tokens.before, count[0], count[1]])
    np.testing.assert_array_equal(iterations_before(found), in_slots(before, found.slots))


def test_known_loads_windows_and_what_is_not_known():
    count = np.arange(2 * 8).reshape(2, 1, 1, 1, 8) % 5
    tokens, layout = Tokens(np.repeat(count, 2, axis=3), "counted"), SlotLayout(2, 1, 8, 8)
    policy = placement_policy("longest-processing-time")
    assert tokens_by_slot(tokens, layout, policy).slots[0, 0].tolist() == list(range(8))  # nothing is known
    now = tokens_by_slot(tokens, layout, policy, on="now").slots[0, 0]
    np.testing.assert_array_equal(now, policy(tokens.count[:, 0].sum(axis=(0, 1)), layout))
    wide = tokens_by_slot(tokens, layout, policy, every=1, window=5).slots[1, 0]
    np.testing.assert_array_equal(wide, policy(tokens.count[:1, 0].sum(axis=(0, 1)), layout))


def test_replicas_hold_the_same_experts():
    count = np.random.default_rng(7).integers(0, 50, (2, 2, 1, 4, 8, 2))
    replicas = [Tokens(count[..., at], "drawn", count[0, ..., at]) for at in range(2)]
    layout, policy = SlotLayout(4, 2, 8, 8), placement_policy("longest-processing-time")
    found = replicas_by_slot(replicas, layout, policy, every=1)
    both = tokens_by_slot(Tokens(count.sum(axis=-1), "both", count[0].sum(axis=-1)), layout, policy, every=1)
    for one, tokens in zip(found, replicas, strict=True):
        np.testing.assert_array_equal(one.slots, both.slots)
        np.testing.assert_array_equal(one.count, in_slots(tokens.count, both.slots))


def test_what_moves_by_hand():
    layout = SlotLayout(ranks=4, ranks_per_server=2, slots=8, groups=4)  # 4 experts; before: 00 11 22 33
    slots = np.array([[[0, 1, 1, 0, 2, 0, 3, 3]], [[0, 1, 1, 0, 2, 0, 3, 3]], [[1, 0, 2, 0, 2, 0, 3, 3]]])
    moved = expert_moves(slots, layout, every=2)
    first = np.zeros((4, 4))
    first[1, 0] = 1  # expert 1 to rank 0 from its neighbour, expert 0 to rank 1, and to rank 2 from elsewhere
    first[0, 1] = first[0, 2] = 1
    np.testing.assert_array_equal(moved[0, 0], first / 2)
    np.testing.assert_array_equal(moved[1, 0], first / 2)
    then = np.zeros((4, 4))
    then[2, 1] = 1  # only expert 2 is new on a rank: places within a rank do not count
    np.testing.assert_array_equal(moved[2, 0], then / 2)


def ports(rows, slots, layout):
    """What the busiest server sends or receives, plainly."""
    each, side = layout.slots // layout.servers, layout.ranks_per_server
    sent, received = [0.0] * layout.servers, [0.0] * layout.servers
    for source, row in enumerate(rows):
        for slot, expert in enumerate(slots):
            a, b = source // side, slot // each
            if a != b:
                sent[a] += row[expert] / slots.count(expert)
                received[b] += row[expert] / slots.count(expert)
    return max(sent + received)


def test_with_circuits_the_busiest_server_has_less_to_carry():
    draw, over = np.random.default_rng(5), []
    layout = SlotLayout(ranks=3, ranks_per_server=1, slots=6, groups=6)
    for _ in range(12):
        rows = draw.lognormal(size=(3, 6))
        load = rows.sum(axis=0).tolist()
        start, found = (policy(rows, layout).tolist() for policy in (hierarchical, with_circuits))
        most = MORE * busiest(load, start, 3)
        assert busiest(load, found, 3) <= most * (1 + 1e-9)
        legal = [list(some) for some in itertools.permutations(range(6)) if busiest(load, list(some), 3) <= most]
        best = min(ports(rows.tolist(), some, layout) for some in legal)
        assert best * (1 - 1e-9) <= ports(rows.tolist(), found, layout) <= ports(rows.tolist(), start, layout)
        over.append((ports(rows.tolist(), found, layout) / best, ports(rows.tolist(), start, layout) / best))
    found, start = np.mean(over, axis=0)
    assert found < 1.1 < start
    assert with_circuits(rows, SlotLayout(3, 3, 6, 6)).tolist() == hierarchical(rows, SlotLayout(3, 3, 6, 6)).tolist()


def test_longest_processing_time_levels_measured_loads_of_deepseek_r1():
    """The figures of docs/placement.md, on the traffic that compare draws by default, means of all blocks."""
    job = workload.get("deepseek-r1")
    tokens = traffic.measured_tokens(job, iterations=2, micro_batches=1, drift=0.05, seed=0)
    layout = SlotLayout(job.ep, job.ranks_per_server, 256, 256)
    first, lpt = Tokens(tokens.count[:1], "first"), placement_policy("longest-processing-time")
    known = tokens_by_slot(first, layout, lpt, on="now")
    past = tokens_by_slot(tokens.after_the_first(), layout, lpt)
    loads = [float(one.rank_load_over_mean(job.ep).mean()) for one in (first, known, past)]
    np.testing.assert_allclose(loads, [1.67, 1.12, 1.16], atol=0.01)
