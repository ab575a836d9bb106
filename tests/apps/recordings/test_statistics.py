"""Statistics of a recording: by hand, and against the numbers published beside the recordings."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from mfabric_jax.apps.recordings import fit, statistics
from mfabric_jax.apps.recordings.fitting import TrafficFit
from mfabric_jax.traffic import Knobs, Recording, Tokens, open_trace
from mfabric_jax.traffic.generator import TrafficShape, draw
from mfabric_jax.traffic.recording import Sources, Targets
from mfabric_jax.traffic.tokens import max_over_mean


def recording(count, sources=Sources.RANKS, targets=Targets.EXPERTS, number=None):
    """From [iteration layer micro_batch source target]."""
    count = np.asarray(count)
    number = np.arange(len(count)) if number is None else np.asarray(number)
    return Recording(count, number, "run", "made up", sources=sources, targets=targets, experts=count.shape[-1])


def some(shape=(4, 3, 2, 4, 8)):
    return np.random.default_rng(0).integers(0, 9, shape)


# -------------------------------------------------------------------------------------------------------------- by hand
def test_loads_rows_and_ranks():
    assert max_over_mean(np.array([[1.0, 2, 3, 6], [5, 5, 5, 5], [0, 0, 0, 0]])).tolist() == [2, 1, 1]
    count = some().astype(np.int8) + np.int8(100)  # two of them overflow 8 bits
    np.testing.assert_array_equal(statistics.source_rows(count), count[:, :, 0].astype(int) + count[:, :, 1])
    rows = np.arange(16.0).reshape(2, 8)
    assert statistics.rank_matrix(rows).tolist() == [[0 + 1 + 2 + 3, 4 + 5 + 6 + 7], [8 + 9 + 10 + 11, 54]]
    assert statistics.rank_matrix(rows, 1).tolist() == [[120]]


def test_pairs_and_what_stays_in_a_server():
    assert statistics.pair_traffic(np.arange(9).reshape(3, 3)).tolist() == [1, 2, 3, 5, 6, 7]
    traffic = np.array([1.0, 0, 4, 0, 0, 0, 0, 0, 0, 5])
    for part, want in ((0.1, 0.5), (0.2, 0.9)):
        np.testing.assert_allclose(statistics.top_share(traffic, part), want, rtol=1e-15)
    np.testing.assert_allclose(statistics.top_share(np.ones(56), 0.1), 6 / 56, rtol=1e-15)  # 5.6 pairs are 6
    np.testing.assert_allclose(statistics.top_share(np.ones(56), 0.2), 11 / 56, rtol=1e-15)  # 11.2 are 11
    assert np.isnan(statistics.top_share(np.zeros(10), 0.1))
    matrix, inside = np.arange(16.0).reshape(4, 4), (0 + 1 + 4 + 5) + (10 + 11 + 14 + 15)
    for per_server, want in ((1, 0 + 5 + 10 + 15), (2, inside), (4, 120)):
        np.testing.assert_allclose(statistics.locality(matrix, per_server), want / 120, rtol=1e-15)


def test_gini_is_half_the_mean_difference_over_the_mean():
    traffic = some((3, 12)).astype(float)
    for row, got in zip(traffic, statistics.gini(traffic), strict=True):
        np.testing.assert_allclose(got, np.abs(row[:, None] - row).mean() / 2 / row.mean(), rtol=1e-12)
    np.testing.assert_allclose(statistics.gini(np.array([[1.0, 1, 1], [0, 0, 1]])), [0, 2 / 3], atol=1e-15)


def test_source_rows_off_their_mean_and_by_chance():
    got, chance = statistics.source_variation(np.array([[4.0, 0], [2, 2], [0, 8]]))
    # Shares (1, 0), (1/2, 1/2), (0, 1); their mean is (1/2, 1/2): off by 1/2, 0 and 1/2.
    np.testing.assert_allclose(got, 1 / 3, rtol=1e-15)
    each = [np.sqrt(2 / np.pi * 0.25 * (2 / 3) / n) for n in (4, 4, 8)]
    np.testing.assert_allclose(chance, np.mean(each), rtol=1e-15)
    rng = np.random.default_rng(1)
    share = rng.dirichlet(np.ones(32))
    got, chance = statistics.source_variation(rng.multinomial(4096, share, (200, 16)).astype(float))
    np.testing.assert_allclose(got.mean(), chance.mean(), rtol=0.01)


def test_loads_that_are_a_lag_apart():
    load = np.array([[1.0, 2, 3], [2, 4, 6], [3, 2, 1], [5, 5, 5]])
    np.testing.assert_allclose(statistics.correlation(load, 1)[:2], [1, -1], rtol=1e-12)
    assert np.isnan(statistics.correlation(load, 1)[2])  # even loads have no correlation
    np.testing.assert_allclose(statistics.correlation(load, 2)[0], -1, rtol=1e-12)
    np.testing.assert_allclose(statistics.variation(load, 1), [0, 1 / 3, 1 / 6], atol=1e-15)
    numpy_says = np.corrcoef(some((2, 9)))[0, 1]
    np.testing.assert_allclose(statistics.correlation(some((2, 9)).astype(float), 1), [numpy_says], rtol=1e-12)


# ---------------------------------------------------------------------------------------------------------- as a table
def test_a_row_for_every_iteration_and_layer():
    count = some()
    rows = statistics.statistics_by_layer(recording(count, number=[5, 6, 7, 9]), ranks_per_server=2)
    assert [(row["iteration"], row["layer"]) for row in rows] == [*itertools.product((5, 6, 7, 9), range(3))]
    for row, (i, layer) in zip(rows, np.ndindex(4, 3), strict=True):
        sent = count[i, layer].sum(axis=0)
        by_expert, matrix = sent.sum(axis=0), sent.reshape(4, 4, 2).sum(axis=2)
        by_rank = matrix.sum(axis=0)
        near = sum(sent[rank, 4 * (rank // 2) : 4 * (rank // 2) + 4].sum() for rank in range(4))
        off = sorted(matrix[a, b] for a, b in itertools.permutations(range(4), 2))
        want = {
            "selections": sent.sum(),
            "expert_max_over_mean": by_expert.max() / by_expert.mean(),
            "rank_max_over_mean": by_rank.max() / by_rank.mean(),
            "own_rank_share": np.trace(matrix) / sent.sum(),
            "server_share": near / sent.sum(),
            "top10_pairs_share": off[-1] / sum(off),
            "top20_pairs_share": sum(off[-2:]) / sum(off),
            "zero_pairs": off.count(0) / 12,
        }
        np.testing.assert_allclose([row[name] for name in want], [*want.values()], rtol=1e-12)


def test_what_a_recording_does_not_tell_is_none():
    def known(one, **options):
        row = statistics.statistics_by_layer(one, **options)[0]
        return {name for name in statistics.TITLES if row[name] is not None}

    pair = {"top10_pairs_share", "top20_pairs_share", "pairs_gini", "zero_pairs", "own_rank_share"}
    chance = {"source_variation", "source_variation_by_chance"}
    loads = {"expert_max_over_mean", "rank_max_over_mean"}
    single = some((2, 2, 1, 1, 8))
    assert known(recording(some())) == loads | pair | chance  # 4 ranks: one server of 8
    assert known(recording(some()), ranks_per_server=4) == loads | pair | chance | {"server_share"}
    assert known(recording(some((1, 1, 1, 16, 16)))) == loads | pair | chance | {"server_share"}
    assert known(recording(some(), targets=Targets.RANKS)) >= {"rank_max_over_mean"}
    assert known(recording(some(), Sources.DOMAINS)) == {"expert_max_over_mean"} | chance
    assert known(recording(single, Sources.UNKNOWN)) == {"expert_max_over_mean"}
    assert known(recording(single, Sources.UNKNOWN), ranks=4) == loads
    assert known(recording(single, Sources.UNKNOWN, Targets.RANKS)) == {"rank_max_over_mean"}
    assert known(recording(some((1, 1, 1, 3, 4)))) == {"expert_max_over_mean"} | chance  # 4 experts on 3 ranks
    assert known(recording(np.zeros((1, 1, 1, 2, 2)))) == loads | {"zero_pairs"}
    assert known(recording(np.ones((1, 1, 1, 1, 2)))) == loads | {"own_rank_share"}
    rows = statistics.statistics_by_layer(recording(some((40, 3, 1, 1, 8)), Sources.UNKNOWN))
    (summary,) = statistics.quantile_rows(rows)
    assert summary["statistic"] == "hottest expert / mean"
    values = [row["expert_max_over_mean"] for row in rows]
    np.testing.assert_allclose([summary[q] for q in ("p10", "median", "p90")], np.quantile(values, [0.1, 0.5, 0.9]))


def test_drift_over_the_lags_that_fit():
    count = some((7, 2, 1, 2, 8))
    rows = statistics.drift_rows(recording(count, number=np.arange(1, 71, 10)))
    assert [(row["records"], row["iterations"]) for row in rows] == [(1, 10), (2, 20), (5, 50)]
    load = count.sum(axis=(2, 3))
    by_hand = [np.corrcoef(load[i, layer], load[i + 5, layer])[0, 1] for i in (0, 1) for layer in (0, 1)]
    np.testing.assert_allclose(rows[2]["correlation"], np.mean(by_hand), rtol=1e-12)
    uneven = statistics.drift_rows(recording(count[:3], number=[1, 2, 9]))
    assert [(row["records"], row["iterations"]) for row in uneven] == [(1, None), (2, None)]
    assert statistics.drift_rows(recording(count[:1])) == []
    assert statistics.drift_rows(recording(np.ones((2, 1, 1, 1, 4))))[0]["correlation"] is None


def test_what_is_sent_from_where_to_where():
    count = some((2, 3, 2, 4, 8))
    rows, columns, matrix = statistics.selection_matrix(recording(count))
    assert (rows, columns, matrix.shape) == ("source rank", "destination rank", (3, 4, 4))
    np.testing.assert_array_equal(matrix[1, 2, 3], count[:, 1, :, 2, 6:].sum())
    assert statistics.selection_matrix(recording(count), 2)[2].shape == (3, 2, 2)
    rows, columns, matrix = statistics.selection_matrix(recording(count, Sources.DOMAINS))
    assert (rows, columns, matrix.shape) == ("text domain", "expert", (3, 4, 8))
    assert statistics.selection_matrix(recording(count[:, :, :, :1], Sources.UNKNOWN)) is None


# -------------------------------------------------------------------------------- against the numbers beside the traces
@pytest.fixture(scope="module")
def published(shared_data):
    return json.loads((shared_data / "trace_statistics.json").read_text())


@pytest.fixture(scope="module")
def gate_trace(shared_data):
    (one,) = open_trace(shared_data / "smartmoe_gate_trace")
    return one


def same(values, numbers):
    np.testing.assert_allclose(np.quantile(values, [0.1, 0.5, 0.9]), numbers, atol=6e-5)


def test_the_gate_trace(gate_trace, published):
    for period in ("iter_1", "iter_11_101", "iter_2011_5001"):
        want = published["smartmoe_gate_trace"][period]
        first, *last = map(int, period.split("_")[1:])
        one = gate_trace.select((first, last[0] if last else first))
        rows = statistics.source_rows(one.tokens().count)
        same(max_over_mean(rows.sum(axis=2)), want["expert_max_over_mean_p10_50_90"])
        for ranks in (8, 16):
            matrix = statistics.rank_matrix(rows, ranks)
            traffic, numbers = statistics.pair_traffic(matrix), want[f"EP{ranks}_pairs"]
            same(max_over_mean(matrix.sum(axis=2)), want[f"EP{ranks}_dst_rank_max_over_mean"])
            same(max_over_mean(traffic), numbers["max_over_mean_pair"])
            for percent in (10, 20, 50):
                same(statistics.top_share(traffic, percent / 100), numbers[f"top{percent}pct_pairs_share"])
            same(statistics.gini(traffic), numbers["gini"])
            np.testing.assert_allclose((traffic == 0).mean(), numbers["zero_pair_fraction"], atol=6e-5)
        got, chance = statistics.source_variation(rows)
        np.testing.assert_allclose(got.mean(), want["TV_source_rank_vs_mean"], atol=6e-5)
        np.testing.assert_allclose(chance.mean(), want["TV_multinomial_expectation"], atol=6e-5)


def test_drift_of_the_gate_trace(gate_trace, published):
    load = statistics.source_rows(gate_trace.tokens().count).sum(axis=2)
    start = gate_trace.number
    for lag, (name, period) in itertools.product(
        (1, 5, 10, 50, 100), {"start<500": (11, 500), "start_500_2000": (500, 2000), "start>2000": (2001, 9999)}.items()
    ):
        want = published["smartmoe_gate_trace"][f"lag_{10 * lag}_iters"][name]
        chosen = (start[:-lag] >= period[0]) & (start[:-lag] <= period[1])
        for got, number in ((statistics.correlation, "pearson_mean"), (statistics.variation, "TV_mean")):
            np.testing.assert_allclose(got(load, lag)[chosen].mean(), want[number], atol=6e-5)


def test_laer_loads(shared_data, published):
    for model in ("mixtral-8x7b-e8k2", "mixtral-8x7b-e16k4"):
        want = published["laer_moe_fsdp_static"][model]
        (one,) = open_trace(shared_data / "laer_moe" / model)
        ranks = one.count[:, :, :, 0].reshape(*one.count.shape[:2], 32)  # all replicas side by side
        quantiles = [0.1, 0.5, 0.9, 1]
        got = np.quantile(max_over_mean(ranks), quantiles)
        np.testing.assert_allclose(got, want["rank_max_over_mean_p10_50_90_max"], atol=6e-5)
        positions = [row["rank_max_over_mean"] for row in statistics.statistics_by_layer(one)]
        np.testing.assert_allclose(np.quantile(positions, quantiles), want["EP4_position_max_over_mean"], atol=6e-5)
        for lag in (1, 5):
            np.testing.assert_allclose(statistics.correlation(ranks, lag).mean(), want[f"lag{lag}_pearson"], atol=6e-5)
        np.testing.assert_allclose(statistics.variation(ranks, 1).mean(), want["lag1_TV"], atol=6e-5)


def test_olmoe_loads(shared_data, published):
    for model in ("olmoe", "mistral"):
        want = published["olmoe_routing"][model]
        (one,) = open_trace(shared_data / "olmoe_routing" / model)
        rows = statistics.source_rows(one.count)[0]  # [layer domain expert]
        pooled = [row["expert_max_over_mean"] for row in statistics.statistics_by_layer(one)]
        np.testing.assert_allclose(pooled, want["pooled_max_over_mean"], atol=6e-3)
        for domain, name in enumerate(want["domains"]):
            numbers = want["expert_max_over_mean_by_domain_and_layer"][name]
            np.testing.assert_allclose(max_over_mean(rows[:, domain]), numbers, atol=6e-3)
        off = np.mean([want["TV_domain_vs_pooled"][name] for name in want["domains"]], axis=0)
        np.testing.assert_allclose(
            [row["source_variation"] for row in statistics.statistics_by_layer(one)], off, atol=6e-4
        )


TRUTH = Knobs(
    popularity="log-normal",
    skew=1.2,
    layer_spread=0.3,
    row_noise=0.1,
    row_shared=0.5,
    micro_drift=0.05,
    drift=0.1,
    persistence=0.9,
    jitter=0.03,
    sampled=True,
)
SHAPE = TrafficShape(layers=16, micro_batches=2, ranks=4, experts=16, selections=20_000)


@pytest.fixture(scope="module")
def found() -> TrafficFit:
    return fit(Tokens(draw(SHAPE, TRUTH, 77, np.arange(40)), "made"))


def test_known_knobs_are_recovered(found):
    got = found.knobs
    assert got.popularity == "log-normal"
    assert got.sampled
    assert got.skew == pytest.approx(1.2, rel=0.1)
    assert got.layer_spread == pytest.approx(0.3, abs=0.1)
    assert got.row_noise == pytest.approx(0.1, rel=0.05)
    assert got.row_shared == pytest.approx(0.5, abs=0.05)
    assert got.micro_drift == pytest.approx(0.05, rel=0.1)
    assert got.drift_spread == pytest.approx(TRUTH.drift_spread, rel=0.5)
    assert got.sparsity == got.pair_sparsity == got.hot_share == 0


def test_the_statistics_agree(found):
    for row in found.rows():
        if not row["recorded"]:
            assert row["error"] is None
            continue
        assert row["error"] == pytest.approx(row["fitted"] / row["recorded"] - 1)
        if row["statistic"] in statistics.LAGGED.values():
            assert 1 - row["fitted"] == pytest.approx(1 - row["recorded"], rel=0.4), row
        else:
            assert abs(row["error"]) < (0.5 if "pairs" in row["statistic"] else 0.15), row  # few ranks: much luck
    assert list(found.recorded) == list(found.fitted)


def test_even_traffic_stays_even():
    got = fit(Tokens(np.full((1, 2, 1, 4, 8), 2.0), "even"))
    assert got.knobs == dataclasses.replace(got.knobs, row_noise=0, micro_drift=0, drift=0, jitter=0, sparsity=0)
    assert got.fitted[f"{statistics.LOAD}, median"] < 1.1
    assert got.recorded[f"{statistics.LOAD}, median"] == 1


def test_without_sources_load_and_drift_are_fitted():
    shape = TrafficShape(layers=8, micro_batches=2, ranks=1, experts=4, selections=50_000)
    count = draw(shape, Knobs(skew=0.5, layer_spread=0.3, micro_drift=0.1, sampled=True), 5, np.arange(4))
    recording = Recording(
        count, np.arange(4), "run", "made up", sources=Sources.UNKNOWN, targets=Targets.RANKS, experts=8
    )
    got = fit(recording)
    assert set(got.recorded) == {
        *(f"{of}, {name}" for of in (statistics.LOAD, statistics.LOAD_GINI) for name in statistics.QUANTILES),
        statistics.MICRO,
        statistics.MICRO_CHANCE,
        statistics.LAGGED[1],
    }
    assert got.knobs.row_noise == got.knobs.sparsity == 0
    assert got.knobs.micro_drift == pytest.approx(0.1, rel=0.1)
    for name, value in got.recorded.items():
        assert got.fitted[name] == pytest.approx(value, rel=0.25), name


def test_a_phase_is_seen():
    made = dataclasses.replace(TRUTH, drift=0.0, phase_start=2.0, phase_floor=1.0, half_life=5.0)
    count = draw(SHAPE._replace(layers=4, micro_batches=1), made, 7, np.arange(25))
    got = fit(Tokens(count, "made"), iterations=1).knobs
    assert got.phase_start / got.phase_floor == pytest.approx(2.0, rel=0.25)
    assert got.half_life == pytest.approx(5, rel=0.6)


# ------------------------------------------------------------------------------------------------------------- moments
def test_moments_by_hand():
    # Two ranks with one expert each; rank 0 sends 3 and 1, rank 1 sends 1 and 3, in both micro-batches; then nothing.
    one = np.array([[3, 1], [1, 3]])
    got = statistics.moments_of(np.stack([np.stack([one, one])[None], np.stack([one, one])[None] * 2]))
    assert got[f"{statistics.LOAD}, p90"] == 1
    assert got[f"{statistics.GINI}, median"] == got[statistics.ZERO] == got[statistics.MICRO] == 0
    assert got[statistics.ROWS] == got[statistics.ROWS_ONE] == 0.25
    assert statistics.LAGGED[1] not in got  # even loads have no correlation
    assert f"{statistics.TOPS[0.1]}, median" in got
    assert not [n for n in statistics.moments_of(one[None, None, None], pairs=False) if "pairs" in n]


# ----------------------------------------------------------------------------------------------------------------- real
@pytest.mark.slow
def test_a_real_recording_within_what_is_documented(shared_data):
    (whole,) = open_trace(shared_data / "smartmoe_gate_trace")
    chosen = whole.select((2011, 5001))
    every = np.arange(0, 300, 60)
    got = fit(dataclasses.replace(chosen, count=chosen.count[every], number=chosen.number[every]))
    published = json.loads((shared_data / "trace_statistics.json").read_text())["smartmoe_gate_trace"]
    wanted = published["iter_2011_5001"]
    for name, values, close in (
        (statistics.LOAD, wanted["expert_max_over_mean_p10_50_90"], 0.15),
        (statistics.TOPS[0.1], wanted["EP16_pairs"]["top10pct_pairs_share"], 0.2),
        (statistics.TOPS[0.2], wanted["EP16_pairs"]["top20pct_pairs_share"], 0.15),
        (statistics.GINI, wanted["EP16_pairs"]["gini"], 0.2),
    ):
        for quantile, value in zip(statistics.QUANTILES, values, strict=True):
            assert got.fitted[f"{name}, {quantile}"] == pytest.approx(value, rel=close), (name, quantile)
    assert got.fitted[statistics.ZERO] == pytest.approx(wanted["EP16_pairs"]["zero_pair_fraction"], abs=0.06)
    assert got.fitted[statistics.ROWS] == pytest.approx(wanted["TV_source_rank_vs_mean"], rel=0.1)
