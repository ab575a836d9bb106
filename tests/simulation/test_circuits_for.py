"""Longer spans of circuits in comparisons: rows, what they are planned on, decisions, predictions with scenarios."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mfabric_jax.study.legacy import scenarios

from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy
from mfabric_jax.report import comparison, read_rows
from mfabric_jax.simulation.foreseen import SIGMA, errors_so_far, measured_decision_s, predicted_tokens
from mfabric_jax.simulation.solving import given_of, program_of
from mfabric_jax.sweep import Sweep, sweep
from mfabric_jax.traffic import Tokens, measured
from tests.command_line import mistake, status
from tests.mistakes import check_refused
from tests.small import MODEL, refused, rows, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
SPANS = ("all-to-all", "stage", "run")
CONFIG = small(fabrics=("fat-tree", "mfabric"), circuits_for=SPANS, iterations=2, drift=0.4)
SKEWED = {"traffic": "generated", "skew": 1.5}  # circuits change


def test_every_span_has_its_row_and_a_fixed_fabric_has_one():
    config = dataclasses.replace(CONFIG, **SKEWED, optical_degree=2)
    found = rows(config)
    assert [one["circuits_for"] for one in found] == ["none", *SPANS]
    _, each, stage, run = found
    assert run["reconfig_s"] == 0
    assert each["reconfig_s"] > stage["reconfig_s"] > 0
    assert len({one["ep_comm_s"] for one in (each, stage, run)}) == 3
    assert {one["decision_s"] for one in found} == {0.0}
    assert "mfabric, run" in comparison(found)
    known = rows(dataclasses.replace(config, circuits_for=("run",), plan_on="span"))[-1]
    assert known["ep_comm_s"] != run["ep_comm_s"]


def test_the_past_is_the_iteration_before_and_is_not_timed():
    job = CONFIG.workload(MODEL)
    every = measured(job, iterations=3, micro_batches=4, seed=0, drift=0.4).count
    tree, each, stage, run = scenarios(CONFIG)
    for one in (tree, each, stage, run):
        np.testing.assert_array_equal(one.tokens.count, every[1:])
    np.testing.assert_array_equal(given_of(stage).past, every[:2])
    np.testing.assert_array_equal(program_of(run).run, every[:1])
    assert given_of(run).past is program_of(stage).run is given_of(tree).past is None
    _, _, stage, run = scenarios(dataclasses.replace(CONFIG, plan_on="span"))
    np.testing.assert_array_equal(stage.tokens.count, every[:2])
    np.testing.assert_array_equal(given_of(stage).past, every[:2])
    np.testing.assert_array_equal(program_of(run).run, every[:2])
    (alone,) = scenarios(small(fabrics=("mfabric",), iterations=2, drift=0.4))
    np.testing.assert_array_equal(alone.tokens.count, every[:2])
    said = r"^tokens \(here\) must have an iteration before the first that is timed, got 1\.$"
    check_refused(said, Tokens(every[:1], "here").after_the_first)


def test_rows_of_a_sweep_are_those_of_compare(tmp_path):
    numbers = {"each_s": 0.01, "decision_s": 0.02} | SKEWED
    fixed = {"model": MODEL, "micro_batches": 2, "compute": "achieved", "nic_gbps": 100.0} | numbers
    sweep(Sweep("iteration", fixed, {"circuits_for": ["all-to-all", "run"]}, dtype="float64"), tmp_path)
    found = [one for part in sorted(tmp_path.glob("*.parquet")) for one in read_rows(part)[0]]
    assert [one["circuits_for"] for one in found] == ["all-to-all", "run"]
    for one in found:
        (want,) = rows(small(fabrics=("mfabric",), circuits_for=(one["circuits_for"],), **numbers))
        for part in ("iteration_s", "reconfig_s", "ep_comm_s"):
            assert one[part] == pytest.approx(want[part], rel=1e-9, abs=1e-12)
    (plain,) = rows(small(fabrics=("mfabric",), **SKEWED))
    assert found[0]["reconfig_s"] > plain["reconfig_s"]


def test_errors_are_those_of_predictions_so_far():
    job = small().workload(MODEL)
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


def test_mistakes_are_sentences():
    for settings, words in (
        (
            {"circuits_for": ("runs",)},
            "circuits_for 'runs' is unknown (did you mean 'run'?); allowed: all-to-all, block,",
        ),
        ({"circuits_for": ("run",), "first": "reuse"}, "circuits_for 'run' needs first 'block', got 'reuse'."),
        ({"circuits_for": ("block",), "first": "pays"}, "circuits_for 'block' needs first 'block' or 'predict' or"),
        ({"circuits_for": ()}, "circuits_for must name at least one; allowed: "),
        ({"plan_on": "future"}, "plan_on 'future' is unknown"),
        ({"decision_s": -1.0}, "decision_s must be finite and not negative, got -1.0."),
        ({"decision_s": "soon"}, "decision_s (beside a number of seconds) 'soon' is unknown"),
        ({"each_s": -1.0}, "each_s must be finite and not negative, got -1.0."),
        ({"partial": "yes"}, "partial must be true or false, got 'yes'."),
        ({"partial": True, "flows": "single"}, "flows 'single' turns all circuits together; partial must be false"),
        ({"scenarios": 0}, "scenarios must be a whole number of at least 1, got 0."),
        ({"sigma": -0.1}, "sigma must be finite and not negative, got -0.1."),
    ):
        assert refused(**settings).startswith(words), refused(**settings)


def test_on_the_command_line(capsys, tmp_path):
    words = ["--models", "llama-moe", "--fabrics", "fat-tree,mfabric", "--nic-gbps", "400", "--micro-batches", "1"]
    out, more = tmp_path / "rows.csv", ["--decision-s", "0.001", "--partial", "--each-s", "0.002"]
    assert status("compare", *words, "--circuits-for", "all-to-all,run", *more, "--out", out) == 0
    found, config = read_rows(out)
    assert [one["circuits_for"] for one in found] == ["none", "all-to-all", "run"]
    assert [one["decision_s"] for one in found] == [0, 0.001, 0.001]
    assert (config["partial"], config["each_s"], config["plan_on"]) == (True, 0.002, "past")
    capsys.readouterr()
    assert "circuits_for 'weeks' is unknown" in mistake(capsys, "compare", *words, "--circuits-for", "weeks")
    one = ["--model", "llama-moe", "--micro-batches", "1", "--circuits-for", "iteration"]
    assert status("timeline", *one) == 0
    assert "seconds of every pipeline stage" in capsys.readouterr().out
