"""Predictors of expert load before the gate runs: `predictor(past [T L E], current [L E]) -> shares [L E]`.

Layer l's prediction reads earlier iterations (oldest first, T >= 0) and this iteration's layers before l. Only shares
of loads count. If there is nothing to predict from (layer 0, or a row without load), the prediction repeats the same
layer of the previous iteration; without that, shares are even. Source: arXiv 2501.03905 (Copilot; "transition",
compared with "previous-layer"). Letters: T iterations, L layers, M micro-batches, R source ranks, E experts.
"""

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Float, Int, Num

from mfabric_jax.checks import InputError, one_of, positive, whole
from mfabric_jax.support.array_module import Array
from mfabric_jax.traffic.tokens import Tokens

Predictor = Callable[..., Float[Array, "L E"]]
Load = Num[Array, "L E"]
History = Num[Array, "T L E"]

WINDOW = 16
DECAY = 0.9


def by_transition(past: History, current: Load, *, window: int = WINDOW, decay: float = DECAY) -> Float[Array, "L E"]:
    """Return the previous layer's shares times the matrix fitted to the past of both layers (`transition`).

    `window` is the number of iterations to fit, `decay` the weight of an iteration relative to the next one.
    """
    seen, now, latest = _read_shares(past, current, window)
    if len(now) == 1:
        return latest
    loaded = (seen > 0).any(axis=-1).astype(seen.dtype)
    weight = _recency(window, decay, now.dtype)[-len(seen) :, None] * loaded  # [T L]
    both = weight[:, :-1] * loaded[:, 1:]
    matrix = jax.vmap(transition, in_axes=(1, 1, 1))(seen[:, :-1], seen[:, 1:], both)
    ahead = jnp.einsum("lij,lj->li", matrix, now[:-1])
    return _first_with_load(jnp.concatenate([latest[:1], ahead]), latest)


def previous_layer(past: History, current: Load) -> Float[Array, "L E"]:
    """Return the shares of the previous layer in this iteration."""
    _, now, latest = _read_shares(past, current, 1)
    return _first_with_load(jnp.concatenate([latest[:1], now[:-1]]), latest)


def previous_iteration(past: History, current: Load) -> Float[Array, "L E"]:
    """Return the shares of the same layer in the previous iteration."""
    return _read_shares(past, current, 1)[2]


def mean_of_past(past: History, current: Load, *, window: int = WINDOW, decay: float = DECAY) -> Float[Array, "L E"]:
    """Return the mean shares of the same layer over the last iterations; settings as in `by_transition`."""
    seen, _, latest = _read_shares(past, current, window)
    weight = _recency(window, decay, seen.dtype)[-len(seen) :]
    return _first_with_load(_shares(jnp.einsum("t,tle->le", weight, seen)), latest)


def even(past: History, current: Load) -> Float[Array, "L E"]:
    """Return the same share for every expert."""
    _, now, _ = _read_shares(past, current, 1)
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
    """Return the named predictor with fixed settings; equal arguments return the same object, so programs are reused.

    Raise `InputError` if a name or setting is unknown or a setting is out of range.
    """
    predictor = REGISTRY[one_of("predictor", name, REGISTRY)]
    known = [p for p in inspect.signature(predictor).parameters if p not in ("past", "current")]
    for setting in settings:
        if setting not in known:
            raise InputError(f"predictor {name!r} has no setting {setting!r}; it has {', '.join(known) or 'none'}.")
    _check_settings(**settings)
    return functools.partial(predictor, **settings) if settings else predictor


def predict_selections(tokens: Tokens, name: str = DEFAULT, **settings: Any) -> np.ndarray:
    """Return predicted selections [iteration, layer, micro_batch, source_rank, expert], laid out as `Tokens.count`.

    They are predicted expert shares times what each source rank sends. A prediction uses what is known before the gate
    runs: earlier iterations (micro-batches summed) and earlier layers of the same micro-batch, but not earlier
    micro-batches. The prediction of iteration 0 is even. `settings` belong to the predictor.
    """
    real = jnp.asarray(tokens.count, jnp.result_type(float))
    load = real.sum(axis=3)
    shares = np.array(predict_shares(load, np.arange(len(real)), get(name, **settings)))
    shares[0] = 1 / load.shape[-1]
    return np.asarray(real.sum(axis=4, keepdims=True) * shares[:, :, :, None, :])


# On CPUs two programs that solve linear systems in a loop may wait for each other forever if they run at once.
_ALONE = threading.Lock()


def predict_shares(
    load: Float[Array, "T L M E"], targets: Int[Array, "N"] | np.ndarray, predictor: Predictor, horizon: int = 1
) -> Float[Array, "N L M E"]:
    """Return predicted shares for every micro-batch of the iterations `targets`, from iterations at least
    `horizon` earlier.

    Only one thread predicts at a time.
    """
    if isinstance(load, Tracer):
        return _predict_shares(load, targets, predictor, horizon)
    with _ALONE:
        return jax.block_until_ready(_predict_shares(load, targets, predictor, horizon))


@functools.partial(jax.jit, static_argnames="predictor")
def _predict_shares(
    load: Float[Array, "T L M E"], targets: Int[Array, "N"], predictor: Predictor, horizon: int | Array
) -> Float[Array, "N L M E"]:
    window = inspect.signature(predictor).parameters.get("window")
    reach = window.default if window else 1
    iterations = load.sum(axis=2)
    before = jnp.concatenate([jnp.zeros_like(iterations, shape=(reach, *iterations.shape[1:])), iterations])

    def of(now):
        past = lax.dynamic_slice_in_dim(before, now - horizon + 1, reach)
        return jax.vmap(functools.partial(predictor, past), in_axes=1, out_axes=1)(load[now])

    return lax.map(of, targets)


def hit_rate(predicted: Num[Array, "... E"], true: Num[Array, "... E"], k: int) -> Float[Array, "..."]:
    """Return the fraction of the `k` most loaded experts that are among the `k` predicted ones; ties: lower expert."""
    predicted, true = _same_experts(predicted, true)
    if whole("k", k) > predicted.shape[-1]:
        raise InputError(f"k must be at most the {predicted.shape[-1]} experts, got {k}.")
    first = (jnp.argsort(jnp.argsort(-load, axis=-1, stable=True), axis=-1) < k for load in (predicted, true))
    return functools.reduce(jnp.logical_and, first).sum(axis=-1).astype(jnp.result_type(float)) / k


def total_variation(predicted: Num[Array, "... E"], true: Num[Array, "... E"]) -> Float[Array, "..."]:
    """Return half the summed difference of shares, the fraction predicted for wrong experts; empty rows are even."""
    predicted, true = (_first_with_load(_shares(load)) for load in _same_experts(predicted, true))
    return jnp.abs(predicted - true).sum(axis=-1) / 2


def _same_experts(predicted: Num[Array, "... E"], true: Num[Array, "... E"]) -> tuple[Array, Array]:
    predicted, true = jnp.asarray(predicted), jnp.asarray(true)
    if predicted.ndim == 0 or predicted.shape != true.shape or predicted.shape[-1] == 0:
        shapes = f"{list(predicted.shape)} and {list(true.shape)}"
        raise InputError(f"predicted and true must be [... E] with E at least 1, got {shapes}.")
    return predicted, true


def _read_shares(past, current, window: int):
    """Return the shares [T L E] of the last `window` iterations, the current shares [L E], and a fallback [L E]."""
    past, current = jnp.asarray(past), jnp.asarray(current)
    if current.ndim != 2 or 0 in current.shape or past.ndim != 3 or past.shape[1:] != current.shape:
        shapes = f"{list(past.shape)} and {list(current.shape)}"
        raise InputError(f"past and current must be [T L E] and [L E], L and E at least 1, got {shapes}.")
    nothing = jnp.zeros_like(past, shape=(1, *current.shape))
    seen = _shares(jnp.concatenate([nothing, past])[-window:])
    return seen, _shares(current), _first_with_load(seen[-1])


def _shares(load: Num[Array, "... E"]) -> Float[Array, "... E"]:
    load = load if jnp.issubdtype(load.dtype, jnp.floating) else load.astype(jnp.result_type(float))
    total = load.sum(axis=-1, keepdims=True)
    return load / jnp.where(total > 0, total, 1)


def _first_with_load(*choices: Float[Array, "... E"]) -> Float[Array, "... E"]:
    first = jnp.full_like(choices[-1], 1 / choices[-1].shape[-1])
    for shares in reversed(choices):
        first = jnp.where((shares > 0).any(axis=-1, keepdims=True), shares, first)
    return first


def _recency(window: int, decay: float, dtype) -> Float[Array, "window"]:
    """Return weights [window]: 1 for the last iteration, `decay` for the one before."""
    return jnp.asarray(decay, dtype) ** jnp.arange(window - 1, -1, -1).astype(dtype)


def _check_settings(window: int = WINDOW, decay: float = DECAY) -> None:
    whole("window", window)
    if positive("decay", decay) > 1:
        raise InputError(f"decay must be at most 1, got {decay}.")


# ---------------------------------------- the matrix that gives a layer's load from the previous layer's load

ROUNDS = 60
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}  # of the gap, relative to the weighted squares of y
INSIDE = 0.99  # fraction of the way to the border that a step may go


class _Moments(NamedTuple):
    """X^T W X and Y^T W X [E E], divided by the weighted squares of y unless these are 0."""

    xx: Float[Array, "E E"]
    yx: Float[Array, "E E"]

    def slope(self, matrix: Float[Array, "E E"]) -> Float[Array, "E E"]:
        return matrix @ self.xx - self.yx

    def gap(self, matrix: Float[Array, "E E"]) -> Float[Array, ""]:
        slope = self.slope(matrix)
        return 2 * (matrix * (slope - slope.min(axis=0)[None, :])).sum()


class _Iterate(NamedTuple):
    matrix: Float[Array, "E E"]
    reduced: Float[Array, "E E"]  # slope minus the price of the column's sum; positive
    rounds: Int[Array, ""]


def transition(x: Float[Array, "k E"], y: Float[Array, "k E"], weight: Float[Array, "k"]) -> Float[Array, "E E"]:
    """Return P >= 0, with columns that sum to 1, that minimises sum_i weight_i |y_i - P x_i|^2.

    `x` and `y` [k E] are shares of experts in the previous layer and in this one, per observation; `weight` [k] is at
    least 0. The function is unbatched: use `jax.vmap`. Source of the problem: arXiv 2501.03905 (Copilot), which solves
    it with SciPy's SLSQP. Here a primal-dual interior-point method (Mehrotra, SIAM J. Optim. 2(4), 1992) solves the
    convex quadratic programme. The Frank-Wolfe gap bounds the error: 1e-9 of the weighted squares of y in float64, 1e-5
    (at worst 3e-4) in float32. If many matrices are optimal, the result lies well inside their set. If all weights are
    0, all entries are 1/E.
    """
    dtype = jnp.float32 if x.dtype == jnp.float32 else jnp.result_type(float)
    return _fit_matrix(*(jnp.asarray(values, dtype) for values in (x, y, weight)))


@jax.jit
def _fit_matrix(x, y, weight) -> Float[Array, "E E"]:
    moments, tolerance = _moments(x, y, weight), TOLERANCE[str(x.dtype)]

    def is_unfinished(state: _Iterate):
        return (moments.gap(state.matrix) > tolerance) & (state.rounds < ROUNDS)

    matrix = lax.while_loop(is_unfinished, lambda state: _round(moments, state), _start(moments)).matrix
    return matrix / matrix.sum(axis=0)[None, :]


def _moments(x, y, weight) -> _Moments:
    squares = weight @ (y * y).sum(axis=1)
    weighted = weight[:, None] / jnp.where(squares > 0, squares, 1) * x
    return _Moments(x.T @ weighted, y.T @ weighted)


def _start(moments: _Moments) -> _Iterate:
    matrix = jnp.full_like(moments.xx, 1 / len(moments.xx))
    slope = moments.slope(matrix)
    steep = jnp.abs(slope).max()
    reduced = slope - slope.min(axis=0)[None, :] + jnp.where(steep > 0, steep, 1)
    return _Iterate(matrix, reduced, jnp.asarray(0))


def _round(moments: _Moments, state: _Iterate) -> _Iterate:
    """Take a predictor-corrector step that keeps the sums of columns."""
    matrix, reduced, rounds = state
    ratio = jnp.maximum(reduced / matrix, jnp.finfo(matrix.dtype).eps * jnp.trace(moments.xx))
    identity = jnp.eye(len(matrix), dtype=matrix.dtype)
    inverse = _inverses(moments.xx[None] + ratio[:, :, None] * identity[None])
    of_prices = inverse.sum(axis=0)

    def towards(product):
        alone = jnp.einsum("rij,rj->ri", inverse, product / matrix - reduced)
        price = -jnp.linalg.solve(of_prices, alone.sum(axis=0))
        step = alone + inverse @ price
        step -= step.mean(axis=0)[None, :]
        return step, step @ moments.xx - price[None, :]

    step, rise = towards(jnp.zeros_like(matrix))
    far = _stay_inside(matrix, step, reduced, rise, 1)
    now, then = (matrix * reduced).mean(), ((matrix + far * step) * (reduced + far * rise)).mean()
    step, rise = towards((then / now) ** 3 * now - step * rise)
    lost = ~jnp.isfinite(step + rise).all()  # rounding broke the step: stay
    step, rise = (jnp.where(lost, 0, change) for change in (step, rise))
    far = _stay_inside(matrix, step, reduced, rise, INSIDE)
    return _Iterate(matrix + far * step, reduced + far * rise, rounds + 1)


def _stay_inside(matrix, step, reduced, rise, part: float):
    """Return the longest step, at most 1, that goes `part` of the way to a zero of matrix or reduced slopes."""
    values, changes = jnp.stack([matrix, reduced]), jnp.stack([step, rise])
    falls = changes < 0
    return jnp.minimum(1, part * jnp.where(falls, values / jnp.where(falls, -changes, 1), jnp.inf).min())


def _inverses(systems: Float[Array, "E E E"]) -> Float[Array, "E E E"]:
    identity = jnp.broadcast_to(jnp.eye(systems.shape[-1], dtype=systems.dtype), systems.shape)
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(systems), True), identity)
