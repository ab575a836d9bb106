"""The weight matrix of the mFabric simulator: written and read the same, and what it cannot say."""

import json

import numpy as np

from mfabric_jax.traffic import Recording, Tokens, open_trace, save_weight_matrix
from mfabric_jax.traffic.recording import Sources
from tests.mistakes import check_refused


def test_what_is_written_is_read_the_same(tmp_path):
    count = np.random.default_rng(0).integers(1, 1000, (2, 3, 2, 4, 8))
    path = save_weight_matrix(Tokens(count, "drawn"), tmp_path / "w.txt")
    (read,) = open_trace(path)
    sent = count.sum(axis=(0, 1, 2)).reshape(4, 4, 2).sum(axis=2)
    assert (read.count.sum(axis=-1) == 32768).all()
    np.testing.assert_allclose(read.count[0, 0, 0] / 32768, sent / sent.sum(axis=1, keepdims=True), atol=1 / 32768)
    save_weight_matrix(read, tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_text() == path.read_text()


def test_remainders_go_to_the_largest(tmp_path):
    # a third is 10922.67: two of three are rounded up; a half of a quarter is whole
    count = np.array([[1, 1, 1], [2, 1, 1], [0, 0, 5]]).reshape(1, 1, 1, 3, 3)
    save_weight_matrix(Tokens(count, "by hand"), tmp_path / "w.txt")
    wanted = [[10923, 10923, 10922], [16384, 8192, 8192], [0, 0, 32768]]
    assert json.loads((tmp_path / "w.txt").read_text()) == wanted


def test_what_it_cannot_say_is_refused(tmp_path):
    def save(shape, name="w.txt", value=1):
        save_weight_matrix(Tokens(np.full(shape, value), "made"), tmp_path / name)

    check_refused("saved as .txt, got", save, (1, 1, 1, 2, 2), "w.npz")
    check_refused("a multiple of the 2 source ranks for experts, got 3", save, (1, 1, 1, 2, 3))
    check_refused("rank 0 has none", save, (1, 1, 1, 2, 2), value=0)
    count = np.ones((1, 1, 1, 1, 8))
    loads = Recording(count, np.zeros(1, int), "loads.npz", "loads", sources=Sources.UNKNOWN)
    check_refused(
        "needs source ranks; loads.npz recorded all sources together", save_weight_matrix, loads, tmp_path / "w.txt"
    )
