"""What a clock needs to know of blocks, and what it says of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


class Compute(NamedTuple):
    """Forward seconds of the parts of a block, and of its tensor-parallel all-reduce (one each way), () or [P];
    `expert_s`: of `moe_s`, what grows with the tokens that experts receive; `scores_s`: of `attention_s`, what has no
    weights."""

    attention_s: Float[Array, ""]
    moe_s: Float[Array, ""]
    dense_s: Float[Array, ""]
    tp_s: Float[Array, ""]
    expert_s: Float[Array, ""] | float = 0.0
    scores_s: Float[Array, ""] | float = 0.0


class Blocks(NamedTuple):
    """The blocks of all passes in the order in which they run [P Q L], and their all-to-alls [P Q L 2]."""

    present: Bool[Array, "P Q L"]  # False pads passes that have fewer
    moe: Bool[Array, "P Q L"]  # False: a dense block, no all-to-all
    optical_s: Float[Array, "P Q L 2"]  # what circuits carry
    packet_s: Float[Array, "P Q L 2"]  # what packet switches carry, beside it
    switch: Bool[Array, "P Q L 2"]  # its circuits differ from those before
    ahead: Bool[Array, "P Q L"]  # those of the first are known beforehand
    inside_s: Float[Array, "P Q L 2"] | None = None  # what NVSwitches carry, beside both; None: nothing
    waiting_s: Float[Array, "P Q L 2"] | None = None  # of what circuits carry, what waits for the switch; None: all
    busy: Float[Array, "P Q L"] | None = None  # `expert_load`; None: balanced
    beside_s: Float[Array, "P Q L 2"] | None = None  # what else it takes, before all of it and behind its all-to-alls
    experts: Bool[Array, "P Q L"] | None = None  # also where they have no all-to-all; None: as `moe`

    @property
    def electronic_s(self):
        """What ends last of packet switches and NVSwitches."""
        if self.inside_s is None:
            return self.packet_s
        plain = isinstance(self.packet_s, np.ndarray) and isinstance(self.inside_s, np.ndarray)
        return (np if plain else jnp).maximum(self.packet_s, self.inside_s)

    @property
    def with_experts(self):
        """Blocks whose inner part is experts."""
        return self.moe if self.experts is None else self.experts


class Rules(NamedTuple):
    """What waits for what in a block and an iteration; static under JAX.

    - `eps_waits`: traffic on packet switches waits for a reconfiguration too, not only that on circuits.
    - `parts`: dispatch, experts and combine of a block overlap in so many: a part's experts run once its dispatch is
      over, its combine once they and all dispatches are (1: nothing overlaps).
    - `recompute`: as in `Workload`; what is computed again does not overlap.
    - `dp_overlap`: gradients of a block are all-reduced as soon as its last backward pass is over, beside everything
      else (which they do not slow down); otherwise when the stage is through.
    - `comm_cores`: part of a GPU's cores that communicates while two passes run together.
    """

    eps_waits: bool = False
    parts: int = 1
    recompute: str = "none"
    dp_overlap: bool = False
    comm_cores: float = 0.0


class Slots(NamedTuple):
    """What happened in every block [P Q L], in seconds from the start of the iteration; [.. 2] for each all-to-all."""

    begin: Float[Array, "P Q L"]
    end: Float[Array, "P Q L"]
    start: Float[Array, "P Q L 2"]
    over: Float[Array, "P Q L 2"]
    inner: Float[Array, "P Q L 2"]  # the experts (or dense part) start and end
    turn: Float[Array, "P Q L 2"]  # when the switch turns for it (meaningless where it does not)
    active: Float[Array, "P Q L 2"]  # since when its circuits carry
    waiting: Float[Array, "P Q L 2"]  # how long what waited for them takes from then on
    compute_s: Float[Array, "P Q L"]
    tp_s: Float[Array, "P Q L"]
    exchange_s: Float[Array, "P Q L"]  # all-to-alls that nothing hides, had they not waited for the switch
    paid_s: Float[Array, "P Q L"]  # waiting for the switch
    runs: Float[Array, "P Q L 4"]  # when each of `block_ops.RUNS` starts
    again: Float[Array, "P Q L 2"] | Any = None  # when all-to-alls that are computed again start; None: none is


def in_float64(tree: Any) -> Any:
    """The same tree with NumPy arrays, real numbers as float64."""

    def widened(x: Any) -> np.ndarray:
        x = np.asarray(x)
        return x.astype(np.float64) if x.dtype.kind == "f" else x

    return jax.tree.map(widened, tree)
