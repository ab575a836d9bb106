"""Copies of a token between GPUs, beside all sets of experts that it may choose."""

import collections
import itertools
import math

import numpy as np
import pytest

from mfabric_jax.serving.loads import copies_of, loaded, reached_groups, slots_of
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
    load = loaded(model(experts, top_k, groups), gpus, experts // gpus, None)
    every, expected = choices(experts, top_k, groups), np.zeros((gpus, gpus))
    gpu_of = [e // (experts // gpus) for e in range(experts)]
    for chosen in every:
        for source in range(gpus):
            for pair, number in sent(chosen, gpu_of, per_server, rule, source).items():
                expected[pair] += number / len(every)
    assert whole(copies_of(load, rule, per_server), per_server) == pytest.approx(expected, rel=1e-12)


def test_two_experts_on_one_gpu_are_two_copies_for_kernels_that_send_to_experts():
    load = loaded(model(4, 4), 2, 2, None)  # every token goes to all 4 experts, 2 of them on each GPU
    copies = {rule: copies_of(load, rule, 1).between[0] for rule in ("expert", "gpu", "server")}
    assert copies["expert"].tolist() == [[0, 2], [2, 0]]
    assert copies["gpu"].tolist() == copies["server"].tolist() == [[0, 1], [1, 0]]
    assert copies_of(load, "expert", 1).rows.tolist() == [[2, 2]]


def test_rows_are_selections():
    load = loaded(model(8, 3), 4, 2, None)
    for rule in ("expert", "gpu", "server"):
        assert copies_of(load, rule, 2).rows == pytest.approx(np.full((1, 4), 3 / 4))


# -------------------------------------------------------------------------------------------------- experts with copies
def test_a_copy_gets_its_part_of_an_experts_selections():
    """Shares 3, 1, 1, 1 of 2 choices: nobody takes an expert twice, so the first is always taken and the others get the
    rest, a third each. Six slots on three GPUs: two copies of the first, and one more of an other."""
    load = loaded(model(4, 2), 3, 2, np.array([[9.0, 1.0, 1.0, 1.0]]))
    assert sorted(load.taken[0].tolist()) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3])
    assert load.per_gpu().sum() == pytest.approx(2)
    plain = loaded(model(4, 2), 2, 2, np.array([[9.0, 1.0, 1.0, 1.0]]), placed=False)
    assert plain.taken[0] == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])
    assert plain.per_gpu()[0] == pytest.approx([4 / 3, 2 / 3])
    placed = loaded(model(4, 2), 2, 2, np.array([[9.0, 1.0, 1.0, 1.0]]))
    assert placed.per_gpu()[0].max() == pytest.approx(
        4 / 3
    )  # an expert that all tokens take is not split without copies


def test_where_experts_have_copies_slots_stand_for_them():
    """A token never takes two copies of an expert; here slots are chosen one by one, which reaches few GPUs less."""
    load = loaded(model(6, 3), 6, 2, None)  # 12 slots: every expert has 2
    copy_of = list(range(6)) * 2
    gpu_of, reached = [slot // 2 for slot in range(12)], 0.0
    sets = list(itertools.combinations(range(6), 3))
    for chosen in sets:
        for which in itertools.product((0, 1), repeat=3):
            slots = [e + 6 * w for e, w in zip(chosen, which, strict=True)]
            assert [copy_of[slot] for slot in slots] == list(chosen)
            reached += len({gpu_of[slot] for slot in slots}) / len(sets) / 8
    assert reached_groups(load, 6).sum() == pytest.approx(reached, rel=0.03)


def test_slots_are_as_few_as_fill_gpus_or_as_many_as_are_asked():
    v3 = get_model("deepseek-v3").architecture
    assert [slots_of(v3, gpus, None) for gpus in (8, 72, 144, 320)] == [32, 4, 2, 1]
    assert slots_of(v3, 144, 32) == 2
    assert "32, 176, ..., got 33" in refused(slots_of, v3, 144, 33)


def test_copies_stay_in_the_groups_of_their_gate_where_servers_divide_them():
    """DeepSeek-V3 on 4 servers of 8 GPUs, 288 slots for 256 experts: 8 of 36 slots in each of 4 of 8 groups at most, so
    that a token reaches fewer servers than it would without groups."""
    alone = reached_groups(loaded(DEEPSEEK_V3, 32, 9, None, domains=4), 4).sum()
    apart = reached_groups(loaded(DEEPSEEK_V3, 32, 9, None, domains=3), 4).sum()  # 3 servers do not divide 8 groups
    without = 4 * (1 - math.comb(216, 8) / math.comb(288, 8))
    assert apart == pytest.approx(without, rel=1e-12)
    every = math.comb(8, 4)
    reached = 4 - 4 * math.comb(6, 4) / every  # if all four groups were always used
    assert 2.5 < alone < without
    assert alone == pytest.approx(reached, rel=0.06)
