"""One set of circuits for many demands: brute force over all circuits, risks by hand, slopes, batches, legality."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan, get
from mfabric_jax.policies.relaxed import softened_time
from mfabric_jax.policies.sample_average import batch_stages, sample_average
from mfabric_jax.policies.samples import risk_of, samples_of, tail_of
from mfabric_jax.routing import degree_bound, fluid_lower_bound
from mfabric_jax.routing.region import relay_bound
from mfabric_jax.routing.relay import check_shares
from tests.batches import assert_batch_is_its_loop
from tests.oracles.relay_programme import best_relay_shares
from tests.policies.drawn import SEEDS, SOME_EPS, any_degrees, assert_legal, hostile

SERVERS, FEW, MANY = 4, 4, 8
RISKS = "mean", "cvar:0.25", "worst"
QUICK = {"rounds": 4, "steps": 40, "share_steps": 150}
NONE = np.zeros((SERVERS, SERVERS), np.int32)  # in place before: one program for all tests


def drawn(seed, many=MANY, servers=SERVERS):
    rng = np.random.default_rng(seed)
    demand = rng.pareto(1.2, (many, servers, servers)) * rng.lognormal(0, 3, (many, 1, 1))
    return demand * ~np.eye(servers, dtype=bool)


def every_circuit(servers, degree):
    """All circuits to which none can be added, as plain Python counts them."""
    pairs = list(itertools.combinations(range(servers), 2))

    def more(left, free):
        if not left:
            yield {}
            return
        (a, b), *rest = left
        for count in range(min(free[a], free[b]) + 1):
            free[a], free[b] = free[a] - count, free[b] - count
            for others in more(rest, free):
                yield others | {(a, b): count}
            free[a], free[b] = free[a] + count, free[b] + count

    for found in more(pairs, [degree] * servers):
        count = np.zeros((servers, servers), np.int32)
        for (a, b), circuits in found.items():
            count[a, b] = count[b, a] = circuits
        free = degree - count.sum(1)
        if sum(free > 0) < 2:
            yield count


@functools.partial(jax.jit, static_argnames=("risk", "routes", "routing"))
def planned(demand, region, weights=None, risk="mean", routes="adaptive", routing="relay"):
    return sample_average(demand, region, weights=weights, risk=risk, routes=routes, routing=routing, **QUICK)


RELAY = "mean", "adaptive", "relay"


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
@functools.partial(eqx.debug.assert_max_traces, max_traces=5)
def anywhere(demand, degrees, electrical, before, risk, routes, routing):
    """Five programs of all fast tests: numbers, and which circuits were in place, compile none."""
    region, previous = Region(SERVERS, 400.0, degrees, electrical), None if before is None else Plan(Circuits(before))
    return sample_average(demand, region, previous=previous, risk=risk, routes=routes, routing=routing, **QUICK)


def few(demand, degrees=3, electrical=1.0, how=RELAY):
    """The plan of FEW demands."""
    degrees = np.broadcast_to(degrees, SERVERS).astype(np.int32)
    before = NONE if how[1:] == RELAY[1:] else None
    return anywhere(np.asarray(demand, float), degrees, np.asarray(electrical, float), before, *how)


def over_bound(region, plan, demand):
    """Of each sample, under shares of its own or the same for all."""
    shares = plan.shares if plan.shares.ndim == 4 else [plan.shares] * len(demand)
    times = [relay_bound(region, Plan(plan.circuits, share), one) for share, one in zip(shares, demand, strict=True)]
    return np.array(times) / [degree_bound(region, one) for one in demand]


def test_no_circuits_are_much_better_in_brute_force():
    region = Region(SERVERS, 400.0, 2, 1.0)
    gaps = {"mean": [], "worst": []}
    for seed in range(3):
        demand = drawn(seed, FEW)
        bounds = [degree_bound(region, one) for one in demand]
        every = [
            [
                best_relay_shares(region, Circuits(count), one)[1] / bound
                for one, bound in zip(demand, bounds, strict=True)
            ]
            for count in every_circuit(SERVERS, 2)
        ]
        for risk, measure in (("mean", np.mean), ("worst", np.max)):
            found = measure(over_bound(region, few(demand, 2, how=(risk, *RELAY[1:])), demand))
            gaps[risk].append(found / min(map(measure, every)) - 1)
    for gap in gaps.values():
        assert min(gap) > -1e-6
        assert np.mean(gap) < 0.005
        assert max(gap) < 0.01


def test_what_counts_of_the_samples_by_hand():
    seconds, weight = jnp.array([1.0, 4.0, 2.0, 3.0]), jnp.array([0.4, 0.1, 0.2, 0.3])
    for risk, want in (
        ("mean", 0.4 + 0.4 + 0.4 + 0.9),
        ("worst", 4),
        ("cvar:1", 2.1),
        ("cvar:0.25", (0.1 * 4 + 0.15 * 3) / 0.25),
        ("cvar:0.05", 4),
    ):
        np.testing.assert_allclose(risk_of(seconds, weight, tail_of(risk)), want, rtol=1e-12)
    absent = jnp.array([0.5, 0.0, 0.5, 0.0])
    assert risk_of(seconds, absent, tail_of("worst")) == 2  # a sample of no weight does not count


@pytest.mark.slow
def test_the_tail_is_lower_where_it_is_what_counts():
    servers, region, worst = 6, Region(6, 400.0, 3, 1.0), []
    for seed in range(4):
        demand = drawn(seed, servers=servers)
        worst.append([over_bound(region, planned(demand, region, risk=risk), demand).max() for risk in RISKS])
    mean, tail, last = np.mean(worst, axis=0)
    assert tail < mean - 0.05
    assert last < mean - 0.05


@pytest.mark.slow
def test_fixed_routes_know_all_samples_and_weights_choose_among_them():
    region = Region(SERVERS, 400.0, 3, 1.0)
    for seed in range(3):
        demand = drawn(seed)
        both = planned(demand, region, routes="fixed")
        check_shares(np.asarray(both.shares), SERVERS)
        alone = planned(demand[0], region)
        together = over_bound(region, both, demand).mean()
        assert together < over_bound(region, alone, demand).mean()
        # Weights on one sample: as if it were the only one.
        first = planned(demand, region, weights=jnp.eye(MANY)[0], routes="fixed")
        np.testing.assert_allclose(over_bound(region, first, demand[:1])[0], 1, atol=0.02 if seed else 0.05)


def test_the_slope_of_the_relaxation_is_that_of_differences():
    rng = np.random.default_rng(0)
    samples = samples_of(jnp.asarray(drawn(0, 3)), Region(SERVERS, 400.0, 3, jnp.asarray(1.0)))
    at = [jnp.asarray(rng.normal(0, 0.5, shape)) for shape in ((SERVERS, SERVERS), (3, 3 * SERVERS + 2, SERVERS))]
    for strength in (0.0, 0.7):
        function = functools.partial(_softened, samples, jnp.asarray(strength))
        slope = _slope(samples, jnp.asarray(strength), *at)
        for place in (0, 1):
            toward = jnp.asarray(rng.normal(size=at[place].shape))
            step = 1e-5
            ends = [function(*at[:place], at[place] + by * toward, *at[place + 1 :]) for by in (step, -step)]
            np.testing.assert_allclose((slope[place] * toward).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


@jax.jit
def _softened(samples, strength, logits, potentials):
    return softened_time(samples, logits, potentials, jnp.asarray(0.1), strength, 1.0)


_slope = jax.jit(jax.grad(_softened, (2, 3)))


@settings(max_examples=25, derandomize=True)
@given(SEEDS, any_degrees(SERVERS), SOME_EPS)
def test_legal_whatever_the_demands(seed, degrees, electrical):
    demand = np.stack([hostile(seed + n, SERVERS) for n in range(FEW)])
    relayed = few(demand, degrees, electrical)
    fixed = few(demand, degrees, electrical, ("cvar:0.5", "fixed", "relay"))
    others = [few(demand, degrees, electrical, (*RELAY[:2], name)) for name in ("unsplit", "split")]
    for plan in (relayed, fixed, *others):
        assert_legal(plan.circuits.count, degrees)
    for shares in (*relayed.shares, fixed.shares):
        check_shares(np.asarray(shares), SERVERS)


def test_unsplit_and_split_are_no_worse_than_greedy_for_the_mean():
    region = Region(SERVERS, 400.0, 3, 1.0)
    for routing, seed in itertools.product(("unsplit", "split"), range(3)):
        demand = drawn(seed, FEW)
        bound = np.array([degree_bound(region, one) for one in demand])
        mean = (demand / bound[:, None, None]).mean(0)
        counts = few(demand, how=(*RELAY[:2], routing)).circuits, get("greedy-next")(mean, region).circuits
        times = [np.mean([fluid_lower_bound(region, c, d, routing=routing) for d in demand] / bound) for c in counts]
        assert times[0] <= times[1] * (1 + 1e-9)


def test_one_demand_is_a_sample():
    region, (demand, *_) = Region(SERVERS, 400.0, 3, 1.0), drawn(1)
    one, sample = (sample_average(some, region, **QUICK | {"steps": 0}) for some in (demand, demand[None]))
    np.testing.assert_array_equal(one.circuits.count, sample.circuits.count)
    np.testing.assert_array_equal(one.shares, sample.shares[0])


def test_a_call_outside_programs_compiles_one_and_chooses_the_same(caplog):
    demand, region = drawn(1, FEW), Region(SERVERS, 400.0, np.full(SERVERS, 3, np.int32), np.ones(()))
    with jax.log_compiles():
        alone = sample_average(demand, region, routing="split", **QUICK)
    compiled = [record.getMessage() for record in caplog.records if "XLA compilation" in record.getMessage()]
    assert sum("jit(plan)" in message for message in compiled) == 1
    assert len(compiled) <= 3, "reading a NumPy array and clearing its diagonal are small programs of their own"
    np.testing.assert_array_equal(alone.circuits.count, few(demand, how=(*RELAY[:2], "split")).circuits.count)


def test_a_batch_is_its_loop():
    cases = [
        (jnp.asarray(drawn(seed, FEW)), np.full(SERVERS, degree, np.int32), np.ones(()))
        for seed, degree in ((0, 3), (1, 2), (2, 3))
    ]
    assert_batch_is_its_loop(lambda *case: anywhere(*case, None, *RELAY[:2], "split").circuits.count, cases)


def test_only_the_unfinished_go_on():
    entered = []

    def further(found, x):
        jax.debug.callback(lambda: entered.append(1))
        return found + 100

    run = batch_stages(lambda x: (x, x < 100), further, 4)
    for done, groups in ((12, 0), (9, 1), (0, 3)):
        x = jnp.where(jnp.arange(12) < done, 1.0, 200.0)[::-1]
        entered.clear()
        found = jax.jit(jax.vmap(run))(x)
        jax.effects_barrier()
        np.testing.assert_array_equal(found, jnp.where(x < 100, x, x + 100))
        assert len(entered) == groups  # one call in step for the members of a group
    np.testing.assert_array_equal(jax.vmap(jax.vmap(run))(x.reshape(4, -1)), (x + 100).reshape(4, -1))
