"""When to reconfigure: every rule against plain loops, the optimum against every possible sequence, ski rental."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import policies
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan, uniform
from mfabric_jax.timing import best_trajectory, follow, last, moving_average
from mfabric_jax.timing.when import WHEN
from tests.mistakes import check_refused

SERVERS, STEPS, DEGREE, POOL = 4, 14, 3, 3
OFF = ~np.eye(SERVERS, dtype=bool)


def region(delay_s=0.0):
    return Region(SERVERS, 8.0, DEGREE, 1.0, delay_s)  # NICs of 1 GB/s


def seconds(region, circuits, demand):
    """Pair after pair, each at 1 + its circuits: all circuits matter, so that no two offers tie."""
    return (demand / (1 + circuits.count.astype(demand.dtype))).sum()


def plain_seconds(count, demand):
    return sum(float(demand[i][j]) / (1 + int(count[i][j])) for i in range(SERVERS) for j in range(SERVERS) if i != j)


def busiest(demand):
    both = jnp.triu(demand + demand.T, 1)
    return jnp.divmod(jnp.argmax(both), len(demand))


def pair(demand, region, *, previous=None, key=None):
    """All circuits for the busiest pair."""
    i, j = busiest(demand)
    count = jnp.zeros(demand.shape, jnp.int32)
    return Plan(Circuits(count.at[i, j].set(DEGREE).at[j, i].set(DEGREE)))


def few(demand, region, *, previous=None, key=None):
    """The same, and what others have stays."""
    i, j = busiest(demand)
    count = previous.circuits.count
    count = count.at[i].set(0).at[j].set(0).at[:, i].set(0).at[:, j].set(0)
    return Plan(Circuits(count.at[i, j].set(DEGREE).at[j, i].set(DEGREE)))


def plain_busiest(demand):
    pairs = list(itertools.combinations(range(SERVERS), 2))
    return max(pairs, key=lambda p: (demand[p[0]][p[1]] + demand[p[1]][p[0]], -pairs.index(p)))


def plain_offers(count, demand):
    i, j = plain_busiest(demand)
    whole = np.zeros((SERVERS, SERVERS), int)
    part = np.array(count)
    part[[i, j], :] = 0
    part[:, [i, j]] = 0
    for one in (whole, part):
        one[i, j] = one[j, i] = DEGREE
    return [whole, part]


EVEN = np.where(OFF, 1, 0)


def switching(before, after, delay, each):
    """Seconds the switch takes."""
    return delay + each * sum(max(int(x), 0) for x in np.triu(after - before).ravel())


def exposed(before, after, delay, each, hidden):
    return max(switching(before, after, delay, each) - hidden, 0) if (before != after).any() else 0.0


def plain_follow(demands, foreseen, rule, delay, each, hidden, every):
    """Plain loops: [(circuits, exchange, paid)]."""
    count, found, log, pool, gained, stayed = EVEN, [], None, [[EVEN, 0.0]], [0.0, 0.0], [0.0, 0.0]
    for t, (demand, guess) in enumerate(zip(demands, foreseen, strict=True)):
        offers = plain_offers(count, guess)
        cost = lambda one, hidden=hidden[t], count=count: exposed(count, one, delay, each, hidden)  # noqa: E731
        gain = lambda one, on, count=count: plain_seconds(count, on) - plain_seconds(one, on)  # noqa: E731
        wish = []
        if rule == "threshold":
            for o in range(2) if log else ():
                if log[2][o] > 0:
                    gained[o] += log[2][o]
                    stayed[o] += plain_seconds(log[0], guess) - plain_seconds(log[1][o], guess)
            stays = [min(max(s / g if g else 0, 0), 1 - 1 / (t + 1)) for s, g in zip(stayed, gained, strict=True)]
            wish = [(gain(o, guess) / (1 - p) - cost(o), o) for o, p in zip(offers, stays, strict=True)]
        elif rule == "rent-or-buy":
            fresh = [o for o in offers if not any((o == one).all() for one, _ in pool)]
            pool = pool + [[o, 0.0] for o in fresh]
            wish = [(max(regret + gain(one, guess), 0) - cost(one), one) for one, regret in pool]
        elif rule == "always" or (rule == "every" and t % every == 0):
            wish = [(math.inf, offers[0])]
        after = count
        if wish and np.any(guess > 0):
            net, one = max(wish, key=lambda w: w[0])
            after = one if net > 0 else count
        changed = bool((after != count).any())
        pool = [[one, max(regret + gain(one, demand), 0)] for one, regret in pool]
        pool = sorted(pool, key=lambda p: -p[1])[:POOL]
        pool = [[one, 0.0 if changed else regret] for one, regret in pool]
        log = (count, offers, [gain(o, guess) for o in offers])
        found.append((after, plain_seconds(after, demand), cost(after)))
        count = after
    return found


def drawn(seed):
    """Demands [T S S] that drift, burst, and pause once, with a diagonal that must not matter."""
    rng = np.random.default_rng(seed)
    popular = np.cumsum(rng.normal(0, 0.6, (STEPS, SERVERS, SERVERS)), 0)
    demands = np.exp(popular + rng.normal(0, 0.3, popular.shape)) * 1e9
    demands[rng.integers(STEPS)] = 0
    hidden = rng.choice([0.0, 0.2, 1.0], STEPS)
    return demands, hidden


TRACES = []


@functools.partial(jax.jit, static_argnames=("rule", "stale"))
def followed(demands, hidden, delay, every, rule, stale=False):
    TRACES.append(rule)
    forecast = last(demands) if stale else None
    extra = {"routing": seconds, "pool": POOL, "forecast": forecast, "hidden_s": hidden, "every": every}
    return follow(demands, region(delay), (pair, few), rule=rule, each_s=0.1e9, **extra)


CASES = [*((rule, False) for rule in WHEN), ("threshold", True), ("rent-or-buy", True)]


@pytest.mark.parametrize(("rule", "stale"), CASES)
def test_agrees_with_plain_loops(rule, stale):
    changes, traced = 0, len(TRACES)
    for seed in range(12):
        demands, hidden = drawn(seed)
        hidden, delay, every = hidden * 1e9, [0.0, 0.3e9, 1e9, 4e9][seed % 4], 2 + seed % 3
        clean = np.where(OFF, demands, 0)
        foreseen = np.concatenate([0 * clean[:1], clean[:-1]]) if stale else clean
        got = followed(demands, hidden, delay, every, rule, stale)
        want = plain_follow(clean, foreseen, rule, delay, 0.1e9, hidden, every)
        np.testing.assert_array_equal(got.count, np.stack([count for count, _, _ in want]))
        np.testing.assert_allclose(got.exchange_s, [time for _, time, _ in want], rtol=1e-12)
        np.testing.assert_allclose(got.paid_s, [paid for _, _, paid in want], rtol=1e-12)
        np.testing.assert_allclose(got.total_s, sum(time + paid for _, time, paid in want), rtol=1e-12)
        before = np.concatenate([EVEN[None], got.count[:-1]])
        np.testing.assert_array_equal(got.changed, (np.asarray(got.count) != before).any((1, 2)))
        assert (got.count.sum(1) <= DEGREE).all()
        changes += int(got.changed.sum())
    assert len(TRACES) <= traced + 1  # other numbers trace nothing
    assert (changes > 0) == (rule != "never")
    assert rule in ("never", "always") or changes < 12 * STEPS * 0.9


hot = np.eye(SERVERS**2).reshape(-1, SERVERS, SERVERS)  # one pair each
ways = [EVEN, *(plain_offers(EVEN, hot[one])[0] for one in (1, 2, 11))]


@jax.jit
def optimum(demands, hidden, delay):
    candidates = jnp.asarray(np.stack(ways[1:]))
    return best_trajectory(demands, region(delay), candidates, routing=seconds, hidden_s=hidden, each_s=0.1e9)


def test_no_sequence_of_candidates_is_faster_than_the_best():
    changes, middle = set(), 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        demands = 1e8 * OFF * rng.random((5, SERVERS, SERVERS))
        demands += 4e9 * (np.stack(ways) > 1)[rng.integers(4, size=5)] * rng.random((5, 1, 1))
        hidden, delay = rng.choice([0.0, 0.2e9], 5), [0.0, 0.2e9, 3e9][seed % 3]
        got = optimum(demands, hidden, delay)
        times = [[plain_seconds(way, demand) for way in ways] for demand in demands]
        waits = [[[exposed(a, b, delay, 0.1e9, h) for b in ways] for a in ways] for h in hidden]
        totals = {
            path: sum(waits[t][a][b] + times[t][b] for t, (a, b) in enumerate(itertools.pairwise((0, *path))))
            for path in itertools.product(range(4), repeat=5)
        }
        least = min(totals.values())
        middle += len(set(min(totals, key=totals.get))) > 2
        np.testing.assert_allclose(got.total_s, least, rtol=1e-12)
        before = np.concatenate([EVEN[None], got.count[:-1]])
        paid = [exposed(*step, delay, 0.1e9, h) for *step, h in zip(before, np.asarray(got.count), hidden, strict=True)]
        np.testing.assert_allclose(got.paid_s, paid, rtol=1e-12)
        took = [plain_seconds(*step) for step in zip(np.asarray(got.count), demands, strict=True)]
        np.testing.assert_allclose(got.exchange_s, took, rtol=1e-12)
        np.testing.assert_array_equal(got.changed, (np.asarray(got.count) != before).any((1, 2)))
        changes.add(int(got.changed.sum()))
    assert len(changes) > 2
    assert middle > 5


@jax.jit
def shifted(hot, delay):
    """Seconds of rent-or-buy and of the optimum: one pair gets hot at some step, and stays so."""
    hot = jnp.where(jnp.arange(STEPS) >= hot, 4.0, 0.0)
    demands = hot[:, None, None] * jnp.asarray(np.triu(ways[1] > 0), float)[None]
    online = follow(demands, region(delay), pair, routing=seconds, rule="rent-or-buy")
    return online.total_s, best_trajectory(demands, region(delay), jnp.asarray(ways[1])[None], routing=seconds).total_s


def test_ski_rental_loses_at_most_twice_what_the_best_loses():
    # Even circuits (1 each) take 2 s, those for the pair 1 s: renting costs 1 s a step, buying the delay.
    worst = 0.0
    for hot, delay in itertools.product((0, 3, 9, 12), (0.5, 1.0, 2.0, 3.3, 8.0, 40.0)):
        online, best = (float(took) - (STEPS - hot) for took in shifted(hot, delay))
        assert best == pytest.approx(min(delay, STEPS - hot))
        assert online <= 2 * best * (1 + 1e-12)
        worst = max(worst, online / best)
    assert worst > 1.9  # the bound is met, so it can be missed


def test_float32_and_real_policies():
    rule = "threshold"
    demands, eager = drawn(3)[0], policies.get("greedy", rule="next")
    where, settings = region(0.05), {"rule": rule, "each_s": 0.01, "routing": "unsplit"}
    double = follow(demands, where, (eager, uniform), **settings)
    single = follow(demands.astype(np.float32), where, (eager, uniform), **settings)
    assert single.exchange_s.dtype == single.paid_s.dtype == np.float32
    np.testing.assert_array_equal(single.count, double.count)
    np.testing.assert_allclose(single.total_s, double.total_s, rtol=1e-5)  # sums of 14 steps, each to 1e-6
    assert 0 < double.changed.sum() < STEPS


@functools.partial(jax.jit, static_argnames="rule")
def without_packets(demands, start, rule):
    where = Region(SERVERS, 8.0, DEGREE, 0.0, 1e6)
    return follow(demands, where, (uniform, pair), rule=rule, routing="split", start=Plan(Circuits(start)))


def test_circuits_without_which_bytes_have_no_way_are_worth_any_delay():
    # No packet switches: bytes of a pair without a circuit never arrive, under the even topology those of no pair.
    demands = np.where(OFF, drawn(0)[0], 0)
    for (start, changes), rule in itertools.product(((EVEN, 0), (ways[1], 1)), ("threshold", "rent-or-buy")):
        trajectory = without_packets(demands, start, rule)
        assert trajectory.changed.sum() == changes
        assert np.isfinite(trajectory.total_s)


def test_forecasts_by_hand():
    demands = np.arange(1.0, 8.0)[:, None, None] * OFF
    at = lambda found: np.asarray(found)[:, 0, 1].tolist()  # noqa: E731
    assert at(last(demands)) == [0, 1, 2, 3, 4, 5, 6]
    assert at(last(demands, 3)) == [0, 0, 0, 1, 2, 3, 4]
    assert at(last(demands, 9)) == [0] * 7
    assert at(moving_average(demands, 1.0, 2)) == [0, 0, 1, 2, 3, 4, 5]
    # Halves: (1), (2 + 1/2) / (1 + 1/2), (3 + 2/2 + 1/4) / (1 + 1/2 + 1/4), ...
    want = [0.0] + [sum(0.5**k * (t - k) for k in range(t)) / sum(0.5**k for k in range(t)) for t in range(1, 7)]
    np.testing.assert_allclose(at(moving_average(demands, 0.5)), want, rtol=1e-12)
    turns = [0.0, 0.0, 1.0, 2.0, 3.5 / 1.5, 5.0 / 1.5, (5 + 3 / 2 + 1 / 4) / 1.75]
    np.testing.assert_allclose(at(moving_average(demands, 0.5, 2)), turns, rtol=1e-12)


def test_mistakes_are_sentences():
    for changes, sentence in [
        ({"rule": "sometimes"}, r"when 'sometimes' is unknown"),
        ({"routing": "relay"}, r"routing 'relay' is unknown"),
        ({"every": 0}, r"every must be a whole number of at least 1, got 0\."),
        ({"policy": ()}, r"policy must be a policy or a tuple of at least one"),
        ({"hidden_s": np.zeros(2)}, r"hidden_s must be a number or have the shape \[T\] = \[14\], got \[2\]\."),
        ({"demands": np.zeros((0, 4, 4))}, r"demands must be \[T S S\] with S = 4 servers and at least one step"),
        ({"forecast": np.zeros((2, 4, 4))}, r"forecast must have the demands' shape \[14, 4, 4\], got \[2, 4, 4\]\."),
    ]:
        given = {"demands": np.zeros((STEPS, 4, 4)), "policy": pair} | changes
        check_refused(sentence, follow, given.pop("demands"), region(), given.pop("policy"), **given)
    check_refused(r"period must be a whole number of at least 1, got 0\.", last, np.zeros((3, 4, 4)), 0)
    check_refused(r"weight must be finite and above 0, got 0\.", moving_average, np.zeros((3, 4, 4)), 0)
    with pytest.raises(InputError, match=r"candidates must be \[N S S\] with S = 4, got \[4, 4\]\."):
        best_trajectory(np.zeros((3, 4, 4)), region(), ways[0])
