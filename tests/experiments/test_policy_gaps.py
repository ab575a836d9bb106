"""Policies over the best circuits there are: rows say what direct calls say; how the figure looks was judged by eye."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.policy_gaps import BEST, FAMILIES, HEURISTICS, LOOKS, SCRIPT, Config, demand_of, run, summary
from mfabric_jax import all_to_all_time
from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import greedy
from mfabric_jax.routing import degree_bound, fluid_lower_bound
from tests.rows import column

SMALL = {"servers": (4,), "seeds": 1, "families": ("hot", "sparse"), "optical_degree": 3}


@pytest.fixture(scope="module")
def rows():
    return list(run(Config(**SMALL)))


def test_rows_equal_direct_calls_nothing_beats_the_bound_and_the_best_heuristic_is_the_better_one(rows):
    where = Config(**SMALL).region(4)
    assert len(rows) == 2 * 2 * len(LOOKS)
    assert {row["policy"] for row in rows} == set(LOOKS)
    for row in rows:
        demand = demand_of(row["family"], row["seed"], 4)
        np.testing.assert_allclose(row["degree_bound_s"], degree_bound(where, demand), rtol=1e-9)
        np.testing.assert_allclose(row["over"], row["time_s"] / row["bound_s"], rtol=1e-12)
        if row["policy"] == "greedy, next":
            circuits = Circuits(jnp.asarray(greedy(demand, where, rule="next").circuits.count))
            ways = (fluid_lower_bound, all_to_all_time)
            times = [seconds(where, circuits, demand, routing=row["routing"]) for seconds in ways]
            np.testing.assert_allclose([row["time_s"], row["max_min_s"]], times, rtol=1e-9)
        assert row["proved"]
        assert row["degree_bound_s"] * (1 - 1e-9) <= row["bound_s"] <= row["optimum_s"] * (1 + 1e-9)
        assert 1 - 1e-9 <= row["over"] <= row["max_min_over"] * (1 + 1e-9)
        if row["policy"] == BEST:
            same = {key: row[key] for key in ("routing", "family", "seed")}
            assert row["time_s"] == min(column(rows, "time_s", **same, policy=name)[0] for name in HEURISTICS)


def test_the_summary_takes_means_and_quantiles_and_the_figure_is_written(rows, tmp_path):
    for line in summary(rows):
        over = column(rows, "over", routing=line["routing"], policy=line["policy"])
        assert (line["mean"], line["worst"], line["instances"]) == (np.mean(over), max(over), 2)
        np.testing.assert_allclose(line["p90"], min(over) + 0.9 * (max(over) - min(over)), rtol=1e-12)
    assert SCRIPT.draw(rows, tmp_path / "gaps.png").stat().st_size > 10_000


def test_verdicts_are_on_proved_optima(rows):
    paper, best = SCRIPT.verdicts([row for row in rows if row["routing"] == "split"])
    over = column(rows, "over", routing="split", policy="greedy, printed")
    judged = ("greedy, printed", BEST)
    assert (paper.claim, best.claim) == tuple(f"over the optimum, {name}, split, 4 servers" for name in judged)
    assert paper.found == f"mean {np.mean(over):.3f}, worst {max(over):.2f}"
    assert SCRIPT.verdicts([row | {"proved": False} for row in rows]) == []


def test_families_are_seeded_and_leave_the_diagonal():
    for family in FAMILIES:
        one, again, other = (demand_of(family, seed, 8) for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert (one != other).any()
        np.testing.assert_array_equal(np.diagonal(one), 0)
    assert ((demand_of("sparse", 0, 8) > 0).sum(1) == 3).all()
