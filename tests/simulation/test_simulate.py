"""One iteration, whoever asks: fabrics beside others or alone, a GPU's own NVLink, one bandwidth or another."""

import dataclasses

import numpy as np
import pytest
from mfabric_jax.study.legacy import compare, scenarios

from mfabric_jax.simulation import evaluate, grid, iteration_of
from mfabric_jax.simulation.solving import simulate_scenario, solve_between
from mfabric_jax.study.config import Case, Compare
from tests.mistakes import check_refused
from tests.small import MODEL, row, rows, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
PARTS = ("iteration_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s")


def test_a_fabric_has_the_same_rows_beside_others_and_alone():
    # Under single paths rail-optimized once got the all-to-alls of the fat-tree where both were asked for.
    config = small(fabrics=("fat-tree", "rail-optimized"), flows="single", matrices="one")
    both = {one["fabric"]: one for one in rows(config)}
    for name, beside in both.items():
        alone = row(dataclasses.replace(config, fabrics=(name,)))
        for part in PARTS:
            np.testing.assert_allclose(beside[part], alone[part], rtol=1e-12, err_msg=f"{name} {part}")
    assert both["rail-optimized"]["ep_comm_s"] != both["fat-tree"]["ep_comm_s"]
    assert both["fat-tree"]["ep_comm_s"] > row(small(fabrics=("fat-tree",), matrices="one"))["ep_comm_s"]  # sprayed


def test_a_gpu_that_is_named_brings_its_own_peak_and_nvlink():
    # 900 GB/s as the paper simulates, where none is named; H800 has 200: tensor-parallel all-reduces take 4.5 times.
    paper, h800, own = (
        row(small(fabrics=("fat-tree",), compute="achieved", **settings))
        for settings in ({}, {"gpu": "H800-SXM"}, {"gpu": "H800-SXM", "nvswitch_gigabytes_per_s": 450.0})
    )
    np.testing.assert_allclose(h800["tp_comm_s"] / paper["tp_comm_s"], 4.5, rtol=1e-9)
    np.testing.assert_allclose(own["tp_comm_s"] / paper["tp_comm_s"], 2.0, rtol=1e-9)
    fast = row(small(fabrics=("fat-tree",), gpu="H100-SXM", efficiency=1.0))
    np.testing.assert_allclose(paper["compute_s"] / fast["compute_s"], 989.4 / 312 * 2, rtol=1e-9)
    assert fast["compute_source"] == "H100-SXM at 100% of peak, not calibrated"
    check_refused("nvswitch_gigabytes_per_s must be finite and above 0, got 0", small, nvswitch_gigabytes_per_s=0.0)


@pytest.mark.parametrize("name", [pytest.param("nvl72", marks=pytest.mark.slow), "mfabric-cpo"])
def test_a_function_of_numbers_gives_the_rows_of_compare_at_any_bandwidth(name):
    # NVLink and optical ports are what the NIC leaves of a GPU: of 800 Gbps, not of the bandwidth asked for first.
    job = {"tp": 8, "dp": 1, "ep": 16, "pp": 8}
    config = small("llama-moe", fabrics=(name,), nic_gbps=(100.0, 400.0, 800.0), **job)
    function, case = iteration_of(config, "llama-moe", name)
    cases = grid(**{key: [value] for key, value in case.items()} | {"nic_gbps": [100.0, 400.0, 800.0]})
    for got, want in zip(evaluate(function, cases).rows(), rows(config), strict=True):
        for part in PARTS:
            np.testing.assert_allclose(got[part], want[part], rtol=1e-9, atol=1e-15, err_msg=part)


def test_circuit_changes_are_what_differs_from_slot_to_slot():
    config = small(fabrics=("mfabric",), ocs="calient", optical_degree=2, traffic="generated", skew=1.0, drift=0.4)
    (one,) = scenarios(config)
    every = np.asarray(solve_between(one).count)[0]  # [P Q L 2 S S]
    changed, turned = 0, []
    for stage in every.reshape(len(every), -1, *every.shape[-2:]):
        before, turns = stage[-1], 0  # as an iteration like it leaves them
        for now in stage:
            changed += np.maximum(now - before, 0).sum() / 2
            turns += (now != before).any()
            before = now
        turned.append(turns)
    job, found = one.workload, row(config)
    groups = job.servers // job.pp // job.servers_per_region
    assert found["circuit_changes"] == changed * groups
    assert changed > 10
    assert found["switch_turns"] == max(turned)
    assert row(small(fabrics=("fat-tree",)))["switch_turns"] is None
    np.testing.assert_allclose(found["turns_over_allowed"], max(turned) / (5 * found["iteration_s"]), rtol=1e-9)
    assert (found["ocs"], row(small(fabrics=("fat-tree",)))["ocs"]) == ("calient", "none")


def test_known_all_to_alls_are_not_solved_again():
    config = small(fabrics=("mfabric",), matrices="one")
    (one,) = scenarios(config)
    first = simulate_scenario(one)
    (slower,) = scenarios(dataclasses.replace(config, delay_s=1.0))
    again, whole = simulate_scenario(slower, first.exchanges), simulate_scenario(slower)
    np.testing.assert_array_equal(again.times.iteration_s, whole.times.iteration_s)
    assert again.exchanges is first.exchanges


def test_a_case_is_the_comparison_of_one():
    case = Case(model=MODEL, fabric="fat-tree", nic_gbps=100.0, micro_batches=2, dtype="float64", compute="achieved")
    assert case.compared() == small(fabrics=("fat-tree",))
    (got,) = compare(case.compared())
    assert got == row(small(fabrics=("fat-tree",)))
    assert dataclasses.asdict(Compare(models=(MODEL,)))["delay_s"] == 0.025
