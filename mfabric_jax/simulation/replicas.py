"""Data-parallel replicas with traffic of their own: every one is a pipeline, and all wait for the slowest.

Gradients of a stage are reduced once all its replicas are through, so an iteration takes as long as the slowest of them
would alone: of every stage the latest end counts, and what follows is the same for all.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.timing import Iteration
from mfabric_jax.traffic import Tokens
from mfabric_jax.workload import Workload


def replicas_of(replicas: int | str, workload: Workload) -> int:
    """How many replicas of a job are simulated; "all": as many as it has."""
    return workload.dp if isinstance(replicas, str) else replicas


def drawn_apart(draw: Callable[[int], Tokens], replicas: int) -> tuple[Tokens, ...]:
    """Traffic of every replica: micro-batches of its own in the same iterations, of so many times as many.

    - `draw`: tokens with so many times as many micro-batches.
    """
    every = draw(replicas)
    size = every.count.shape[2] // replicas
    parts = [slice(at * size, (at + 1) * size) for at in range(replicas)]
    return tuple(every.changed(lambda count, part=part: count[:, :, part]) for part in parts)


def read_apart(read: Callable[[int], Tokens], replicas: int) -> tuple[Tokens, ...]:
    """Traffic of every replica from a recording: of every iteration a record each, in turn.

    - `read`: tokens of so many times as many iterations.
    """
    every = read(replicas)
    return tuple(every.changed(lambda count, at=at: count[at::replicas]) for at in range(replicas))


def slowest(timed: Iteration, replicas: int) -> Iteration:
    """[replica x I ...] -> [I ...]: of every iteration the replica that takes longest."""
    if replicas == 1:
        return timed
    each = jax.tree.map(lambda x: x.reshape(replicas, -1, *x.shape[1:]), timed)
    last = each.iteration_s.argmax(axis=0)[None]
    return jax.tree.map(lambda x: jnp.take_along_axis(x, last, axis=0)[0], each)


def slowest_columns(seconds: Mapping[str, np.ndarray], replicas: int) -> dict[str, np.ndarray]:
    """`slowest` of columns [replica x N], and `replica_s`, seconds of the mean replica [N]."""
    each = {name: values.reshape(replicas, -1) for name, values in seconds.items()}
    last = each["iteration_s"].argmax(axis=0), np.arange(each["iteration_s"].shape[1])
    return {name: values[last] for name, values in each.items()} | {"replica_s": each["iteration_s"].mean(axis=0)}


def mean_of_replicas(timed: Iteration, replicas: int) -> Any:
    """Seconds of the mean replica [I ...]."""
    return timed.iteration_s.reshape(replicas, -1, *timed.iteration_s.shape[1:]).mean(axis=0)


def replica_columns(replicas: int, slowest_s: Any, mean_s: Any) -> dict[str, Any]:
    """Columns of a row, numbers or arrays: how many there are, and how much longer the slowest takes than the mean."""
    return {"replicas": replicas, "slowest_over_mean": slowest_s / mean_s if replicas > 1 else 1.0}
