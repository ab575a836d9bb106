"""Policies in files: what is kept comes back, what is wrong with a file is said, what ships beats greedy."""

import importlib.resources
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import get, greedy, policy_file
from mfabric_jax.policies.learned import Index, PolicyNetwork, index, learned, load, save
from mfabric_jax.routing import Plan, relay_shares
from mfabric_jax.routing.region import fluid_lower_bound
from tests.mistakes import refused
from tests.policies.drawn import region

SERVERS = 8
NETWORK = PolicyNetwork(6, 1, key=jax.random.key(1))
CONFIGURATION = {"seed": 3, "sizes": [8, 16]}


def draw(seed, servers=SERVERS):
    return np.random.default_rng(seed).lognormal(0, 1.5, (servers, servers)) * 1000


def kept(folder, model):
    return save(folder / "one.policy", model, CONFIGURATION)


def test_a_model_comes_back_as_it_was(tmp_path):
    for model in (NETWORK, Index(0.5, 1.25, 0.75, 0.1, 2.0)):
        trained = load(kept(tmp_path, model))
        assert (type(trained.model), trained.configuration) == (type(model), CONFIGURATION)
        for before, after in zip(jax.tree.leaves(model), jax.tree.leaves(trained.model), strict=True):
            np.testing.assert_array_equal(before, after)
        plan, same = (one(draw(0, 4), region(4, 6)) for one in (model, trained))
        np.testing.assert_array_equal(plan.circuits.count, same.circuits.count)
        assert load(tmp_path / "one.policy") is trained
        assert load(kept(tmp_path, model)) is not trained


def test_a_network_in_a_file_is_told_sigma(tmp_path):
    path = str(kept(tmp_path, NETWORK))
    told = get(path, sigma=2.0)
    assert told is get(path, sigma=2.0)
    demand = draw(0, 4)
    want = NETWORK(demand, region(4, 6), sigma=2.0).circuits.count
    np.testing.assert_array_equal(told(demand, region(4, 6)).circuits.count, want)
    np.testing.assert_array_equal(get(path, sigma=jnp.asarray(2.0))(demand, region(4, 6)).circuits.count, want)
    assert "has no setting 'rule'; it has sigma, share_steps" in refused(get, path, rule="next")


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = kept(tmp_path, Index())
    with pytest.raises(TypeError):
        policy_file.write(path, {"kind": object()}, ())
    assert load(path).model == Index()
    assert [file.name for file in tmp_path.iterdir()] == ["one.policy"]
    assert "cannot write" in refused(lambda: save(path / "below.policy", Index(), {}))


def test_what_is_wrong_with_a_file_is_said(tmp_path):
    stored = kept(tmp_path, NETWORK)

    whole = stored.read_bytes()
    for content in (b"", b"no json\n", b"[1]\n", b"{}\n", b"\x93NUMPY\x01\x00", whole[:20]):
        stored.write_bytes(content)
        assert "is no policy file: its first line must be JSON" in refused(load, stored)
    for content in (whole[:-1], whole + b"0", whole[:-9] + b"x" + whole[-8:]):
        stored.write_bytes(content)
        assert refused(load, stored).endswith("is damaged: what follows its first line is not what was written.")
    for fields, said in (
        ({"mfabric_jax": 2}, "must have the layout 1, got 2."),
        ({"kind": "checkpoint"}, "'checkpoint' is unknown; allowed: network, index."),
        ({"settings": {"width": 9, "depth": 1}}, "does not hold the arrays that its first line announces."),
        ({"settings": {"depth": 1, "girth": 6}}, "lacks what a policy of kind 'network' needs."),
        ({"settings": None}, "lacks what a policy of kind 'network' needs."),
        ({"kind": "index", "settings": {"offset": -1.0}}, "offset must be finite and above 0, got -1.0."),
    ):
        line, _, body = whole.partition(b"\n")  # consistent in itself
        stored.write_bytes(json.dumps(json.loads(line) | fields).encode() + b"\n" + body)
        assert said in refused(load, stored)


def test_what_ships_is_small_and_says_how_it_was_made():
    folder = importlib.resources.files("mfabric_jax.policies") / "data"
    for name in ("index", "network"):
        stored = policy_file.read(folder / f"{name}.policy")
        assert stored.header["kind"] == stored.header["configuration"]["kind"] == name
        assert stored.header["configuration"]["trace"] is None
        assert len(stored.body) < 200_000  # bytes


def test_what_ships_is_better_than_greedy_under_relay_routing():
    where = region(SERVERS, 6)
    demands = np.stack([draw(seed) * (np.random.default_rng(seed + 99).random((8, 8)) < 0.5) for seed in range(24)])

    @jax.jit
    @jax.vmap
    def times(demand):
        def seconds(count):
            shares = relay_shares(where, Circuits(count), demand, steps=60)
            return fluid_lower_bound(where, Plan(Circuits(count), shares), demand, routing="relay")

        return jax.lax.map(
            seconds, jnp.stack([policy(demand, where).circuits.count for policy in (learned, index, greedy)])
        )

    network, rule, paper = times(demands).T
    assert np.mean(network / paper) < 0.99
    assert np.mean(rule / paper) < 0.99
