"""Train the network of the policy `ahead` on chains of drifting demand.

Each lesson is a state of a chain of its own: 16 demands seen, a horizon of 1 to 16 all-to-alls, and demands drawn from
within this horizon, given that state (the processes of `Drift` jump there in one step). The loss is the mean split time
of these demands on the network's circuits, over their degree bounds. Memory, skews, NICs, horizons and the errors of
forecasts are drawn anew for every lesson.

Circuits are whole. Three gradients are offered:
- "reinforce": of the expected loss under normal noise on the scores of pairs, against the mean of all trials of a
  lesson. Noise comes in opposite pairs.
- "relaxed": through `soft_slots`, real-valued circuits of the same rule for noisy scores. The forward pass is half way
  between these and whole circuits.
- "evolution": of the expected loss under normal noise on the weights, in opposite pairs, with the same lessons.

`python -m mfabric_jax.apps.learning.ahead_training FILE.policy` wrote the weights of the package, in 740 s on a shared
CPU. Loss on 256 other lessons of 8 servers after 300 steps of 64 (1.351 before): "reinforce" 1.289; "relaxed" 1.297 in
two thirds of the time, but its bias takes over: 1.328 after 900 steps. With whole circuits alone in the forward pass it
is 1.325, with relaxed ones alone 1.299; the mean of both gradients gives 1.286. On other lessons (1.328 before),
"reinforce" reached 1.258 in 400 steps, "evolution" with noise 0.03 1.281.
"""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax import units
from mfabric_jax.apps.learning.evolution import count_weights, evolve
from mfabric_jax.apps.learning.sources import BYTES_PER_SERVER, Drift
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import save
from mfabric_jax.policies.ahead import AheadNetwork, Scores, deal_ahead, drifting, log_demands
from mfabric_jax.policies.paced import split_latest
from mfabric_jax.policies.samples import Samples
from mfabric_jax.routing import degree_bound, fluid_lower_bound
from mfabric_jax.traffic.log_errors import mean_squared_error

SEEN = 16  # demands of history
NICS = ((6, 2), (4, 1), (7, 1), (4, 4))  # optical and electrical
PAIRS, SKEW = (0.3, 2.5), (0.3, 2.0)
FORGETFUL = 0.1  # part of the lessons without memory; others lose 10^-3 to 10^-0.7 of it in a step
LOST = (-3.0, -0.7)
LONGEST = 4  # log2 of the longest horizon
ERRORS = (-1.0, -1.0, -1.0, 0.0, 0.3, 1.0)  # of forecasts, one for every sixth of the lessons; -1: the last demand
FIRST = 1.7  # first bias of `first`, half of what a pair's first circuit gets
SOFT = 0.05  # softness of the latest port under "relaxed"
WHOLE = 0.5  # part of whole circuits in the forward pass of "relaxed"
SLOTS = 4  # circuits of a pair that `soft_slots` knows
SCALINGS = 16
SMALLEST = 1e-9  # squared log error
LITTLE = 1e-3  # of a circuit, for servers without NICs
CLIP = 0.5
DECAY = 0.99  # of Adam's second moments
LAST_RATE = 0.02


class AheadTraining(NamedTuple):
    """AheadTraining of a training; the defaults made the weights of the package."""

    method: str = "reinforce"
    steps: int = 3000
    lessons: int = 64
    """Lessons of a step."""
    drawn: int = 4
    """Demands of a lesson on which circuits are timed."""
    trials: int = 16
    """Trials of a lesson (reinforce), or of a step (evolution)."""
    noise: float = 0.25
    """Standard deviation, of scores or weights."""
    rate: float = 0.003
    sizes: tuple[int, ...] = (8, 8, 16)
    """Servers, in turn."""
    width: int = 16
    depth: int = 2
    seed: int = 0


class Exercise(NamedTuple):
    """A state, and demands [R S S] that follow; arguments of `ahead`."""

    region: Region
    demand: Float[Array, "S S"]
    history: Float[Array, "H S S"]
    horizon: Float[Array, ""]
    sigma: Float[Array, ""]
    future: Float[Array, "R S S"]


# ------------------------------------------------------------------------------------------------------------- lessons
def draw_lesson(key: PRNGKeyArray, servers: int, drawn: int) -> Exercise:
    keys = iter(jax.random.split(key, 13))

    def between(low: float, high: float):
        return jax.random.uniform(next(keys), (), jnp.float32, low, high)

    memory = jnp.where(between(0, 1) < FORGETFUL, 0, 1 - 10 ** between(*LOST))
    source = Drift(skew=between(*SKEW), pairs=between(*PAIRS), memory=memory, burst=0.0)
    optical, electrical = jnp.asarray(NICS)[jax.random.randint(next(keys), (), 0, len(NICS))]
    horizon = jnp.round(2 ** between(0, LONGEST))
    error = jnp.asarray(ERRORS, jnp.float32)[jax.random.randint(next(keys), (), 0, len(ERRORS))]
    state, _ = source.first(next(keys), servers, jnp.float32)
    walk = jax.random.split(next(keys), SEEN)
    state, history = lax.scan(lambda state, key: source.next(key, state), state, walk)
    first, truth = source.next(next(keys), state)
    last, forecast = history[-1], truth * jnp.exp(error * jax.random.normal(next(keys), truth.shape, jnp.float32))
    known = error >= 0
    expected, sigma = _mix(forecast, error, history)
    off = ~jnp.eye(servers, dtype=bool)
    changes = drifting(log_demands(history, off), jnp.ones(SEEN, bool), off).changes
    expected, sigma = jnp.where(known, expected, last), jnp.where(known, sigma, changes[0, 0])
    ahead = jnp.maximum(jnp.ceil((jnp.arange(drawn, dtype=jnp.float32) + 0.5) / drawn * horizon), 1)
    # a forecast knows the next demand up to errors, so all demands of its lesson follow that one
    origin = jax.tree.map(lambda a, b: jnp.where(known, a, b), first, state)
    steps = ahead - known.astype(jnp.float32)
    future = jax.vmap(lambda key, steps: jump(source, key, origin, steps))(jax.random.split(next(keys), drawn), steps)
    region = Region(
        servers,
        jnp.asarray(units.to_gbps(BYTES_PER_SERVER), jnp.float32),  # a NIC sends a server's bytes in a second
        jnp.asarray(optical, jnp.int32),
        jnp.asarray(electrical, jnp.float32),
        delay_s=jnp.zeros((), jnp.float32),
    )
    return Exercise(region, expected, history, horizon, sigma, future)


def jump(source: Drift, key: PRNGKeyArray, state: Any, steps: Float[Array, ""]) -> Float[Array, "S S"]:
    """Return the demand `steps` ahead."""
    still = 1 - jnp.asarray(source.moves, jnp.float32)
    far = Drift(
        source.bytes_per_server, source.skew, source.pairs, source.memory**steps, source.heat, 1 - still**steps, 0.0
    )
    return far.next(key, state)[1]


def _mix(forecast: Array, error: Array, history: Array) -> tuple[Float[Array, "S S"], Float[Array, ""]]:
    """Return forecast and last demand, weighted by their errors as in `Renewal.expect`, and the error of this."""
    off = ~jnp.eye(len(forecast), dtype=bool)
    errors = error**2, mean_squared_error(history[:-1], history[1:]).mean()
    weight = errors[1] / jnp.maximum(errors[0] + errors[1], SMALLEST)
    new, last = (jnp.log(jnp.where(off, demand, 1)) for demand in (forecast, history[-1]))
    mixed = jnp.exp(weight * new + (1 - weight) * last)
    return jnp.where(off, mixed, 0), jnp.sqrt(weight**2 * errors[0] + (1 - weight) ** 2 * errors[1])


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def draw_lessons(key: PRNGKeyArray, many: int, servers: int, drawn: int) -> Exercise:
    return jax.vmap(lambda key: draw_lesson(key, servers, drawn))(jax.random.split(key, many))


def scores_of(network: AheadNetwork, lesson: Exercise) -> Scores:
    return network.scores(lesson.demand, lesson.history, lesson.region, lesson.horizon, lesson.sigma)


def loss_of(lesson: Exercise, scores: Scores) -> Float[Array, ""]:
    """Return the mean time of the lesson's demands over their mean degree bound."""
    off = ~jnp.eye(lesson.region.servers, dtype=bool)
    circuits = Circuits(deal_ahead(scores, off, lesson.region.degrees))
    seconds = jax.vmap(lambda demand: fluid_lower_bound(lesson.region, circuits, demand, routing="split"))(
        lesson.future
    )
    return seconds.mean() / _bound_s(lesson)


def _bound_s(lesson: Exercise) -> Float[Array, ""]:
    return jax.vmap(lambda demand: degree_bound(lesson.region, demand))(lesson.future).mean()


# ----------------------------------------------------------------------------------------------------------- gradients
def reinforce(network: AheadNetwork, lessons: Exercise, key: PRNGKeyArray, settings: AheadTraining):
    half = settings.trials // 2

    def slope(lesson: Exercise, key: PRNGKeyArray):
        servers, scores = lesson.region.servers, scores_of(network, lesson)
        noise = jax.vmap(lambda key: _symmetric_noise(key, servers))(jax.random.split(key, half))
        noise = jnp.concatenate([noise, -noise])
        level, first = (settings.noise * noise[:, which] for which in range(2))
        tried = Scores(scores.level[None] + level, scores.first[None] + first)
        losses = jax.vmap(lambda scores: loss_of(lesson, scores))(tried)
        worse = (losses - losses.mean())[:, None, None, None]
        return losses.mean(), (worse * noise).mean(0) / settings.noise

    losses, slopes = jax.vmap(slope)(lessons, jax.random.split(key, len(lessons.horizon)))

    def surrogate(network: AheadNetwork):
        def weigh(lesson: Exercise, slope: Array):
            scores = scores_of(network, lesson)
            return (slope * jnp.stack([scores.level, scores.first])).sum()

        return jax.vmap(weigh)(lessons, lax.stop_gradient(slopes)).mean()

    return losses.mean(), eqx.filter_grad(surrogate)(network)


def _symmetric_noise(key: PRNGKeyArray, servers: int) -> Float[Array, "2 S S"]:
    noise = jax.random.normal(key, (2, servers, servers), jnp.float32)
    return (noise + jnp.swapaxes(noise, 1, 2)) / jnp.sqrt(2.0)


def relaxed(network: AheadNetwork, lessons: Exercise, key: PRNGKeyArray, settings: AheadTraining):
    def mean(network: AheadNetwork):
        def soften(lesson: Exercise, key: PRNGKeyArray):
            region, scores = lesson.region, scores_of(network, lesson)
            noise = settings.noise * _symmetric_noise(key, region.servers)
            scores = Scores(scores.level + noise[0], scores.first + noise[1])
            off = ~jnp.eye(region.servers, dtype=bool)
            soft = soft_slots(scores, region.degrees)
            whole = deal_ahead(lax.stop_gradient(scores), off, region.degrees).astype(soft.dtype)
            count = soft + WHOLE * lax.stop_gradient(whole - soft)
            ports = jnp.broadcast_to(region.electrical_nics, region.servers)
            scale = jnp.asarray(BYTES_PER_SERVER, jnp.float32) * _bound_s(lesson)
            unused = jnp.zeros(len(lesson.future), jnp.float32)
            pairs, relaying = lesson.future / scale, jnp.ones((), jnp.float32)
            samples = Samples(pairs, unused, unused, region.degrees, ports, relaying)
            return split_latest(samples, count, jnp.asarray(SOFT, jnp.float32)).mean()

        return jax.vmap(soften)(lessons, jax.random.split(key, len(lessons.horizon))).mean()

    return eqx.filter_value_and_grad(mean)(network)


def soft_slots(scores: Scores, degrees: Int[Array, "S"]) -> Float[Array, "S S"]:
    """Return real-valued circuits of the rule of `deal_ahead`, within the degrees and differentiable.

    A pair's k-th circuit is there with the probability sigmoid(score of the k-th + u_i + u_j); u fits the degrees.
    """
    servers = len(degrees)
    off, degree = ~jnp.eye(servers, dtype=bool), jnp.log(jnp.maximum(degrees.astype(jnp.float32), LITTLE))
    number = jnp.arange(SLOTS, dtype=jnp.float32)[:, None, None]
    levels = scores.level[None] + jnp.where(number == 0, scores.first[None], 0) - jnp.log1p(number)

    def count(u: Array):
        return jnp.where(off, jax.nn.sigmoid(levels + (u[:, None] + u[None, :])[None]).sum(0), 0)

    def scale(u: Array, _):
        return u + 0.7 * (degree - jnp.log(count(u).sum(1) + LITTLE)), None

    return count(lax.scan(scale, jnp.zeros(servers, jnp.float32), length=SCALINGS)[0])


def evolution(network: AheadNetwork, lessons: Exercise, key: PRNGKeyArray, settings: AheadTraining):
    noise = jax.random.normal(key, (settings.trials // 2, count_weights(network)), jnp.float32)

    def loss(network: AheadNetwork):
        return jax.vmap(lambda lesson: loss_of(lesson, scores_of(network, lesson)))(lessons).mean()

    return evolve(loss, network, noise, settings.noise)


METHODS: dict[str, Callable[..., Any]] = {"reinforce": reinforce, "relaxed": relaxed, "evolution": evolution}


# ------------------------------------------------------------------------------------------------------------ training
def first_network(settings: AheadTraining) -> AheadNetwork:
    network = AheadNetwork(settings.width, settings.depth, key=jax.random.key(settings.seed))
    bias = jnp.asarray([0, FIRST], jnp.float32)
    return eqx.tree_at(lambda network: network.score.bias, network, bias)


def train(settings: AheadTraining, tell: Callable[[int, float, AheadNetwork], None] = lambda *_: None) -> AheadNetwork:
    """Return the trained network; `tell` gets the step, the loss and the network before it."""
    network = first_network(settings)
    schedule = optax.cosine_decay_schedule(settings.rate, settings.steps, LAST_RATE)
    adam = optax.chain(optax.clip_by_global_norm(CLIP), optax.adam(schedule, b2=DECAY))
    moments = adam.init(eqx.filter(network, eqx.is_array))

    @eqx.filter_jit
    def improve(network: AheadNetwork, moments: Any, step: Array, servers: int):
        drawing, trying = jax.random.split(jax.random.fold_in(jax.random.key(settings.seed), step))
        lessons = draw_lessons(drawing, settings.lessons, servers, settings.drawn)
        loss, slope = METHODS[settings.method](network, lessons, trying, settings)
        slope = jax.tree.map(jnp.nan_to_num, slope)  # 0/0 where a program rounds a maximum and its entries differently
        with jax.numpy_dtype_promotion("standard"):  # optax divides floats by whole numbers
            change, moments = adam.update(slope, moments)
        return eqx.apply_updates(network, change), moments, loss

    for step in range(settings.steps):
        servers = settings.sizes[step % len(settings.sizes)]
        after, moments, loss = improve(network, moments, jnp.asarray(step, jnp.int32), servers)
        tell(step, float(loss), network)
        network = after
    return network


def main(arguments: list[str]) -> None:
    """Write FILE.policy; further arguments are settings, as in steps=2400."""
    path, *changes = arguments
    settings = AheadTraining()
    for change in changes:
        name, _, value = change.partition("=")
        default = getattr(settings, name)
        settings = settings._replace(**{name: type(default)(value) if not isinstance(default, tuple) else default})
    start, losses = time.perf_counter(), []

    def tell(step: int, loss: float, network: AheadNetwork):
        losses.append(loss)
        if (step + 1) % 100 == 0:
            mean = sum(losses[-100:]) / 100
            print(f"step {step + 1}, {time.perf_counter() - start:.0f} s: {mean:.4f} degree bounds", flush=True)
            save(path, network, settings._asdict())

    save(path, train(settings, tell), settings._asdict())


if __name__ == "__main__":
    main(sys.argv[1:])
