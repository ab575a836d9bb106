"""The registry: names and settings; policies of the user's own: found in a file, tried before use."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import resolve, simulate
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import REGISTRY, Plan, get, greedy, settings_of, static, suited, try_out, uniform
from tests.mistakes import refused
from tests.small import as_a_user, small

REGION = Region(4, 400.0, 5)


def on_mfabric(policy, changes=None):
    """A case with a policy."""
    given = {"network.fabric": "mfabric", "circuits.policy": policy}
    return small(given | (changes or {}), "llama-moe")


def test_names_and_their_settings():
    assert get("greedy") is greedy
    assert get("greedy", rule="next") is get("greedy", rule="next")
    assert get("greedy", rule="next") is not get("greedy", rule="released")
    demand = np.random.default_rng(3).pareto(1.0, (4, 4))
    for rule in ("next", "released"):
        count = get(f"greedy-{rule}")(demand, REGION).circuits.count
        np.testing.assert_array_equal(count, greedy(demand, REGION, rule=rule).circuits.count)


def test_a_policy_gets_the_settings_it_has_and_no_others():
    assert settings_of(greedy) == ["rule"]
    assert suited("greedy", rule="next", routing="split") is get("greedy", rule="next")
    assert suited("uniform", rule="next") is REGISTRY["uniform"]

    def mine(demand, region, *, previous=None, key=None):
        return greedy(demand, region)

    assert suited(mine, rule="next") is mine


def test_circuits_for_the_mean_stay_whatever_the_demand():
    mean, now = (jnp.asarray(np.random.default_rng(seed).pareto(1.0, (4, 4))) for seed in (0, 1))
    want = greedy(mean, REGION, rule="next").circuits.count
    assert (want != greedy(now, REGION, rule="next").circuits.count).any()
    for policy in (jax.tree_util.Partial(static, mean=mean), get("static", mean=mean)):
        np.testing.assert_array_equal(policy(now, REGION).circuits.count, want)


# ------------------------------------------------------------------------------------------------------ the user's own
MINE = """
import jax.numpy as jnp
from mfabric_jax.policies import greedy

def squared(demand, region, *, previous=None, key=None, rule="printed"):
    return greedy(demand**2, region, rule=rule)
"""


def no_circuits(demand, region, *, previous=None, key=None):
    return Plan(Circuits(jnp.zeros((region.servers, region.servers), int)))


def bare(demand, region, *, previous=None, key=None):
    return jnp.zeros((region.servers, region.servers), int)


def branching(demand, region, *, previous=None, key=None):
    return uniform(demand, region) if demand.sum() > 0 else None


def without_key(demand, region):
    return uniform(demand, region)


def half(demand, region, *, previous=None, key=None):
    return Plan(jnp.zeros((region.servers, region.servers), int))


def wide(demand, region, *, previous=None, key=None):
    return Plan(Circuits(jnp.zeros((region.servers + 1, region.servers + 1), int)))


def sly(demand, region, *, previous=None, key=None):
    """Legal while demand is heavy-tailed, as in the trial."""
    legal = uniform(demand, region).circuits.count
    return Plan(Circuits(jnp.where(demand.max() > 2 * demand.mean(), legal, 9 * legal)))


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


def test_a_function_of_a_file_is_a_policy_with_its_settings(mine):
    name = f"{mine}:squared"
    assert get(name).__name__ == "squared"
    assert get(name) is get(name)  # programs compiled for it are found again
    assert suited(name, rule="next", routing="split").keywords == {"rule": "next"}
    try_out(get(name), name, 4, 6)
    assert resolve(on_mfabric(name)).settings.policy_name == name


def test_mistakes_are_sentences_before_any_compute():
    for policy, sentence in (
        (bare, "policy bare must return Plan(Circuits(count)), got "),
        (half, "policy half must return Plan(Circuits(count)), got Plan("),
        (branching, "policy branching must be a function that JAX can trace (jax.numpy, no `if` or `range` on demand"),
        (without_key, "called as policy(demand, region, previous=..., key=...), raised TypeError: without_key() got"),
        (wide, "policy wide must give circuits [S S] = [2 2], got [3, 3]."),
    ):
        with as_a_user(), pytest.raises(InputError) as mistake:
            resolve(on_mfabric(policy))
        assert sentence in str(mistake.value)  # one of them ends with what JAX says


def test_beside_overlapping_passes_own_policies_choose_by_demand_alone(mine):
    passes = {"job.schedule": "dualpipe", "job.overlap": "passes", "job.parallel.pp": 2, "job.parallel.dp": 4}
    passes["job.batch.micro_batches"] = 4

    def staying(demand, region, *, previous=None, key=None):
        return uniform(demand, region) if previous is None else previous

    resolve(on_mfabric(f"{mine}:squared", passes))
    said = refused(lambda: resolve(on_mfabric(staying, passes)))
    assert said.startswith("circuits.policy must choose by demand alone beside job.overlap passes")
    assert "got staying, which" in said
    resolve(on_mfabric(staying, passes | {"circuits.span.length": "iteration"}))


def test_what_the_trial_does_not_show_the_run_does():
    with as_a_user():
        said = refused(simulate(on_mfabric(sly, {"traffic.knobs": "balanced"})).rows)
        assert said.startswith("policy sly gave circuits that break a rule: they must be at most")
        (row,) = simulate(on_mfabric(no_circuits)).rows()
    assert (row["policy"], row["reconfig_s"]) == ("no_circuits", 0)


def test_a_file_without_the_function_or_that_does_not_run(mine, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    for name, sentence in (
        (f"{mine}:sqared", r"'sqared' is unknown \(did you mean 'squared'\?\); allowed: squared"),
        (f"{broken}:f", "running its file raised ZeroDivisionError: division by zero"),
    ):
        assert re.search(sentence, refused(get, name))
