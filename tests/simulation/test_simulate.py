"""One iteration, whoever asks: fabrics beside others or alone, a GPU's own NVLink, one bandwidth or another."""

import numpy as np
import pytest

from mfabric_jax import cases, simulate
from mfabric_jax.simulation import evaluate, grid, iteration_of
from mfabric_jax.simulation.solving import simulate_scenario, solve_between
from tests.small import row, rows, scenario, several, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
TREE = {"network.fabric": "fat-tree"}
PARTS = ("iteration_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s")


def test_a_fabric_has_the_same_rows_beside_others_and_alone():
    # Under single paths rail-optimized once got the all-to-alls of the fat-tree where both were asked for.
    single = {"network.paths": "ecmp", "traffic.alike": "everything", "network.radix": 16}
    both = {one["fabric"]: one for one in rows(several(single, {"network.fabric": ("fat-tree", "rail-optimized")}))}
    for name, beside in both.items():
        alone = row(small(single | {"network.fabric": name}))
        for part in PARTS:
            np.testing.assert_allclose(beside[part], alone[part], rtol=1e-12, err_msg=f"{name} {part}")
    assert both["rail-optimized"]["ep_comm_s"] != both["fat-tree"]["ep_comm_s"]
    sprayed = row(small(TREE | {"traffic.alike": "everything"}))
    assert both["fat-tree"]["ep_comm_s"] > sprayed["ep_comm_s"]


def test_a_gpu_that_is_named_brings_its_own_peak_and_nvlink():
    # 900 GB/s as the paper simulates; H800 has 200: tensor-parallel all-reduces take 4.5 times.
    h800 = {"gpu.name": "H800-SXM", "gpu.nvlink_gigabytes_per_s": None}
    paper, theirs, own = (
        row(small(TREE | changes)) for changes in ({}, h800, h800 | {"gpu.nvlink_gigabytes_per_s": 450.0})
    )
    np.testing.assert_allclose(theirs["tp_comm_s"] / paper["tp_comm_s"], 4.5, rtol=1e-9)
    np.testing.assert_allclose(own["tp_comm_s"] / paper["tp_comm_s"], 2.0, rtol=1e-9)
    fast = row(small(TREE | {"gpu.name": "H100-SXM", "compute.efficiency": 1.0}))
    np.testing.assert_allclose(paper["compute_s"] / fast["compute_s"], 989.4 / 312 * 2, rtol=1e-9)
    assert fast["compute_source"] == "H100-SXM at 100% of peak, not calibrated"


@pytest.mark.parametrize("name", [pytest.param("nvl72", marks=pytest.mark.slow), "mfabric-cpo"])
def test_a_function_of_numbers_gives_the_rows_at_any_bandwidth(name):
    # NVLink and optical ports are what the NIC leaves of a GPU: of 800 Gbps, not of the bandwidth asked for first.
    given = {f"job.parallel.{name}": degree for name, degree in (("tp", 8), ("dp", 1), ("ep", 16), ("pp", 8))}
    asked, axis = small(given | {"network.fabric": name}, "llama-moe"), {"network.nic_gbps": [100.0, 400.0, 800.0]}
    function, numbers = iteration_of(asked)
    points = grid(**{path: [value] for path, value in numbers.items()} | axis)
    for got, want in zip(evaluate(function, points).rows(), simulate(cases(asked, axis)).rows(), strict=True):
        for part in PARTS:
            np.testing.assert_allclose(got[part], want[part], rtol=1e-9, atol=1e-15, err_msg=part)


def test_circuit_changes_are_what_differs_from_slot_to_slot():
    asked = small(
        {"circuits.ocs": "calient", "network.nics": 4, "network.mfabric.optical_degree": 2}
        | {"traffic.generated.skew": 1.0, "traffic.generated.drift": 0.4}
    )
    one = scenario(asked)
    every = np.asarray(solve_between(one).count)[0]  # [P Q L 2 S S]
    changed, turned = 0, []
    for stage in every.reshape(len(every), -1, *every.shape[-2:]):
        before, turns = stage[-1], 0  # as an iteration like it leaves them
        for now in stage:
            changed += np.maximum(now - before, 0).sum() / 2
            turns += (now != before).any()
            before = now
        turned.append(turns)
    job, found = one.workload, row(asked)
    groups = job.servers // job.pp // job.servers_per_region
    assert found["circuit_changes"] == changed * groups
    assert changed > 10
    assert found["switch_turns"] == max(turned)
    assert row(small(TREE))["switch_turns"] is None
    np.testing.assert_allclose(found["turns_over_allowed"], max(turned) / (5 * found["iteration_s"]), rtol=1e-9)
    assert (found["ocs"], row(small(TREE))["ocs"]) == ("calient", "none")


def test_known_all_to_alls_are_not_solved_again():
    alike = {"traffic.alike": "everything"}
    first = simulate_scenario(scenario(small(alike)))
    slower = scenario(small(alike | {"circuits.delay_s": 1.0}))
    again, whole = simulate_scenario(slower, first.exchanges), simulate_scenario(slower)
    np.testing.assert_array_equal(again.times.iteration_s, whole.times.iteration_s)
    assert again.exchanges is first.exchanges
