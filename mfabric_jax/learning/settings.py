"""What to train, and on what."""

import dataclasses

from mfabric_jax.checks import InputError, not_negative, one_of, positive, whole
from mfabric_jax.policies._learned import KINDS
from mfabric_jax.traffic.demand_families import check_folds

ROUTINGS = ("unsplit", "split", "relay")
TEACHERS = ("greedy", "threshold", "local-search")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of a run; `InputError` for one out of range.

    - `kind`: "network" (which corrects the index rule that ships), or "index" (its five numbers, by the cross-entropy
      method).
    - `routing`: under which times are judged.
    - `steps`: batches; `batch`: demands of each; `sizes`: numbers of servers, taken in turn.
    - `learning_rate`: of Adam, falling to a hundredth along a cosine.
    - `imitation`: weight of the distance of a network's circuits to those of the `teacher`, who knows the true demand.
    - `noise`: largest standard deviation of a forecast's logarithms; every demand has its own, 0 for a third of them.
    - `varied`: part of the batches whose regions have other NICs than 6 + 2 at efficiency 1.
    - `pooled`: part of the demands that come from knobs, tables and the trace, where the rest is drawn.
    - `trace`, `records`: a recording to learn from too; the last fifth of its iterations is held out.
    - `share_steps`: gradient steps towards the shares by which circuits are judged under relay routing.
    """

    kind: str = "network"
    routing: str = "relay"
    seed: int = 0
    steps: int = 4000
    batch: int = 16
    sizes: tuple[int, ...] = (8, 16)
    learning_rate: float = 0.002
    imitation: float = 0.0
    teacher: str = "local-search"
    noise: float = 0.6
    varied: float = 0.3
    pooled: float = 0.4
    width: int = 18
    depth: int = 2
    trace: str | None = None
    records: tuple[int, int] | None = None
    share_steps: int = 24
    log_every: int = 50
    checkpoint_every: int = 250

    def __post_init__(self):
        one_of("kind", self.kind, KINDS)
        one_of("routing", self.routing, ROUTINGS)
        one_of("teacher", self.teacher, TEACHERS)
        for field in ("steps", "batch", "depth", "share_steps", "log_every", "checkpoint_every"):
            whole(field, getattr(self, field))
        whole("seed", self.seed, at_least=0)
        whole("width", self.width, at_least=3)
        if not self.sizes or len(set(self.sizes)) < len(self.sizes):
            raise InputError(f"sizes must name at least one number of servers and none twice, got {list(self.sizes)}.")
        for servers in self.sizes:
            whole("sizes", servers, at_least=2)
        if self.trace is not None:
            check_folds("sizes", self.sizes)
        positive("learning_rate", self.learning_rate)
        not_negative("imitation", self.imitation)
        not_negative("noise", self.noise)
        for field in ("varied", "pooled"):
            if not_negative(field, getattr(self, field)) > 1:
                raise InputError(f"{field} must be at most 1, got {getattr(self, field)}.")
        if self.checkpoint_every % self.log_every:
            allowed = f"a multiple of log_every {self.log_every}"
            raise InputError(f"checkpoint_every must be {allowed}, got {self.checkpoint_every}.")
