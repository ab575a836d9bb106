"""The column-stochastic fit, as SciPy's SLSQP finds it, and its conditions of optimality, in plain NumPy."""

import numpy as np
from scipy.optimize import minimize


def objective(matrix, x, y, weight):
    """sum_i weight_i |y_i - matrix x_i|^2, observation by observation."""
    return sum(w * float(np.sum((b - matrix @ a) ** 2)) for a, b, w in zip(x, y, weight, strict=True))


def slopes(matrix, x, y, weight):
    """Derivative of the objective by each entry."""
    pulls = [2 * w * np.outer(matrix @ a - b, a) for a, b, w in zip(x, y, weight, strict=True)]
    return sum(pulls, np.zeros_like(matrix))


def slsqp(x, y, weight):
    """(matrix, objective): from uniform columns, entries in [0, 1], every column's sum 1."""
    x, y, weight = (np.asarray(values, np.float64) for values in (x, y, weight))
    experts = x.shape[1]
    sums = np.tile(np.eye(experts), experts)  # of the columns, entries in row order
    unit = squares(y, weight) or 1.0
    done = minimize(
        lambda flat: objective(flat.reshape(experts, experts), x, y, weight) / unit,
        np.full(experts * experts, 1 / experts),
        jac=lambda flat: slopes(flat.reshape(experts, experts), x, y, weight).ravel() / unit,
        bounds=[(0, 1)] * (experts * experts),
        constraints={"type": "eq", "fun": lambda flat: sums @ flat - 1, "jac": lambda flat: sums},
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    matrix = done.x.reshape(experts, experts)
    return matrix, objective(matrix, x, y, weight)


def squares(y, weight):
    """sum_i weight_i |y_i|^2."""
    return float(sum(w * np.sum(np.square(b)) for b, w in zip(y, weight, strict=True)))


def kkt_residual(matrix, x, y, weight):
    """Largest violation of the conditions of Karush, Kuhn and Tucker on the simplices.

    Entries below 0, columns that do not sum to 1, and entry times how far its slope is above the smallest of its
    column, over the largest term of the slopes.
    """
    slope = slopes(matrix, x, y, weight)
    unit = max(float(np.max(2 * np.einsum("k,ki,kj->ij", weight, y, x))), np.finfo(float).tiny)
    unfit = max(float(np.max(-matrix)), float(np.max(np.abs(matrix.sum(axis=0) - 1))))
    return max(unfit, float(np.max(matrix * (slope - slope.min(axis=0)))) / unit)
