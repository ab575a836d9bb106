"""Training: killed and resumed runs end as others do; configurations; what lessons are; an index moves."""

import json
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.learning import Training, _train, demands, index_steps, network_steps, train
from mfabric_jax.learning._lessons import lessons
from mfabric_jax.policies import load, policy_file
from mfabric_jax.policies.normalised_demand import normalised
from tests.mistakes import check_refused

TINY = {"steps": 5, "batch": 2, "sizes": (4,), "width": 3, "depth": 1, "teacher": "greedy", "share_steps": 2}
TINY |= {"log_every": 1, "checkpoint_every": 2}
INDEX = TINY | {"kind": "index", "routing": "split", "steps": 3, "checkpoint_every": 1}
KILLED = """
import os, signal, sys
import tests.conftest
from mfabric_jax.learning import Training, train

def stop(step, line):
    if step == 2:
        os.kill(os.getpid(), signal.SIGKILL)

train(Training(**eval(sys.argv[2])), sys.argv[1], stop)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that ends abruptly behind its fourth of five steps and is then resumed, and one that was left alone."""
    folder = tmp_path_factory.mktemp("runs")
    whole = train(Training(**TINY), folder / "whole")

    def stop(step, line):
        if step == 4:
            with (folder / "stopped" / _train.METRICS).open("a") as out:
                out.write('{"step": 5, "time": 0}\n')  # of a step behind the checkpoint
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Training(**TINY), folder / "stopped", stop)
    assert load(folder / "stopped" / _train.TRAINED_POLICY).configuration["steps"] == TINY["steps"]
    resumed = []
    lines = train(Training(**TINY), folder / "stopped", lambda step, line: resumed.append(step))
    return folder, whole, lines, resumed


def test_a_stopped_run_ends_as_one_that_was_left_alone_and_what_was_trained_is_a_policy(runs):
    folder, whole, again, resumed = runs
    assert resumed == [4, 5]
    assert again == whole
    for name in (_train.METRICS, _train.TRAINED_POLICY, _train.CHECKPOINT):
        assert (folder / "stopped" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    lines = [json.loads(line) for line in (folder / "whole" / _train.METRICS).read_text().splitlines()]
    assert lines == whole
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert ["held_out_4" in line for line in lines] == [True, False, True, False, True, True]
    assert all(line.get(name, 1) >= 1 - 1e-5 for line in lines for name in ("time", "planned", "held_out_4"))
    trained = load(folder / "whole" / _train.TRAINED_POLICY)
    assert trained.configuration["teacher"] == "greedy"
    first = _train._first(Training(**TINY))
    run = policy_file.read(folder / "whole" / _train.CHECKPOINT).leaves(first)
    moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (first.best, run.state.model)), strict=True)]
    assert max(moved) > 1e-3
    for kept, best in zip(jax.tree.leaves(trained.model), jax.tree.leaves(run.best), strict=True):
        np.testing.assert_array_equal(kept, best)
    assert run.least == pytest.approx(min((n["held_out_4"] + n["planned_4"]) / 2 for n in lines if "held_out_4" in n))


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_all_that_it_had_checkpointed(tmp_path):
    words = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), repr(INDEX)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    run, step, lines = _train._resumed(Training(**INDEX), tmp_path / "killed")
    assert step == 2
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert load(tmp_path / "killed" / _train.TRAINED_POLICY).model.settings() == run.best.settings()


def test_a_run_of_another_configuration_is_left_alone(runs):
    folder, before = runs[0], (runs[0] / "whole" / _train.CHECKPOINT).read_bytes()
    with pytest.raises(InputError, match=r"seed must be 0, as of the run in .*whole, or out another folder; got 1\."):
        train(Training(**TINY, seed=1), folder / "whole")
    (folder / "torn").mkdir()
    trained = (folder / "whole" / _train.TRAINED_POLICY).read_bytes()
    contents = ((before[:-1], "is damaged"), (trained, "is no checkpoint"), (before, "metrics .* cannot be read"))
    for content, sentence in contents:
        (folder / "torn" / _train.CHECKPOINT).write_bytes(content)
        check_refused(sentence, train, Training(**TINY), folder / "torn")


def test_weights_that_are_no_numbers_are_not_kept(tmp_path, monkeypatch):
    def diverged(state, batch, step, config):
        return jax.tree.map(lambda x: x * jnp.asarray(jnp.nan, x.dtype), state), {"time": jnp.ones(())}

    monkeypatch.setattr(_train, "_advanced", diverged)
    check_refused("by which a weight is no number at step 1", train, Training(**INDEX), tmp_path)
    assert not (tmp_path / _train.TRAINED_POLICY).exists()


def test_what_is_held_out_is_not_learned_from(tmp_path):
    np.save(tmp_path / "tokens.npy", np.random.default_rng(0).integers(1, 99, (5, 2, 1, 16, 32)).astype(float))
    for trace in (None, str(tmp_path / "tokens.npy")):
        learned, held = (demands.pool(4, 0, trace, held_out=held_out) for held_out in (False, True))
        seen = {tuple(np.sort(one, axis=None)) for one in learned}
        assert not seen & {tuple(np.sort(one, axis=None)) for one in held}
    assert len(held) - len(demands.pool(4, 0, None, held_out=True)) == 1 * 24  # records times layers
    assert len(learned) - len(demands.pool(4, 0, None)) == 4 * 24


def test_an_index_moves_towards_the_rules_that_did_best(monkeypatch):
    # The "time" of a rule is how far its offset is from 3: a few steps bring the centre there.
    monkeypatch.setattr(index_steps, "_mean_time", lambda rule, batch, config: jnp.abs(jnp.log(rule.offset / 3)))
    config, state = Training(**TINY), index_steps.first_index()
    for step in range(25):
        state, _ = index_steps.index_step(state, (), jnp.asarray(step), config)
    assert float(index_steps.rule_at(state.centre).offset) == pytest.approx(3, rel=0.1)
    index_steps.index_step.clear_cache()


def test_lessons_are_what_the_configuration_says():
    config = Training(batch=400, noise=0.8, varied=0.5, pooled=0.25)
    batch = lessons(jax.random.key(0), jnp.full((1, 4, 4), 7.0, jnp.float32), config, 4)
    off, silent = ~np.eye(4, dtype=bool), np.asarray(batch.demand) == 0
    spread = np.log(np.where(silent, 1, batch.forecast / np.where(silent, 1, batch.demand)))[:, off].std(axis=1)
    degrees, previous = np.asarray(batch.region.optical_degree), np.asarray(batch.previous).sum(axis=2)
    usual = (degrees == 6).all(axis=1) & (np.asarray(batch.region.electrical_nics) == 2)
    assert 0.6 < spread.max() < 1.6
    assert (previous <= degrees).all()
    for share, want in (
        (spread == 0, 1 / 3),  # exact forecasts
        ((np.asarray(batch.demand)[:, off] == 7).all(axis=1), 0.25),  # of the pool
        (previous.sum(axis=1) == 0, 0.5),
        (usual, 0.5),
    ):
        assert share.mean() == pytest.approx(want, abs=0.1)


def test_scores_move_towards_circuits_that_did_better(monkeypatch):
    # The "time" is the number of circuits between 0 and 1: its slope is above 0 for their score, below for the others
    # that take NICs from them.
    monkeypatch.setattr(
        network_steps, "over_bound", lambda region, circuits, *_: circuits.count[0, 1].astype(jnp.float32)
    )
    config = Training(**TINY | {"batch": 1, "noise": 0.0, "varied": 0.0})
    batch = lessons(jax.random.key(3), jnp.ones((1, 4, 4), jnp.float32), config, 4)
    lesson = jax.tree.map(lambda x: x[0], batch)
    network = network_steps.first_network(config).model
    chosen = network.chosen(normalised(jnp.ones((4, 4), jnp.float32), lesson.region), lesson.region.degrees)

    def loss(score, key):
        return network_steps.explored(network, chosen._replace(score=score), lesson, key, config)[0]

    slopes = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))
    slope = slopes(chosen.score, jax.random.split(jax.random.key(0), 200)).mean(0)
    assert slope[0, 1] > 0.5
    assert slope[0, 2] + slope[0, 3] < -0.2
    assert abs(slope[2, 3]) < slope[0, 1]


def test_settings_out_of_range_are_refused():
    for field, value, sentence in (
        ("kind", "networks", "kind 'networks' is unknown (did you mean 'network'?); allowed: network, index."),
        ("routing", "best-path", "routing 'best-path' is unknown; allowed: unsplit, split, relay."),
        ("teacher", "me", "teacher 'me' is unknown; allowed: greedy, threshold, local-search."),
        ("steps", 0, "steps must be a whole number of at least 1, got 0."),
        ("sizes", (), "sizes must name at least one number of servers and none twice, got []."),
        ("sizes", (1,), "sizes must be a whole number of at least 2, got 1."),
        ("learning_rate", 0.0, "learning_rate must be finite and above 0, got 0.0."),
        ("noise", -0.1, "noise must be finite and not negative, got -0.1."),
        ("varied", 1.1, "varied must be at most 1, got 1.1."),
        ("checkpoint_every", 75, "checkpoint_every must be a multiple of log_every 50, got 75."),
    ):
        with pytest.raises(InputError) as refused:
            Training(**{field: value})
        assert str(refused.value) == sentence
