"""How the expert load of one layer follows from that of the layer before: a column-stochastic matrix fitted to both.

A convex quadratic programme, solved by a primal-dual interior-point method (Mehrotra, SIAM J. Optim. 2(4), 1992). The
matrix starts and stays inside the simplices and every dual price is recomputed from it, so one number, the gap, says
how far from the optimum it is. Source: arXiv 2501.03905 (Copilot), which hands the programme to SciPy's SLSQP.
Letters: k observations, E experts. Unbatched: callers `jax.vmap`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.checks import InputError, not_negative

ROUNDS = 60
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}  # of the gap, over the weighted squares of y
INSIDE = 0.99  # of the way to the border that a step may go


class _Moments(NamedTuple):
    """X^T W X and Y^T W X [E E] over the weighted squares of y, or over 1 where these are 0."""

    xx: Float[Array, "E E"]
    yx: Float[Array, "E E"]

    def slope(self, matrix: Float[Array, "E E"]) -> Float[Array, "E E"]:
        """Half the derivative of the scaled objective."""
        return matrix @ self.xx - self.yx

    def gap(self, matrix: Float[Array, "E E"]) -> Float[Array, ""]:
        slope = self.slope(matrix)
        return 2 * (matrix * (slope - slope.min(axis=0)[None, :])).sum()


class _Iterate(NamedTuple):
    matrix: Float[Array, "E E"]
    reduced: Float[Array, "E E"]  # slope less the price of the column's sum, above 0
    rounds: Int[Array, ""]


def transition(x: Float[Array, "k E"], y: Float[Array, "k E"], weight: Float[Array, "k"]) -> Float[Array, "E E"]:
    """P >= 0 with columns that sum to 1, of least sum_i weight_i |y_i - P x_i|^2.

    - `x`, `y` [k E]: shares of the experts in the previous layer and in this one, observation by observation.
    - `weight` [k]: of each observation, 0 or more; 0 leaves it out.

    Optimal to an `optimality_gap` of 1e-9 in float64; in float32 1e-5, at worst 3e-4 in 800 drawn instances. Where
    many matrices are optimal (fewer observations than experts, an expert without load) it is one well inside of them;
    without any weight all entries are 1/E. The moments of x and y are taken once; then at most 60 rounds of E systems
    of E equations, 10 to 25 as a rule. `InputError` for other shapes, for values that are negative or not finite.
    """
    return _fitted(*_checked(x, y, weight))


@jax.jit
def _fitted(x, y, weight) -> Float[Array, "E E"]:
    moments, tolerance = _moments(x, y, weight), TOLERANCE[str(x.dtype)]

    def unfinished(state: _Iterate):
        return (moments.gap(state.matrix) > tolerance) & (state.rounds < ROUNDS)

    matrix = lax.while_loop(unfinished, lambda state: _round(moments, state), _start(moments)).matrix
    return matrix / matrix.sum(axis=0)[None, :]


def optimality_gap(x, y, weight, matrix: Float[Array, "E E"]) -> Float[Array, ""]:
    """How far a column-stochastic matrix is from the best, at most, over sum_i weight_i |y_i|^2.

    The Frank-Wolfe gap: sum over columns of P . slope less the column's smallest slope. It is 0 exactly where the
    conditions of Karush, Kuhn and Tucker hold, and no matrix has an objective lower by more. Shapes as in `transition`.
    """
    x, y, weight = _checked(x, y, weight)
    return _moments(x, y, weight).gap(jnp.asarray(matrix, x.dtype))


def _checked(x, y, weight):
    x, y, weight = (jnp.asarray(values) for values in (x, y, weight))
    if x.ndim != 2 or x.shape != y.shape or 0 in x.shape:
        raise InputError(f"x and y must be [k E], none empty, got {list(x.shape)} and {list(y.shape)}.")
    if weight.shape != x.shape[:1]:
        raise InputError(f"weight must be [k] with k = {x.shape[0]} observations, got {list(weight.shape)}.")
    for field, values in (("x", x), ("y", y), ("weight", weight)):
        not_negative(field, values)
    dtype = jnp.float32 if x.dtype == jnp.float32 else jnp.result_type(float)
    return x.astype(dtype), y.astype(dtype), weight.astype(dtype)


def _moments(x, y, weight) -> _Moments:
    squares = weight @ (y * y).sum(axis=1)
    weighted = weight[:, None] / jnp.where(squares > 0, squares, 1) * x
    return _Moments(x.T @ weighted, y.T @ weighted)


def _start(moments: _Moments) -> _Iterate:
    """The middle of every simplex, and reduced slopes well above 0."""
    matrix = jnp.full_like(moments.xx, 1 / len(moments.xx))
    slope = moments.slope(matrix)
    steep = jnp.abs(slope).max()
    reduced = slope - slope.min(axis=0)[None, :] + jnp.where(steep > 0, steep, 1)
    return _Iterate(matrix, reduced, jnp.asarray(0))


def _round(moments: _Moments, state: _Iterate) -> _Iterate:
    """A predictor step towards the optimum, corrected towards the central path; both keep the columns' sums."""
    matrix, reduced, rounds = state
    ratio = jnp.maximum(reduced / matrix, jnp.finfo(matrix.dtype).eps * jnp.trace(moments.xx))
    identity = jnp.eye(len(matrix), dtype=matrix.dtype)
    inverse = _inverses(moments.xx[None] + ratio[:, :, None] * identity[None])
    of_prices = inverse.sum(axis=0)

    def towards(product):
        """Newton steps of matrix and reduced slopes to matrix * reduced = product."""
        alone = jnp.einsum("rij,rj->ri", inverse, product / matrix - reduced)
        price = -jnp.linalg.solve(of_prices, alone.sum(axis=0))
        step = alone + inverse @ price
        step -= step.mean(axis=0)[None, :]
        return step, step @ moments.xx - price[None, :]

    step, rise = towards(jnp.zeros_like(matrix))
    far = _stay_inside(matrix, step, reduced, rise, 1)
    now, then = (matrix * reduced).mean(), ((matrix + far * step) * (reduced + far * rise)).mean()
    step, rise = towards((then / now) ** 3 * now - step * rise)
    lost = ~jnp.isfinite(step + rise).all()  # to rounding: stay
    step, rise = (jnp.where(lost, 0, change) for change in (step, rise))
    far = _stay_inside(matrix, step, reduced, rise, INSIDE)
    return _Iterate(matrix + far * step, reduced + far * rise, rounds + 1)


def _stay_inside(matrix, step, reduced, rise, part: float):
    """The longest step, at most 1, that goes `part` of the way to a zero of matrix or reduced slopes."""
    values, changes = jnp.stack([matrix, reduced]), jnp.stack([step, rise])
    falls = changes < 0
    return jnp.minimum(1, part * jnp.where(falls, values / jnp.where(falls, -changes, 1), jnp.inf).min())


def _inverses(systems: Float[Array, "E E E"]) -> Float[Array, "E E E"]:
    """Of symmetric positive definite matrices."""
    identity = jnp.broadcast_to(jnp.eye(systems.shape[-1], dtype=systems.dtype), systems.shape)
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(systems), True), identity)
