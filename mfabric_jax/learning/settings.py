"""What to train, and on what."""

import dataclasses

from mfabric_jax.checks import InputError, check_together, not_negative, one_of, positive, whole
from mfabric_jax.policies._learned import KINDS
from mfabric_jax.traffic.demand_families import check_folds

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
