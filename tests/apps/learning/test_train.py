"""Training: killed and resumed runs end as others do; configurations; what lessons are; an index moves."""

import json

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.apps.learning import TrainingSettings, demands, train, training
from mfabric_jax.apps.learning.training import lessons
from mfabric_jax.checks import InputError
from mfabric_jax.policies import load, policy_file
from mfabric_jax.traffic.demand_families import BROAD, FAMILIES
from mfabric_jax.traffic.samplers import SPLITS
from tests.mistakes import check_refused

TINY = {"steps": 5, "batch": 2, "sizes": (4,), "width": 3, "depth": 1, "share_steps": 2}
TINY |= {"log_every": 1, "checkpoint_every": 2}
INDEX = TINY | {"kind": "index", "routing": "split", "steps": 3, "checkpoint_every": 1}


@pytest.fixture(autouse=True)
def few_families(monkeypatch):
    """All of them take long to compile."""
    monkeypatch.setattr(demands, "BROAD", {"bipartite": BROAD["bipartite"]})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that ends abruptly behind its fourth of five steps and is then resumed, and one that was left alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(demands, "BROAD", {})
        yield _runs(tmp_path_factory.mktemp("runs"))


def _runs(folder):
    whole = train(TrainingSettings(**TINY), folder / "whole")

    def stop(step, line):
        if step == 4:
            with (folder / "stopped" / training.METRICS).open("a") as out:
                out.write('{"step": 5, "time": 0}\n')  # of a step behind the checkpoint
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(TrainingSettings(**TINY), folder / "stopped", stop)
    assert load(folder / "stopped" / training.TRAINED_POLICY).configuration["steps"] == TINY["steps"]
    resumed = []
    lines = train(TrainingSettings(**TINY), folder / "stopped", lambda step, line: resumed.append(step))
    return folder, whole, lines, resumed


def test_a_stopped_run_ends_as_one_that_was_left_alone_and_what_was_trained_is_a_policy(runs):
    folder, whole, again, resumed = runs
    assert resumed == [4, 5]
    assert again == whole
    for name in (training.METRICS, training.TRAINED_POLICY, training.CHECKPOINT):
        assert (folder / "stopped" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    lines = [json.loads(line) for line in (folder / "whole" / training.METRICS).read_text().splitlines()]
    assert lines == whole
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert ["held_out_4" in line for line in lines] == [True, False, True, False, True, True]
    assert all(line.get(name, 1) >= 1 - 1e-5 for line in lines for name in ("time", "held_out_4"))
    trained = load(folder / "whole" / training.TRAINED_POLICY)
    assert trained.configuration["width"] == 3
    first = training.first_run(TrainingSettings(**TINY))
    run = policy_file.read(folder / "whole" / training.CHECKPOINT).leaves(first)
    moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (first.best, run.state.model)), strict=True)]
    assert max(moved) > 1e-3
    for kept, best in zip(jax.tree.leaves(trained.model), jax.tree.leaves(run.best), strict=True):
        np.testing.assert_array_equal(kept, best)
    assert run.least == pytest.approx(min(n["held_out_4"] for n in lines if "held_out_4" in n))


def test_a_run_of_another_configuration_is_left_alone(runs):
    folder, before = runs[0], (runs[0] / "whole" / training.CHECKPOINT).read_bytes()
    with pytest.raises(
        InputError, match=r"seed must be 0, as in the run in .*whole, or out must be another folder; got 1\."
    ):
        train(TrainingSettings(**TINY, seed=1), folder / "whole")
    (folder / "torn").mkdir()
    trained = (folder / "whole" / training.TRAINED_POLICY).read_bytes()
    contents = ((before[:-1], "is damaged"), (trained, "is not a checkpoint"), (before, "metrics .* cannot be read"))
    for content, sentence in contents:
        (folder / "torn" / training.CHECKPOINT).write_bytes(content)
        check_refused(sentence, train, TrainingSettings(**TINY), folder / "torn")
    for line in ("[1]", '{"step": "x"}', "[" * 9999):  # metrics that are none
        (folder / "torn" / training.METRICS).write_text(line + "\n")
        check_refused("metrics .* cannot be read", train, TrainingSettings(**TINY), folder / "torn")


def test_weights_that_are_no_numbers_are_not_kept(tmp_path, monkeypatch):
    def diverged(state, batch, key, config):
        return jax.tree.map(lambda x: x * jnp.asarray(jnp.nan, x.dtype), state), {"time": jnp.ones(())}

    monkeypatch.setattr(training, "index_step", diverged)
    check_refused("a weight is not finite at step 1", train, TrainingSettings(**INDEX), tmp_path)
    assert not (tmp_path / training.TRAINED_POLICY).exists()


def test_what_is_held_out_is_not_learned_from(tmp_path):
    sizes = []
    np.save(tmp_path / "tokens.npy", np.random.default_rng(0).integers(1, 99, (10, 2, 1, 16, 32)).astype(float))
    for trace in (None, str(tmp_path / "tokens.npy")):
        pools = [demands.pool(4, 0, trace, split=split) for split in SPLITS]
        seen, chose, unseen = ({tuple(np.sort(one, axis=None)) for one in some if one.any()} for some in pools)
        assert all(not one & other for one, other in ((seen, chose), (seen, unseen), (chose, unseen)))
        sizes.append([len(pool) for pool in pools])
    assert np.subtract(*sizes[::-1]).tolist() == [8 * 24, 1 * 24, 1 * 24]  # records times layers


def test_a_run_says_what_it_learned_from_and_does_not_go_on_with_another_trace(tmp_path):
    count = np.random.default_rng(0).integers(1, 99, (5, 2, 1, 16, 32))
    np.save(tmp_path / "tokens.npy", count)
    config = TrainingSettings(**INDEX | {"steps": 1}, trace=str(tmp_path / "tokens.npy"))
    train(config, tmp_path / "run")
    learned = load(tmp_path / "run" / training.TRAINED_POLICY).configuration["learned_from"]
    assert [learned[part] for part in ("records", "validation", "held_out")] == [[0, 3], [4, 4], None]
    assert len(set(learned["digests"])) == 5
    train(config, tmp_path / "run")
    np.save(tmp_path / "tokens.npy", count[::-1])
    check_refused("trace must be unchanged since the run in", train, config, tmp_path / "run")


def test_an_index_moves_towards_the_rules_that_did_best(monkeypatch):
    # The "time" of a rule is how far its offset is from 3: a few steps bring the centre there.
    monkeypatch.setattr(training, "mean_rule_time", lambda rule, batch, config: jnp.abs(jnp.log(rule.offset / 3)))
    config, state = TrainingSettings(**TINY), training.first_index()
    for step in range(25):
        state, _ = training.index_step(state, training.Lesson(*[None] * 4), jax.random.key(step), config)
    assert float(training.rule_at(state.centre).offset) == pytest.approx(3, rel=0.1)
    training.index_step.clear_cache()


def test_a_pool_has_as_many_of_every_family(few_families):
    pool, bare = demands.pool(4, 0), demands.from_knobs(4, 0)
    families = len(FAMILIES) + 1  # broad
    assert len(pool) >= demands.POOL * families + min(len(bare), demands.POOL)
    assert (pool[:, range(4), range(4)] == 0).all()
    halves = pool[demands.POOL * len(FAMILIES) : demands.POOL * families]  # bipartite: a pair of four is within a half
    assert ((halves == 0).sum(axis=(1, 2)) == 4 + 4).all()
    assert ((pool[: demands.POOL] == 0).sum(axis=(1, 2)) == 4).all()


def test_lessons_are_what_the_configuration_says():
    config = TrainingSettings(batch=400, noise=0.8, varied=0.5)
    batch = lessons(jax.random.key(0), jnp.asarray(np.arange(32.0, dtype=np.float32).reshape(2, 4, 4)), config, 4)
    off = ~np.eye(4, dtype=bool)
    error = np.log(np.maximum(batch.forecast, 1e-9) / np.maximum(batch.demand, 1e-9))
    spread, sigma = error[:, off].std(axis=1), np.asarray(batch.sigma)
    degrees = np.asarray(batch.region.optical_degree)
    usual = (degrees == 6).all(axis=1) & (np.asarray(batch.region.electrical_nics) == 2)
    assert 0.75 < sigma.max() <= 0.8
    assert ((spread < 1e-6) == (sigma == 0)).all()
    assert np.corrcoef(spread, sigma)[0, 1] > 0.9
    for share, want in ((sigma == 0, 1 / 5), (usual, 0.5), (np.asarray(batch.demand).sum((1, 2)) > 200, 0.5)):
        assert share.mean() == pytest.approx(want, abs=0.1)


@pytest.fixture(scope="module")
def lesson_batch():
    """A network whose scores count, and lessons of heavy pairs that nothing else tells."""
    config = TrainingSettings(**TINY | {"batch": 8, "steps": 60, "learning_rate": 0.01, "noise": 0.5, "width": 6})
    pool = np.random.default_rng(0).pareto(1.2, (8, 6, 6)).astype(np.float32) * ~np.eye(6, dtype=bool)
    return config, lessons(jax.random.key(3), jnp.asarray(pool), config, 6), training.first_network(config)


def test_the_slope_of_the_objective_is_that_of_differences(lesson_batch):
    _, batch, state = lesson_batch
    half = jnp.asarray(0.5, jnp.float32)
    held = jnp.zeros((len(batch.demand), 1, 3 * 6 + 2, 6), jnp.float32)
    weights, rest = eqx.partition(state.model, eqx.is_array)
    flat, back = jax.flatten_util.ravel_pytree(weights)

    @jax.jit
    def time(flat):
        return training.mean_time(eqx.combine(back(flat), rest), batch, held, half)

    slope = jax.jit(jax.grad(time))(flat)
    for seed in range(3):
        way = jax.random.normal(jax.random.key(seed), flat.shape, jnp.float32) + 3 * slope / jnp.abs(slope).max()
        step = 1e-2 / jnp.linalg.norm(way)
        found = (time(flat + step * way) - time(flat - step * way)) / (2 * step)
        assert float(found) == pytest.approx(float(slope @ way), rel=0.05, abs=0.02)  # float32


def test_steps_lower_the_objective_of_a_batch(lesson_batch):
    config, batch, state = lesson_batch
    times = []
    for _ in range(30):
        state, parts = training.network_step(state, batch, jnp.asarray(0), config)
        times.append(float(parts["time"]))
    assert times[-1] < times[0] - 0.01
    assert min(times) >= 1


def test_what_cannot_be_written_is_found_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "pool", lambda *given: pytest.fail("computes"))
    for name in (training.CHECKPOINT, training.METRICS, training.TRAINED_POLICY):
        folder = tmp_path / name
        (folder / name).mkdir(parents=True)
        check_refused(
            f"file .*{name}' is a folder; choose another folder for out", train, TrainingSettings(**TINY), folder
        )
    (tmp_path / "file").touch()
    check_refused(r"cannot write into .*file' \(File exists\)", train, TrainingSettings(**TINY), tmp_path / "file")

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "write_bytes", full)
    check_refused("No space left on device", train, TrainingSettings(**TINY), tmp_path / "new")
