"""Train policies on generated or recorded demand; the loss is the time of the true demand on their circuits.

A run is a folder: `checkpoint` (all state), `metrics.jsonl` (a line per `log_every` steps) and `trained.policy`, the
best model so far, for `policies.load`. Randomness depends only on seed and step, so a resumed run gives equal results.

A network follows the gradient through real-valued circuits, which move to whole numbers during the first half of the
steps. Relay potentials take a few steps for the true demand and are then held fixed; near the best shares this does not
change the gradient in the circuits. The objective is one all-to-all, one all-to-all whose forecast may be a prediction,
or a chain of all-to-alls in which each change costs the delay (`chains`). `methods` has trainings without this
gradient. An index rule uses the cross-entropy method (Rubinstein, Methodology and Computing in Applied Probability 1,
1999), which needs no gradient.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.apps.learning.chains import (
    TEMPERATURE,
    Chain,
    chain_time,
    chain_time_over_bound,
    draw_chain,
    serve_chain,
    settle_potentials,
)
from mfabric_jax.apps.learning.demands import learned_records, pool, records_of, windows
from mfabric_jax.apps.learning.judging import over_bound, takes_sigma
from mfabric_jax.apps.learning.methods import METHODS, evolve, reinforce
from mfabric_jax.checks import InputError, check_together, distinct, not_negative, one_of, positive, whole
from mfabric_jax.fabric import Region
from mfabric_jax.policies import policy_file
from mfabric_jax.policies.exact import ROUTINGS
from mfabric_jax.policies.index_rule import Index
from mfabric_jax.policies.learned import KINDS, Trained, load, save
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.policies.relaxed import softened_time, width_of
from mfabric_jax.policies.samples import normalise, samples_of
from mfabric_jax.support.atomic import check_folder, check_place
from mfabric_jax.support.text_files import mapping_in
from mfabric_jax.traffic.demand_families import check_folds, noisy_forecast
from mfabric_jax.traffic.scenarios import expected_demand

CHECKPOINT, METRICS, TRAINED_POLICY = "checkpoint", "metrics.jsonl", "trained.policy"
HELD_OUT_STEPS = 60  # gradient steps towards shares on held-out demand
HELD_OUT = 96  # held-out demands per size
HELD_OUT_STREAM = 2**32 - 1  # minus the number of servers: random stream of held-out batches, beyond all steps
CERTAIN = 1 / 5  # fraction of forecasts without errors
OBJECTIVES = ("all-to-all", "forecast", "iteration")
NOISY_PART = 0.5  # fraction of chains whose forecasts are the true demand with errors; the others predict
RECORDED_PART = 0.5  # fraction of chains from the recording, if there is one
WINDOWS = 512  # most chains taken from a recording
WHOLE_AFTER = 0.5  # fraction of the steps after which circuits count as whole ones
LAST_RATE = 0.01  # last learning rate over the first
TRIED = 12  # rules sampled per step
BEST = 4  # best rules, which update the distribution
MOVE = 0.4  # step towards mean and deviation of the best rules
FIRST_SPREAD, LEAST_SPREAD = 0.7, 0.05  # standard deviations of the sampled rules
NEXT = (0.0, 0.0, 0.0, -1.0, -1.0)  # close to greedy's rule "next", except for `spread` and `relief`
Line = dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of a run. Raise `InputError` if a value is out of range."""

    kind: str = "network"
    """network, or index: a rule of five numbers."""
    objective: str = "all-to-all"
    """What training makes faster. all-to-all: one all-to-all whose forecast has errors. forecast: half of the forecasts
    are predictions from the previous all-to-all; circuits are even where the network is unsure. iteration: a chain of
    all-to-alls in which each change of circuits costs the delay."""
    method: str = "gradient"
    """gradient: through real-valued circuits; reinforce and evolution: trials of whole circuits."""
    start: str | None = None
    """Trained network to start from, of this width and depth; none: random weights from the seed."""
    chain: int = 4
    """All-to-alls of a chain under the objective iteration."""
    routing: str = "relay"
    """Routing under which times are judged: relay; an index also takes unsplit or split."""
    steps: int = 4000
    """Training steps, one batch each."""
    batch: int = 16
    """Demands of a batch."""
    sizes: tuple[int, ...] = (8, 16)
    """Servers of the regions; batches alternate between them."""
    learning_rate: float = 0.002
    """Adam's learning rate; it falls to a hundredth along a cosine."""
    noise: float = 1.0
    """Largest standard deviation of forecasts' log errors. Each demand draws its own; a fifth have no errors."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    varied: float = 0.3
    """Fraction of demands whose regions have random numbers of NICs and lose bandwidth by forwarding."""
    width: int = 18
    """Width of the network's vectors."""
    depth: int = 2
    """Layers of the network."""
    trace: str | None = None
    """Recorded routing to learn from as well; it is fitted to 16 expert-parallel ranks with 32 experts, and neighbours
    share a server. The first four fifths train, the next tenth chooses the step, the last tenth is held out for
    mfabric evaluate --records."""
    records: tuple[int, int] | None = None
    """Range of records of the trace, FIRST-LAST."""
    share_steps: int = 24
    """Gradient steps towards the relay shares that judge circuits under relay routing."""
    log_every: int = 50
    """Steps per line of metrics."""
    checkpoint_every: int = 250
    """Steps between checkpoints."""
    seed: int = 0

    def __post_init__(self):
        one_of("kind", self.kind, KINDS)
        one_of("routing", self.routing, ROUTINGS)
        one_of("objective", self.objective, OBJECTIVES)
        one_of("method", self.method, METHODS)
        if self.kind == "index" and (self.objective != OBJECTIVES[0] or self.method != METHODS[0]):
            raise InputError("objective and method apply only to a network; an index has its own, got kind 'index'.")
        if self.start is not None:
            _start_network(self)
        if self.kind == "network" and self.routing != "relay":
            raise InputError(f"routing must be relay for a network, got {self.routing!r}; an index learns the others.")
        every = ("steps", "batch", "depth", "chain", "share_steps", "log_every", "checkpoint_every")
        for field in (*every, "optical_degree", "electrical_nics"):
            whole(field, getattr(self, field))
        whole("seed", self.seed, at_least=0)
        whole("width", self.width, at_least=3)
        for servers in distinct("sizes", self.sizes):
            whole("sizes", servers, at_least=2)
        chain = {"chain": self.chain} if self.length > 1 else {}
        check_together(**{"batch": self.batch} | chain | {"sizes^2": max(self.sizes) ** 2})
        check_together(**{"depth": self.depth, "width^2": self.width**2})
        if self.trace is not None:
            check_folds("sizes", self.sizes)
        positive("learning_rate", self.learning_rate)
        not_negative("noise", self.noise)
        if not_negative("varied", self.varied) > 1:
            raise InputError(f"varied must be at most 1, got {self.varied}.")
        if self.checkpoint_every % self.log_every:
            allowed = f"a multiple of log_every {self.log_every}"
            raise InputError(f"checkpoint_every must be {allowed}, got {self.checkpoint_every}.")

    @property
    def length(self) -> int:
        """All-to-alls of a chain."""
        return self.chain if self.objective == "iteration" else 1

    def of_programs(self) -> "TrainingSettings":
        """Return the settings that compiled programs depend on: seed, recording and files do not matter."""
        return dataclasses.replace(self, seed=0, trace=None, records=None, log_every=1, checkpoint_every=1)


class Lesson(NamedTuple):
    region: Region
    demand: Float[Array, "S S"]  # true
    forecast: Float[Array, "S S"]
    sigma: Float[Array, ""]  # of the forecast's errors


@functools.partial(jax.jit, static_argnames=("config", "servers"))
def lessons(key: PRNGKeyArray, pool: Float[Array, "N S S"], config: TrainingSettings, servers: int) -> Lesson:
    """Draw demands from the pool with permuted servers, each in its own region."""
    return jax.vmap(lambda key: _lesson(key, pool, config, servers))(jax.random.split(key, config.batch))


@functools.partial(jax.jit, static_argnames=("config", "servers"))
def chains_of(
    key: PRNGKeyArray,
    pool: Float[Array, "N S S"],
    recorded: Float[Array, "N T S S"] | None,
    config: TrainingSettings,
    servers: int,
) -> Chain:
    """Draw chains around the demands of lessons; half of them come from the recording, if there is one."""

    def chain_for_key(key):
        first, *keys = jax.random.split(key, 5)
        lesson = _lesson(first, pool, config, servers)
        if config.objective == "all-to-all":
            return single(lesson)
        taken = None
        if recorded is not None:
            order = jax.random.permutation(keys[0], servers)
            taken = recorded[jax.random.randint(keys[1], (), 0, len(recorded))][:, order][:, :, order]
        chain = draw_chain(keys[2], lesson.region, lesson.demand, None, config.length, lesson.sigma, NOISY_PART)
        if taken is None:
            return chain
        other = draw_chain(keys[2], lesson.region, lesson.demand, taken, config.length, lesson.sigma, NOISY_PART)
        use = _part(keys[3]) < RECORDED_PART
        return jax.tree.map(lambda a, b: jnp.where(use, a, b), other, chain)

    return jax.vmap(chain_for_key)(jax.random.split(key, config.batch))


def single(lesson: Lesson) -> Chain:
    """Return a chain of one all-to-all, whose circuits change without a delay."""
    free = dataclasses.replace(lesson.region, delay_s=jnp.zeros((), jnp.float32))
    return Chain(free, lesson.demand[None], lesson.forecast[None], lesson.sigma, jnp.zeros((), jnp.float32))


def _lesson(key: PRNGKeyArray, pool, config: TrainingSettings, servers: int) -> Lesson:
    keys = jax.random.split(key, 5)
    order = jax.random.permutation(keys[0], servers)
    demand = pool[jax.random.randint(keys[1], (), 0, len(pool))][order][:, order]
    sigma = config.noise * jnp.maximum((_part(keys[2]) - CERTAIN) / (1 - CERTAIN), 0)
    return Lesson(_region(keys[3], config, servers), demand, noisy_forecast(keys[4], demand, sigma), sigma)


def _region(key: PRNGKeyArray, config: TrainingSettings, servers: int) -> Region:
    """Return a region: for a fraction `varied` of the draws a random one, else the configured NICs at efficiency 1.

    A random region has 2 to 8 OCS NICs (some servers one less), 1 to 4 EPS NICs, and an efficiency of 0.6 to 1.
    """
    keys = jax.random.split(key, 5)
    other = _part(keys[0]) < config.varied
    lost = jax.random.bernoulli(keys[2], 0.1, (servers,)).astype(jnp.int32)
    degree = jax.random.randint(keys[1], (), 2, 9, jnp.int32) - lost
    electrical = jax.random.randint(keys[3], (), 1, 5).astype(jnp.float32)
    return Region(
        servers,
        jnp.ones((), jnp.float32),
        jnp.where(other, degree, config.optical_degree),
        jnp.where(other, electrical, config.electrical_nics),
        relay_efficiency=jnp.where(other, 0.6 + 0.4 * _part(keys[4]), 1),
    )


def _part(key: PRNGKeyArray) -> Float[Array, ""]:
    return jax.random.uniform(key, (), jnp.float32)


# -------------------------------------------------------------------------------------------------------- steps
class NetworkState(NamedTuple):
    model: PolicyNetwork
    moments: optax.OptState


def first_network(config: TrainingSettings) -> NetworkState:
    weighs = config.objective != "all-to-all"
    model = _start_network(config) or PolicyNetwork(config.width, config.depth, weighs, key=jax.random.key(config.seed))
    return NetworkState(model, _adam(config).init(eqx.filter(model, eqx.is_array)))


def _start_network(config: TrainingSettings) -> PolicyNetwork | None:
    if config.start is None:
        return None
    model = load(config.start).model
    if config.kind != "network" or not isinstance(model, PolicyNetwork):
        raise InputError(f"start must be a trained network, for kind network, got {config.start!r}.")
    if (model.width, model.depth) != (config.width, config.depth):
        allowed = f"{config.width} and depth {config.depth}"
        raise InputError(f"start must have width {allowed}, got {model.width} and {model.depth}.")
    if model.weighs and config.objective == "all-to-all":
        raise InputError(f"start {config.start!r} weighs changes, so objective must be forecast or iteration.")
    return model if config.objective == "all-to-all" else model.weighing()


@eqx.filter_jit
def network_step(
    state: NetworkState, batch: Lesson, step: Int[Array, ""], config: TrainingSettings
) -> tuple[NetworkState, dict[str, Float[Array, ""]]]:
    """Take one step of Adam on `mean_time`, which "time" returns."""
    strength = _strength(step, config)
    held = jax.vmap(lambda lesson: settle_lesson(state.model, lesson, strength, config.share_steps))(batch)
    time, slope = eqx.filter_value_and_grad(mean_time)(state.model, batch, held, strength)
    with jax.numpy_dtype_promotion("standard"):  # optax divides floats by whole numbers
        change, moments = _adam(config).update(slope, state.moments)
    return NetworkState(eqx.apply_updates(state.model, change), moments), {"time": time}


@eqx.filter_jit
def chain_step(
    state: NetworkState, batch: Chain, step: Int[Array, ""], key: PRNGKeyArray, config: TrainingSettings
) -> tuple[NetworkState, dict[str, Float[Array, ""]]]:
    """Take one step of Adam on the mean time of chains by the configured method; `key` draws its trials."""
    strength = _strength(step, config)
    if config.method == "gradient":

        def mean(model):
            return jax.vmap(lambda chain: chain_time(model, chain, strength, config.share_steps))(batch).mean()

        time, slope = eqx.filter_value_and_grad(mean)(state.model)
    else:
        trial = reinforce if config.method == "reinforce" else evolve
        time, slope = trial(state.model, batch, key, config.share_steps)
    with jax.numpy_dtype_promotion("standard"):  # optax divides floats by whole numbers
        change, moments = _adam(config).update(slope, state.moments)
    return NetworkState(eqx.apply_updates(state.model, change), moments), {"time": time}


def _strength(step: Int[Array, ""], config: TrainingSettings) -> Float[Array, ""]:
    """Return the strength with which circuits are drawn to whole numbers; 1 for a network that was trained before."""
    if config.start is not None:
        return jnp.ones((), jnp.float32)
    return jnp.clip(step.astype(jnp.float32) / (WHOLE_AFTER * config.steps), 0, 1)


def _adam(config: TrainingSettings) -> optax.GradientTransformation:
    rate = optax.cosine_decay_schedule(config.learning_rate, config.steps, LAST_RATE)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


def mean_time(
    model: PolicyNetwork, batch: Lesson, potentials: Float[Array, "B 1 links S"], strength: Float[Array, ""]
) -> Float[Array, ""]:
    """Return the mean softened time, over the degree bound, of true demands on the circuits for their forecasts."""

    def lesson_time(lesson: Lesson, potentials):
        true = samples_of(lesson.demand[None], lesson.region)
        return softened_time(true, _logits(model, lesson), potentials, TEMPERATURE, strength, tail=1.0)

    return jax.vmap(lesson_time)(batch, potentials).mean()


def settle_lesson(
    model: PolicyNetwork, lesson: Lesson, strength: Float[Array, ""], steps: int
) -> Float[Array, "1 links S"]:
    """Return the relay potentials for the true demand after `steps`, without derivatives."""
    true = samples_of(lesson.demand[None], lesson.region)
    return settle_potentials(true, width_of(true, _logits(model, lesson), strength), steps)


def _logits(model: PolicyNetwork, lesson: Lesson) -> Float[Array, "S S"]:
    seen, spread = expected_demand(lesson.forecast, lesson.sigma)
    return model.logits(normalise(seen, lesson.region), lesson.region.degrees, spread)


class IndexState(NamedTuple):
    """Mean and standard deviation of the distribution of rules, in unbounded coordinates (`rule_at`)."""

    centre: Float[Array, "5"]
    spread: Float[Array, "5"]


def first_index() -> IndexState:
    return IndexState(jnp.asarray(NEXT, jnp.float32), jnp.full(len(NEXT), FIRST_SPREAD, jnp.float32))


def rule_at(point: Float[Array, "5"]) -> Index:
    """Return the index rule at unbounded coordinates; exponentials and sigmoids keep each number in its range."""
    offset, power, larger, spread, relief = point
    return Index(jnp.exp(offset), jnp.exp(power), jax.nn.sigmoid(larger), jax.nn.sigmoid(spread), jnp.exp(relief))


@functools.partial(jax.jit, static_argnames="config")
def index_step(
    state: IndexState, batch: Lesson, key: PRNGKeyArray, config: TrainingSettings
) -> tuple[IndexState, dict[str, Float[Array, ""]]]:
    """Take one cross-entropy step; all sampled rules see the same batch."""
    away = jax.random.normal(key, (TRIED, len(NEXT)), jnp.float32).at[0].set(0)
    places = state.centre[None] + state.spread[None] * away
    times = jax.vmap(lambda point: mean_rule_time(rule_at(point), batch, config))(places)
    best = places[jnp.argsort(times)[:BEST]]
    centre = state.centre + MOVE * (best.mean(0) - state.centre)
    spread = jnp.maximum(state.spread + MOVE * (best.std(0) - state.spread), LEAST_SPREAD)
    rule = rule_at(centre)
    return IndexState(centre, spread), {"time": times[0], "best": times.min()} | {
        name: jnp.asarray(value) for name, value in vars(rule).items()
    }


def mean_rule_time(rule: Index, batch: Lesson, config: TrainingSettings) -> Float[Array, ""]:
    def lesson_time(lesson: Lesson):
        circuits = rule(lesson.forecast, lesson.region).circuits
        return over_bound(lesson.region, circuits, lesson.demand, config.routing, config.share_steps)

    return jax.vmap(lesson_time)(batch).mean()


State = NetworkState | IndexState


# --------------------------------------------------------------------------------------------------------- runs
class TrainingProgress(NamedTuple):
    state: State
    best: PolicyNetwork | Index  # the best by time on held-out demand
    least: Float[Array, ""]  # its time


def train(
    config: TrainingSettings, folder: str | Path, progress: Callable[[int, Line], None] | None = None
) -> list[Line]:
    """Train from the last checkpoint in the folder, or from the start; return all lines of metrics.

    - `progress`: called with the number of finished steps and the last line, at the start and after every step.

    The first line and those at checkpoints have `held_out_S`: the mean time over the degree bound on held-out demands
    of S servers, with shares for the true demand. The best model minimises the mean of these. Raise `InputError` if the
    folder cannot be written or holds a run of another configuration.
    """
    folder, record = Path(folder), record_of(config)
    check_folder(folder)
    for name in (CHECKPOINT, METRICS, TRAINED_POLICY):
        check_place("file", folder / name, "choose another folder for out")
    run, step, lines = resume_run(config, record, folder)
    pools, others = _pools(config, "train"), _pools(config, "validation")
    chained = config.objective != "all-to-all" or config.method != "gradient"
    if not lines:
        run, held_out = _judge_run(run, config, others)
        lines.append({"step": 0} | held_out)
    seen: list[dict[str, jax.Array]] = []
    same = config.of_programs()
    while True:
        if progress:
            progress(step, lines[-1])
        if step == config.steps:
            break
        servers = config.sizes[step % len(config.sizes)]
        key = _fold(config.seed, step)
        demands = pools[servers]
        if isinstance(run.state, IndexState):
            batch = lessons(key, demands.single, same, servers)
            state, parts = index_step(run.state, batch, _fold(config.seed + 1, step), same)
        elif chained:
            batch = chains_of(key, *demands, same, servers)
            state, parts = chain_step(run.state, batch, jnp.asarray(step), _fold(config.seed + 2, step), same)
        else:
            batch = lessons(key, demands.single, same, servers)
            state, parts = network_step(run.state, batch, jnp.asarray(step), same)
        run = run._replace(state=state)
        step += 1
        seen.append(parts)
        ends = step == config.steps or step % config.checkpoint_every == 0
        if ends or step % config.log_every == 0:
            lines.append(_line(step, seen))
            seen = []
            _check_finite(lines[-1], run, config)
        if ends:
            run, held_out = _judge_run(run, config, others)
            lines[-1] |= held_out
            _keep(record, folder, run, step, lines)
    return lines


def _fold(seed: int, step: int) -> PRNGKeyArray:
    return jax.random.fold_in(jax.random.key(seed), step)


class DemandPool(NamedTuple):
    single: Float[Array, "N S S"]
    recorded: Float[Array, "W records S S"] | None  # consecutive records, one more than a chain has steps


def _pools(config: TrainingSettings, split: str) -> dict[int, DemandPool]:
    return {
        servers: DemandPool(
            jnp.asarray(pool(servers, config.seed, config.trace, config.records, split=split)),
            _windows(config, split, servers),
        )
        for servers in config.sizes
    }


def _windows(config: TrainingSettings, split: str, servers: int) -> jax.Array | None:
    if config.trace is None or config.objective == "all-to-all":
        return None
    chains = windows(config.trace, config.records, split, servers, config.length + 1)
    if not len(chains):
        held, every = records_of(config.trace, config.records, split)
        raise InputError(
            f"trace must have {config.length + 1} consecutive records in its {split} split, got {held} of {every} "
            "there; take a longer recording or a shorter chain."
        )
    return jnp.asarray(chains[np.random.default_rng(config.seed).permutation(len(chains))[:WINDOWS]])


def model_of(state: State) -> PolicyNetwork | Index:
    return state.model if isinstance(state, NetworkState) else rule_at(state.centre)


def _check_finite(line: Line, run: TrainingProgress, config: TrainingSettings) -> None:
    broken = [name for name, value in line.items() if not math.isfinite(value)]
    weights = jax.tree.leaves(eqx.filter(run.state, eqx.is_inexact_array))
    broken += [] if all(bool(jnp.isfinite(x).all()) for x in weights) else ["a weight"]
    if broken:
        allowed = f"less than {config.learning_rate:g}: {broken[0]} is not finite at step {line['step']}"
        raise InputError(f"learning_rate must be {allowed}. Set out to another folder.")


def _line(step: int, seen: list[dict[str, jax.Array]]) -> Line:
    return {"step": step} | {name: float(np.mean([float(parts[name]) for parts in seen])) for name in seen[0]}


def _judge_run(
    run: TrainingProgress, config: TrainingSettings, pools: dict[int, DemandPool]
) -> tuple[TrainingProgress, Line]:
    model, line = model_of(run.state), {}
    for servers, pooled in pools.items():
        key = _fold(config.seed, HELD_OUT_STREAM - servers)
        usual = dataclasses.replace(config.of_programs(), batch=HELD_OUT, varied=0.0)
        if config.objective == "all-to-all" or isinstance(model, Index):
            times = _times(model, lessons(key, pooled.single, usual, servers), config.routing)
        else:
            times = _chain_times(model, chains_of(key, *pooled, usual, servers))
        line[f"held_out_{servers}"] = float(times.mean())
    least = jnp.asarray(np.mean([*line.values()]), jnp.float32)
    better = bool(least < run.least)
    return (run._replace(best=model, least=least) if better else run), line


@eqx.filter_jit
def _times(model: PolicyNetwork | Index, batch: Lesson, routing: str) -> Float[Array, "B"]:
    policy = Trained(model, {})

    def lesson_time(lesson: Lesson):
        settings: dict[str, Any] = {"sigma": lesson.sigma} if takes_sigma(policy) else {}
        plan = policy(lesson.forecast, lesson.region, **settings)
        return over_bound(lesson.region, plan.circuits, lesson.demand, routing, HELD_OUT_STEPS)

    return jax.vmap(lesson_time)(batch)


@eqx.filter_jit
def _chain_times(model: PolicyNetwork, batch: Chain) -> Float[Array, "B"]:
    policy = functools.partial(model, share_steps=0)  # shares are those of the true demand
    keys = jax.random.split(jax.random.key(0), len(batch.demand))
    trajectories = jax.vmap(lambda chain, key: serve_chain(policy, chain, key, HELD_OUT_STEPS))(batch, keys)
    return chain_time_over_bound(batch, trajectories)


def first_run(config: TrainingSettings) -> TrainingProgress:
    state = first_index() if config.kind == "index" else first_network(config)
    return TrainingProgress(state, model_of(state), jnp.asarray(np.inf, jnp.float32))


def record_of(config: TrainingSettings) -> dict[str, Any]:
    return dataclasses.asdict(config) | {"learned_from": learned_records(config.trace, config.records)}


def _keep(record: dict[str, Any], folder: Path, run: TrainingProgress, step: int, lines: list[Line]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    policy_file.replace(folder / METRICS, text.encode())  # written first, so that a checkpoint is never ahead of it
    header = {"kind": CHECKPOINT, "step": step, "configuration": record}
    policy_file.write(folder / CHECKPOINT, header, run)
    save(folder / TRAINED_POLICY, run.best, record)


def resume_run(
    config: TrainingSettings, record: dict[str, Any], folder: Path
) -> tuple[TrainingProgress, int, list[Line]]:
    """Return the run, its step and its metrics. Raise `InputError` if the folder's run has another `record`."""
    if not (folder / CHECKPOINT).exists():
        return first_run(config), 0, []
    stored = policy_file.read(folder / CHECKPOINT)
    then, step = stored.header.get("configuration"), stored.header.get("step")
    if stored.header.get("kind") != CHECKPOINT or not isinstance(then, dict) or not isinstance(step, int):
        raise InputError(f"{stored.path!r} is not a checkpoint of `mfabric train`; choose another folder for out.")
    now = json.loads(json.dumps(record))
    if now.pop("learned_from") != then.get("learned_from", {}):
        raise InputError(f"trace must be unchanged since the run in {folder} began; choose another folder for out.")
    for field, value in now.items():
        if then.get(field) != value:
            allowed = f"{then.get(field)!r}, as in the run in {folder}, or out must be another folder"
            raise InputError(f"{field} must be {allowed}; got {value!r}.")
    return stored.leaves(first_run(config)), step, [line for line in _metrics(folder / METRICS) if line["step"] <= step]


def _metrics(path: Path) -> list[Line]:
    try:
        lines = [mapping_in(line, "a line", "metrics") for line in path.read_text(encoding="utf-8").splitlines()]
        if not all(isinstance(line.get("step"), int) for line in lines):
            raise ValueError("a line has no step")
        return lines
    except (OSError, ValueError) as error:
        raise InputError(f"metrics {str(path)!r} cannot be read ({error}); choose another folder for out.") from error
