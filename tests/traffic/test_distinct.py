"""How many servers a token reaches: against every choice that it has."""

import itertools
import math

import numpy as np
import pytest

from mfabric_jax.traffic.distinct import GroupLimit, evenly_reached, reached

SHAPES = [  # experts, top_k, servers, groups, most
    (8, 2, 4, 1, 1),
    (12, 4, 4, 4, 2),
    (12, 4, 2, 4, 2),  # two groups a server
    (12, 3, 6, 4, 2),  # a group and a half a server
]


def every_choice(weight, top_k, servers, limit, kept):
    """Oracle: all sets of experts. How often each expert is taken [E], and each server reached [S]."""
    experts, total = len(weight), 0.0
    taken, found = np.zeros(experts), np.zeros(servers)
    for chosen in itertools.combinations(range(experts), top_k):
        if len({expert // (experts // limit.groups) for expert in chosen}) > limit.most:
            continue
        chance = math.prod(weight[expert] for expert in chosen)
        total += chance
        taken[list(chosen)] += chance
        for server in range(servers):
            here = [expert for expert in chosen if expert // (experts // servers) == server]
            found[server] += chance * (1 - math.prod(1 - kept[expert] for expert in here))
    return taken / total, found / total


@pytest.mark.parametrize(("experts", "top_k", "servers", "groups", "most"), SHAPES)
def test_agrees_with_every_choice(experts, top_k, servers, groups, most):
    draw, limit = np.random.default_rng(0), GroupLimit(groups, most)
    weights, kept = np.exp(0.7 * draw.normal(size=(4, experts))), draw.random((4, experts))
    kept[0] = 1
    cases = [every_choice(w, top_k, servers, limit, part) for w, part in zip(weights, kept, strict=True)]
    taken, expected = (np.stack(part) for part in zip(*cases, strict=True))
    found, off = reached(taken, top_k, servers, limit, kept)
    assert off.max() < 1e-9  # every expert is taken as often as it was
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_even_counts_are_counted():
    # 8 of 256 on 8 servers: missed if all 8 are among the 224 others.
    assert evenly_reached(256, 8, 8) == pytest.approx([1 - math.comb(224, 8) / math.comb(256, 8)] * 8, rel=1e-12)
    for experts, top_k, servers, groups, most in SHAPES:
        limit = GroupLimit(groups, most)
        expected = every_choice(np.ones(experts), top_k, servers, limit, np.ones(experts))[1]
        assert evenly_reached(experts, top_k, servers, limit) == pytest.approx(expected, rel=1e-12)
        even = np.full((1, experts), top_k / experts)
        assert reached(even, top_k, servers, limit)[0][0] == pytest.approx(expected, rel=1e-9)


def test_an_expert_that_all_take_and_one_that_nobody_takes():
    # Two experts a server: the first server is reached by all, the second and third by 0.2 + 0.2, the last by nobody.
    taken = np.array([[1.0, 0.2, 0.2, 0.2, 0.2, 0.2, 0.0, 0.0]])
    assert reached(taken, 2, 4)[0][0] == pytest.approx([1, 0.4, 0.4, 0], abs=1e-12)
