"""Copies of a token between GPUs, beside all sets of experts that it may choose."""

import collections
import itertools
import math

import numpy as np
import pytest

from mfabric_jax.apps.serving.expert_load import busiest_over_mean, copies_of, group_chances, place_experts, slots_of
from mfabric_jax.traffic.dispatch import GroupLimit, even_reach_probabilities
from mfabric_jax.workload.catalog import get_model
from mfabric_jax.workload.models import DEEPSEEK_V3
from tests.mistakes import refused

SMALL = [  # experts, of which each token takes, of groups at most, GPUs, GPUs of a server
    (8, 2, (1, 1), 4, 2),
    (8, 3, (1, 1), 4, 1),
    (8, 3, (1, 1), 2, 2),
    (8, 2, (4, 2), 4, 2),
    (8, 3, (4, 2), 8, 2),
    (12, 3, (3, 1), 6, 3),
    (6, 6, (1, 1), 3, 1),
]


def model(experts, top_k, groups=(1, 1)):
    facts = {"experts": experts, "top_k": top_k, "expert_groups": groups[0], "top_groups": groups[1]}
    return get_model("deepseek-v3", facts).architecture


def choices(experts, top_k, groups):
    """All sets of experts that a token may choose."""
    of_group = experts // groups[0]
    return [s for s in itertools.combinations(range(experts), top_k) if len({e // of_group for e in s}) <= groups[1]]


def sent(chosen, gpu_of, per_server, rule, source):
    """The copies of one token of GPU `source`, as {(from, to): number}."""
    found = collections.Counter()
    if rule == "expert":
        found.update((source, gpu_of[e]) for e in chosen)
    elif rule == "gpu":
        found.update((source, gpu) for gpu in {gpu_of[e] for e in chosen})
    else:
        place = source % per_server
        for server in {gpu_of[e] // per_server for e in chosen}:
            there = server * per_server + place
            found[source, there] += 1
            found.update((there, gpu) for gpu in {gpu_of[e] for e in chosen} if gpu // per_server == server)
    return {pair: number for pair, number in found.items() if pair[0] != pair[1]}


def whole(copies, per_server):
    """All copies between two GPUs [N N], over network and NVLink."""
    (between,), (inside,) = copies.between.copy(), copies.inside
    for server, block in enumerate(inside):
        at = slice(server * per_server, (server + 1) * per_server)
        assert not between[at, at].any()
        between[at, at] = block
    return between


@pytest.mark.parametrize("rule", ["expert", "gpu", "server"])
@pytest.mark.parametrize(("experts", "top_k", "groups", "gpus", "per_server"), SMALL)
def test_copies_are_the_mean_over_all_choices(rule, experts, top_k, groups, gpus, per_server):
    load = place_experts(model(experts, top_k, groups), gpus, experts // gpus, None)
    every, expected = choices(experts, top_k, groups), np.zeros((gpus, gpus))
    gpu_of = [e // (experts // gpus) for e in range(experts)]
    for chosen in every:
        for source in range(gpus):
            for pair, number in sent(chosen, gpu_of, per_server, rule, source).items():
                expected[pair] += number / len(every)
    assert whole(copies_of(load, rule, per_server), per_server) == pytest.approx(expected, rel=1e-12)


def test_two_experts_on_one_gpu_are_two_copies_for_kernels_that_send_to_experts():
    load = place_experts(model(4, 4), 2, 2, None)  # every token goes to all 4 experts, 2 of them on each GPU
    copies = {rule: copies_of(load, rule, 1).between[0] for rule in ("expert", "gpu", "server")}
    assert copies["expert"].tolist() == [[0, 2], [2, 0]]
    assert copies["gpu"].tolist() == copies["server"].tolist() == [[0, 1], [1, 0]]
    assert copies_of(load, "expert", 1).rows.tolist() == [[2, 2]]


def test_rows_are_selections():
    load = place_experts(model(8, 3), 4, 2, None)
    for rule in ("expert", "gpu", "server"):
        assert copies_of(load, rule, 2).rows == pytest.approx(np.full((1, 4), 3 / 4))


# -------------------------------------------------------------------------------------------------- experts with copies
def test_a_copy_gets_its_part_of_an_experts_selections():
    """Shares 3, 1, 1, 1 of 2 choices: nobody takes an expert twice, so the first is always taken and the others get the
    rest, a third each. Six slots on three GPUs: two copies of the first, and one more of an other."""
    load = place_experts(model(4, 2), 3, 2, np.array([[9.0, 1.0, 1.0, 1.0]]))
    assert sorted(load.slot_chances[0].tolist()) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3])
    assert load.per_gpu().sum() == pytest.approx(2)
    plain = place_experts(model(4, 2), 2, 2, np.array([[9.0, 1.0, 1.0, 1.0]]), placed=False)
    assert plain.slot_chances[0] == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])
    assert plain.per_gpu()[0] == pytest.approx([4 / 3, 2 / 3])
    placed = place_experts(model(4, 2), 2, 2, np.array([[9.0, 1.0, 1.0, 1.0]]))
    assert placed.per_gpu()[0].max() == pytest.approx(
        4 / 3
    )  # an expert that all tokens take is not split without copies


UNEVEN_COPIES = [  # experts, of which each token takes, of groups at most, GPUs, slots of each, domains
    (6, 3, (1, 1), 4, 2, 1),
    (6, 3, (3, 2), 8, 1, 4),
    (8, 2, (4, 2), 5, 2, 1),
    (8, 3, (2, 1), 6, 2, 2),
    (4, 4, (2, 2), 3, 2, 1),
]


@pytest.mark.parametrize(("experts", "top_k", "groups", "gpus", "slots", "domains"), UNEVEN_COPIES)
def test_a_token_reaches_gpus_by_one_copy_of_each_of_its_experts(experts, top_k, groups, gpus, slots, domains):
    load = place_experts(model(experts, top_k, groups), gpus, slots, None, domains=domains)
    every, reached, rows = choices(experts, top_k, groups), np.zeros(gpus), np.zeros(gpus)
    held = [[slot // slots for slot, own in enumerate(load.expert[0]) if own == e] for e in range(experts)]
    assert min(map(len, held)) < max(map(len, held))  # some experts have more copies than others
    for chosen in every:
        each = list(itertools.product(*(held[e] for e in chosen)))
        for copies in each:
            reached[list(set(copies))] += 1 / len(each) / len(every)
            np.add.at(rows, list(copies), 1 / len(each) / len(every))
    assert group_chances(load, gpus)[0] == pytest.approx(reached, rel=1e-12)
    assert load.per_gpu()[0] == pytest.approx(rows, rel=1e-12)


@pytest.mark.parametrize(("gpus", "over"), [(320, 1.25), (72, 1.125), (256, 1), (64, 1), (128, 1), (192, 1.125)])
def test_even_experts_are_as_even_as_their_copies_allow(gpus, over):
    """DeepSeek-V3's 256 experts. 320 GPUs of one slot: a lone expert takes 1 / 256 of all, 320 / 256 of the mean. 72 of
    4: 224 experts alone and 64 halves leave a GPU with 4 whole ones, of 256 / 72 on average. 192 of 2: 128 alone, 256
    halves, 128 GPUs with one of each, of 4 / 3 on average."""
    load = place_experts(DEEPSEEK_V3, gpus, slots_of(DEEPSEEK_V3, gpus, None), None)
    assert busiest_over_mean(load) == pytest.approx(over, rel=1e-12)
    assert copies_of(load, "expert", 1).rows.max() * gpus / 8 == pytest.approx(over, rel=1e-12)
    assert copies_of(load, "expert", 1).between[0].sum(0).max() / (gpus - 1) * gpus / 8 == pytest.approx(over)


def test_slots_are_as_few_as_fill_gpus_or_as_many_as_are_asked():
    v3 = get_model("deepseek-v3").architecture
    assert [slots_of(v3, gpus, None) for gpus in (8, 72, 144, 320)] == [32, 4, 2, 1]
    assert slots_of(v3, 144, 32) == 2
    assert "32, 176, ..., got 33" in refused(slots_of, v3, 144, 33)


def test_copies_stay_in_the_groups_of_their_gate_where_servers_divide_them():
    """DeepSeek-V3 on 4 servers of 8 GPUs, 288 slots for 256 experts. A token's 8 experts lie in 4 of 8 groups at most;
    each server holds 2 groups with all their copies: as many servers are reached as without copies."""
    alone = group_chances(place_experts(DEEPSEEK_V3, 32, 9, None, domains=4), 4).sum()
    assert alone == pytest.approx(group_chances(place_experts(DEEPSEEK_V3, 32, 8, None, domains=4), 4).sum(), rel=1e-12)
    assert alone == pytest.approx(sum(even_reach_probabilities(256, 8, 4, GroupLimit(8, 4))), rel=1e-12)
    apart = group_chances(
        place_experts(DEEPSEEK_V3, 33, 8, None, domains=3), 3
    ).sum()  # 3 servers do not divide 8 groups
    assert alone < 4 * (1 - math.comb(192, 8) / math.comb(256, 8))
    assert apart > 0.9 * 3


def test_groups_that_leave_no_room_for_a_token_are_refused():
    assert "model.expert_groups must divide the 8 experts, got 3" in refused(
        place_experts, model(8, 2, (3, 2)), 4, 2, None
    )
    assert "model.top_groups must leave a token room" in refused(place_experts, model(8, 3, (4, 1)), 4, 2, None)
