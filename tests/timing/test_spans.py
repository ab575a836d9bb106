"""Circuits for longer than one all-to-all: what they are chosen for, when the switch turns, what a decision costs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan, greedy, sample_average, takes_many
from mfabric_jax.routing import degree_bound
from mfabric_jax.timing import First
from mfabric_jax.timing.exchange import exchanges_between
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.timing.passes import BACKWARD, order_of, places
from mfabric_jax.timing.switching import Span
from mfabric_jax.workload.compute import BlockSeconds
from tests.mistakes import check_refused
from tests.timing.jobs import DRAWN, numbers, timed
from tests.timing.test_first import MISTAKEN, TOKENS, WORKLOAD, A, B, both_parts, one_pair

RTOL, GB = 1e-9, 1e9
REGION = Region(4, *numbers(8.0, 5, 2.0, 3.0))
LAYERS, BATCHES, SERVERS = 5, 3, 4


def drawn(seed, iterations=1):
    return np.random.default_rng(seed).integers(0, 9, (iterations, LAYERS, BATCHES, 8, 8)).astype(float)


def plain_bytes(tokens):
    """Between servers [S S], of two ranks with an expert each; a token has 1,000 bytes."""
    return 1000 * tokens.reshape(SERVERS, 2, SERVERS, 2).sum((1, 3)) * (1 - np.eye(SERVERS))


def plain_passes():
    """(stage, pass, backward, [(layer, micro-batch) of its MoE blocks in running order])."""
    order = order_of(DRAWN)
    for stage, q in np.ndindex(order.kind.shape):
        layers = DRAWN.place_layers(int(order.chunk[stage, q]) * DRAWN.pp + stage)
        back, batch = bool(order.kind[stage, q] == BACKWARD), int(order.micro_batch[stage, q]) % BATCHES
        yield stage, q, back, [(layer, batch) for layer in (layers[::-1] if back else layers)]


def tell(demand, region, *, previous=None, key=None, weights=None):
    """Not circuits: how many bytes it is asked to serve."""
    if weights is None:
        return tell_mean(demand, region)
    bound = jnp.stack([degree_bound(region, one) for one in demand])
    times = jnp.where(bound > 0, weights / jnp.where(bound > 0, bound, 1), 0)
    return tell_mean((times[:, None, None] * demand).sum(0), region)


def tell_mean(demand, region, *, previous=None, key=None):
    """The same of the mean, for a policy that takes one demand."""
    return Plan(Circuits(jnp.rint(jnp.where(jnp.eye(SERVERS) > 0, 0, demand)).astype(int)))


def no_time(region, circuits, demand):
    return demand.sum() * 0, demand.sum() * 0


@eqx.filter_jit
def chosen(name, tokens, seen, policy):
    span = Span(name, seen)
    return exchanges_between(DRAWN, REGION, tokens, policy, span=span, carry=no_time)


@pytest.mark.parametrize("name", ["stage", "iteration", "run"])
def test_circuits_are_for_what_runs_in_their_span_and_stay_for_it(name):
    tokens, seen = drawn(0)[0], drawn(1, 2 if name == "run" else 1)
    found = chosen(name, tokens, seen, tell)
    count, switch = np.asarray(found.count), np.asarray(found.switch)
    assert np.asarray(found.ahead).all()
    begun = set()
    for stage, q, back, blocks in plain_passes():
        if name == "stage":
            source = [tokens] if back else [seen[0]]
            want = sum(plain_bytes(one[at]) for one in source for at in blocks)
        else:
            every = [at for p, _, _, some in plain_passes() if p == stage for at in some]
            want = sum(plain_bytes(one[at]) for one in seen for at in every)
        if blocks:
            assert (count[stage, q] == want).all(), (stage, q)
        first = (stage, q) if name == "stage" else stage
        told = [i for i in range(switch.shape[2]) if switch[stage, q, i].any()]
        moe = np.flatnonzero(places(DRAWN).layer[stage, q] >= 0).tolist()
        assert told in ([], moe[:1]), "only before the first all-to-all"
        if first in begun:
            assert not told
        begun.add(first)
    assert not switch[..., 1].any()
    assert switch.any() == (name == "stage")  # what stays for an iteration or a run is there when it begins


def test_a_policy_of_one_demand_gets_the_mean():
    tokens = drawn(2)
    found = np.asarray(chosen("iteration", tokens[0], tokens, tell_mean).count)
    for stage in range(DRAWN.pp):
        every = [at for p, _, _, some in plain_passes() if p == stage for at in some]
        want = np.rint(sum(plain_bytes(tokens[0][at]) for at in every) / len(every))
        np.testing.assert_array_equal(found[stage], np.broadcast_to(want, found[stage].shape))
    assert takes_many(sample_average)
    assert not takes_many(greedy)


@eqx.filter_jit
def iteration_and_each(tokens):
    spans = Span("iteration", tokens[None]), Span()
    return [exchanges_between(DRAWN, REGION, tokens, greedy, span=span) for span in spans]


def test_demands_that_are_all_alike_need_one_set():
    alike = np.broadcast_to(drawn(3)[0, :1, :1], (LAYERS, BATCHES, 8, 8))
    once, each = iteration_and_each(alike)
    for part in ("optical", "electrical", "balanced"):
        np.testing.assert_allclose(getattr(once, part), getattr(each, part), rtol=RTOL)
    assert not np.asarray(once.switch).any()


def pairs_of(found):
    return np.asarray(found.count)[0][..., [0, 2], [1, 3]].reshape(4, 2, 2)


def test_a_block_keeps_what_its_first_all_to_all_found():
    region = Region(4, 8.0, 6, 1.0, 3.0)
    for predicted, forward in [(TOKENS, [(A, A), (B, B)]), (MISTAKEN, [(A, A), (A, A)])]:
        first = First("predict", predicted, cold=True)
        found = exchanges_between(
            WORKLOAD, region, TOKENS, one_pair, first=first, span=Span("block"), carry=both_parts, key=jax.random.key(0)
        )
        np.testing.assert_array_equal(pairs_of(found), [*forward, (B, B), (A, A)])
        assert not np.asarray(found.switch)[..., 1].any()
    plain = [exchanges_between(WORKLOAD, region, TOKENS, one_pair, span=Span(name)) for name in ("block", "all-to-all")]
    np.testing.assert_array_equal(plain[0].switch, plain[1].switch)
    np.testing.assert_array_equal(plain[0].optical, plain[1].optical)


# One stage, one micro-batch, two blocks; 6 GB over 6 circuits of 1 GB/s take 1 s, and nothing else takes any time.
NOTHING = BlockSeconds(0.0, 0.0, 0.0)


@eqx.filter_jit
def seconds(found, delay_s=0.0, each_s=0.0, decision_s=0.0):
    rates = FabricRates(1.0 * GB, 1e9 * GB, 1e9 * GB, delay_s=delay_s, each_s=each_s, decision_s=decision_s)
    done = timed(WORKLOAD, rates, found, NOTHING, 1e9 * GB)
    return done.iteration_s, done.reconfig_s


def given(**settings):
    found = exchanges_between(WORKLOAD, Region(4, 8.0, 6, 1.0), TOKENS, one_pair, **settings)
    return found._replace(inside=0 * found.inside)


def assert_adds(found, much, **more):
    (before, _), (after, _) = seconds(found, 0.25), seconds(found, **{"delay_s": 0.25} | more)
    np.testing.assert_allclose(after - before, much, rtol=1e-6, atol=1e-9)


def test_a_decision_is_paid_where_nothing_hides_it():
    # A, B forward, B, A backward: the switch turns for the second block and for the last, which is known ahead.
    steady, cold = given(), given(first=First(cold=True))
    np.testing.assert_array_equal(np.asarray(steady.switch)[0, ..., 0], [[False, True], [False, True]])
    assert_adds(steady, 0.5, decision_s=0.5)
    assert_adds(cold, 2 * 0.5, decision_s=0.5)  # and for the first
    assert_adds(given(span=Span("iteration", TOKENS[None])), 0, decision_s=0.5)
    # Circuits for a prediction are there; those for the demand are decided while the first all-to-all runs.
    mistaken = given(first=First("predict", MISTAKEN, cold=True), key=jax.random.key(0))
    first_s = float(np.asarray(mistaken.load)[0, 0, 1, 0]) / GB
    assert first_s > 1
    assert_adds(mistaken, 0, decision_s=0.5 * first_s)
    assert_adds(mistaken, 0.5, decision_s=first_s + 0.5)


def test_every_circuit_that_is_set_up_anew_counts():
    found = given()
    np.testing.assert_array_equal(np.asarray(found.anew)[0, ..., 0], [[0, 6], [0, 6]])
    np.testing.assert_array_equal(np.asarray(given(first=First(cold=True)).anew)[0, 0, :, 0], [4, 6])  # 2 were there
    np.testing.assert_allclose(seconds(found, 0.25, 0.5), seconds(found, 0.25 + 6 * 0.5), rtol=RTOL)
    assert seconds(found, 0.25, 0.5)[0] > seconds(found, 0.25)[0] + 3


def test_what_a_span_lacks_is_said_in_a_sentence():
    check_refused(r"circuits_for 'stages' is unknown \(did you mean 'stage'\?\); allowed: all-to-all,", Span, "stages")
    check_refused(r"^circuits_for 'run' needs the tokens seen \[I layer M R E\], got none\.$", Span, "run")
    first, span = First("predict", TOKENS), Span("run", TOKENS[None])
    said = r"^circuits_for 'run' is known ahead: first must be 'block', got 'predict'\."
    check_refused(said, given, first=first, span=span)
    check_refused(r"^scenarios of a prediction need sigma,", First, "predict", TOKENS, scenarios=4)


def how_many(demand, region, *, previous=None, key=None, weights=None):
    """Not circuits: for how many demands it is asked."""
    return Plan(Circuits(jnp.full((SERVERS, SERVERS), len(demand) if demand.ndim == 3 else 1)))


def test_a_policy_that_takes_many_demands_gets_scenarios_of_a_prediction():
    first = First("predict", TOKENS, cold=True, scenarios=5, sigma=0.1)
    found = np.asarray(given_policy(how_many, first).count)[0, ..., 0, 1]
    np.testing.assert_array_equal(found, [[[5, 1], [5, 1]], [[1, 1], [1, 1]]])


def given_policy(policy, first):
    region, key = Region(SERVERS, 8.0, 6, 1.0), jax.random.key(0)
    return exchanges_between(WORKLOAD, region, TOKENS, policy, first=first, carry=no_time, key=key)
