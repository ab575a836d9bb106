"""The registry: names, settings, functions of the user's own; the policy for the mean demand."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric import Region
from mfabric_jax.policies import REGISTRY, get, greedy, settings_of, static, suited
from mfabric_jax.policies._index import Index
from mfabric_jax.policies._learned import save
from tests.mistakes import refused

REGION = Region(4, 400.0, 5)


def test_names_and_their_settings():
    assert get("greedy") is greedy
    assert get("greedy", rule="next") is get("greedy", rule="next")
    assert get("greedy", rule="next") is not get("greedy", rule="released")
    demand = np.random.default_rng(3).pareto(1.0, (4, 4))
    for rule in ("next", "released"):
        count = get(f"greedy-{rule}")(demand, REGION).circuits.count
        np.testing.assert_array_equal(count, greedy(demand, REGION, rule=rule).circuits.count)
    for name, settings, sentence in (
        ("greedyy", {}, "policy 'greedyy' is unknown"),
        ("greedy", {"rule": "fair"}, "rule 'fair' is unknown"),
        ("uniform", {"rule": "next"}, "policy 'uniform' has no setting 'rule'; it has none."),
    ):
        assert re.search(sentence, refused(get, name, **settings))


def test_a_policy_gets_the_settings_it_has_and_no_others():
    assert settings_of(greedy) == ["rule"]
    assert suited("greedy", rule="next", routing="split") is get("greedy", rule="next")
    assert suited("uniform", rule="next") is REGISTRY["uniform"]

    def mine(demand, region, *, previous=None, key=None):
        return greedy(demand, region)

    assert suited(mine, rule="next") is mine


def test_a_trained_file_is_a_policy_by_its_path(tmp_path):
    rule = Index(power=1.5)
    path = str(save(tmp_path / "mine.policy", rule, {}))
    demand = np.random.default_rng(2).pareto(1.0, (4, 4))
    for policy in (get(path), suited(path, rule="next", routing="split")):
        np.testing.assert_array_equal(policy(demand, REGION).circuits.count, rule(demand, REGION).circuits.count)
    assert get(path) is get(path)
    assert "has no setting 'rule'; it has none" in refused(get, path, rule="next")
    assert "policy file 'none.policy' cannot be read" in refused(get, "none.policy")


def test_circuits_for_the_mean_stay_whatever_the_demand():
    mean, now = (jnp.asarray(np.random.default_rng(seed).pareto(1.0, (4, 4))) for seed in (0, 1))
    want = greedy(mean, REGION, rule="next").circuits.count
    assert (want != greedy(now, REGION, rule="next").circuits.count).any()
    for policy in (jax.tree_util.Partial(static, mean=mean), get("static", mean=mean)):
        np.testing.assert_array_equal(policy(now, REGION).circuits.count, want)
    assert "policy 'static' needs mean" in refused(static, now, REGION)
