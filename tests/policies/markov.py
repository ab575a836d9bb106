"""Tiny chains whose best causal policy is known: demand jumps between three states, 4 servers, few sets of circuits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mfabric_jax import Circuits, Region, policies
from mfabric_jax.policies.renewal import Renewal
from mfabric_jax.routing import fluid_lower_bound

SERVERS, DEGREE, STATES, SEEN, STEPS = 4, 2, 3, 16, 48
REGION = Region(SERVERS, jnp.asarray(400.0, jnp.float32), jnp.asarray(DEGREE, jnp.int32), jnp.asarray(1.0, jnp.float32))


def sets_of_circuits():
    """All maximal legal sets of circuits [K S S], even ones first."""
    pairs, sets = list(itertools.combinations(range(SERVERS), 2)), []
    for counts in itertools.product(range(DEGREE + 1), repeat=len(pairs)):
        count = np.zeros((SERVERS, SERVERS), np.int32)
        for (i, j), circuits in zip(pairs, counts, strict=True):
            count[i, j] = count[j, i] = circuits
        free = DEGREE - count.sum(1)
        if free.min() >= 0 and not any(free[i] and free[j] for i, j in pairs):
            sets.append(count)
    even = np.asarray(policies.uniform(None, REGION).circuits.count)
    return np.stack([even, *(count for count in sets if (count != even).any())])


SETS = sets_of_circuits()


@jax.jit
def seconds_of(demand):
    """Seconds [K states] of all sets of circuits under demands [states S S]."""
    at = lambda count, matrix: fluid_lower_bound(REGION, Circuits(count), matrix, routing="split")  # noqa: E731
    return jax.vmap(lambda count: jax.vmap(lambda matrix: at(count, matrix))(demand))(jnp.asarray(SETS))


def draw(seed, stay, chains):
    """Demands [states S S] of one instance, and the state of every step [chains STEPS]."""
    random = np.random.default_rng(1000 + seed)
    popular = np.exp(random.normal(size=(STATES, 1, SERVERS)) + 2 * random.normal(size=(STATES, SERVERS, SERVERS)))
    popular *= 1 - np.eye(SERVERS)
    demand = jnp.asarray(268e6 * popular / popular.sum(2, keepdims=True), jnp.float32)
    random, state = np.random.default_rng(seed), np.zeros((chains, STEPS), int)
    state[:, 0] = random.integers(STATES, size=chains)
    for step in range(1, STEPS):
        moves = (random.random(chains) > stay) * random.integers(1, STATES, chains)
        state[:, step] = (state[:, step - 1] + moves) % STATES
    return demand, state


def best_causal_s(seconds, state, stay, delay):
    """Total seconds [chains] of the best policy that sees the demand before: dynamic programming over both."""
    move = np.full((STATES, STATES), (1 - stay) / (STATES - 1))
    np.fill_diagonal(move, stay)
    left, best = np.zeros((STATES, len(SETS))), []
    change = delay * (1 - np.eye(len(SETS)))
    for _ in range(STEPS - SEEN):
        then = move @ (seconds.T + left)  # by the last state and the set that serves next
        ways = then[:, None, :] + change
        best.append(ways.argmin(2))
        left = ways.min(2)
    in_place, total = np.zeros(len(state), int), np.zeros(len(state))
    for step in range(SEEN, STEPS):
        chosen = best[STEPS - 1 - step][state[:, step - 1], in_place]
        total += seconds[chosen, state[:, step]] + delay * (chosen != in_place)
        in_place = chosen
    return total


@jax.jit
def renewal_s(demand, state, seconds, delay):
    """Total seconds [chains] of `Renewal` with the set that is best for the last demand, averages shared."""
    controller = Renewal(REGION, shared="chains")
    own = jnp.asarray(SETS)[jnp.argmin(seconds, axis=0)]  # [states S S]

    def chain(state):
        def step(carry, now):
            number, last, current = now
            families = jnp.stack([own[last], jnp.asarray(SETS)[0]])
            carry, changed = controller.decide(
                carry, demand[last], families, delay, remaining=STEPS - number, may=number >= SEEN
            )
            served = fluid_lower_bound(REGION, Circuits(carry.count), demand[current], routing="split")
            return controller.observe(carry, demand[current]), jnp.where(
                number >= SEEN, served + jnp.where(changed, delay, 0), 0
            )

        start = controller.start(jnp.asarray(SETS)[0], 2)
        steps = jnp.arange(STEPS), jnp.concatenate([state[:1], state[:-1]]), state
        return lax.scan(step, start, steps)[1].sum()

    return jax.vmap(chain, axis_name="chains")(state)
