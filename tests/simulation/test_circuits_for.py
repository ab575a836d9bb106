"""Longer spans of circuits in comparisons: rows, what they are planned on, decisions, predictions with scenarios."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import resolve, simulate
from mfabric_jax.case import cases
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy
from mfabric_jax.report import comparison
from mfabric_jax.simulation import example_timeline
from mfabric_jax.simulation.scenario import measured_decision_s
from mfabric_jax.simulation.solving import (
    SIGMA,
    errors_so_far,
    given_of,
    predicted_tokens,
    program_of,
)
from mfabric_jax.traffic import measured
from tests.small import JOB, row, scenario, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
SPANS = ("stage", "run")
DRIFT = {"run.iterations": 2, "traffic.shares.drift": 0.4}
SKEWED = {"traffic.generated.skew": 1.5}  # circuits change
TREE = {"network.fabric": "fat-tree"}
KNOWN = {"circuits.span.chosen_on": "actual"}


def span(length):
    return {"circuits.span.length": length}


def test_every_span_has_its_row_and_a_fixed_fabric_has_none():
    narrow = {"network.nics": 4, "network.mfabric.optical_degree": 2, "run.iterations": 2}
    changing = narrow | SKEWED | {"traffic.generated.drift": 0.4}
    found = simulate(cases(small(changing), [TREE | {"network.nics": 8}, {}, span("stage"), span("run")])).rows()
    assert [one["circuits_for"] for one in found] == ["none", "all-to-all", *SPANS]
    _, each, stage, run = found
    assert run["reconfig_s"] == 0
    assert each["reconfig_s"] > stage["reconfig_s"] > 0
    assert len({one["ep_comm_s"] for one in (each, stage, run)}) == 3
    assert {one["decision_s"] for one in found} == {0.0}
    assert "mfabric, run" in comparison(found)


def test_the_past_is_the_iteration_before_and_is_not_timed():
    job = resolve(small()).job
    every = measured(job, iterations=3, micro_batches=4, seed=0, drift=0.4).count
    stage, run = (scenario(small(DRIFT | span(length))) for length in SPANS)
    for one in (stage, run):
        np.testing.assert_array_equal(one.tokens.count, every[1:])
    np.testing.assert_array_equal(given_of(stage).past, every[:2])
    np.testing.assert_array_equal(program_of(run).run, every[:1])
    assert given_of(run).past is program_of(stage).run is None
    stage, run = (scenario(small(DRIFT | span(length) | KNOWN)) for length in SPANS)
    np.testing.assert_array_equal(stage.tokens.count, every[:2])
    np.testing.assert_array_equal(given_of(stage).past, every[:2])
    np.testing.assert_array_equal(program_of(run).run, every[:2])
    for alone in (small(DRIFT), small(DRIFT | TREE)):
        np.testing.assert_array_equal(scenario(alone).tokens.count, every[:2])
        assert given_of(scenario(alone)).past is None


def test_errors_are_those_of_predictions_so_far():
    job = resolve(small()).job
    tokens = measured(job, iterations=5, micro_batches=2, seed=1, drift=0.5)
    found = errors_so_far(tokens.count, predicted_tokens(tokens, "previous-iteration"), job)
    assert found[0] == found[1] == SIGMA
    assert (found[2:] > 0.3).all()
    np.testing.assert_allclose(errors_so_far(tokens.count, tokens.count, job)[2:], 0, atol=1e-6)
    calm = measured(job, iterations=5, micro_batches=2, seed=1, drift=0.01)
    assert errors_so_far(calm.count, predicted_tokens(calm, "previous-iteration"), job)[-1] < found[-1]


def test_a_decision_is_timed_without_its_compilation():
    demand = jnp.ones((8, 8), jnp.float32)
    assert 0 < measured_decision_s(greedy, Region(8, 400.0), demand, jax.random.key(0)) < 0.1


def test_a_timeline_may_keep_circuits_for_a_stage():
    case = small(JOB | SKEWED | span("stage"))
    _, stages = example_timeline(case)
    np.testing.assert_allclose(stages[0]["iteration_s"], row(case)["iteration_s"], rtol=1e-9)
