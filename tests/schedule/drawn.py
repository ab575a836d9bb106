"""Drawn blocks of whole pipelines, as the arrays of the product and as the dicts of the oracle."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.schedule import one_f_one_b
from mfabric_jax.schedule.block import Blocks, Compute, run_pass
from mfabric_jax.schedule.order import BACKWARD
from mfabric_jax.schedule.pipeline import run_pipeline
from mfabric_jax.workload import BACKWARD_OVER_FORWARD


def seconds(rng, shape=()):
    """Zero, whole or real, so that ties happen."""
    drawn = np.where(rng.random(shape) < 0.5, rng.integers(0, 5, shape), rng.uniform(0, 4, shape))
    return np.where(rng.random(shape) < 0.1, 0.0, drawn)


class Draw(NamedTuple):
    """Blocks [P Q L] with the two parts [P Q L 2] of their all-to-alls, which run side by side."""

    compute: Compute
    present: np.ndarray
    moe: np.ndarray
    switch: np.ndarray
    circuits: np.ndarray
    packets: np.ndarray
    send: float
    delay: float
    eps_waits: bool


def draw(seed, stages, batches, depth):
    """Dense blocks, padding and switches anywhere, some without any MoE; packets take longer, sometimes, or nothing."""
    rng = np.random.default_rng(seed)
    shape = (stages, 2 * batches, depth)
    moe = rng.random(shape) < rng.choice([0.3, 0.7, 1.0])
    switch = moe & (rng.random(shape) < rng.choice([0.3, 0.8, 1.0]))
    present = rng.random(shape) < 0.8
    circuits, packets = seconds(rng, (*shape, 2)), seconds(rng, (*shape, 2)) * rng.choice([0.0, 1.0, 3.0])
    compute = Compute(*(seconds(rng) for _ in range(4)))
    send, delay = seconds(rng), seconds(rng) * rng.choice([1.0, 4.0])
    return Draw(compute, present, moe, switch, circuits, packets, send, delay, bool(rng.random() < 0.25))


def arrays(one):
    """One draw as the product wants it: (compute, blocks, send, delay)."""
    exchange = np.maximum(one.circuits, one.packets)
    behind = np.where(one.circuits[..., 0] > 0, (exchange - one.circuits)[..., 0], np.inf)      # none: nothing waits
    slack = 0 * exchange[..., 0] if one.eps_waits else behind
    return one.compute, Blocks(one.present, one.moe, exchange, slack, one.switch), one.send, one.delay


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(stages, batches, compute, blocks, send, delay):
    """Passes and pipeline of a batch of draws."""
    order = one_f_one_b(stages, batches)
    backward = jnp.asarray(order.kind == BACKWARD)

    def one(compute, blocks, send, delay):
        passes = jax.vmap(jax.vmap(lambda block, back: run_pass(compute, block, back, delay)))(blocks, backward)
        return passes, run_pipeline(order, passes, send, delay)

    return jax.vmap(one)(compute, blocks, send, delay)


def batch(draws):
    """Many draws of one shape as one."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *map(arrays, draws))


def plain(one, order):
    """The blocks of one draw as the oracle wants them."""
    table, compute = {}, one.compute
    parts = np.stack([one.circuits, one.packets], axis=-1)
    for p, q in np.ndindex(order.kind.shape):
        backward = order.kind[p, q] == BACKWARD
        scale = BACKWARD_OVER_FORWARD if backward else 1.0
        table["FB"[int(backward)], p, int(order.micro_batch[p, q])] = [
            {
                "attention": scale * float(compute.attention_s),
                "inner": scale * float(compute.moe_s if moe else compute.dense_s),
                "tp": float(compute.tp_s),
                "exchange": exchange.tolist() if moe else None,
                "switch": bool(switch),
            }
            for here, moe, switch, exchange in zip(
                one.present[p, q], one.moe[p, q], one.switch[p, q], parts[p, q], strict=True
            )
            if here
        ]
    return table
