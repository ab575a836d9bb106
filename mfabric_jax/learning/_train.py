"""Training of policies: generated (or recorded) demand, forecasts that err, and the time that circuits give.

A run is a folder: `checkpoint` (model, optimiser, step, the best model so far), `metrics.jsonl` (a line for every
`log_every` steps) and `trained.policy`, the best model so far, which `policies.load` reads. Both say which records of
a trace were learned from, by digests of what they hold, and which were held out. Everything random is a function of
the seed and of the step, so a run that is killed and started again ends as one that was not.
"""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError
from mfabric_jax.learning.demands import learned_from, pool
from mfabric_jax.learning.judging import over_bound
from mfabric_jax.learning.planning import takes_sigma
from mfabric_jax.learning.settings import Lesson, Training, lessons
from mfabric_jax.learning.steps import (
    IndexState,
    NetworkState,
    first_index,
    first_network,
    index_step,
    network_step,
    rule_at,
)
from mfabric_jax.policies import policy_file
from mfabric_jax.policies._index import Index
from mfabric_jax.policies._learned import Trained, save
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.text_files import mapping_in

CHECKPOINT, METRICS, TRAINED_POLICY = "checkpoint", "metrics.jsonl", "trained.policy"
HELD_OUT_STEPS = 60  # towards their shares
HELD_OUT = 96  # demands of a size
BEHIND = 2**32 - 1  # all steps: less the servers, the number of what is held out
State = NetworkState | IndexState
Line = dict[str, float]


class Run(NamedTuple):
    """What a checkpoint holds: the state, and the model that was best on what is held out."""

    state: State
    best: PolicyNetwork | Index
    least: Float[Array, ""]


def train(config: Training, folder: str | Path, progress: Callable[[int, Line], None] | None = None) -> list[Line]:
    """Train from the last checkpoint in the folder, or from the start; returns all lines of metrics.

    - `progress`: called with the steps done and the last line, at once and behind every step.

    `held_out_S` stands in lines at checkpoints and before the first step: mean time over the degree bound, with shares
    that know the demand, on demands of other seeds in the usual region. The best model has the least mean of these.
    `InputError` where the folder holds a run of another configuration, or cannot be written.
    """
    folder = Path(folder)
    record = _record(config)
    run, step, lines = _resumed(config, record, folder)
    pools, others = _pools(config, held_out=False), _pools(config, held_out=True)
    if not lines:
        run, held_out = _judged(run, config, others)
        lines.append({"step": 0} | held_out)
    seen: list[dict[str, jax.Array]] = []
    while True:
        if progress:
            progress(step, lines[-1])
        if step == config.steps:
            break
        servers = config.sizes[step % len(config.sizes)]
        key = jax.random.fold_in(jax.random.key(config.seed), step)
        batch = lessons(key, pools[servers], config, servers)
        state, parts = _advanced(run.state, batch, step, config)
        run = run._replace(state=state)
        step += 1
        seen.append(parts)
        ends = step == config.steps or step % config.checkpoint_every == 0
        if ends or step % config.log_every == 0:
            lines.append(_line(step, seen))
            seen = []
            _check_finite(lines[-1], run, config)
        if ends:
            run, held_out = _judged(run, config, others)
            lines[-1] |= held_out
            _keep(record, folder, run, step, lines)
    return lines


def _pools(config: Training, *, held_out: bool) -> dict[int, jax.Array]:
    return {
        servers: jnp.asarray(pool(servers, config.seed, config.trace, config.records, held_out=held_out))
        for servers in config.sizes
    }


def model_of(state: State) -> PolicyNetwork | Index:
    """The policy at this point."""
    return state.model if isinstance(state, NetworkState) else rule_at(state.centre)


def _check_finite(line: Line, run: Run, config: Training) -> None:
    broken = [name for name, value in line.items() if not math.isfinite(value)]
    weights = jax.tree.leaves(eqx.filter(run.state, eqx.is_inexact_array))
    broken += [] if all(bool(jnp.isfinite(x).all()) for x in weights) else ["a weight"]
    if broken:
        allowed = f"less than {config.learning_rate:g}, by which {broken[0]} is no number at step {line['step']}"
        raise InputError(f"learning_rate must be {allowed}; give another folder with it.")


def _advanced(state: State, batch: Lesson, step: int, config: Training) -> tuple[State, dict[str, jax.Array]]:
    at = jnp.asarray(step)
    if isinstance(state, IndexState):
        return index_step(state, batch, at, config)
    return network_step(state, batch, at, config)


def _line(step: int, seen: list[dict[str, jax.Array]]) -> Line:
    """Means since the last line."""
    return {"step": step} | {name: float(np.mean([float(parts[name]) for parts in seen])) for name in seen[0]}


def _judged(run: Run, config: Training, pools: dict[int, jax.Array]) -> tuple[Run, Line]:
    """Mean time over the degree bound on one batch of each size that no step sees; the best model by it."""
    model, found = model_of(run.state), {}
    for servers, pooled in pools.items():
        key = jax.random.fold_in(jax.random.key(config.seed), BEHIND - servers)
        batch = lessons(key, pooled, dataclasses.replace(config, batch=HELD_OUT, varied=0.0), servers)
        found[f"held_out_{servers}"] = float(_times(model, batch, config.routing).mean())
    least = jnp.asarray(np.mean([*found.values()]), jnp.float32)
    better = bool(least < run.least)
    return (run._replace(best=model, least=least) if better else run), found


@eqx.filter_jit
def _times(model: PolicyNetwork | Index, batch: Lesson, routing: str) -> Float[Array, "B"]:
    policy = Trained(model, {})
    told = takes_sigma(policy)

    def one(lesson: Lesson):
        settings: dict[str, Any] = {"sigma": lesson.sigma} if told else {}
        plan = policy(lesson.forecast, lesson.region, **settings)
        return over_bound(lesson.region, plan.circuits, lesson.demand, routing, HELD_OUT_STEPS)

    return jax.vmap(one)(batch)


def _first(config: Training) -> Run:
    state = first_index() if config.kind == "index" else first_network(config)
    return Run(state, model_of(state), jnp.asarray(np.inf, jnp.float32))


def _record(config: Training) -> dict[str, Any]:
    """What the files of a run say of it."""
    return dataclasses.asdict(config) | {"learned_from": learned_from(config.trace, config.records)}


def _keep(record: dict[str, Any], folder: Path, run: Run, step: int, lines: list[Line]) -> None:
    """Metrics first: a checkpoint never is ahead of them; the best policy so far last."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    policy_file.replace(folder / METRICS, text.encode())
    header = {"kind": CHECKPOINT, "step": step, "configuration": record}
    policy_file.write(folder / CHECKPOINT, header, run)
    save(folder / TRAINED_POLICY, run.best, record)


def _resumed(config: Training, record: dict[str, Any], folder: Path) -> tuple[Run, int, list[Line]]:
    """The run, its step and the metrics up to it; `InputError` where it is of another `record`."""
    if not (folder / CHECKPOINT).exists():
        return _first(config), 0, []
    stored = policy_file.read(folder / CHECKPOINT)
    then, step = stored.header.get("configuration"), stored.header.get("step")
    if stored.header.get("kind") != CHECKPOINT or not isinstance(then, dict) or not isinstance(step, int):
        raise InputError(f"{stored.path!r} is no checkpoint of `mfabric train`; give out another folder.")
    now = json.loads(json.dumps(record))
    if now.pop("learned_from") != then.get("learned_from", {}):
        raise InputError(f"trace must hold what it held when the run in {folder} began; give out another folder.")
    for field, value in now.items():
        if then.get(field) != value:
            allowed = f"{then.get(field)!r}, as of the run in {folder}, or out another folder"
            raise InputError(f"{field} must be {allowed}; got {value!r}.")
    return stored.leaves(_first(config)), step, [line for line in _metrics(folder / METRICS) if line["step"] <= step]


def _metrics(path: Path) -> list[Line]:
    try:
        lines = [mapping_in(line, "a line", "metrics") for line in path.read_text(encoding="utf-8").splitlines()]
        if not all(isinstance(line.get("step"), int) for line in lines):
            raise ValueError("a line has no step")
        return lines
    except (OSError, ValueError) as error:
        raise InputError(f"metrics {str(path)!r} cannot be read ({error}); give out another folder.") from error
