"""The rate that a measured iteration implies: simulated again, it takes as long."""

import dataclasses

import jax
import pytest

from mfabric_jax.simulation.scenario import variants_of
from mfabric_jax.sweep import Sweep
from tests.mistakes import refused as refused_by
from tests.small import refused, row, small

ON = {"fabrics": ("fat-tree",)}


def rate(config):
    """What the GPU achieves for the one model."""
    return config.achieved(config.workload(config.models[0]))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_the_rate_found_gives_the_seconds_again():
    """Forward and back: the seconds of a known rate imply that rate, and a rate that is found gives its seconds."""
    known = row(small(**ON, efficiency=0.37))["iteration_s"]
    config = small(**ON, measured_iteration_s=known)
    assert rate(config) == pytest.approx(0.37, rel=1e-9)
    assert row(config)["compute_source"] == (
        f"A100-80GB-SXM, achieved 37.0% of peak, from a measured iteration of {known:g} s on fat-tree at 100 Gbps"
    )
    found = rate(dataclasses.replace(config, measured_iteration_s=2 * known))
    assert row(small(**ON, efficiency=found))["iteration_s"] == pytest.approx(2 * known, rel=1e-5)


def test_what_does_not_follow_the_rate_is_no_bound():
    """An optimizer's step that is counted takes as long on GPUs that compute slowly."""
    degrees = {"models": ("llama-moe",), "pp": 1, "ep": 8, "dp": 8, "gpus": 64, "micro_batch": 1, "micro_batches": 1}
    counted = ON | degrees | {"optimizer_step": "counted", "sharding": "none", "gpu": "H100-SXM"}
    for known in (0.5, 0.1, 0.001):
        seconds = row(small(**counted, efficiency=known))["iteration_s"]
        assert rate(small(**counted, measured_iteration_s=seconds)) == pytest.approx(known, rel=1e-9)


def test_less_than_communication_takes_is_refused():
    sentence = refused_by(rate, small(**ON, measured_iteration_s=0.01))
    assert sentence.startswith("measured_iteration_s must be above ")
    least = float(sentence.split("above ")[1].split(",")[0])
    fast = rate(small(**ON, measured_iteration_s=1.2 * least))
    assert fast > 1
    assert row(small(**ON, efficiency=fast))["iteration_s"] == pytest.approx(1.2 * least, rel=1e-5)


def test_it_is_measured_where_it_says():
    """On other NICs, or another fabric, the same seconds imply another rate."""
    seconds = row(small(**ON, efficiency=0.37))["iteration_s"]
    at = small(fabrics=("mfabric",), nic_gbps=(200.0,), measured_iteration_s=seconds, measured_gbps=100.0)
    assert rate(at) == pytest.approx(0.37, rel=1e-9)
    assert rate(dataclasses.replace(at, measured_gbps=200.0)) < 0.36


def test_it_is_measured_with_the_use_of_nics_that_the_run_has():
    pooled = ON | {"nic_use": ("pooled",)}
    seconds = row(small(**pooled, efficiency=0.37))["iteration_s"]
    assert rate(small(**pooled, measured_iteration_s=seconds)) == pytest.approx(0.37, rel=1e-9)


def test_all_variants_of_a_run_compute_as_fast():
    config = small(fabrics=("fat-tree", "mfabric"), variants="usual", measured_iteration_s=30.0)
    every = [one for name in config.fabrics for one in variants_of(config, name).values()]
    assert [one.nic_use for one in every] == [("own",), ("pooled",), ("own",), ("own",)]
    assert len({rate(one) for one in every}) == 1
    assert rate(dataclasses.replace(config, measured_nic_use="pooled")) < rate(config)


def test_mistakes():
    one = {"models": ("llama-moe",), "fabrics": ("fat-tree",), "measured_iteration_s": 5.0}
    assert "is of one model a run, got models llama-moe, qwen-moe" in refused(
        **one | {"models": ("llama-moe", "qwen-moe")}
    )
    assert "measured_iteration_s must be finite and above 0, got -1" in refused(**one | {"measured_iteration_s": -1})
    assert "efficiency 0.4 is not used beside measured_iteration_s" in refused(**one, efficiency=0.4)
    assert "fabric 'fattree' is unknown (did you mean 'fat-tree'?)" in refused(**one, measured_on="fattree")
    assert "give it, too" in refused(models=("llama-moe",), measured_gbps=100.0)
    assert "needs first other than 'pays'" in refused(**one, measured_on="mfabric", first="pays")
    assert "no gpu or efficiency" in refused(**one, compute="calibrated")
    assert "compute_precision 'fp8' has no known peak on the GPU A100" in refused(compute_precision="fp8")
    assert "needs measured_gbps in a sweep" in refused_by(
        Sweep, fixed={"model": "llama-moe", "measured_iteration_s": 5.0}
    )
