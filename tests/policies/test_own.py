"""Policies of the user's own: found in a file, tried before use, each mistake a sentence."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import Plan, check_legal, get, suited, try_out, uniform
from mfabric_jax.study import Compare, compare
from tests.mistakes import refused
from tests.study.small import as_a_user, small

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


def counting(demand, region, *, previous=None, key=None):
    return next(uniform(demand, region) for _ in range(region.optical_degree))


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
    assert Compare(models=("llama-moe",), policy=name).policy_name == name


def test_mistakes_are_sentences_before_any_compute():
    for policy, sentence in (
        (bare, "policy bare must return Plan(Circuits(count)), got "),
        (half, "policy half must return Plan(Circuits(count)), got Plan("),
        (counting, "policy counting must be a function that JAX can trace"),
        (branching, "policy branching must be a function that JAX can trace (jax.numpy, no `if` or `range` on demand"),
        (without_key, "called as policy(demand, region, previous=..., key=...), raised TypeError: without_key() got"),
        (wide, "policy wide must give circuits [S S] = [2 2], got [3, 3]."),
    ):
        with as_a_user(), pytest.raises(InputError) as mistake:
            Compare(models=("llama-moe",), policy=policy)
        assert sentence in str(mistake.value)  # one of them ends with what JAX says


def test_the_broken_rule_is_named():
    for count, rule in (
        ([[0, 1], [0, 0]], "symmetric"),
        ([[1, 0], [0, 0]], "zero on the diagonal"),
        ([[0, 7], [7, 0]], "at most 6 at a server (region.optical_degree), got 7"),
        ([[0, -1], [-1, 0]], "not negative"),
        ([[0, 0.5], [0.5, 0]], "whole numbers"),
        ([[0, np.nan], [np.nan, 0]], "whole numbers"),
    ):
        said = refused(check_legal, "p", np.stack([np.zeros((2, 2)), np.asarray(count, float)]), 6)
        assert said.startswith(f"policy p gave circuits that break a rule: they must be {rule}")


def test_what_the_trial_does_not_show_the_run_does():
    with as_a_user():
        said = refused(list, compare(small("llama-moe", fabrics=("mfabric",), policy=sly, traffic="balanced")))
        assert said.startswith("policy sly gave circuits that break a rule: they must be at most")
        (row,) = compare(small("llama-moe", fabrics=("mfabric",), policy=no_circuits))
    assert (row["policy"], row["reconfig_s"]) == ("no_circuits", 0)


def test_a_file_that_is_not_there_or_does_not_run(mine, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    for name, sentence in (
        ("nowhere.py:f", "must be FILE.py:FUNCTION, but there is no file 'nowhere.py'"),
        ("mine.py", "policy 'mine.py' must be FILE.py:FUNCTION where it is one of your own"),
        ("mine:squared", "policy 'mine:squared' must be FILE.py:FUNCTION"),
        (f"{mine}:sqared", r"'sqared' is unknown \(did you mean 'squared'\?\); allowed: squared"),
        (f"{broken}:f", "running its file raised ZeroDivisionError: division by zero"),
    ):
        assert re.search(sentence, refused(get, name))
