"""Generated traffic: each knob does what it says, what has a name is what the name says, and power-law traffic."""

import dataclasses
import json

import numpy as np
import pytest

from mfabric_jax.traffic import Knobs, authors_tokens, from_knobs, generated_tokens, measured_tokens, workload_knobs
from mfabric_jax.traffic.dispatch import send_selections
from mfabric_jax.traffic.generator import MATRIX, Purpose, TrafficShape, draw, measured_shares, shares_of_others, stream
from mfabric_jax.traffic.knobs import POPULARITIES, WORKLOADS
from mfabric_jax.workload import Workload, get
from tests.mistakes import refused

from .jobs import job

BASE = Knobs(skew=1.0, row_noise=0.05, row_shared=1.0, micro_drift=0.05, drift=0.05, persistence=0.9, jitter=0.05)


def made(knobs, iterations=1, micro_batches=1, ep=4, experts=8, layers=2, seed=0, top_k=1):
    return from_knobs(job(ep, experts, layers, top_k), knobs, iterations, micro_batches, seed).count


# ------------------------------------------------------------------------------------------------------ one at a time
def test_power_law_and_log_normal_have_their_shares():
    count = made(Knobs(skew=1.0), layers=3)[0, :, 0, 0]
    assert len({tuple(np.argsort(layer)) for layer in count}) == 3  # each layer in its own order
    power = np.sort(count[0])[::-1] / 16
    np.testing.assert_allclose(power, 1 / np.arange(1, 9) / (1 / np.arange(1, 9)).sum(), rtol=1e-12)
    # The quantiles at 1/4 and 3/4 of a normal distribution are +-0.67449: two experts, 2 * 0.67449 apart.
    two = np.sort(made(Knobs(popularity="log-normal", skew=2.0), ep=2, experts=2)[0, 0, 0, 0])
    np.testing.assert_allclose(np.log(two[1] / two[0]), 2 * 2 * 0.6744897501960817, rtol=1e-9)
    count = made(Knobs(skew=1.0, layer_spread=0.3), layers=3)[0, :, 0, 0]
    skews = np.sort(np.log(count.max(axis=-1) / count.min(axis=-1)) / np.log(8))
    z = 0.967421566101701  # five sixths of a normal distribution lie below
    np.testing.assert_allclose(skews, np.exp([-0.3 * z, 0, 0.3 * z]), rtol=1e-9)


def test_no_expert_gets_more_than_distinct_allows():
    # Two different experts a token: of the shares 1, 1/4, 1/9, 1/16 over their sum the first is cut to 1/2, and the
    # others share 1/2 in their ratio; with three of four and a share of nearly 1, two are cut to 1/3.
    rest = 1 / np.arange(2.0, 5) ** 2
    got = np.sort(made(Knobs(skew=2.0, distinct=2), experts=4)[0, 0, 0, 0])[::-1]
    np.testing.assert_allclose(got / 16, [1 / 2, *(rest / rest.sum() / 2)], rtol=1e-12)
    got = np.sort(made(Knobs(skew=8.0, distinct=3), experts=4)[0, 0, 0, 0])[::-1]
    rest = 1 / np.arange(3.0, 5) ** 8
    np.testing.assert_allclose(got / 16, [1 / 3, 1 / 3, *(rest / rest.sum() / 3)], rtol=1e-12)
    count = made(Knobs(skew=4.0, distinct=2, row_noise=0.3))
    assert count.max() == pytest.approx(8.0, rel=1e-12)
    np.testing.assert_allclose(count.sum(axis=-1), 16, rtol=1e-12)


def test_sparsity_is_the_part_that_gets_nothing():
    count = made(Knobs(skew=1.0, sparsity=0.25, row_noise=0.2), iterations=2, micro_batches=2)
    empty = count.sum(axis=(0, 2, 3)) == 0
    assert empty.sum(axis=-1).tolist() == [2, 2]
    assert ((count == 0) == empty[None, :, None, None]).all()
    pairs = made(Knobs(pair_sparsity=0.5, sparsity=0.25), iterations=2, ep=8)
    assert ((pairs > 0).sum(axis=-1) == 3).all()
    np.testing.assert_array_equal(pairs[0] == 0, pairs[1] == 0)
    assert len({row.tobytes() for row in pairs[0, 0, 0] > 0}) > 1


SPREADS = {
    "skew": 20.0,
    "layer_spread": 20.0,
    "phase_start": 1e30,
    "phase_floor": 1e30,
    "half_life": 1e30,
} | dict.fromkeys(("row_noise", "micro_drift", "drift", "jitter"), 10.0)
PARTS = ("row_shared", "persistence", "hot_share")
WHOLE = {"distinct": (1, 4), "hot_experts": (0, 2), "rotation": (0, 2**31 - 1), "burst_every": (0, 3)}


def extreme_knobs(rng):
    """Knobs at the ends of what their checks allow, or inside."""
    values = {
        name: rng.choice([1e-12 if name == "half_life" else 0, most, rng.random()]) for name, most in SPREADS.items()
    }
    values |= {name: rng.choice([0, 1, 1 - 2**-53, rng.random()]) for name in PARTS}
    values |= {name: int(rng.choice(ends)) for name, ends in WHOLE.items()}
    values |= {name: rng.choice([0, rng.random() / 2]) for name in ("sparsity", "pair_sparsity")}
    values["hot_share"] *= values["hot_experts"] > 0
    return Knobs(popularity=str(rng.choice(POPULARITIES)), sampled=bool(rng.integers(2)), **values)


def grouped_job():
    """A job on four servers of two GPUs whose tokens take 4 of 32 experts, from two of four groups."""
    model = dataclasses.replace(job(8, 32, top_k=4).architecture, expert_groups=4, top_groups=2)
    sizes = {"gpus": 8, "gpus_per_server": 2, "sequence": 16, "micro_batch": 1}
    return Workload.of("grouped", model, 1, 1, 1, 8, dispatch="per-server", node_limit="model", **sizes)


@pytest.mark.filterwarnings("error")
def test_accepted_knobs_give_whole_rows_and_finite_copies():
    rng, workload = np.random.default_rng(0), grouped_job()
    for _ in range(150):
        knobs = extreme_knobs(rng)
        count = from_knobs(workload, knobs, iterations=2, micro_batches=2, seed=int(rng.integers(9))).count
        for dtype in (np.float32, np.float64):
            share = (count / workload.selections).astype(dtype)
            assert (share >= 0).all(), knobs
            np.testing.assert_allclose(share.sum(axis=-1), 1, rtol=16 * np.finfo(dtype).eps, err_msg=str(knobs))
        copies = send_selections(workload, count)[..., -4:]
        assert ((copies >= 0) & (copies <= 1.001 * workload.tokens)).all(), knobs


def test_an_expert_without_traffic_has_none_when_all_others_are_equal():
    count = made(Knobs(skew=1.0, sparsity=0.25, phase_start=0.0, phase_floor=0.0))
    assert ((count == 0).mean(axis=-1) == 0.25).all()


def test_rows_share_their_noise_between_micro_batches():
    assert (np.ptp(made(Knobs(row_noise=0.5, row_shared=1.0), 2, 3), axis=2) == 0).all()
    log = np.log(draw(TrafficShape(4, 2, 8, 16, 1), Knobs(row_noise=0.5, row_shared=0.3), 0, np.arange(50)))
    log -= log.mean(axis=-1, keepdims=True)
    assert log.std() == pytest.approx(0.5 * np.sqrt(15 / 16), rel=0.03)
    assert (log[:, :, 0] * log[:, :, 1]).mean() / log.var() == pytest.approx(0.3, abs=0.03)


def test_drift_keeps_its_spread_and_forgets():
    knobs = Knobs(drift=0.1, persistence=0.9)
    assert knobs.drift_spread == pytest.approx(0.1 / np.sqrt(1 - 0.81))
    log = np.log(draw(TrafficShape(60, 1, 1, 40, 1), knobs, 0, np.arange(41))[:, :, 0, 0])
    log -= log.mean(axis=-1, keepdims=True)
    for t in (0, 20, 40):
        assert log[t].std() == pytest.approx(knobs.drift_spread, rel=0.06)
    unit = log / np.linalg.norm(log, axis=-1, keepdims=True)
    for lag in (1, 10):
        assert (unit[lag:] * unit[:-lag]).sum(axis=-1).mean() == pytest.approx(0.9**lag, abs=0.03)
    assert (Knobs(drift=0.1).drift_spread, Knobs().drift_spread) == (np.inf, 0)
    walk = generated_tokens(job(ep=4, experts=8), iterations=3, drift=0.2).count
    np.testing.assert_array_equal(walk[0], 2)  # a random walk starts even
    assert walk[1].std() > 0.1
    np.testing.assert_array_equal(walk[2], np.broadcast_to(walk[2, :, :1, :1], walk[2].shape))


def test_imbalance_decays_to_its_floor():
    knobs = Knobs(skew=1.0, phase_start=2.0, phase_floor=0.5, half_life=3.0)
    count = made(knobs, iterations=31, layers=1)[:, 0, 0, 0]
    skew = np.log(count.max(axis=-1) / count.min(axis=-1)) / np.log(8)
    np.testing.assert_allclose(skew[[0, 3, 6]], [2, 1.25, 0.875], rtol=1e-12)
    assert skew[30] == pytest.approx(0.5, abs=2e-3)


# -------------------------------------------------------------------------------------------------------------- named


def test_hot_experts_and_ranks_take_half():
    count = made(workload_knobs("hot-experts"), layers=5)[0, :, 0, 0]
    for layer in count:  # 16 selections: 8 for two neighbours, 8 equally for all
        hot = np.flatnonzero(layer > 1)
        np.testing.assert_allclose(layer, np.where(np.isin(np.arange(8), hot), 5.0, 1.0), rtol=1e-12)
        assert len(hot) == 2
        assert np.diff(hot)[0] in (1, 7)
    spread = made(workload_knobs("spread-hot-experts"), layers=5)[0, :, 0, 0]
    assert all(np.diff(np.flatnonzero(layer > 1)).tolist() == [4] for layer in spread)
    count = made(workload_knobs("hot-rank"), 3, 2, layers=5)
    load = count.reshape(*count.shape[:4], 4, 2).sum(axis=-1)
    np.testing.assert_allclose(np.sort(load, axis=-1), np.broadcast_to([2.0, 2, 2, 10], load.shape), rtol=1e-12)
    assert (np.ptp(load, axis=(0, 2, 3)) < 1e-12).all()
    assert len(set(load[0, :, 0, 0].argmax(axis=-1).tolist())) > 1


def test_the_hot_spot_rotates_and_bursts_with_its_period():
    count = made(workload_knobs("rotating-hot-spot"), 17, layers=1)[:, 0, 0, 0]
    rank = count.reshape(-1, 4, 2).sum(axis=-1).argmax(axis=-1)
    np.testing.assert_array_equal(rank, (rank[0] + np.arange(17) // 4) % 4)
    spread = made(Knobs(hot_experts=2, hot_share=0.5, hot_spread=True, rotation=1), 3, layers=1)[:, 0, 0, 0]
    first = np.flatnonzero(spread[0] > 2)
    np.testing.assert_array_equal(np.flatnonzero(spread[1] > 2), np.sort((first + 1) % 8))
    peak = made(workload_knobs("burst"), 24).max(axis=(1, 2, 3, 4))
    np.testing.assert_allclose(peak, [5.0 if t % 8 == 7 else 2.0 for t in range(24)])
    peak = made(Knobs(hot_ranks=1, hot_share=0.5, burst_every=4, burst_length=3), 8).max(axis=(1, 2, 3, 4))
    np.testing.assert_allclose(peak, [2, 5, 5, 5, 2, 5, 5, 5])


def test_every_name_gives_whole_rows():
    for name in WORKLOADS:
        count = made(workload_knobs(name), 2, 2, layers=3, top_k=2)
        assert name != "balanced" or (count == 4).all()
        np.testing.assert_allclose(count.sum(axis=-1), 32, rtol=1e-12)
        if name.startswith("power-law"):
            weight = np.arange(1, 9) ** -float(name.removeprefix("power-law-"))
            np.testing.assert_allclose(count[0, :, 0, 0].max(axis=-1), 32 / weight.sum(), rtol=1e-12)
        if name == "empty-experts":
            assert ((count == 0).sum(axis=-1) == 2).all()


# ------------------------------------------------------------------------------------------------------------- streams
def test_the_same_however_long_the_run():
    hot = {"hot_experts": 1, "hot_share": 0.2, "rotation": 2, "phase_start": 1.5, "half_life": 2.0}
    sparse = {"layer_spread": 0.3, "sparsity": 0.2, "pair_sparsity": 0.1, "distinct": 2}
    knobs = dataclasses.replace(BASE, sampled=True, row_shared=0.5, **hot, **sparse)
    short = made(knobs, 2, 2, seed=5)
    np.testing.assert_array_equal(short, made(knobs, 4, 3, seed=5)[:2, :, :2])
    assert (short != made(knobs, 2, 2, seed=6)).any()
    assert short.dtype == np.int32
    assert (short.sum(axis=-1) == 16).all()
    at = draw(TrafficShape(2, 2, 4, 8, 16), knobs, 5, np.array([0, 3]))
    np.testing.assert_array_equal(at, made(knobs, 4, 2, seed=5)[[0, 3]])


def test_generated_is_a_case_of_the_knobs():
    workload, knobs = job(4, 8), Knobs(skew=0.8, row_noise=0.4, drift=0.1)
    tokens = generated_tokens(workload, 0.8, 3, 2, 7, 0.1)
    np.testing.assert_array_equal(tokens.count, from_knobs(workload, knobs, 3, 2, 7).count)
    assert tokens.source == "generated, skew 0.8, drift 0.1, seed 7"
    assert from_knobs(workload, knobs).source == "generated, skew 0.8, row_noise 0.4, drift 0.1, seed 0"
    assert from_knobs(workload, Knobs()).source == "generated, balanced, seed 0"


def test_knobs_are_written_and_read(tmp_path):
    for knobs in (BASE, *WORKLOADS.values()):
        assert Knobs.read(knobs.write(tmp_path / "made" / "knobs.json")) == knobs
    assert [p.name for p in (tmp_path / "made").iterdir()] == ["knobs.json"]
    file = tmp_path / "few.json"
    file.write_text('{"skew": 1.5}')
    assert Knobs.read(file) == Knobs(skew=1.5)
    assert "cannot write" in refused(Knobs().write, file / "knobs.json")


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
        np.testing.assert_allclose(measured_shares()[name], shares(source[name]), rtol=1e-15)


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
        count = measured_tokens(workload, micro_batches=16, drift=0).count[0].sum(axis=1)
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


def test_drift_moves_popularity_by_its_standard_deviation():
    workload = get("qwen-moe", **SMALL, gpus=32, micro_batch=1024)
    tokens = measured_tokens(workload, 40, micro_batches=1, drift=0.1)
    np.testing.assert_array_equal(tokens.count[0], measured_tokens(workload, 1, micro_batches=1, drift=0).count[0])
    load = tokens.count.sum(axis=(2, 3))
    step = np.diff(np.log(load), axis=0)
    step -= step.mean(axis=-1, keepdims=True)  # normalisation shifts all experts of a layer together
    assert step.std() == pytest.approx(0.1, rel=0.05)
    still = np.diff(np.log(measured_tokens(workload, 5, micro_batches=1, drift=0).count.sum(axis=(2, 3))), axis=0)
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
        tokens = measured_tokens(workload, micro_batches=1)
        assert tokens.count.shape[-1] == experts
        assert f"of 64 experts resampled to {experts}, drift" in tokens.source
        np.testing.assert_array_equal(tokens.count.sum(axis=-1), workload.selections)
    assert "resampled" not in measured_tokens(get("deepseek-r1", **SMALL, experts=384)).source


def test_it_is_the_matrix_that_stands_there(shared_data):
    kept = json.loads((shared_data / "authors_matrix.json").read_text())
    np.testing.assert_array_equal(MATRIX, kept["matrix"])
    np.testing.assert_allclose(MATRIX.mean(axis=0) / 4096, kept["column_load_over_mean"], atol=0.006)


def test_every_rank_sends_the_selections_of_the_matrix():
    assert (MATRIX.sum(axis=1) == 8 * 4096).all()
    for model, ranks, fewer in (
        ("llama-moe", 16, {}),
        ("deepseek-r1", 64, {}),
        ("mixtral-8x7b", 4, {"ep": 4, "dp": 16}),
    ):
        job = get(model, **fewer)
        one = authors_tokens(job, 2).count[1, -1, 0]
        to_ranks = one.reshape(ranks, ranks, -1)
        tiled = np.tile(MATRIX, (8, 8))[:ranks, :ranks].astype(float)
        np.testing.assert_allclose(to_ranks.sum(axis=2), job.selections * shares(tiled), rtol=1e-12)
        np.testing.assert_allclose(to_ranks, to_ranks[..., :1].repeat(to_ranks.shape[2], axis=2))
