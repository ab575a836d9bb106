"""Roundings and swaps under split and unsplit routing: plain loops, brute force, legality, batches."""

import functools
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.circuit_search import SOFTNESS
from mfabric_jax.policies.paced import paced_delivery, paced_worth
from mfabric_jax.policies.relaxed import round_best, round_circuits, roundings
from mfabric_jax.policies.sample_average import sample_average
from mfabric_jax.policies.samples import NEVER, risk_of, samples_of, tail_of
from mfabric_jax.routing import degree_bound, fluid_lower_bound
from tests.batches import assert_batch_is_its_loop
from tests.oracles import circuits as plain
from tests.policies.drawn import ROUTINGS, SEEDS, SOME_EPS, any_degrees, assert_legal, hostile

SERVERS, SAMPLES = 4, 3
WEIGHTS = np.array([0.5, 0.2, 0.3])


@functools.partial(jax.jit, static_argnames="routing")
@functools.partial(eqx.debug.assert_max_traces, max_traces=4)  # of all tests here: routings, dtypes
def rounded(soft, demand, degrees, electrical, *, routing):
    """The circuits, their risk, and those of one rounding of each `soft` [N]."""
    samples = samples_of(demand, Region(SERVERS, 400.0, degrees, electrical), jnp.asarray(WEIGHTS))
    how = paced_delivery(routing)
    found = round_best(soft, samples, how, jax.random.key(0), rounds=3, starts=2)
    plainly = jax.vmap(lambda count: round_circuits(count, degrees))(soft)
    seconds = jax.vmap(lambda count: how.settle(samples, count, 0.0, False)[1])(plainly)
    risks = jax.vmap(lambda late: risk_of(late, samples.weight, 1.0))(seconds)
    return found.count, risk_of(found.seconds, samples.weight, 1.0), risks, found.seconds


def case(seed, degrees=3, electrical=1.0, dtype=float):
    demand = np.stack([hostile(seed + number, SERVERS) for number in range(SAMPLES)])
    soft = np.random.default_rng(seed).uniform(0, 2, (2, SERVERS, SERVERS))
    degrees = np.broadcast_to(degrees, SERVERS).astype(np.int32)
    return soft.astype(dtype), demand.astype(dtype), degrees, np.asarray(electrical, dtype)


@pytest.mark.parametrize("routing", ROUTINGS)
@settings(max_examples=60, derandomize=True)
@given(SEEDS, any_degrees(SERVERS), SOME_EPS)
def test_legal_and_never_worse_than_one_rounding(routing, seed, degrees, electrical):
    for dtype in (np.float64, np.float32):
        soft, demand, degree, port = case(seed, degrees, electrical, dtype)
        count, risk, risks, _ = rounded(soft, demand, degree, port, routing=routing)
        assert_legal(count, degree)
        assert risk.dtype == dtype
        assert (risk <= risks).all()


def test_swaps_improve_on_roundings():
    better = 0
    for seed, routing in itertools.product(range(10), ROUTINGS):
        demand = np.random.default_rng(seed).lognormal(0, 1.5, (SAMPLES, SERVERS, SERVERS))
        soft, _, degrees, port = case(seed)
        _, risk, risks, _ = rounded(soft, demand, degrees, port, routing=routing)
        better += bool(risk < risks.min() - 1e-9)
    assert better > 12


@pytest.mark.parametrize("routing", ROUTINGS)
def test_times_are_those_of_plain_loops(routing):
    for seed, degrees, port in itertools.product(range(8), (3, [0, 1, 2, 3]), (0.0, 1.0)):
        soft, demand, degrees, electrical = case(seed, degrees, port)
        count, *_, seconds = rounded(soft, demand, degrees, electrical, routing=routing)
        region = Region(SERVERS, 400.0, degrees, electrical)
        for late, one in zip(seconds, demand, strict=True):
            bound = float(degree_bound(region, one)) * 50e9
            if not 0 < bound < math.inf:
                continue
            size = np.where((degrees + port > 0)[:, None] & (degrees + port > 0), one / bound, 0)
            want = plain.paced(np.asarray(count).tolist(), size.tolist(), [port] * SERVERS, routing)
            np.testing.assert_allclose(late, min(want, NEVER), rtol=1e-9)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_worth_of_a_circuit_is_that_of_trials(routing):
    rng, tolerance = np.random.default_rng(0), 1e-9 if routing == "unsplit" else 0.05  # split: three iterations
    port_time = plain.unsplit_port if routing == "unsplit" else plain.split_port
    worth = jax.jit(lambda samples, count: paced_worth(samples, count, routing))

    def softened(count, pairs, port, latest):
        """A log-sum-exp over both ports of each server; unsplit: and over pairs, which its ports do not count."""
        times = []
        for i in range(SERVERS):
            others = [j for j in range(SERVERS) if j != i]
            for wanted in ([pairs[i, j] for j in others], [pairs[j, i] for j in others]):
                number = [count[i, j] for j in others]
                if routing == "unsplit":
                    wanted = [0 if many else bytes_ for bytes_, many in zip(wanted, number, strict=True)]
                times.append(port_time(wanted, number, port))
        if routing == "unsplit":
            times += [pairs[i, j] / count[i, j] if count[i, j] else 0.0 for i, j in np.ndindex(pairs.shape)]
        return max(times), SOFTNESS * latest * math.log(sum(math.exp(t / (SOFTNESS * latest)) for t in times))

    for _ in range(6):
        demand = rng.lognormal(0, 1, (SAMPLES, SERVERS, SERVERS)) * (1 - np.eye(SERVERS))
        samples = samples_of(jnp.asarray(demand), Region(SERVERS, 400.0, jnp.full(SERVERS, 4), 1.0))
        count = np.triu(rng.integers(0, 3, (SERVERS, SERVERS)), 1)
        count += count.T
        held, added = worth(samples, jnp.asarray(count, jnp.int32))
        for k, (i, j) in itertools.product(range(SAMPLES), itertools.combinations(range(SERVERS), 2)):
            pairs = np.asarray(samples.pairs[k])
            latest, _ = softened(count, pairs, 1.0, 1.0)
            now = softened(count, pairs, 1.0, latest)[1]
            for table, by, sign in ((added, 1, -1), (held, -1, 1)):
                other = count.copy()
                other[i, j] = other[j, i] = count[i, j] + by
                if other.min() < 0:
                    assert table[k, i, j] == np.inf
                    continue
                change = sign * (softened(other, pairs, 1.0, latest)[1] - now)
                np.testing.assert_allclose(
                    [table[k, i, j], table[k, j, i]], change, rtol=tolerance, atol=tolerance / 10
                )


def drawn(seed, many):
    rng = np.random.default_rng(seed)
    return rng.lognormal(0, 1.2, (many, SERVERS, SERVERS)) * (1 - np.eye(SERVERS))


@functools.partial(jax.jit, static_argnames=("routing", "risk"))
def chosen(demand, weights, routing, risk):
    region = Region(SERVERS, 400.0, 3, 1.0)
    return sample_average(demand, region, weights=weights, routing=routing, risk=risk).circuits.count


@pytest.mark.parametrize(("routing", "risk"), [*itertools.product(ROUTINGS, ("mean", "worst")), ("split", "cvar:0.5")])
def test_near_the_best_of_all_circuits_for_all_samples(routing, risk):
    region = Region(SERVERS, 400.0, 3, 1.0)
    every = jnp.asarray(list(plain.topologies([3] * SERVERS)), jnp.int32)

    @jax.jit
    def over_bound(count, demand):
        return fluid_lower_bound(region, Circuits(count), demand, routing=routing) / degree_bound(region, demand)

    measure = jax.jit(
        lambda counts, demand, weights: jax.vmap(
            lambda count: risk_of(jax.vmap(lambda one: over_bound(count, one))(demand), weights, tail_of(risk))
        )(counts)
    )
    gaps = []
    for seed in range(8):
        demand, weights = drawn(seed, SAMPLES), np.roll(WEIGHTS, seed)
        count = chosen(demand, weights, routing, risk)
        gaps.append(measure(count[None], demand, weights)[0] / measure(every, demand, weights).min() - 1)
    assert min(gaps) > -1e-9
    assert np.mean(gaps) < 0.005
    assert max(gaps) < 0.03


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_sample_without_weight_does_not_count(routing):
    demand = drawn(3, SAMPLES)
    first = chosen(demand, np.array([1.0, 0, 0]), routing, "mean")
    other = chosen(np.stack([demand[0], drawn(9, 1)[0], demand[0] * 0]), np.array([1.0, 0, 0]), routing, "mean")
    np.testing.assert_array_equal(first, other)


def test_a_batch_is_its_loop():
    cases = [case(seed, degrees) for seed, degrees in ((0, 3), (1, [0, 1, 2, 3]), (2, 2), (5, 0))]
    for routing in ROUTINGS:
        assert_batch_is_its_loop(lambda *args, routing=routing: rounded(*args, routing=routing)[0], cases)


def test_the_first_roundings_are_without_noise_and_others_differ():
    soft, _, degrees, _ = case(1)
    counts = jax.jit(roundings)(soft, degrees, jax.random.key(0))
    for got, want in zip(counts, soft, strict=False):
        np.testing.assert_array_equal(got, round_circuits(want, degrees))
    assert len(np.unique(counts, axis=0)) > 3
    for count in counts:
        assert_legal(count, degrees)
