"""Learned policies: the index rule against plain loops, the network's promises, files, what ships beats greedy."""

import importlib.resources
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import get, greedy, policy_file
from mfabric_jax.policies.index_rule import Index, index, shipped_index
from mfabric_jax.policies.learned import learned, load, save
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.policies.samples import normalise
from mfabric_jax.routing import Plan, fluid_lower_bound, relay_shares
from mfabric_jax.routing.relay import check_shares
from tests.batches import assert_batch_is_its_loop
from tests.mistakes import refused
from tests.oracles.greedy import greedy as plain_greedy
from tests.policies import drawn
from tests.policies.drawn import SEEDS, any_degrees, hostile
from tests.routing.regions import pairs

SERVERS = 5
NETWORK = PolicyNetwork(6, 1, key=jax.random.key(1))
NETWORK = eqx.tree_at(
    lambda network: network.score.weight, NETWORK, replace_fn=lambda weight: 100 * weight
)  # as trained
SIGMA = jnp.asarray(0.5)
CONFIGURATION = {"seed": 3, "sizes": [8, 16]}


def region(degree=6, electrical=2.0, servers=SERVERS):
    return drawn.region(servers, degree, electrical)


def draw(seed, servers=SERVERS, part=1.0):
    """Demand without ties; only this part of the pairs has bytes. The diagonal must not matter."""
    rng = np.random.default_rng(seed)
    return rng.lognormal(0, 1.5, (servers, servers)) * (rng.random((servers, servers)) < part) * 2.0**20


@eqx.filter_jit
def allocated(rule, demand, where):
    return index(demand, where, parameters=rule).circuits.count


def traced(**numbers):
    return jax.tree.map(jnp.asarray, Index(**numbers))


def plain(rule, demand, degree, electrical):
    """Oracle: lists and loops, by the words of the docstring."""
    servers = len(demand)
    size = [[0.0 if i == j else float(demand[i][j]) for j in range(servers)] for i in range(servers)]
    lines = [sum(row) / (degree + electrical) for row in (*size, *zip(*size, strict=True))]
    need = [[x / max(lines) for x in row] for row in size]
    out, into = [sum(row) for row in need], [sum(row) for row in zip(*need, strict=True)]
    even = [[out[i] * into[j] / sum(out) for j in range(servers)] for i in range(servers)]
    one_way = [
        [(1 - rule["spread"]) * need[i][j] + rule["spread"] * even[i][j] for j in range(servers)]
        for i in range(servers)
    ]
    count, free = np.zeros((servers, servers), int), [degree] * servers
    while True:
        left = [[max(need[i][j] - count[i, j], 0) for j in range(servers)] for i in range(servers)]
        busy = [max(sum(left[i]), sum(row[i] for row in left)) / electrical for i in range(servers)]
        best, score = None, 0.0
        for i in range(servers):
            for j in range(i + 1, servers):
                a, b = one_way[i][j], one_way[j][i]
                worth = rule["larger"] * max(a, b) + (1 - rule["larger"]) * (a + b) / 2
                now = worth * (1 + rule["relief"] * (busy[i] + busy[j]))
                now /= (count[i, j] + rule["offset"]) ** rule["power"]
                if free[i] and free[j] and now > score:
                    best, score = (i, j), now
        if best is None:
            return count
        i, j = best
        count[i, j] += 1
        count[j, i] += 1
        free[i], free[j] = free[i] - 1, free[j] - 1


def test_agrees_with_plain_loops_and_is_greedy_by_the_next_circuit_where_nothing_is_given():
    np.testing.assert_array_equal(
        index(draw(3), region()).circuits.count, allocated(shipped_index(), draw(3), region())
    )  # the default
    for seed in range(30):
        rng, demand = np.random.default_rng(seed), draw(seed, part=0.8)
        numbers = {"offset": rng.uniform(0.3, 2), "power": rng.uniform(0.5, 2), "larger": rng.uniform(0, 1)}
        numbers |= {"spread": rng.uniform(0, 1), "relief": rng.uniform(0, 3)}
        degree, electrical = int(rng.integers(1, 9)), int(rng.integers(1, 4))
        got = allocated(traced(**numbers), demand, region(degree, float(electrical)))
        np.testing.assert_array_equal(got, plain(numbers, demand, degree, electrical), err_msg=str(seed))
        np.testing.assert_array_equal(allocated(traced(), demand, region(4)), plain_greedy(demand, 4, "next"))


# ------------------------------------------------------------------------------------------------------- network
@eqx.filter_jit
def planned(demand, where, sigma=SIGMA):
    return NETWORK(demand, where, sigma=sigma)


def test_servers_in_another_order_get_the_same_plan_in_that_order():
    for seed in range(10):
        rng, demand = np.random.default_rng(seed), draw(seed)
        degree, electrical = rng.integers(1, 9, SERVERS), rng.integers(1, 4, SERVERS).astype(float)
        order = rng.permutation(SERVERS)
        plan = planned(demand, region(degree, electrical))
        moved = planned(demand[order][:, order], region(degree[order], electrical[order]))
        np.testing.assert_array_equal(moved.circuits.count, np.asarray(plan.circuits.count)[order][:, order])


@settings(max_examples=60, derandomize=True)
@given(SEEDS, any_degrees(SERVERS), st.sampled_from([jnp.float32, jnp.float64]))
def test_is_legal_whatever_the_demand(seed, degree, dtype):
    demand = hostile(seed, SERVERS) * ~np.eye(SERVERS, dtype=bool)
    where = region(np.asarray(degree), float(seed % 3))
    plan = planned(jnp.asarray(demand, dtype), where)
    count = np.asarray(plan.circuits.count)
    assert np.issubdtype(count.dtype, np.integer)
    Circuits(count).check_legal(np.asarray(degree))
    assert plan.shares is not None
    assert plan.shares.dtype == dtype
    check_shares(np.asarray(plan.shares), SERVERS)
    time = fluid_lower_bound(where, plan, jnp.asarray(demand, dtype), routing="relay")
    stuck = (np.asarray(degree) == 0) & (np.asarray(where.electrical_nics) == 0)
    assert np.isfinite(time) or (demand[stuck].any() or demand[:, stuck].any() or not where.electrical_nics.any())


def test_unit_of_bytes_does_not_matter():
    demand = draw(2)
    want = planned(demand, region())
    for factor in (2.0**-40, 2.0**40):
        got = planned(demand * factor, region())
        np.testing.assert_array_equal(got.circuits.count, want.circuits.count)
        np.testing.assert_array_equal(got.shares, want.shares)


def test_need_is_measured_in_nics_of_the_busiest_server():
    # 0 sends 6 + 2 to 1 and 2, all over 4 + 1 NICs: 8/5 bytes a NIC. Server 3 has no NIC: its bytes do not count.
    demand = pairs({(0, 1): 6, (0, 2): 2, (3, 0): 100, (1, 1): 50}, servers=4)
    need = normalise(demand, region([4, 4, 4, 0], [1.0, 1.0, 1.0, 0.0], servers=4))
    want = pairs({(0, 1): 6 / (8 / 5), (0, 2): 2 / (8 / 5)}, servers=4)
    np.testing.assert_allclose(need.pairs, want, rtol=1e-12)


def test_a_batch_over_demands_and_regions_equals_its_loop_and_new_numbers_do_not_retrace():
    once = eqx.filter_jit(eqx.debug.assert_max_traces(lambda d, w: NETWORK(d, w), max_traces=1))
    cases = [(draw(seed), region(seed)) for seed in range(9)]
    assert_batch_is_its_loop(NETWORK, cases, once, atol=2e-5)  # circuits are whole: equal


def test_the_same_weights_serve_another_number_of_servers():
    plan = NETWORK(draw(4, 3), region(servers=3))
    Circuits(np.asarray(plan.circuits.count)).check_legal(6)
    assert plan.shares is not None
    assert plan.shares.shape == (3, 3, 5)


def test_how_far_a_forecast_may_be_off_is_seen():
    # One heavy pair among equal ones: of a forecast that errs as much as that, most is not believed.
    demand = np.full((SERVERS, SERVERS), 1e6)
    demand[0, 1] = 1e8
    sure, unsure = (planned(demand, region(), jnp.asarray(sigma)).circuits.count for sigma in (0.0, 2.0))
    assert sure[0, 1] > unsure[0, 1]
    need, degrees = normalise(draw(5), region()), region().degrees
    # The uncertainty itself moves the logits.
    sure, unsure = (NETWORK.logits(need, degrees, jnp.asarray(spread)) for spread in (0.0, 1.0))
    assert np.abs(sure - unsure).max() > 0.01


# --------------------------------------------------------------------------------------------------------- files
def kept(folder, model):
    return save(folder / "one.policy", model, CONFIGURATION)


def test_a_model_comes_back_as_it_was(tmp_path):
    for model in (NETWORK, Index(0.5, 1.25, 0.75, 0.1, 2.0)):
        trained = load(kept(tmp_path, model))
        assert (type(trained.model), trained.configuration) == (type(model), CONFIGURATION)
        for before, after in zip(jax.tree.leaves(model), jax.tree.leaves(trained.model), strict=True):
            np.testing.assert_array_equal(before, after)
        plan, same = (one(draw(0, 4), region(servers=4)) for one in (model, trained))
        np.testing.assert_array_equal(plan.circuits.count, same.circuits.count)
        assert load(tmp_path / "one.policy") is trained
        assert load(kept(tmp_path, model)) is trained, "the same bytes"
    rewritten = load(save(tmp_path / "one.policy", NETWORK, CONFIGURATION | {"seed": 4}))
    assert rewritten.configuration["seed"] == 4


def test_a_network_in_a_file_is_told_sigma(tmp_path):
    path = str(kept(tmp_path, NETWORK))
    told = get(path, sigma=2.0)
    assert told is get(path, sigma=2.0)
    demand = draw(0, 4)
    want = NETWORK(demand, region(servers=4), sigma=2.0).circuits.count
    np.testing.assert_array_equal(told(demand, region(servers=4)).circuits.count, want)
    np.testing.assert_array_equal(get(path, sigma=jnp.asarray(2.0))(demand, region(servers=4)).circuits.count, want)
    assert "has no setting 'rule'; it has sigma, share_steps, hidden_s" in refused(get, path, rule="next")


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
        assert "is not a policy file: its first line must be JSON" in refused(load, stored)
    for content in (whole[:-1], whole + b"0", whole[:-9] + b"x" + whole[-8:]):
        stored.write_bytes(content)
        assert refused(load, stored).endswith("is damaged: the bytes after its first line have changed.")
    for fields, said in (
        ({"mfabric_jax": 2}, "must have the layout 1, got 2."),
        ({"kind": "checkpoint"}, "'checkpoint' is unknown; allowed: network, index, ahead, module."),
        ({"settings": {"width": 9, "depth": 4096}}, "does not hold the arrays"),  # nor are they made to see it
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
    where = region(servers=8)
    demands = np.stack([draw(seed, 8) * (np.random.default_rng(seed + 99).random((8, 8)) < 0.5) for seed in range(24)])

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


def test_nested_maps_of_the_network_are_its_loop():
    """XLA of JAX 0.10.2 kills the process here without the barrier in `PairLayer`."""
    demands, sigmas = jnp.asarray([draw(seed) for seed in range(4)], jnp.float32), jnp.asarray([0.0, 0.3, 1.0])

    def choose(demand, sigma):
        return NETWORK.choose_circuits(demand, region(), None, sigma=sigma)

    many = jax.jit(jax.vmap(jax.vmap(choose, (0, None)), (None, 0)))(demands, sigmas)
    for sigma, some in zip(sigmas, many, strict=True):
        np.testing.assert_array_equal(some, jnp.stack([choose(demand, sigma) for demand in demands]))
