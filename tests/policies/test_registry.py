"""The registry: names and settings; policies of the user's own: found in a file, tried before use."""

import functools
import re
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import cases, report, resolve, simulate
from mfabric_jax.case.policies import name_of
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import REGISTRY, Plan, get, get_suitable, greedy, settings_of, static, try_out, uniform
from tests.mistakes import refused
from tests.small import JOB, as_a_user, small

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
    assert get_suitable("greedy", rule="next", routing="split") is get("greedy", rule="next")
    assert get_suitable("uniform", rule="next") is REGISTRY["uniform"]

    def mine(demand, region, *, previous=None, key=None):
        return greedy(demand, region)

    assert get_suitable(mine, rule="next") is mine


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

def _helper(demand):
    return demand

def squared(demand, region, *, previous=None, key=None, rule="printed", power=2.0):
    return greedy(_helper(demand) ** power, region, rule=rule)
"""


def no_circuits(demand, region, *, previous=None, key=None):
    return Plan(Circuits(jnp.zeros((region.servers, region.servers), int)))


def bare(demand, region, *, previous=None, key=None):
    return jnp.zeros((region.servers, region.servers), int)


def branching(demand, region, *, previous=None, key=None):
    return uniform(demand, region) if demand.sum() > 0 else None


def without_key(demand, region):
    return uniform(demand, region)


def leaving(demand, region, *, previous=None, key=None):
    raise SystemExit(0)


def failing(demand, region, *, previous=None, key=None):
    raise BaseException


def half(demand, region, *, previous=None, key=None):
    count = jnp.zeros((region.servers, region.servers), int)
    return eqx.tree_at(lambda plan: plan.circuits, Plan(Circuits(count)), count)  # as without checked annotations


def swapped(region, demand, *, previous=None, key=None):
    return greedy(demand, region)


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
    assert get_suitable(name, rule="next", routing="split").keywords == {"rule": "next"}
    try_out(get(name), name, 4, 6)
    assert resolve(on_mfabric(name)).policy_name == name


def test_a_name_holds_settings_which_are_columns_and_one_object(mine):
    name = f"{mine}:squared(power=3.0, rule=next)"
    assert get(name).keywords == {"power": 3.0, "rule": "next"}
    assert get(f"{mine}:squared( power=3.0,rule='next' )") is get(name)  # programs compiled for it are found again
    assert get_suitable(name, rule="printed").keywords["rule"] == "next"
    assert get("greedy(rule=next)") is get("greedy", rule="next")
    assert name_of(functools.partial(static, mean=0.5)) == "static(mean=0.5)"
    axes = {"circuits.policy": ["greedy", f"{mine}:squared(power=[1.0, 3.0], rule=next)", "greedy(rule=next)"]}
    rows = simulate(cases(on_mfabric("greedy"), axes)).rows()
    assert [row["policy"] for row in rows] == [
        *("greedy", f"{mine}:squared(power=1.0, rule=next)", name, "greedy(rule=next)"),
    ]
    assert [row["circuits.policy.power"] for row in rows] == [None, 1.0, 3.0, None]
    assert [row["circuits.policy.rule"] for row in rows] == [None, "next", "next", "next"]
    assert "power" not in report.comparison(rows).replace("power=", "")  # the name says it


def test_settings_and_functions_that_a_policy_does_not_have(mine):
    for name, *sentences in (
        (f"{mine}:squared(powr=2)", "squared' has no setting 'powr'; it has rule, power."),
        (f"{mine}:squared(power)", "must be written as NAME(setting=value, ...), but contains 'power'."),
        (f"{mine}:squared(power=1, power=2)", "its setting 'power' is stated twice."),
        (
            f"{mine}:squared(power=[1, 2])",
            "must be one value here, got several; name the policy once for each value: ",
            "squared(power=1),",
            "squared(power=2).",
        ),
        (f"{mine}:_helper", "is unknown; allowed: squared."),
        ("greedy(margin=0.3)", "policy 'greedy' has no setting 'margin'; it has rule."),
        ("static(mean=2)", "its setting 'mean' is an array, which no name can hold."),
        ("Copilot", "write circuits.reconfigure = predict and circuits.predict.predictor = transition"),
    ):
        said = refused(get, name)
        assert all(sentence in said for sentence in sentences)


def test_own_policies_know_bandwidth_and_delay_of_every_row():
    def until(region, seconds):
        """A ring below 160 Gbps where a turn takes less than that, else pairs."""
        one = jnp.eye(region.servers, dtype=int)
        ring = jnp.roll(one, 1, axis=1) + jnp.roll(one, -1, axis=1)
        pairs = 2 * jnp.roll(one, 2, axis=1)
        return Plan(Circuits(jnp.where((region.nic_Bps < 20e9) & (region.delay_s < seconds), ring, pairs)))

    def slow(demand, region, *, previous=None, key=None, seconds=0.03):
        return until(region, seconds)

    changes = {"network.fabric": "mfabric", "network.mfabric.optical_degree": 2, "circuits.delay_s": 0.02}
    case = small(changes | JOB | {"job.parallel.ep": 8, "job.parallel.dp": 4})
    axes = {"circuits.policy": [slow, functools.partial(slow, seconds=0.01)], "network.nic_gbps": [100, 400]}
    rows = simulate(cases(case, axes)).rows()
    first, fast, other, same = (row["iteration_s"] for row in rows)
    assert [row["policy"] for row in rows[::2]] == ["slow", "slow(seconds=0.01)"]
    assert first != pytest.approx(other, rel=1e-3)
    assert fast == pytest.approx(same, rel=1e-12)


def test_mistakes_are_sentences_before_any_compute():
    for policy, sentence in (
        (bare, "policy bare must return Plan(Circuits(count)), got "),
        (half, "policy half must return Plan(Circuits(count)), got Plan("),
        (branching, "policy branching must be a function that JAX can trace (jax.numpy, no `if` or `range` on demand"),
        (without_key, "policy without_key must be written as policy(demand, region, *, previous=None, key=None), "),
        (swapped, "policy swapped: region must be a Region, got "),
        (leaving, "called as policy(demand, region, previous=..., key=...), raised SystemExit: 0."),
        (failing, "called as policy(demand, region, previous=..., key=...), raised BaseException."),
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
    assert said.startswith("circuits.policy must choose by demand alone with job.overlap passes")
    assert "got staying, which" in said
    resolve(on_mfabric(staying, passes | {"circuits.span.length": "iteration"}))


def test_what_the_trial_does_not_show_the_run_does():
    with as_a_user():
        said = refused(simulate(on_mfabric(sly, {"traffic.knobs": "balanced"})).rows)
        assert said.startswith("policy sly gave circuits that break a rule: they must be at most")
        (row,) = simulate(on_mfabric(no_circuits)).rows()
    assert (row["policy"], row["reconfig_s"]) == ("no_circuits", 0)


def test_a_file_may_import_the_files_beside_it_and_others_of_that_name_stay_apart(tmp_path):
    text = "from helper_beside import rule\nfrom mfabric_jax.policies import get\n\n"
    text += "def f(demand, region, *, previous=None, key=None):\n    return get(rule)(demand, region)\n"
    names, paths = [], list(sys.path)
    for rule in ("uniform", "greedy"):
        (tmp_path / rule).mkdir()
        (tmp_path / rule / "helper_beside.py").write_text(f"rule = {rule!r}\n")
        (tmp_path / rule / "own.py").write_text(text)
        names.append(f"{tmp_path}/{rule}/own.py:f")
    demand, region = jnp.zeros((4, 4)).at[0, 1].set(1.0), Region(4, 400.0, 6)
    for name, rule in zip(names, ("uniform", "greedy"), strict=True):
        got = get(name)(demand, region).circuits.count
        np.testing.assert_array_equal(got, get(rule)(demand, region).circuits.count)
    assert sys.path == paths
    assert "helper_beside" not in sys.modules


def test_a_file_without_the_function_or_that_does_not_run(mine, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    leaves = tmp_path / "leaves.py"
    leaves.write_text("import sys\nsys.exit(0)")
    for name, sentence in (
        (f"{mine}:sqared", r"'sqared' is unknown \(did you mean 'squared'\?\); allowed: squared"),
        (f"{broken}:f", "running its file raised ZeroDivisionError: division by zero."),
        (f"{leaves}:f", "running its file raised SystemExit: 0."),
    ):
        assert re.search(sentence, refused(get, name))
