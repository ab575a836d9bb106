"""What is known of the all-to-alls of one iteration, and which block of the model each of them belongs to."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mfabric_jax.timing._order import BACKWARD, FORWARD, WEIGHT, order_of
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
    - `early` [P Q L 3 R]: the fields of `Early` of the blocks (None: ranks that are done early wait).
    - `moved` [P 2]: of experts that move between ranks after the iteration, seconds of NICs and of NVSwitches times
      their bandwidths [bytes] (None: none move).
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
    early: Float[Array, "P Q L 3 R"] | None = None
    moved: Float[Array, "P 2"] | None = None

    @property
    def load(self) -> Float[Array, "P Q L 2"]:
        """Both parts together [bytes]."""
        return jnp.maximum(self.optical, self.electrical)


class Places(NamedTuple):
    """Static: which block every running slot [P Q L] is.

    - `layer` counts MoE blocks; -1 where there is no all-to-all.   - `experts`: the same, but also where gradients of
      their weights alone are computed.
    - `later`: a backward pass that leaves gradients of weights to another.
    - `lane` [P 2QL]: the all-to-alls of a stage in the order in which they follow each other; None: as they are
      numbered.
    """

    present: np.ndarray
    layer: np.ndarray
    micro_batch: np.ndarray
    backward: np.ndarray
    experts: np.ndarray
    later: np.ndarray
    lane: np.ndarray | None = None

    @property
    def kind(self) -> np.ndarray:
        """0: forward, 1: backward, 2: backward for gradients of inputs alone; as `TradeOff` counts."""
        return self.backward.astype(int) + self.later

    def of_stage(self, stage: int) -> "Places":
        """Those of one stage, [1 Q L]."""
        one = slice(stage, stage + 1)
        lane = None if self.lane is None else self.lane[one]
        return jax.tree.map(lambda field: field[one], self._replace(lane=None))._replace(lane=lane)

    def pick(self, layers: int, micro_batches: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices of every slot into [layers, micro-batches] arrays, read cyclically."""
        return np.maximum(self.layer, 0) % layers, self.micro_batch % micro_batches


def places(workload: Workload) -> Places:
    """Blocks in running order: a pass's own order forward, reversed backward; short passes are padded."""
    order, blocks = order_of(workload), workload.place_blocks
    most = max(blocks)
    present = np.arange(most) < np.asarray((*blocks, 0))[:, None]  # [place L], the last for passes of nothing
    layer = np.full((len(blocks) + 1, most), -1)
    for place in range(len(blocks)):
        layer[place, list(workload.place_positions(place))] = workload.place_layers(place)
    kind = np.broadcast_to(order.kind[..., None], (*order.kind.shape, most))
    run = np.where(kind == FORWARD, np.arange(most), np.arange(most)[::-1])  # [P Q L]
    held = np.asarray([(*workload.held_places(stage), len(blocks)) for stage in range(workload.pp)])
    place = np.take_along_axis(held, order.chunk % held.shape[1], axis=1)[..., None]  # chunk -1: nothing
    micro_batch = np.broadcast_to(order.micro_batch[..., None], run.shape)
    experts = layer[place, run]
    sent = np.where(kind == WEIGHT, -1, experts)
    lane = None if order.paired is None else _lane(order.paired, most)
    later = np.zeros(run.shape, bool) if order.later is None else np.broadcast_to(order.later[..., None], run.shape)
    return Places(present[place, run], sent, micro_batch, kind == BACKWARD, experts, later, lane)


def _lane(paired: np.ndarray, most: int) -> np.ndarray:
    """The all-to-alls [2QL] of every stage where pairs of passes take turns: combine gradient, dispatch, dispatch
    gradient, combine of every pair of blocks."""
    number = np.arange(paired.shape[1] * most * 2).reshape(-1, most, 2)
    rows = []
    for together in paired:
        row: list[int] = []
        for q in np.flatnonzero(~np.concatenate([[False], together[:-1]])):
            both = np.stack([number[q + 1], number[q]], axis=-1) if together[q] else number[q]  # backward first
            row += both.ravel().tolist()
        rows.append(row)
    return np.asarray(rows)
