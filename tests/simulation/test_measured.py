"""The rate that a measured iteration implies: simulated again, it takes as long."""

import json
import pathlib

import jax
import pytest

from mfabric_jax import cases, load, report, resolve, simulate, workload
from mfabric_jax.simulation import solving
from mfabric_jax.simulation.results import FEW, effective
from mfabric_jax.simulation.solving import scenario_at
from tests.mistakes import refused as refused_by
from tests.small import model_file, row, small

ON = {"network.fabric": "fat-tree"}

TOOK, KNOWN = "compute.measured.iteration_s", "compute.efficiency"


def rate(case):
    """What the GPU achieves."""
    one = scenario_at(resolve(case), (case.network.nic_gbps,))
    return one.settings.achieved(one.workload)


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
    ("path", "values"), [("network.nic_gbps", [100, 200, 400, 800]), ("network.goodput", [0.7, 0.8, 0.9, 1.0])]
)
def test_many_cases_have_the_rates_of_each_alone(path, values):
    """Every case is one in which the iteration was measured, of many that are columns of one program, too."""
    case = small(ON | {TOOK: 1.2 * row(small(ON))["iteration_s"]})
    delays = [1e-6 * at for at in range(FEW // len(values) + 1)]
    many = simulate(cases(case, {"network.link_delay_s": delays, path: values})).rows()
    assert len(many) > FEW
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
    monkeypatch.setattr(solving, "achieved_in", lambda *given: solved.append(given) or 0.4)
    solving.measured_efficiency.cache_clear()
    axes = {"circuits.delay_s": [0.001 * at for at in range(FEW)], "network.nic_gbps": [100, 200]}
    many = simulate(cases(case, axes)).rows()
    solving.measured_efficiency.cache_clear()
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
    report.write_rows(rows, tmp_path / "rows.csv", effective(asked))
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
