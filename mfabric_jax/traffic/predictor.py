"""Expert load ahead of the gate: predictors of one signature, batched over layers, and how good they are.

`predictor(past, current) -> shares [L E]` predicts what part of its layer's selections every expert gets:

- `past` [T L E]: loads of earlier iterations, oldest first, T >= 0.
- `current` [L E]: loads of the iteration itself. Layer l's prediction reads those of layers before l only, which have
  run when l's gate has not.

Loads are selections or shares; each row counts by its shares. A row without load is no observation, and what would
rest on it falls back: to the same layer in the previous iteration, and then to even shares. Layer 0 has no previous
layer: it repeats the previous iteration wherever a predictor goes by layers.
Source: arXiv 2501.03905 (Copilot; "transition"), which compares with "previous-layer".
Letters: T iterations, L layers, M micro-batches, R source ranks, E experts.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Num

from mfabric_jax.checks import InputError, not_negative, one_of, positive, whole
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.traffic.transition_matrix import transition

Predictor = Callable[..., Float[Array, "L E"]]
Load = Num[Array, "L E"]
History = Num[Array, "T L E"]

WINDOW = 16
DECAY = 0.9


def by_transition(past: History, current: Load, *, window: int = WINDOW, decay: float = DECAY) -> Float[Array, "L E"]:
    """The previous layer's shares in this iteration, times the matrix that fits both layers' past (`transition`).

    - `window`: how many of the last iterations to fit.   - `decay`: weight of an iteration over that of the next.
    """
    seen, now, latest = _observed(past, current, window)
    if len(now) == 1:
        return latest
    loaded = (seen > 0).any(axis=-1).astype(seen.dtype)
    weight = _recency(window, decay, now.dtype)[-len(seen) :, None] * loaded  # [T L]
    both = weight[:, :-1] * loaded[:, 1:]
    matrix = jax.vmap(transition, in_axes=(1, 1, 1))(seen[:, :-1], seen[:, 1:], both)
    ahead = jnp.einsum("lij,lj->li", matrix, now[:-1])
    return _first_with_load(jnp.concatenate([latest[:1], ahead]), latest)


def previous_layer(past: History, current: Load) -> Float[Array, "L E"]:
    """The shares of the previous layer in this iteration."""
    _, now, latest = _observed(past, current, 1)
    return _first_with_load(jnp.concatenate([latest[:1], now[:-1]]), latest)


def previous_iteration(past: History, current: Load) -> Float[Array, "L E"]:
    """The shares of the same layer in the previous iteration."""
    return _observed(past, current, 1)[2]


def mean_of_past(past: History, current: Load, *, window: int = WINDOW, decay: float = DECAY) -> Float[Array, "L E"]:
    """The mean shares of the same layer over the last iterations; `window` and `decay` as in `by_transition`."""
    seen, _, latest = _observed(past, current, window)
    weight = _recency(window, decay, seen.dtype)[-len(seen) :]
    return _first_with_load(_shares(jnp.einsum("t,tle->le", weight, seen)), latest)


def even(past: History, current: Load) -> Float[Array, "L E"]:
    """The same share for every expert."""
    _, now, _ = _observed(past, current, 1)
    return jnp.full_like(now, 1 / now.shape[-1])


REGISTRY: dict[str, Predictor] = {
    "transition": by_transition,
    "previous-layer": previous_layer,
    "previous-iteration": previous_iteration,
    "moving-average": mean_of_past,
    "uniform": even,
}
DEFAULT = "moving-average"  # the most accurate on the SmartMoE gate trace


@functools.lru_cache(maxsize=256)
def get(name: str = DEFAULT, **settings: Any) -> Predictor:
    """The predictor of that name with its settings fixed: `get("transition", window=16)`.

    The same name and settings give the same object, so that programs compiled for it are found again. `InputError` for
    a name or setting that is unknown, and for a setting out of range.
    """
    predictor = REGISTRY[one_of("predictor", name, REGISTRY)]
    known = [p for p in inspect.signature(predictor).parameters if p not in ("past", "current")]
    for setting in settings:
        if setting not in known:
            raise InputError(f"predictor {name!r} has no setting {setting!r}; it has {', '.join(known) or 'none'}.")
    _check_settings(**settings)
    return functools.partial(predictor, **settings) if settings else predictor


def predicted(
    tokens: Tokens, name: str = DEFAULT, *, progress: Callable[[int], None] | None = None, **settings: Any
) -> np.ndarray:
    """Selections expected [iteration, layer, micro_batch, source_rank, expert], in the layout of `Tokens.count`.

    The predicted shares of the experts times what the source rank sends in all. They rest on what is known before that
    gate has run: all of the earlier iterations, each as the sum of its micro-batches, and the earlier layers of the
    same micro-batch. Earlier micro-batches of the same iteration are not used. Iteration 0 is predicted even.
    `progress` is told the number of every iteration that is ready; `settings` are those of the predictor.
    """
    real = jnp.asarray(tokens.count, jnp.result_type(float))
    load, predictor, every = real.sum(axis=3), get(name, **settings), np.arange(len(real))
    steps = [every] if progress is None else np.split(every, len(every))
    parts = []
    for now in steps:
        parts.append(np.asarray(_ahead(load, now, predictor)))
        if progress is not None:
            progress(int(now[-1]))
    shares = np.concatenate(parts)
    shares[0] = 1 / load.shape[-1]
    return np.asarray(real.sum(axis=4, keepdims=True) * shares[:, :, :, None, :])


@functools.partial(jax.jit, static_argnames="predictor")
def _ahead(load: Float[Array, "T L M E"], at: Int[Array, "N"], predictor: Predictor) -> Float[Array, "N L M E"]:
    """Shares predicted for every micro-batch of the iterations `at`."""
    window = inspect.signature(predictor).parameters.get("window")
    reach = window.default if window else 1
    iterations = load.sum(axis=2)
    before = jnp.concatenate([jnp.zeros_like(iterations, shape=(reach, *iterations.shape[1:])), iterations])

    def of(now):
        past = lax.dynamic_slice_in_dim(before, now, reach)
        return jax.vmap(functools.partial(predictor, past), in_axes=1, out_axes=1)(load[now])

    return lax.map(of, at)


def hit_rate(predicted: Num[Array, "... E"], true: Num[Array, "... E"], k: int) -> Float[Array, "..."]:
    """How many of the `k` most loaded experts are among the `k` predicted to be, over `k`; ties: the lower expert."""
    predicted, true = _same_experts(predicted, true)
    if whole("k", k) > predicted.shape[-1]:
        raise InputError(f"k must be at most the {predicted.shape[-1]} experts, got {k}.")
    first = (jnp.argsort(jnp.argsort(-load, axis=-1, stable=True), axis=-1) < k for load in (predicted, true))
    return functools.reduce(jnp.logical_and, first).sum(axis=-1).astype(jnp.result_type(float)) / k


def total_variation(predicted: Num[Array, "... E"], true: Num[Array, "... E"]) -> Float[Array, "..."]:
    """Half the sum of the differences of shares: the part of the selections predicted for a wrong expert, 0 to 1.

    A row without load counts as even.
    """
    predicted, true = (_first_with_load(_shares(load)) for load in _same_experts(predicted, true))
    return jnp.abs(predicted - true).sum(axis=-1) / 2


def _same_experts(predicted: Num[Array, "... E"], true: Num[Array, "... E"]) -> tuple[Array, Array]:
    predicted, true = jnp.asarray(predicted), jnp.asarray(true)
    if predicted.ndim == 0 or predicted.shape != true.shape or predicted.shape[-1] == 0:
        shapes = f"{list(predicted.shape)} and {list(true.shape)}"
        raise InputError(f"predicted and true must be [... E] with E at least 1, got {shapes}.")
    return predicted, true


def _observed(past, current, window: int):
    """Shares [T L E] of the last `window` iterations, of the current one [L E], and those to repeat [L E]."""
    past, current = jnp.asarray(past), jnp.asarray(current)
    if current.ndim != 2 or 0 in current.shape or past.ndim != 3 or past.shape[1:] != current.shape:
        shapes = f"{list(past.shape)} and {list(current.shape)}"
        raise InputError(f"past and current must be [T L E] and [L E], L and E at least 1, got {shapes}.")
    _check_settings(window=window)
    not_negative("past", past)
    not_negative("current", current)
    nothing = jnp.zeros_like(past, shape=(1, *current.shape))
    seen = _shares(jnp.concatenate([nothing, past])[-window:])
    return seen, _shares(current), _first_with_load(seen[-1])


def _shares(load: Num[Array, "... E"]) -> Float[Array, "... E"]:
    """A row without load stays 0."""
    load = load if jnp.issubdtype(load.dtype, jnp.floating) else load.astype(jnp.result_type(float))
    total = load.sum(axis=-1, keepdims=True)
    return load / jnp.where(total > 0, total, 1)


def _first_with_load(*choices: Float[Array, "... E"]) -> Float[Array, "... E"]:
    """Row by row the first of the choices that has load, else even shares."""
    first = jnp.full_like(choices[-1], 1 / choices[-1].shape[-1])
    for shares in reversed(choices):
        first = jnp.where((shares > 0).any(axis=-1, keepdims=True), shares, first)
    return first


def _recency(window: int, decay: float, dtype) -> Float[Array, "window"]:
    """1 for the last iteration, `decay` for the one before."""
    _check_settings(window=window, decay=decay)
    return jnp.asarray(decay, dtype) ** jnp.arange(window - 1, -1, -1).astype(dtype)


def _check_settings(window: int = WINDOW, decay: float = DECAY) -> None:
    whole("window", window)
    if positive("decay", decay) > 1:
        raise InputError(f"decay must be at most 1, got {decay}.")
