"""What to train, and on what: settings, and lessons in batches: demands, the forecasts of them that a policy sees, and
their regions.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mfabric_jax.checks import InputError, check_together, not_negative, one_of, positive, whole
from mfabric_jax.fabric import Region
from mfabric_jax.policies._learned import KINDS
from mfabric_jax.traffic.demand_families import check_folds, misjudged

ROUTINGS = ("unsplit", "split", "relay")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a run; `InputError` for one out of range."""

    kind: str = "network"
    """network, or index: a rule of five numbers."""
    routing: str = "relay"
    """Under which times are judged: relay; an index also unsplit, split."""
    steps: int = 4000
    """Batches."""
    batch: int = 16
    """Demands of a batch."""
    sizes: tuple[int, ...] = (8, 16)
    """Servers of the regions, taken in turn."""
    learning_rate: float = 0.002
    """Of Adam, falling to a hundredth along a cosine."""
    noise: float = 1.0
    """Largest standard deviation of the logarithms of forecasts; each demand has its own, 0 for a fifth of them."""
    varied: float = 0.3
    """Part of the batches whose regions have other NICs than 6 + 2 at efficiency 1."""
    width: int = 18
    """Of the vectors of the network."""
    depth: int = 2
    """Layers of the network."""
    trace: str | None = None
    """Recorded routing to learn from too (16 ranks); the last fifth of its records is held out, for mfabric
    evaluate --records."""
    records: tuple[int, int] | None = None
    """FIRST-LAST record of the trace."""
    share_steps: int = 24
    """Gradient steps towards the shares by which circuits are judged under relay routing."""
    log_every: int = 50
    """Steps of a line of metrics."""
    checkpoint_every: int = 250
    """Steps between checkpoints."""
    seed: int = 0

    def __post_init__(self):
        one_of("kind", self.kind, KINDS)
        one_of("routing", self.routing, ROUTINGS)
        if self.kind == "network" and self.routing != "relay":
            raise InputError(f"routing must be relay for a network, got {self.routing!r}; an index learns the others.")
        for field in ("steps", "batch", "depth", "share_steps", "log_every", "checkpoint_every"):
            whole(field, getattr(self, field))
        whole("seed", self.seed, at_least=0)
        whole("width", self.width, at_least=3)
        if not self.sizes or len(set(self.sizes)) < len(self.sizes):
            raise InputError(f"sizes must name at least one number of servers and none twice, got {list(self.sizes)}.")
        for servers in self.sizes:
            whole("sizes", servers, at_least=2)
        check_together(**{"batch": self.batch, "sizes^2": max(self.sizes) ** 2})
        check_together(**{"depth": self.depth, "width^2": self.width**2})
        if self.trace is not None:
            check_folds("sizes", self.sizes)
        positive("learning_rate", self.learning_rate)
        not_negative("noise", self.noise)
        if not_negative("varied", self.varied) > 1:
            raise InputError(f"varied must be at most 1, got {self.varied}.")
        if self.checkpoint_every % self.log_every:
            allowed = f"a multiple of log_every {self.log_every}"
            raise InputError(f"checkpoint_every must be {allowed}, got {self.checkpoint_every}.")


CERTAIN = 1 / 5  # of the forecasts are exact


class Lesson(NamedTuple):
    """One all-to-all."""

    region: Region
    demand: Float[Array, "S S"]  # true
    forecast: Float[Array, "S S"]
    sigma: Float[Array, ""]  # of the forecast's errors


@functools.partial(jax.jit, static_argnames=("config", "servers"))
def lessons(key: PRNGKeyArray, pool: Float[Array, "N S S"], config: Training, servers: int) -> Lesson:
    """A batch of them, of demands of the pool with their servers in another order; each has a region of its own."""
    return jax.vmap(lambda key: _lesson(key, pool, config, servers))(jax.random.split(key, config.batch))


def _lesson(key: PRNGKeyArray, pool, config: Training, servers: int) -> Lesson:
    keys = jax.random.split(key, 5)
    order = jax.random.permutation(keys[0], servers)
    demand = pool[jax.random.randint(keys[1], (), 0, len(pool))][order][:, order]
    sigma = config.noise * jnp.maximum((_part(keys[2]) - CERTAIN) / (1 - CERTAIN), 0)
    return Lesson(_region(keys[3], config.varied, servers), demand, misjudged(keys[4], demand, sigma), sigma)


def _region(key: PRNGKeyArray, varied: float, servers: int) -> Region:
    """6 + 2 NICs at efficiency 1; or 2 to 8 and 1 to 4, at efficiency 0.6 to 1, some servers with one OCS NIC less."""
    keys = jax.random.split(key, 5)
    other = _part(keys[0]) < varied
    lost = jax.random.bernoulli(keys[2], 0.1, (servers,)).astype(jnp.int32)
    degree = jax.random.randint(keys[1], (), 2, 9, jnp.int32) - lost
    electrical = jax.random.randint(keys[3], (), 1, 5).astype(jnp.float32)
    return Region(
        servers,
        jnp.ones((), jnp.float32),
        jnp.where(other, degree, 6),
        jnp.where(other, electrical, 2),
        relay_efficiency=jnp.where(other, 0.6 + 0.4 * _part(keys[4]), 1),
    )


def _part(key: PRNGKeyArray) -> Float[Array, ""]:
    return jax.random.uniform(key, (), jnp.float32)
