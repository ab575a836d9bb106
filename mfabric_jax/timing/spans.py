"""For how long circuits stay set: for one all-to-all or for longer.

One set for longer is chosen for all that is sent in its span. A policy that takes many demands at once gets them, each
weighted by its degree bound in seconds, so that the sum of seconds is what it makes small; any other gets their mean.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Policy, takes_many, uniform
from mfabric_jax.routing import Plan, degree_bound
from mfabric_jax.timing.all_to_alls import Places

SPANS = {
    "all-to-all": "as `first` says",
    "block": "both all-to-alls of a block in one pass",
    "stage": "one pass of a micro-batch through a pipeline stage",
    "iteration": "all passes of an iteration through a stage",
    "run": "all iterations",
}
LONG = ("stage", "iteration", "run")  # known before a pass begins: the switch turns while other things run


class Span(eqx.Module):
    """For how long circuits stay set: `name` (static) of `SPANS`.

    - `seen` [I layer M R E]: selections that long spans are chosen for. "stage": forward passes, for those of the same
      pass in iteration 0 (backward passes know their own demand); "iteration" and "run": for all of them.
    - `key`: of the policy, where all iterations have the same circuits; None: that of the iteration.
    """

    name: str = eqx.field(static=True, default="all-to-all")
    seen: Any = None
    key: Any = None

    def __check_init__(self):
        one_of("circuits_for", self.name, SPANS)
        if self.long and self.seen is None:
            raise InputError(f"circuits_for {self.name!r} needs the tokens seen [I layer M R E], got none.")

    @property
    def long(self) -> bool:
        """Whether circuits are chosen before a pass begins."""
        return self.name in LONG


ALL_TO_ALL = Span()


def set_for(
    span: Span, where: Places, region: Region, policy: Policy, demand, seen: Float[Array, "I layer M S S"], key, cold
):
    """Circuits of every all-to-all, and those before it, [P Q L 2 S S], for a long span.

    - `demand` [layer M S S]: of the iteration.   - `cold`: circuits are uniform before it, not as it leaves them.
    """
    of = _of_passes if span.name == "stage" else _of_stages
    samples, weight = of(where, demand, seen)
    count, before = _chosen(region, policy, samples, weight, key if span.key is None else span.key, cold)
    moe = where.layer >= 0
    passes, blocks = moe.shape[1:]
    spans = weight.shape[1]
    of_slots = np.broadcast_to(np.arange(spans)[:, None], (spans, passes * blocks // spans)).reshape(passes, blocks)
    in_span = moe.reshape(len(moe), spans, -1)
    begins = (in_span & (np.cumsum(in_span, axis=-1) == 1)).reshape(moe.shape)  # where the switch is told
    count, before = count[:, of_slots], before[:, of_slots]
    before = jnp.where(begins[..., None, None], before, count)
    return jnp.stack([count, count], axis=3), jnp.stack([before, count], axis=3)


def _of_passes(where: Places, demand, seen):
    """Samples [P Q L S S] of every pass and their weights [P Q L], 0 for a block without experts."""
    known = jnp.asarray(where.backward)[..., None, None]
    own, past = demand[where.pick(*demand.shape[:2])], seen[0][where.pick(*seen.shape[1:3])]
    return jnp.where(known, own, past), jnp.asarray(where.layer >= 0, demand.dtype)


def _of_stages(where: Places, demand, seen):
    """Samples [P 1 K S S] of every stage and their weights [P 1 K]: how often they are sent, 0 pads."""
    iterations, layers, micro_batches = seen.shape[:3]
    layer, micro_batch = where.pick(layers, micro_batches)
    moe, names = where.layer >= 0, layer * micro_batches + micro_batch
    sent = [np.unique(names[stage][moe[stage]], return_counts=True) for stage in range(len(moe))]
    most = max(1, *(len(which) for which, _ in sent))
    which, times = (np.stack([np.pad(one[part], (0, most - len(one[part]))) for one in sent]) for part in (0, 1))
    flat = seen.reshape(iterations, layers * micro_batches, *seen.shape[3:])
    samples = jnp.moveaxis(flat[:, which], 0, 1)  # [P I K S S]
    samples = samples.reshape(len(moe), 1, iterations * most, *seen.shape[3:])
    return samples, jnp.asarray(np.tile(times, iterations)[:, None], demand.dtype)


def _chosen(region: Region, policy: Policy, samples, weight, key, cold: bool):
    """Circuits for every span, and those before it, [P N S S]: spans one after the other, stages side by side."""
    start = uniform(None, region).circuits.count
    keys = None if key is None else jax.random.split(key, weight.shape[:2])

    def one_stage(samples, weight, keys):
        def serve(before, span):
            some, times, key = span
            count = asked(region, policy, some, times, Plan(Circuits(before)), key).astype(before.dtype)
            count = jnp.where(times.sum() > 0, count, before)
            return count, (count, before)

        def iteration(before):
            return lax.scan(serve, before, (samples, weight, keys))

        after, (count, before) = iteration(start)
        if cold:
            return count, before
        return iteration(after)[1] if len(weight) > 1 else (count, count)

    return jax.vmap(one_stage)(samples, weight, keys)


def asked(region: Region, policy: Policy, samples: Float[Array, "K S S"], times: Float[Array, "K"], previous, key):
    """The circuits [S S] that a policy chooses for many demands, each of which is sent so many `times`."""
    if takes_many(policy):
        weights = times * jax.vmap(lambda one: degree_bound(region, one))(samples)
        return policy(samples, region, previous=previous, key=key, weights=weights).circuits.count
    total = jnp.maximum(times.sum(), jnp.ones((), times.dtype))
    mean = (times[:, None, None] * samples).sum(0) / total
    return policy(mean, region, previous=previous, key=key).circuits.count
