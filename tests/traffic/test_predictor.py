"""Expert load predicted: the transition matrix against SLSQP and by hand; predictors on tiny histories."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.traffic import Tokens, predict_selections, predictor
from mfabric_jax.traffic.predictor import hit_rate, total_variation, transition

from ..oracles.transition import kkt_residual, objective, slsqp, squares

OBSERVATIONS = 10  # every drawn case is padded to these, with weight 0
fit = jax.jit(transition)


@st.composite
def cases(draw, experts):
    """x, y [k E] and weights: skewed, one-hot, constant, permuted or rounded shares, some without any load."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    k = draw(st.integers(1, OBSERVATIONS))
    x, y = (rng.dirichlet(np.full(experts, draw(st.sampled_from([0.05, 1.0, 50.0]))), k) for _ in range(2))
    kind = draw(st.sampled_from(["free", "permuted", "one-hot", "constant", "ties", "no load", "unused expert"]))
    if kind == "permuted":
        y = x[:, rng.permutation(experts)]
    elif kind == "one-hot":
        x, y = (np.eye(experts)[rng.integers(experts, size=k)] for _ in range(2))
    elif kind == "constant":
        x[:] = x[0]
    elif kind == "ties":
        x, y = (np.full_like(x, 1 / experts), np.round(4 * y) / 4)
    elif kind == "no load":
        x[0], y[-1] = 0, 0
    elif kind == "unused expert":
        x[:, 0], y[:, -1] = 0, 0
        x, y = (shares / np.where(shares.any(axis=1), shares.sum(axis=1), 1)[:, None] for shares in (x, y))
    weight = draw(st.sampled_from([1.0, 0.9, 0.1])) ** np.arange(k - 1.0, -1, -1)
    return x, y, weight * rng.choice([0, 1], size=k, p=[0.1, 0.9])


def padded(x, y, weight, dtype=np.float64):
    short = OBSERVATIONS - len(weight)
    ends = ((0, short), (0, 0)), ((0, short), (0, 0)), (0, short)
    return tuple(np.pad(values, end).astype(dtype) for values, end in zip((x, y, weight), ends, strict=True))


def assert_stochastic(matrix, atol):
    assert np.min(matrix) >= 0
    np.testing.assert_allclose(np.sum(matrix, axis=-2), 1, rtol=0, atol=atol)


@settings(max_examples=60)
@given(cases(4))
def test_no_worse_than_slsqp(case):
    x, y, weight = case
    matrix = np.asarray(fit(*padded(*case)))
    assert_stochastic(matrix, 1e-14)
    assert kkt_residual(matrix, x, y, weight) <= 1e-6
    excess = objective(matrix, x, y, weight) - slsqp(x, y, weight)[1]
    rounding = 1e-15 * squares(x, weight)  # of P x, however small y is
    assert excess <= 1e-8 * squares(y, weight) + rounding


@settings(max_examples=40)
@given(cases(6))
def test_in_float32(case):
    # 32 bits know slopes to about 1e-7, and what is lost adds up 36 products with them: at worst 3e-4 was seen.
    matrix = fit(*padded(*case, np.float32))
    assert matrix.dtype == jnp.float32
    assert_stochastic(matrix, 1e-6)
    excess = objective(np.asarray(matrix, np.float64), *case) - slsqp(*case)[1]
    assert excess <= 1e-3 * squares(case[1], case[2]) + 1e-12


def test_fits_by_hand():
    x = np.random.default_rng(0).dirichlet(np.ones(4), 12)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):  # a permutation of the experts
        np.testing.assert_allclose(transition(x, x[:, order], np.ones(12)), np.eye(4)[order], atol=1e-3)
    constant = [0.5, 0.3, 0.1, 0.1]  # whatever came before
    matrix = transition(x, np.tile(constant, (12, 1)), np.ones(12))
    np.testing.assert_allclose(matrix, np.tile(np.array(constant)[:, None], 4), atol=1e-3)
    # x = (1, 0) twice, y = (1, 0) and (0, 1) with weights 3 and 1: column 0 is their mean, column 1 is free.
    matrix = transition(np.array([[1.0, 0], [1, 0]]), np.eye(2), np.array([3.0, 1.0]))
    np.testing.assert_allclose(matrix, [[0.75, 0.5], [0.25, 0.5]], atol=1e-6)


def test_what_weighs_nothing_changes_nothing():
    rng = np.random.default_rng(1)
    x, y = rng.dirichlet(np.ones(4), (2, 6))
    weight = np.array([1.0, 0, 2, 0, 1, 1])
    other = np.where(weight[:, None] > 0, y, 1 - y)
    np.testing.assert_array_equal(fit(x, y, weight), fit(x, other, weight))
    np.testing.assert_allclose(fit(x, y, np.zeros(6)), 0.25, rtol=1e-15)
    np.testing.assert_allclose(fit(0 * x, 0 * y, weight), 0.25, rtol=1e-15)
    np.testing.assert_allclose(fit(x, y, weight), fit(x, y, 1e-6 * weight), atol=1e-6)


def test_batched_equals_looped():
    rng = np.random.default_rng(2)
    x, y = rng.dirichlet(np.ones(5), (2, 6, 7))
    weight = rng.uniform(size=(6, 7))
    looped = np.stack([transition(*given) for given in zip(x, y, weight, strict=True)])
    np.testing.assert_allclose(jax.vmap(transition)(x, y, weight), looped, atol=1e-9)
    np.testing.assert_allclose(jax.vmap(transition)(x[::-1], y[::-1], weight[::-1]), looped[::-1], atol=1e-9)


# Two layers, two experts: layer 1 mirrors layer 0.
PAST = np.array([[[1.0, 0], [0, 1]], [[0, 1], [1, 0]], [[3, 1], [1, 3]]])
NOW = np.array([[1.0, 3], [9, 9]])
HALF = [0.5, 0.5]


def test_predictors_by_hand():
    for name, fixed, layer_0, layer_1 in (
        ("uniform", {}, HALF, HALF),
        ("previous-iteration", {}, [0.75, 0.25], [0.25, 0.75]),
        ("previous-layer", {}, [0.75, 0.25], [0.25, 0.75]),  # layer 1: of NOW's layer 0
        ("transition", {}, [0.75, 0.25], [0.75, 0.25]),  # layer 1: NOW's layer 0, mirrored
        ("transition", {"window": 1, "decay": 0.5}, [0.75, 0.25], None),
        ("moving-average", {"decay": 1.0}, [1.75 / 3, 1.25 / 3], [1.25 / 3, 1.75 / 3]),
        ("moving-average", {"decay": 0.5}, [(0.25 + 0.75) / 1.75, 0.75 / 1.75], [0.75 / 1.75, 1 / 1.75]),
        ("moving-average", {"window": 2, "decay": 1.0}, [0.375, 0.625], [0.625, 0.375]),
    ):
        shares = predictor.get(name, **fixed)(PAST, NOW)
        np.testing.assert_allclose(shares[0], layer_0, atol=1e-12)
        if layer_1 is not None:
            np.testing.assert_allclose(shares[1], layer_1, atol=1e-3)


def test_a_decaying_fit_follows_what_came_last():
    # Layer 0 always sends all to expert 0; layer 1 went to expert 0 twice and then once to expert 1.
    past = np.zeros((3, 2, 2))
    past[:, 0, 0], past[:2, 1, 0], past[2, 1, 1] = 1, 1, 1
    for decay in (1.0, 0.1):
        last = 1 / sum(decay**age for age in range(3))
        shares = predictor.get("transition", decay=decay)(past, np.array([[1, 0], [0, 0]]))
        np.testing.assert_allclose(shares[1], [1 - last, last], atol=1e-4)


def test_without_history_or_load_shares_are_uniform():
    for name in predictor.REGISTRY:
        predict = predictor.get(name)
        nothing, idle = np.zeros((0, 2, 2)), np.zeros((2, 2))  # the shapes of PAST and NOW: the same programs
        np.testing.assert_allclose(predict(nothing, idle), 0.5)
        np.testing.assert_allclose(predict(nothing, np.eye(2))[0], 0.5)
        np.testing.assert_allclose(predict(np.zeros(PAST.shape), idle), 0.5)
        np.testing.assert_allclose(predict(np.ones((2, 1, 1)), np.ones((1, 1))), 1)
        np.testing.assert_allclose(predict(np.ones((2, 1, 3), np.int16), np.ones((1, 3), np.int16)), 1 / 3)


def test_an_iteration_without_load_is_no_observation():
    gap = np.insert(PAST, 2, 0, axis=0)
    for name in ("transition", "moving-average"):
        predict = predictor.get(name, decay=1.0, window=len(gap))
        with_gap, without = (predict(past, NOW) for past in (gap, PAST))
        np.testing.assert_allclose(with_gap, without, atol=1e-9)
    idle = np.array([[0, 0], [9, 9]])
    for name in ("transition", "previous-layer"):  # layer 0 ran empty: repeat
        np.testing.assert_allclose(predictor.get(name)(PAST, idle)[1], [0.25, 0.75])


SHAPE = (7, 4, 2, 3, 5)


def drawn(seed):
    return np.random.default_rng(seed).integers(0, 100, SHAPE)


def test_nothing_is_known_ahead():
    for name in predictor.REGISTRY:
        # All from layer 2 of iteration 4 on changes, and the other micro-batch; source ranks send as many as before.
        count, other = drawn(0), drawn(0)[..., ::-1].copy()
        other[:4], other[4, :2, 0] = count[:4], count[4, :2, 0]
        before, after = (predict_selections(Tokens(values, "drawn"), name, **short(name)) for values in (count, other))
        np.testing.assert_array_equal(after[:4], before[:4])
        np.testing.assert_array_equal(after[4, :3, 0], before[4, :3, 0])
        if name != "uniform":
            assert not np.allclose(after[5:, 1:], before[5:, 1:])


def short(name):
    return {"window": 3} if name in ("transition", "moving-average") else {}


def test_selections_are_those_of_the_predictor_call_by_call():
    for name in predictor.REGISTRY:
        count = drawn(1)
        got = predict_selections(Tokens(count, "drawn"), name, **short(name))
        assert got.shape == SHAPE
        np.testing.assert_allclose(got.sum(-1), count.sum(-1), rtol=1e-12)
        np.testing.assert_allclose(got[0], np.repeat(count[0].sum(-1, keepdims=True) / 5, 5, axis=-1), rtol=1e-12)
        for t, m in ((1, 1), (2, 0), (6, 1)):
            shares = predictor.get(name, **short(name))(count[:t].sum((2, 3)), count[t, :, m].sum(1))
            want = np.asarray(shares)[:, None, :] * count[t, :, m].sum(-1, keepdims=True)
            np.testing.assert_allclose(got[t, :, m], want, rtol=1e-6, atol=1e-4)


def test_hit_rate_by_hand():
    true = np.array([[5.0, 4, 3, 2], [1, 1, 1, 1]])
    guess = np.array([[4.0, 1, 5, 2], [0, 0, 0, 1]])
    np.testing.assert_array_equal(hit_rate(guess, true, 1), [0, 0])  # ties of truth: expert 0
    np.testing.assert_array_equal(hit_rate(guess, true, 2), [0.5, 0.5])  # {0, 2}, {0, 1}; {3, 0}, {0, 1}
    np.testing.assert_array_equal(hit_rate(guess, true, 3), [2 / 3, 2 / 3])
    np.testing.assert_array_equal(hit_rate(guess, true, 4), [1, 1])


def test_total_variation_by_hand():
    np.testing.assert_allclose(total_variation(np.array([3, 1]), np.array([1, 1])), 0.25)
    np.testing.assert_allclose(total_variation(np.array([[1.0, 0], [2, 2]]), np.array([[0.0, 5], [7, 7]])), [1, 0])
    np.testing.assert_allclose(total_variation(np.array([0.0, 0]), np.array([1.0, 0])), 0.5)


SIDE_BY_SIDE = """
import threading
import numpy as np
from mfabric_jax.traffic.predictor import get, predict_shares
load = np.random.default_rng(0).random((3, 4, 1, 24), np.float32)
threads = [threading.Thread(target=lambda: predict_shares(load, np.arange(3), get("transition"))) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_two_threads_that_predict_at_once_both_end():
    # Without a lock two programs of linear systems wait for each other forever on CPUs: killed after a minute.
    assert subprocess.run([sys.executable, "-c", SIDE_BY_SIDE], timeout=60, check=False).returncode == 0
