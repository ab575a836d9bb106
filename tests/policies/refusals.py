"""Mistakes in policies, each answered with one sentence; see `tests/test_refusals.py`."""

import numpy as np

from mfabric_jax.fabric import Region
from mfabric_jax.policies import LayerPlans, check_legal, exact_circuits, get, joint, random_circuits, static, uniform
from mfabric_jax.policies.index_rule import Index
from mfabric_jax.policies.local_search import local_search, threshold
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.policies.renewal import Renewal
from mfabric_jax.policies.sample_average import sample_average

REGION = Region(5, 400.0)
ONE, MANY = np.ones((5, 5)), np.ones((2, 5, 5))
SMALLER = uniform(ONE, Region(4, 400.0))


def illegal(count):
    """The refusal of circuits between two servers of degree 6."""
    batch = np.stack([np.zeros((2, 2)), np.asarray(count, float)])
    return lambda: check_legal("mine", batch, 6)


REFUSED = [
    (lambda: get("greedyy"), "policy 'greedyy' is unknown (did you mean 'greedy'?)"),
    (lambda: get("greedy")(ONE, REGION, rule="fair"), "rule 'fair' is unknown; allowed: printed, released, next"),
    (lambda: get("uniform", rule="next"), "policy 'uniform' has no setting 'rule'; it has none"),
    (lambda: get("none.policy"), "policy file 'none.policy' cannot be read (No such file or directory)"),
    (lambda: get("nowhere.py:f"), "must be FILE.py:FUNCTION, but there is no file 'nowhere.py'"),
    (lambda: get("mine.py"), "policy 'mine.py' must be FILE.py:FUNCTION if it is your own"),
    (lambda: get("mine:squared"), "policy 'mine:squared' must be FILE.py:FUNCTION"),
    (lambda: threshold(ONE, REGION, routing="relay"), "routing 'relay' is unknown; allowed: unsplit, split"),
    (lambda: threshold(np.ones((4, 5)), REGION), "demand must be [S S] with S = 5 servers, got [4, 5]"),
    (lambda: random_circuits(ONE, REGION), "policy 'random' needs a key, got none"),
    (lambda: static(ONE, REGION), "policy 'static' needs mean"),
    (lambda: local_search(ONE, REGION, most_changed=2), "most_changed needs the previous plan, got none"),
    (
        lambda: local_search(ONE, REGION, previous=SMALLER),
        "previous must have circuits [S S] with S = 5 servers, got [4, 4]",
    ),
    (lambda: sample_average(MANY, REGION, risk="cvar:0"), "risk must be mean, worst or cvar:Q", "got 'cvar:0'"),
    (lambda: sample_average(MANY, REGION, weights=np.ones(3)), "weights must be [K] = [2], got [3]"),
    (lambda: sample_average(ONE[0], REGION), "demand must be [S S] or [K S S] with S = 5 servers, got [5]"),
    (lambda: joint(ONE, REGION, start="gredy"), "policy 'gredy' is unknown (did you mean 'greedy'?)"),
    (lambda: joint(ONE, REGION, start=5), "start must be a policy, by name or as a function, got 5."),
    (lambda: joint(ONE, REGION, enough=-0.1), "enough must be finite and not negative, got -0.1"),
    (lambda: LayerPlans.first(REGION, 0), "layers must be a whole number of at least 1, got 0"),
    (lambda: exact_circuits(REGION, ONE * np.nan), "demand must be finite and not negative"),
    (
        lambda: Renewal(REGION, routing="fair"),
        "routing 'fair' is unknown; allowed: unsplit, best-path, split, relay",
    ),
    (lambda: Renewal(REGION, share_steps=-1), "share_steps must be a whole number of at least 0, got -1"),
    (lambda: Index(spread=1.5), "spread must be at most 1, got 1.5"),
    (lambda: PolicyNetwork(2, 1, key=None), "width must be a whole number of at least 3, got 2"),
    (illegal([[0, 1], [0, 0]]), "policy mine gave circuits that break a rule: they must be symmetric"),
    (illegal([[1, 0], [0, 0]]), "zero on the diagonal"),
    (illegal([[0, 7], [7, 0]]), "at most 6 at a server (region.optical_degree), got 7"),
    (illegal([[0, -1], [-1, 0]]), "not negative"),
    (illegal([[0, 0.5], [0.5, 0]]), "whole numbers"),
    (illegal([[0, np.nan], [np.nan, 0]]), "whole numbers"),
]
