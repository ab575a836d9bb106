"""Power-law traffic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfabric_jax.checks import InputError
from mfabric_jax.traffic import generated
from mfabric_jax.workload import get

from .jobs import job


def test_no_skew_is_exactly_balanced():
    workload = get("mixtral-8x7b")
    np.testing.assert_array_equal(generated(workload).count, workload.selections / 8)


@given(skew=st.floats(0, 2), seed=st.integers(0, 1000))
def test_rows_sum_to_the_selections(skew, seed):
    count = generated(job(ep=4, experts=8, top_k=2), skew, seed=seed).count
    np.testing.assert_allclose(count.sum(axis=-1), 32)


def test_mean_popularity_follows_the_power_law():
    # Over many rows the log-normal noise averages out of the logarithms; what is left is -skew log(rank).
    skew = 0.8
    count = generated(job(ep=8, experts=8, layers=3), skew, iterations=30, micro_batches=8, seed=3).count
    level = np.log(count).mean(axis=(0, 2, 3))  # [layer, expert]
    for layer in level:
        ordered = np.sort(layer)[::-1]
        np.testing.assert_allclose(ordered[0] - ordered, skew * np.log(np.arange(1, 9)), atol=0.06)
    residual = np.log(count) - level[None, :, None, None, :]
    residual -= residual.mean(axis=-1, keepdims=True)
    assert residual.std() == pytest.approx(0.5 * skew * np.sqrt(7 / 8), rel=0.02)
    assert len({tuple(np.argsort(layer)) for layer in level}) == 3


def test_same_seed_same_traffic_however_long_the_run():
    workload = job(ep=4, experts=8)
    short = generated(workload, 1.0, 2, micro_batches=2, seed=5, drift=0.1)
    long = generated(workload, 1.0, 4, micro_batches=3, seed=5, drift=0.1)
    np.testing.assert_array_equal(short.count, long.count[:2, :, :2])


def test_drift_alone_unbalances_later_iterations_only():
    count = generated(job(ep=4, experts=8), iterations=3, drift=0.2).count
    np.testing.assert_array_equal(count[0], 2)
    assert count[1].std() > 0.1
    np.testing.assert_array_equal(count[2], np.broadcast_to(count[2, :, :1, :1], count[2].shape))


@pytest.mark.parametrize("setting", [{"skew": -1.0}, {"iterations": 0}, {"micro_batches": 0}, {"seed": -1}])
def test_settings_out_of_range_are_named(setting):
    with pytest.raises(InputError, match=next(iter(setting))):
        generated(get("llama-moe"), **setting)
