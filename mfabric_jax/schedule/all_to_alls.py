"""What is known of the all-to-alls of one iteration, and which block of the model each of them belongs to."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mfabric_jax.schedule._order import BACKWARD, order_of
from mfabric_jax.workload import Workload


class Exchanges(NamedTuple):
    """Dispatch-sized all-to-alls [P Q L 2], two in every block, blocks in the order in which the pass runs them.

    - `optical`, `electrical`: seconds times NIC bandwidth [bytes] of what circuits and packet switches carry: every
      link of a fabric is a multiple of its NICs, so the time at any bandwidth is the larger of them / bandwidth.
    - `inside` [P Q L]: the part inside servers, at the same time on the NVSwitch: seconds times its bandwidth [bytes].
    - `switch`: the circuits differ from those before.   - `ahead` [P Q L]: those of the first are known beforehand.
    - `count` [P Q L 2 S S]: the circuits (None: no optics).
    - `balanced`: the load if every token went to every expert equally often.
    - `waiting`: of `optical`, what waits for the switch (None: all of it): links set anew, and what crosses these.
    - `anew`: how many circuits are set up anew (None: it does not matter).
    - `busy` [P Q L]: `expert_load` of the blocks (None: experts are balanced).
    """

    optical: Float[Array, "P Q L 2"]
    electrical: Float[Array, "P Q L 2"]
    inside: Float[Array, "P Q L"]
    switch: Bool[Array, "P Q L 2"]
    ahead: Bool[Array, "P Q L"]
    count: Array | None
    balanced: Float[Array, ""]
    waiting: Float[Array, "P Q L 2"] | None = None
    anew: Float[Array, "P Q L 2"] | None = None
    busy: Float[Array, "P Q L"] | None = None

    @property
    def load(self) -> Float[Array, "P Q L 2"]:
        """Both parts together [bytes]."""
        return jnp.maximum(self.optical, self.electrical)


class Places(NamedTuple):
    """Static: which block every running slot [P Q L] is. `layer` counts MoE blocks; -1 where there is none."""

    present: np.ndarray
    layer: np.ndarray
    micro_batch: np.ndarray
    backward: np.ndarray

    def pick(self, layers: int, micro_batches: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices of every slot into [layers, micro-batches] arrays, read cyclically."""
        return np.maximum(self.layer, 0) % layers, self.micro_batch % micro_batches


def places(workload: Workload) -> Places:
    """Blocks in running order: a pass's own order forward, reversed backward; short passes are padded."""
    order, blocks = order_of(workload), workload.place_blocks
    most = max(blocks)
    present = np.arange(most) < np.asarray(blocks)[:, None]  # [place L]
    layer = np.full((len(blocks), most), -1)
    for place in range(len(blocks)):
        layer[place, list(workload.place_positions(place))] = workload.place_layers(place)
    back = np.broadcast_to((order.kind == BACKWARD)[..., None], (*order.kind.shape, most))
    run = np.where(back, np.arange(most)[::-1], np.arange(most))  # [P Q L]
    place = (order.chunk * workload.pp + np.arange(workload.pp)[:, None])[..., None]
    micro_batch = np.broadcast_to(order.micro_batch[..., None], run.shape)
    return Places(present[place, run], layer[place, run], micro_batch, back)
