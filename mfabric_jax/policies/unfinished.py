"""Work on those of a batch that are not done: a batch costs what its members need, not what its worst one does."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from mfabric_jax.platforms import in_step, mapped


def staged(first: Callable[..., Any], further: Callable[..., Any], at_once: int) -> Callable[..., Any]:
    """`first(*given) -> (found, done)`, then `further(found, *given) -> found` where it is not done; batched by `vmap`.

    In a batch `at_once` members run in step on a CPU, all elsewhere, and those that are done wait for the others.
    Between the stages members that are not done are brought together; groups in which all are done are passed over.
    """

    @custom_vmap
    def batch(given):
        many = len(jax.tree.leaves(given)[0])
        size = in_step(at_once, many)
        found, done = mapped(lambda one: first(*one), given, at_once)
        order = jnp.argsort(done, stable=True)
        groups = -(-many // size)
        order = jnp.concatenate([order, jnp.broadcast_to(order[-1:], (groups * size - many,))]).reshape(groups, size)

        def group(members):
            taken, own, over = jax.tree.map(lambda x: x[members], (found, given, done))

            def go_on():
                then = jax.vmap(lambda found, one: further(found, *one))(taken, own)
                return jax.tree.map(lambda new, old: jnp.where(_like(over, old), old, new), then, taken)

            return lax.cond(over.all(), lambda: taken, go_on)

        then = lax.map(group, order)
        flat = order.reshape(-1)
        return jax.tree.map(lambda old, new: old.at[flat].set(new.reshape(-1, *new.shape[2:])), found, then)

    @batch.def_vmap
    def _(axis_size, in_batched, given):
        whole = jax.tree.map(
            lambda x, batched: x if batched else jnp.broadcast_to(x, (axis_size, *x.shape)), given, in_batched[0]
        )
        many = jax.tree.leaves(whole)[0].shape[1]
        found = batch(jax.tree.map(lambda x: x.reshape(axis_size * many, *x.shape[2:]), whole))
        apart = jax.tree.map(lambda x: x.reshape(axis_size, many, *x.shape[1:]), found)
        return apart, jax.tree.map(lambda _: True, apart)

    def run(*given):
        return jax.tree.map(lambda x: x[0], batch(jax.tree.map(lambda x: jnp.asarray(x)[None], given)))

    return run


def _like(flags, x):
    return flags.reshape(-1, *[1] * (x.ndim - 1))
