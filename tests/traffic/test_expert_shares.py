"""Draws from the measured tables: the tables themselves, their mapping to models, and repeatability."""

import numpy as np
import pytest

from mfabric_jax.traffic import measured
from mfabric_jax.traffic.expert_shares import _tables, shares_of_others
from mfabric_jax.traffic.popularity import Purpose, stream
from mfabric_jax.workload import NAMES, get
from tests.mistakes import refused

SMALL = {"blocks": 4, "pp": 1, "dp": 1}


def shares(count):
    return count / count.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def source(shared_data):
    path = shared_data / "olmoe_routing" / "olmoe_mixtral_expert_counts.npz"
    with np.load(path) as arrays:
        return {"olmoe": arrays["olmoe_topk"], "mixtral": arrays["mistral_topk"]}


def test_carried_tables_are_the_published_ones(source):
    for name in ("olmoe", "mixtral"):
        np.testing.assert_allclose(_tables()[name], shares(source[name]), rtol=1e-15)


def test_every_rank_sends_its_selections():
    for name in NAMES:
        workload = get(name)
        count = measured(workload, micro_batches=1).count
        assert count.shape == (1, workload.moe_layers, 1, workload.ep, workload.architecture.experts)
        np.testing.assert_array_equal(count.sum(axis=-1), workload.selections)


def table_of(source, workload):
    """Oracle: [5, 3, E] by loops, before any permutation."""
    experts = workload.architecture.experts
    counts = source["mixtral" if "mixtral" in workload.model else "olmoe"]
    table = np.zeros((*counts.shape[:2], experts))
    for domain in range(5):
        for slot in range(3):
            for e in range(max(experts, counts.shape[2])):
                table[domain, slot, min(e, e * experts // counts.shape[2])] += counts[domain, slot, e % counts.shape[2]]
    return shares(table)


def test_shares_are_the_table_s_by_slot_domain_and_a_permutation_per_layer(source):
    for name in ("mixtral-8x7b", "llama-moe", "qwen-moe", "deepseek-r1"):
        workload = get(name)
        count = measured(workload, micro_batches=16, drift=0).count[0].sum(axis=1)
        table, drawn = table_of(source, workload), shares(count)
        # Sampling: 16 x selections draws, so a share p has standard deviation sqrt(p / (16 selections)).
        noise = np.sqrt(table.max() / (16 * workload.selections))
        last = workload.moe_layers - 1
        for depth, slot in [(0, 0), (0.2, 0), (0.3, 1), (0.7, 1), (0.8, 2), (1, 2)]:  # 2 x depth, rounded
            layer = round(depth * last)
            for rank in (0, 4, 5, workload.ep - 1):
                expected = np.sort(table[rank % 5, slot])
                np.testing.assert_allclose(np.sort(drawn[layer, rank]), expected, atol=8 * noise)
        # One permutation serves all source ranks of a layer: ranks 0 and 5 read the same domain, expert by expert.
        np.testing.assert_allclose(drawn[:, 0], drawn[:, 5], atol=10 * noise)
        assert np.abs(drawn[:, 0] - drawn[:, 3]).max() > 10 * noise  # and rank 3 another domain


def test_what_is_drawn_for_different_purposes_is_independent():
    draws = [stream(0, purpose, layer=1, iteration=1).standard_normal(1000) for purpose in Purpose]
    np.testing.assert_allclose(np.corrcoef(draws), np.eye(len(Purpose)), atol=0.15)


def test_same_seed_same_draw_however_long_the_run():
    workload = get("qwen-moe", **SMALL, gpus=32)
    short, long = measured(workload, 2, micro_batches=2, seed=7), measured(workload, 5, micro_batches=3, seed=7)
    np.testing.assert_array_equal(short.count, long.count[:2, :, :2])
    assert np.any(short.count != measured(workload, 2, micro_batches=2, seed=8).count)
    many = measured(get("llama-moe"), drift=0).count[0].sum(axis=(1, 2))
    assert len({int(expert) for expert in many.argmax(axis=-1)}) > 4  # every layer is permuted in its own way


def test_drift_moves_popularity_by_its_standard_deviation():
    workload = get("qwen-moe", **SMALL, gpus=32, micro_batch=1024)
    load = measured(workload, 40, micro_batches=1, drift=0.1).count.sum(axis=(2, 3))
    step = np.diff(np.log(load), axis=0)
    step -= step.mean(axis=-1, keepdims=True)  # normalisation shifts all experts of a layer together
    assert step.std() == pytest.approx(0.1, rel=0.05)
    still = np.diff(np.log(measured(workload, 5, micro_batches=1, drift=0).count.sum(axis=(2, 3))), axis=0)
    assert still.std() < 0.005


def test_any_number_of_experts_has_shares():
    # Of 3 experts on a line, the more popular first, 2 get one and a half each, 4 three quarters.
    table = np.array([[[0.2, 0.5, 0.3]]])
    np.testing.assert_allclose(shares_of_others(table, 2), [[[0.5 + 0.15, 0.15 + 0.2]]])
    np.testing.assert_allclose(shares_of_others(table, 4), [[[0.375, 0.125 + 0.15, 0.15 + 0.05, 0.15]]])
    two = np.array([[[0.1, 0.9]], [[0.8, 0.2]]])  # one order for all domains: the second is more popular
    np.testing.assert_allclose(shares_of_others(two, 4), [[[0.45, 0.45, 0.05, 0.05]], [[0.1, 0.1, 0.4, 0.4]]])
    for experts in (48, 60, 160):
        workload = get("llama-moe", **SMALL, ep=4, tp=2, experts=experts)
        tokens = measured(workload, micro_batches=1)
        assert tokens.count.shape[-1] == experts
        assert f"of 64 experts resampled to {experts}, drift" in tokens.source
        np.testing.assert_array_equal(tokens.count.sum(axis=-1), workload.selections)
    assert "resampled" not in measured(get("deepseek-r1", **SMALL, experts=384)).source


def test_the_first_iteration_does_not_drift_and_mistakes_are_named():
    workload = get("llama-moe", **SMALL, gpus=16)
    np.testing.assert_array_equal(measured(workload, drift=0.5).count, measured(workload, drift=0).count)
    for setting in ({"iterations": 0}, {"micro_batches": 0}, {"drift": -1.0}, {"seed": -1}):
        assert next(iter(setting)) in refused(measured, workload, **setting)
