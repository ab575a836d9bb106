"""Mistakes in problems of flows, in what waits for what, and in stars."""

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.flows import FlowProblem, completion_times, star_completion, star_rates
from mfabric_jax.support.platforms import compiling_for

ONES = jnp.ones


def problem(*terms):
    return lambda: FlowProblem(*(np.asarray(term) for term in terms))


def times(size=1.0, start=0.0, after=None, lag=0.0, **settings):
    on = FlowProblem(np.ones(1), np.zeros((4, 1), int))
    return lambda: completion_times(on, size, start, after, lag, **settings)


def star(*terms, function=star_completion, **settings):
    return lambda: function(*terms, **settings)


def on_an_accelerator():
    with compiling_for("cuda"):
        jax.jit(lambda size: times(size, engine="host")())(1.0)


REFUSED = [
    (problem([-1.0], [[0]]), "capacity must not be negative"),
    (problem([1.0], [[1]]), "hops must lie in -1..0"),
    (problem([1.0], [[0, 0]]), "hops must not name a link twice in one row"),
    (problem([1.0], [[0.0]]), "hops must be integers"),
    (problem([1.0], [[0]], 0.0), "share must be above 0, got 0"),
    (times(np.ones(2)), "size must be a number or have the shape [4], got [2]."),
    (times(-np.ones(4)), "size must not be negative, got -1.0 at [0]."),
    (times(after=np.array([[0, 1], [1, 2], [2, 3], [3, 1]])), "after must have no cycle, but 3 wait for each"),
    (times(after=np.array([[2, 2]])), "one waits for itself: 2 -> 2"),
    (times(after=np.array([[0, 4]])), "after must name flows 0..3, got 0..4."),
    (times(after=np.array([0, 1])), "after must be integers [D 2], got"),
    (lambda: jax.jit(lambda after: times(after=after)())(np.zeros((1, 2), int)), "after must be known before tracing"),
    (times(engine="gpu"), "engine"),
    (on_an_accelerator, "engine host is for programs on a cpu, got one for cuda; choose device or auto."),
    (star(ONES((3, 3)), ONES(2), ONES(3)), "size, up, down"),
    (star(ONES((3, 3)), ONES(3), ONES(3), ONES(2), ONES(2)), "groups"),
    (star(ONES((2, 2)), jnp.asarray([jnp.nan, 2.0]), ONES(2)), "up must be finite"),
    (star(ONES((2, 2)), ONES(2), ONES(2), kernel="fused:3"), "got 'fused:3'"),
    (star(ONES((65, 65)), ONES(65), ONES(65), function=star_rates, kernel="fused:8"), "at most 64 endpoints, got 65."),
]
