"""What ranks send: copies for servers, what NVSwitches carry on, what is dropped."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from mfabric_jax import traffic, workload
from mfabric_jax.traffic.dispatch import (
    GroupLimit,
    even_bytes,
    even_reach_probabilities,
    kept_share,
    reach_probabilities,
    send_selections,
)
from mfabric_jax.traffic.training import region_bytes

# 4 EP ranks on 2 servers, 2 experts a rank, 2 of 8 experts a token; a token is 2 bytes an element.
FACTS = {"dp": 1, "tp": 1, "pp": 1, "ep": 4, "gpus": 4, "gpus_per_server": 2, "sequence": 3, "micro_batch": 1}


def job_of(dispatch="per-server", **given):
    model = dataclasses.replace(workload.get("mixtral-8x7b").architecture, hidden=1, blocks=1)
    given = FACTS | {"dispatch": dispatch, "dispatch_bytes": 1, "combine_bytes": 1} | given
    return workload.Workload.of(model="small", architecture=model, **given)


CHOICES = [  # of every rank three tokens' two experts: servers are experts 0-3 and 4-7
    [(0, 1), (0, 4), (6, 7)],
    [(2, 3), (1, 2), (0, 3)],
    [(4, 0), (5, 1), (6, 2)],
    [(7, 6), (7, 5), (0, 7)],
]


def lines(path):
    """A router trace of one forward pass of every rank."""
    with path.open("w") as opened:
        for rank, chosen in enumerate(CHOICES):
            record = {"step": 0, "layer": 0, "rank": rank, "num_tokens": 3, "topk": 2, "top_indices": chosen}
            opened.write(json.dumps(record) + "\n")
    return path


def by_hand():
    """Oracle: every token by itself. Bytes [4 4] from rank to rank, place 0 of a server being its even rank."""
    sent = np.zeros((4, 4))
    for rank, tokens in enumerate(CHOICES):
        for chosen in tokens:
            for server in {expert // 4 for expert in chosen}:
                entry = 2 * server + rank % 2
                if server != rank // 2:
                    sent[rank, entry] += 1
                for expert in chosen:
                    if expert // 4 == server:
                        sent[entry, expert // 2] += 1
    return sent


def test_a_recording_with_choices_is_exact(tmp_path):
    job = job_of()
    tokens = traffic.recorded_tokens(job, lines(tmp_path / "trace.jsonl"))
    sent = traffic.sent_tokens(job, tokens)[0, 0, 0]
    np.testing.assert_array_equal(sent[:, 8:], [[2, 2], [3, 0], [3, 3], [1, 3]])
    np.testing.assert_allclose(traffic.dispatched_bytes(job, sent), by_hand(), rtol=0, atol=1e-12)
    more = dataclasses.replace(job, micro_batch=2)  # twice as many tokens that choose alike
    twice = traffic.sent_tokens(more, traffic.recorded_tokens(more, tmp_path / "trace.jsonl"))[0, 0, 0]
    np.testing.assert_allclose(twice, 2 * sent, rtol=1e-12)
    other = dataclasses.replace(tokens, count=tokens.count[..., ::-1])  # experts elsewhere: what was seen is void
    assert other.tokens_by_server(2) is None


def test_of_counts_alone_it_is_expected():
    # Even counts: 1 - C(4, 2) / C(8, 2) = 11/14 of tokens reach a server; an expert gets 3 x 2/8 tokens of a rank.
    job = job_of()
    sent = send_selections(job, np.full((1, 1, 4, 8), 0.75))[0, 0]
    np.testing.assert_allclose(sent[:, 8:], 3 * 11 / 14, rtol=1e-9)
    demand = traffic.dispatched_bytes(job, sent)
    np.testing.assert_allclose(demand[0], [2 * 2 * 0.75 * 2 / 2 * 2 / 2, 3, 3 * 11 / 14, 0], rtol=1e-9)
    np.testing.assert_allclose(demand, even_bytes(job, demand.dtype), rtol=1e-9)
    plain = traffic.dispatched_bytes(job_of("per-expert"), np.full((4, 8), 0.75))
    np.testing.assert_allclose(plain, 1.5)
    np.testing.assert_array_equal(plain, even_bytes(job_of("per-expert"), plain.dtype))


def test_rows_that_no_choice_gives():
    # All tokens want one expert twice, and nothing at all: a copy a token at most, never more than selections.
    job, count = job_of(), np.zeros((1, 1, 4, 8))
    count[..., 0, 5], count[..., 1, :3] = 6, (5, 0.5, 0.5)
    copies = send_selections(job, count)[0, 0, :, 8:]
    np.testing.assert_allclose(copies, [[0, 3], [3, 0], [0, 0], [0, 0]], atol=1e-9)


@pytest.mark.parametrize(
    ("row", "reached"),
    [
        # 4/9 even: the first server's expert gets 2/3, all selections of the second server 2/3 of a token's two
        ([1, 0.6, 0, 0, 0.2, 0.1, 0.1, 0], [2 / 3, 1 / 3]),
        ([1, 0, 0, 0, 1, 0, 0, 0], [1 / 2, 1 / 2]),  # 2/3 even
    ],
)
def test_rows_that_no_choice_within_a_limit_gives(row, reached):
    row, limit = np.array([row], float), GroupLimit(2, 1)
    found, off = reach_probabilities(row, 2, 2, limit, np.ones_like(row))
    assert 0.3 < off[0] <= 1
    np.testing.assert_allclose(found[0], reached, atol=1e-3)


def test_node_limit():
    job = job_of(node_limit=1)
    # Both experts on one server: a token reaches one of two, each as often.
    even = send_selections(job, np.full((1, 1, 4, 8), 0.75))[0, 0, :, 8:]
    np.testing.assert_allclose(even, 1.5, rtol=1e-9)
    facts = dataclasses.replace(job.architecture, expert_groups=4, top_groups=1)
    grouped = dataclasses.replace(job, architecture=facts, node_limit="model")
    np.testing.assert_allclose(send_selections(grouped, np.full((1, 1, 4, 8), 0.75))[0, 0, :, 8:], 1.5, rtol=1e-9)


def test_an_expert_drops_what_is_above_its_capacity():
    # 24 selections, 3 an expert on average, 6 at a factor of 2: expert 0 got 12, half of every rank's goes.
    count = np.zeros((1, 1, 4, 8))
    count[..., 0] = [6, 6, 0, 0]
    count[..., 0, 0, 1:4] = 0, 0, 0
    count[..., 2:, 2:8] = 1
    job = job_of("per-expert", capacity_factor=2.0)
    np.testing.assert_allclose(kept_share(job, count)[0, 0, 0], [0.5] + [1] * 7)
    sent = send_selections(job, count)
    np.testing.assert_allclose(sent[0, 0, :2, 0], 3)
    np.testing.assert_array_equal(sent[0, 0, :, 1:], count[0, 0, :, 1:])
    both = send_selections(dataclasses.replace(job, dispatch="per-server"), count)
    assert np.all(both[..., 8:] <= both[..., :8].reshape(1, 1, 4, 2, 4).sum(-1) + 1e-9)


def test_whole_cluster_sends_the_same():
    # One layer and micro-batch: dispatch, combine (transposed) and both gradients.
    job, count = job_of(), np.random.default_rng(0).dirichlet(np.full(8, 9.0), 4)[None, None, None] * 6
    one = np.asarray(traffic.dispatched_bytes(job, send_selections(job, count[0, 0, 0])))
    np.testing.assert_allclose(region_bytes(job, count)[0, 0], 2 * (one + one.T), rtol=1e-9)


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
    found, off = reach_probabilities(taken, top_k, servers, limit, kept)
    assert off.max() < 1e-9  # every expert is taken as often as it was
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_even_counts_are_counted():
    # 8 of 256 on 8 servers: missed if all 8 are among the 224 others.
    assert even_reach_probabilities(256, 8, 8, GroupLimit()) == pytest.approx(
        [1 - math.comb(224, 8) / math.comb(256, 8)] * 8, rel=1e-12
    )
    for experts, top_k, servers, groups, most in SHAPES:
        limit = GroupLimit(groups, most)
        expected = every_choice(np.ones(experts), top_k, servers, limit, np.ones(experts))[1]
        assert even_reach_probabilities(experts, top_k, servers, limit) == pytest.approx(expected, rel=1e-12)
        even = np.full((1, experts), top_k / experts)
        assert reach_probabilities(even, top_k, servers, limit, np.ones_like(even))[0][0] == pytest.approx(
            expected, rel=1e-9
        )


def test_an_expert_that_all_take_and_one_that_nobody_takes():
    # Two experts a server: the first server is reached by all, the second and third by 0.2 + 0.2, the last by nobody.
    taken = np.array([[1.0, 0.2, 0.2, 0.2, 0.2, 0.2, 0.0, 0.0]])
    assert reach_probabilities(taken, 2, 4, GroupLimit(), np.ones_like(taken))[0][0] == pytest.approx(
        [1, 0.4, 0.4, 0], abs=1e-12
    )
