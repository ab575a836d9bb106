"""What policies refuse, each in a sentence that names the field, the value and what is allowed."""

import re
import sys

import numpy as np
import pytest

from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy, random_circuits, static, threshold, topoopt, uniform
from mfabric_jax.policies._exact import exact, exact_circuits, matching
from mfabric_jax.policies._index import Index
from mfabric_jax.policies._local_search import improved, local_search
from mfabric_jax.policies._relaxed import relaxed
from mfabric_jax.policies._sample_average import joint, sample_average
from tests.mistakes import refused

REGION = Region(5, 400.0)
ONE, MANY = np.ones((5, 5)), np.ones((2, 5, 5))
EVEN = uniform(ONE, REGION)
WHOLE, RISK = "{} must be a whole number of at least {}, got {}.", "risk must be mean, worst or cvar:Q with 0 < Q <= 1"
SETTINGS = [
    (greedy, ONE, {"rule": "reversed"}, "rule 'reversed' is unknown"),
    (random_circuits, ONE, {}, "policy 'random' needs a key, got none."),
    (static, ONE, {}, "policy 'static' needs mean"),
    (threshold, ONE, {"routing": "relay"}, "routing 'relay' is unknown"),
    (threshold, ONE, {"starts": 0}, WHOLE.format("starts", 1, 0)),
    (local_search, ONE, {"routing": "relay"}, "routing 'relay' is unknown"),
    (local_search, ONE, {"most_changed": 2}, "most_changed needs the previous plan"),
    (local_search, ONE, {"previous": EVEN, "most_changed": -1}, WHOLE.format("most_changed", 0, -1)),
    (local_search, ONE, {"previous": uniform(ONE, Region(4, 400.0))}, "previous must have circuits [S S] with S = 5"),
    (relaxed, ONE, {"steps": -1}, WHOLE.format("steps", 0, -1)),
    (relaxed, ONE, {"samples": 0}, WHOLE.format("samples", 1, 0)),
    (relaxed, ONE, {"rounds": 1.5}, WHOLE.format("rounds", 0, 1.5)),
    (relaxed, ONE, {"routing": "best-path"}, "routing 'best-path' is unknown; allowed: unsplit, split, relay"),
    (joint, ONE, {"steps": -1}, WHOLE.format("steps", 0, -1)),
    (joint, ONE, {"samples": -1}, WHOLE.format("samples", 1, -1)),
    (joint, ONE, {"rounds": -1}, WHOLE.format("rounds", 0, -1)),
    (sample_average, MANY, {"risk": "cvar:0"}, f"{RISK}, got 'cvar:0'."),
    (sample_average, MANY, {"risk": "bad"}, f"{RISK}, got 'bad'."),
    (sample_average, MANY, {"routes": "free"}, "routes 'free' is unknown; allowed: adaptive, fixed."),
    (sample_average, MANY, {"weights": np.ones(3)}, "weights must be [K] = [2], got [3]."),
    (sample_average, MANY, {"rounds": -1}, WHOLE.format("rounds", 0, -1)),
    (exact, ONE, {"routing": "best-path"}, "routing 'best-path' is unknown"),
]
SETTINGS += [
    (threshold, np.ones((4, 5)), {}, "demand must be"),
    (joint, np.ones((4, 4)), {}, "demand must be [S S] with S = 5 servers, got [4, 4]"),
    (topoopt, np.ones((6, 6)), {}, "demand must be [S S] with S = 5 servers, got [6, 6]"),
    (sample_average, np.ones((2, 3, 3)), {}, "demand must be [S S] or [K S S] with S = 5 servers, got [2, 3, 3]."),
]
OTHERS = [
    (improved, (np.zeros((5, 5), np.int32), ONE, REGION), {"rounds": -1}, WHOLE.format("rounds", 0, -1)),
    (exact_circuits, (REGION, ONE), {"seconds": 0.0}, "seconds must be finite and above 0"),
    (exact_circuits, (REGION, ONE * np.nan), {}, "demand must be finite"),
    (Index, (), {"offset": 0.0}, "offset must be finite and above 0, got 0.0."),
    (Index, (), {"relief": -1.0}, "relief must be finite and not negative, got -1.0."),
    (Index, (), {"spread": 1.5}, "spread must be at most 1, got 1.5."),
    (Index, (), {"larger": 2.0}, "larger must be at most 1, got 2.0."),
]


def test_settings_and_demand_that_are_refused():
    for policy, demand, settings, sentence in SETTINGS:
        assert sentence in refused(policy, demand, REGION, **settings), (policy, settings)
    for function, given, settings, sentence in OTHERS:
        assert sentence in refused(function, *given, **settings), (function, settings)


@pytest.mark.parametrize("policy", [exact, matching])
def test_without_scipy_the_sentence_says_how_to_install_it(policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    said = refused(policy, ONE, REGION)
    assert re.search(rf"policy '{policy.__name__}' needs scipy.optimize.*pip install", said)
