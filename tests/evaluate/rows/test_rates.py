"""The rate of computation: what a measured iteration implies, and what published times do; models of a file."""

import json
import pathlib

import jax
import numpy as np
import pytest

from mfabric_jax import Case, cases, load, report, resolve, simulate, workload
from mfabric_jax.case import presets
from mfabric_jax.evaluate import solving
from mfabric_jax.evaluate.problem import problem_of
from mfabric_jax.evaluate.resolving.resolved import PUBLISHED, calibration_fits
from mfabric_jax.evaluate.rows import points
from mfabric_jax.evaluate.rows.results import record_of_cases
from mfabric_jax.evaluate.solving import problem_at
from mfabric_jax.traffic import from_knobs, workload_knobs
from tests.mistakes import refused as refused_by
from tests.small import model_file, row, small

ON = {"network.fabric": "fat-tree"}

TOOK, KNOWN = "compute.measured.iteration_s", "compute.efficiency"


def rate(case):
    """What the GPU achieves."""
    one = problem_at(resolve(case), (case.network.nic_gbps,))
    return one.resolved.efficiency_of(one.workload)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_the_rate_found_gives_the_seconds_again():
    """Forward and back: the seconds of a known rate imply that rate, and a rate that is found gives its seconds."""
    known = row(small(ON | {KNOWN: 0.37}))["iteration_s"]
    case = small(ON | {TOOK: known})
    assert rate(case) == pytest.approx(0.37, rel=1e-9)
    assert row(case)["compute_source"] == (
        f"A100-80GB-SXM, achieved 37.0% of peak, from a measured iteration of {known:g} s on fat-tree at 100 Gbps"
    )
    found = rate(case.with_({TOOK: 2 * known}))
    assert row(small(ON | {KNOWN: found}))["iteration_s"] == pytest.approx(2 * known, rel=1e-5)


def test_what_does_not_follow_the_rate_is_no_bound():
    """An optimizer's step that is counted takes as long on GPUs that compute slowly."""
    degrees = {f"job.parallel.{name}": degree for name, degree in (("tp", 1), ("pp", 1), ("ep", 8), ("dp", 8))}
    counted = ON | degrees | {"job.batch.micro_batch": 1, "job.batch.micro_batches": 1, "job.sharding": "none"}
    counted |= {"job.optimizer_step": True, "gpu.name": "H100-SXM", "gpu.nvlink_gigabytes_per_s": None}
    for known in (0.5, 0.1, 0.001):
        seconds = row(small(counted | {KNOWN: known}, "llama-moe"))["iteration_s"]
        assert rate(small(counted | {TOOK: seconds}, "llama-moe")) == pytest.approx(known, rel=1e-9)


def test_less_than_communication_takes_is_refused():
    sentence = refused_by(rate, small(ON | {TOOK: 0.01}))
    assert sentence.startswith("compute.measured.iteration_s must be above ")
    least = float(sentence.split("above ")[1].split(",")[0])
    fast = rate(small(ON | {TOOK: 1.2 * least}))
    assert fast > 1
    assert row(small(ON | {KNOWN: fast}))["iteration_s"] == pytest.approx(1.2 * least, rel=1e-5)


def test_it_is_measured_where_it_says():
    """On other NICs, or another fabric, the same seconds imply another rate."""
    seconds = row(small(ON | {KNOWN: 0.37}))["iteration_s"]
    there = {TOOK: seconds, "compute.measured.nic_gbps": 100.0}
    at = small({"network.fabric": "mfabric", "network.nic_gbps": 200.0} | there)
    assert rate(at) == pytest.approx(0.37, rel=1e-9)
    assert rate(at.with_({"compute.measured.nic_gbps": 200.0})) < 0.36


def test_it_is_measured_with_the_use_of_nics_that_the_case_has():
    pooled = ON | {"network.nic_use": "pooled"}
    seconds = row(small(pooled | {KNOWN: 0.37}))["iteration_s"]
    assert rate(small(pooled | {TOOK: seconds})) == pytest.approx(0.37, rel=1e-9)
    assert rate(small(pooled | {TOOK: seconds, "compute.measured.nic_use": "own"})) > 0.372


def test_servers_are_as_full_on_the_fabric_where_it_was_measured():
    """A scale-up domain of other servers, a torus of six NICs: neither changes what was measured on a fat-tree."""
    seconds = row(small(ON | {KNOWN: 0.37}))["iteration_s"]
    for name in ("torus", "nvl72", "oversub-fat-tree"):
        assert rate(small({"network.fabric": name, TOOK: seconds})) == pytest.approx(0.37, rel=1e-9)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("network.nic_gbps", [100, 200, 400, 800]),
        pytest.param("network.goodput", [0.7, 0.8, 0.9, 1.0], marks=pytest.mark.slow),
    ],
)
def test_many_cases_have_the_rates_of_each_alone(path, values, monkeypatch):
    """Every case is one in which the iteration was measured, of many that are columns of one program, too."""
    case = small(ON | {TOOK: 1.2 * row(small(ON))["iteration_s"]})
    monkeypatch.setattr(points, "DRAWN_AGAIN", 4)
    many = simulate(cases(case, {"network.link_delay_s": (delays := [0.0, 1e-6]), path: values})).rows()
    assert len(many) > points.DRAWN_AGAIN
    for at, value in enumerate(values):
        alone = row(case.with_({"network.link_delay_s": delays[1], path: value}))
        found = many[len(values) + at]
        assert found["compute_source"] == alone["compute_source"]
        for name in ("achieved_over_peak", "iteration_s", "mfu"):
            assert found[name] == pytest.approx(alone[name], rel=1e-9), name
    assert len({one["achieved_over_peak"] for one in many}) == len(many)


def test_what_was_measured_elsewhere_is_solved_once(monkeypatch):
    """Circuits and NICs that the fabric of the measurement does not have change nothing of it."""
    there = {TOOK: 1.2 * row(small(ON))["iteration_s"], "compute.measured.nic_gbps": 100.0}
    case, solved = small({"network.fabric": "mfabric"} | there), []
    monkeypatch.setattr(solving, "bisect_efficiency", lambda *given: solved.append(given) or 0.4)
    cleared = vars(solving.solve_efficiency)["cache_clear"]
    cleared()
    axes = {"circuits.delay_s": [0.001 * at for at in range(points.DRAWN_AGAIN)], "network.nic_gbps": [100, 200]}
    many = simulate(cases(case, axes)).rows()
    cleared()
    assert {one["achieved_over_peak"] for one in many} == {0.4}
    assert len(solved) == 1


TINY = {"dense_blocks": [1], "dense_hidden": 128, "sequence": 512, "tp": 1, "ep": 16, "pp": 2, "dp": 1}


@pytest.fixture
def tiny(tmp_path):
    return model_file(tmp_path / "tiny.toml", **TINY)


def given(tiny, changes=None):
    return load(preset="paper", changes={"model.name": tiny, "network.fabric": "fat-tree"} | (changes or {}))


def test_rows_of_a_file(tiny, tmp_path):
    case = given(tiny, {"network.nic_gbps": 100.0, "gpu.name": "H100-SXM"})
    asked = cases(case, {"job.batch.micro_batches": [6, 4]})
    rows = simulate(asked).rows()
    assert [row["model"] for row in rows] == ["tiny", "tiny"]
    assert rows[0]["iteration_s"] > rows[1]["iteration_s"] > 0  # 6 micro-batches and 4
    assert rows[0]["compute_source"] == "H100-SXM at 50% of peak, not calibrated"
    job = resolve(case.with_({"job.batch.micro_batches": 6})).job
    needs = workload.fullest_stage(job)[1].total / 1e9
    assert (rows[0]["memory_gb"], rows[0]["gpu_memory_gb"], rows[0]["fits"]) == (pytest.approx(needs), 80, True)
    report.write_rows(rows, tmp_path / "rows.csv", record_of_cases(asked))
    kept = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert kept["resolved"]["model.name"] == tiny
    assert kept["resolved"]["job.batch.micro_batches"] == [6, 4]


def test_its_degrees_are_those_of_the_file_unless_a_case_says_others(tiny):
    one = resolve(given(tiny))
    parallel = one.case.job.parallel
    assert (parallel.tp, parallel.ep, parallel.pp, parallel.dp, parallel.gpus) == (1, 16, 2, 1, 32)
    assert (one.why["job.parallel.ep"], one.why["job.batch.sequence"]) == ("file of tiny", "file of tiny")
    assert resolve(given(tiny, {"job.parallel.dp": 2})).job.gpus == 64
    wider = resolve(given(tiny, {"job.parallel.pp": 1, "job.batch.sequence": 1024})).job
    assert (wider.pp, wider.sequence) == (1, 1024)


def test_a_file_that_is_changed_is_read_again(tiny):
    assert resolve(given(tiny)).job.architecture.top_k == 2
    model_file(pathlib.Path(tiny), **TINY | {"top_k": 4})
    assert resolve(given(tiny)).job.architecture.top_k == 4


def test_what_a_case_says_of_the_model_wins(tiny):
    one = resolve(given(tiny, {"model.top_k": 4, "model.blocks": 4}))
    assert (one.job.architecture.top_k, one.job.architecture.blocks) == (4, 4)
    known = resolve(load(preset="paper", changes={"model.name": "mixtral-8x7b", "model.top_k": 1}))
    assert known.job.architecture.top_k == 1


pytestmark = pytest.mark.usefixtures("as_users_have_it")

JOB = resolve(small()).job


def test_what_ships_covers_all_published_models_closely():
    for found in map(calibration_fits, ("paper", "released", "today")):
        assert set(found) == set(PUBLISHED)
        for one in found.values():
            assert max(map(abs, one.residuals)) < 0.05
            assert 0.1 < one.efficiency < 10


def achieved(case, model="qwen-moe"):
    """Achieved over the peak of the GPU."""
    resolved = resolve(case.with_({"model.name": model}))
    return resolved.efficiency_of(resolved.job)


def test_each_preset_has_the_rates_of_its_own_assumptions():
    assumed = {"paper": "paper", "released": "released", "as-0.1": "today"}
    for preset, name in assumed.items():
        one = load(preset=preset)
        one = one if isinstance(one, Case) else next(iter(one))
        assert achieved(one) == calibration_fits(name)["qwen-moe"].efficiency
    assert achieved(load(preset="paper"), "deepseek-r1") == 0.5  # no times were published
    assert achieved(load(preset="paper").with_({"compute.efficiency": 0.5})) == 0.5
    assert 0.4 < achieved(Case()) < 0.7  # by kernels
    assert set(assumed) <= set(presets())
    case = small({"network.fabric": "fat-tree", "compute.calibrated": "paper"})
    assert "calibrated to published" in row(case)["compute_source"]


def drawn(changes):
    """The tokens of a small case."""
    resolved = resolve(small(changes))
    return problem_of(resolved, (100.0,)).tokens


def test_matrices_that_repeat():
    several = {"run.iterations": 2, "traffic.drawn": 3}
    full = drawn(several).count
    for alike, axes in (("nothing", ()), ("micro-batches", (0, 2)), ("everything", (0, 1, 2))):
        count = drawn({"traffic.alike": alike} | several).count
        assert all(count.shape[axis] == (1 if axis in axes else full.shape[axis]) for axis in range(3))
        np.testing.assert_array_equal(count[0, 0, 0], full[0, 0, 0])
    # One matrix keeps its circuits, from iteration to iteration: a delay costs nothing, but for a cold start one turn.
    same = {"network.fabric": "mfabric", "traffic.alike": "everything", "traffic.generated.skew": 1.5}
    same |= {"network.mfabric.optical_degree": 2, "network.nics": 4, "network.nic_use": "pooled"}
    slow, fast = (row(small(same | {"circuits.delay_s": delay})) for delay in (0.1, 0.0))
    cold = row(small(same | {"circuits.delay_s": 0.1, "circuits.cold_start": True}))
    assert slow["iteration_s"] == fast["iteration_s"]
    assert slow["reconfig_s"] == 0
    assert 0 < cold["iteration_s"] - fast["iteration_s"] <= 0.1 * 4 * (1 + 1e-9)  # a turn of each of 4 stages


def test_stakes_by_hand():
    resolved = resolve(small({"network.fabric": "mfabric", "circuits.reactivation_s": 0.5}))
    one = problem_of(resolved, (100.0, 400.0))
    costs, seconds = one.costs, one.seconds
    np.testing.assert_allclose(costs.delay_s, [0.525, 0.525])
    np.testing.assert_allclose(costs.nic_Bps, [12.5e9, 50e9])
    np.testing.assert_allclose(costs.inner_s, [np.multiply([1, 2, 1], seconds.moe_s)] * 2)
    tp = 2 * 8 * 4096 * 4096 * 2 * 3 / 4 / 900e9  # tokens x hidden x bf16, ring of 4
    np.testing.assert_allclose(costs.behind_s[:, :2], [[0, 2 * seconds.attention_s + tp]] * 2, rtol=1e-12)


def test_named_workloads_and_knobs_from_a_file(tmp_path):
    hot = drawn({"traffic.knobs": "hot-rank", "traffic.drawn": 2})
    np.testing.assert_array_equal(hot.count, from_knobs(JOB, workload_knobs("hot-rank"), 1, 2, 0).count)
    workload_knobs("hot-rank").write(tmp_path / "knobs.json")
    again = drawn({"traffic.knobs": str(tmp_path / "knobs.json"), "traffic.drawn": 2})
    np.testing.assert_array_equal(again.count, hot.count)
    assert np.ptp(drawn({"traffic.knobs": "balanced"}).count) == 0
