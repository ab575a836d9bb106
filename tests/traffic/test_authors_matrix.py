"""The matrix that the authors' simulator carries, tiled over ranks."""

import json

import numpy as np

from mfabric_jax.traffic import authors
from mfabric_jax.traffic.expert_shares import MATRIX
from mfabric_jax.workload import get


def test_it_is_the_matrix_that_stands_there(shared_data):
    kept = json.loads((shared_data / "authors_matrix.json").read_text())
    np.testing.assert_array_equal(MATRIX, kept["matrix"])
    np.testing.assert_allclose(MATRIX.mean(axis=0) / 4096, kept["column_load_over_mean"], atol=0.006)


def test_every_rank_sends_its_selections():
    assert (MATRIX.sum(axis=1) == 8 * 4096).all()
    for model, ranks in (("mixtral-8x7b", 8), ("llama-moe", 16), ("qwen-moe", 32), ("deepseek-r1", 64)):
        job = get(model)
        tokens = authors(job, 2)
        experts = job.architecture.experts
        assert tokens.count.shape == (2, job.moe_layers, 1, ranks, experts)
        one = tokens.count[1, -1, 0]
        np.testing.assert_allclose(one.sum(axis=1), job.selections, rtol=1e-12)
        tiles = ranks // 8
        for source, expert in ((0, 0), (ranks - 1, experts - 1), (5, experts // 2 + 1)):
            rank = expert // (experts // ranks)
            part = MATRIX[source % 8, rank % 8] / 32768 / tiles / (experts // ranks)
            np.testing.assert_allclose(one[source, expert], job.selections * part, rtol=1e-12)
        np.testing.assert_allclose(tokens.rank_load_over_mean(ranks), MATRIX.sum(axis=0).max() / 32768, rtol=1e-12)


def test_fewer_ranks_take_its_corner():
    one = authors(get("mixtral-8x7b", ep=4, dp=16)).count[0, 0, 0]
    corner = MATRIX[:4, :4] / MATRIX[:4, :4].sum(axis=1, keepdims=True)
    shares = one.reshape(4, 4, 2).sum(axis=2) / one.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, corner, rtol=1e-12)
