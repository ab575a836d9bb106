"""Columns that every row has: MFU, what GPUs that cannot do it cost, and the job; the same of few and of many cases."""

import jax
import pytest

from mfabric_jax import Case, cases, simulate
from mfabric_jax.simulation.results import FEW

RATE = "compute.efficiency"
BASE = {"model.name": "llama-moe", "job.batch.micro_batches": 2, "run.dtype": "float64"}
BASE |= {
    "job.parallel.tp": 1,
    "job.parallel.pp": 1,
    "job.parallel.ep": 8,
    "job.parallel.dp": 4,
    "job.recompute": "none",
}
OF_GPUS = ("usd_per_million_tokens", "joules_per_million_tokens", "perf_per_cluster_dollar")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def rows(axes, **more):
    return simulate(cases(Case().with_(BASE | {name.replace("__", "."): value for name, value in more.items()}), axes))


@pytest.mark.parametrize("fabric", ["fat-tree", "mfabric"])
def test_many_cases_have_the_columns_of_few(fabric):
    rates = [round(0.1 * (1 + place), 3) for place in range(FEW + 1)]
    many = rows({RATE: rates}, network__fabric=fabric).rows()
    few = rows({RATE: rates[8:11]}, network__fabric=fabric).rows()
    assert [row["achieved_over_peak"] for row in many] == rates
    for one, other in zip(many[8:11], few, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert one[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name
    for row in many:
        assert [row[name] is None for name in OF_GPUS] == [row[RATE] > 1] * len(OF_GPUS)
        assert row["cluster_cost_usd"] > 0


def test_utilisation_is_the_rate_times_the_part_that_computes_for_the_model():
    """One stage, balanced experts, no head, no step: all that is computed is the model's, at the rate."""
    plain = {"compute__experts": "balanced", "job__head": False, "job__optimizer_step": False}
    (row,) = rows({RATE: [0.4]}, network__fabric="fat-tree", **plain).rows()
    assert row["mfu"] == pytest.approx(0.4 * row["compute_s"] / row["iteration_s"], rel=1e-9)


def test_a_row_says_its_job():
    (row,) = rows({RATE: [0.4]}, network__fabric="fat-tree", job__precision="fp8").rows()
    assert [row[name] for name in ("gpus", "dp", "tp", "pp", "ep", "micro_batches", "micro_batch")] == [
        *(32, 4, 1, 1, 8, 2, 1)
    ]
    assert row["tokens_per_iteration"] == 2 * row["sequence"] * 4 * 8
    assert row["tokens_per_iteration"] == pytest.approx(row["tokens_per_s"] * row["iteration_s"])
    assert (row["precision"], row["compute_precision"]) == ("fp8", "fp8")  # as DeepSeek-V3 has it
