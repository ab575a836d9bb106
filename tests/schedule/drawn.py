"""Drawn blocks of whole pipelines, as the arrays of the product and as the dicts of the oracle."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.schedule.order import BACKWARD, Order, order
from mfabric_jax.schedule.timeline import Blocks, Compute, Rules, run
from tests.oracles.timeline import Region, timeline


def seconds(rng, shape=()):
    """Zero, whole or real, so that ties happen."""
    drawn = np.where(rng.random(shape) < 0.5, rng.integers(0, 5, shape), rng.uniform(0, 4, shape))
    return np.where(rng.random(shape) < 0.1, 0.0, drawn)


class Pipeline(NamedTuple):
    """Static: how passes are ordered."""

    schedule: str
    stages: int
    batches: int
    chunks: int = 1

    @property
    def order(self):
        return order(*self)


class Draw(NamedTuple):
    """Numbers of one iteration."""

    order: Order
    blocks: Blocks
    compute: Compute
    send: np.ndarray
    delay: np.ndarray
    parts: np.ndarray


def draw(seed, pipeline, depth):
    """Dense blocks, padding and switches anywhere, some without any MoE; packets take longer, sometimes, or nothing."""
    rng = np.random.default_rng(seed)
    shape = (*pipeline.order.kind.shape, depth)
    present = rng.random(shape) < 0.8
    moe = present & (rng.random(shape) < rng.choice([0.3, 0.7, 1.0]))
    switch = rng.random((*shape, 2)) < rng.choice([0.2, 0.7, 1.0])  # of dense blocks: must not matter
    ahead = rng.random(shape) < rng.choice([0.2, 0.8])
    optical, packets = seconds(rng, (*shape, 2)), seconds(rng, (*shape, 2)) * rng.choice([0.0, 0.3, 1.0, 3.0])
    compute = Compute(*(seconds(rng, pipeline.stages) for _ in range(4)))
    send, delay = seconds(rng, pipeline.stages), seconds(rng) * rng.choice([1.0, 4.0])
    parts = np.asarray(float(rng.choice([1, 1, 2, 3, 5])))
    blocks = Blocks(present, moe, optical, packets, switch, ahead)
    return Draw(pipeline.order, blocks, compute, send, delay, parts)


@eqx.filter_jit
def slots_of(draws, eps_waits, recompute):
    """Slots of a batch of draws: their orders are traced too, so one trace serves every schedule of one shape."""

    def one(draw):
        rules = Rules(eps_waits, draw.parts, recompute)
        return run(draw.order, draw.blocks, draw.compute, draw.send, draw.delay, rules)

    return jax.vmap(one)(draws)


def batch(draws):
    """Many draws of one shape as one."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *draws)


def plain(draw, pipeline, eps_waits, recompute, *, stretch=True):
    """The oracle's records of one draw, by pass."""
    order, blocks, compute = draw.order, draw.blocks, draw.compute
    exchange = np.stack([blocks.optical_s, blocks.packet_s], axis=-1)
    table = {}
    for p, q in np.ndindex(order.kind.shape):
        table["FB"[int(order.kind[p, q] == BACKWARD)], p, int(order.micro_batch[p, q]), int(order.chunk[p, q])] = [
            {
                "attention": float(compute.attention_s[p]),
                "inner": float((compute.moe_s if blocks.moe[p, q, i] else compute.dense_s)[p]),
                "tp": float(compute.tp_s[p]),
                "exchange": exchange[p, q, i].tolist() if blocks.moe[p, q, i] else None,
                "switch": blocks.switch[p, q, i].tolist(),
                "ahead": bool(blocks.ahead[p, q, i]),
            }
            for i in np.flatnonzero(blocks.present[p, q])
        ]
    regions = [
        Region(float(draw.delay), eps_waits, recompute, int(draw.parts), stretch) for _ in range(pipeline.stages)
    ]
    return timeline(table, *pipeline, draw.send.tolist(), regions)
