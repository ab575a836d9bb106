"""What every running block computes and sends, read off a timed iteration."""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.schedule._block_tasks import Block
from mfabric_jax.schedule._order import BACKWARD, FORWARD, WEIGHT, order_of
from mfabric_jax.schedule._site import Sent
from mfabric_jax.schedule.iteration import Walked
from mfabric_jax.schedule.timeline import Blocks, Compute, Kind, Rules, _Parts, _parts
from mfabric_jax.schedule.trace import DIRECTIONS
from mfabric_jax.workload import Workload


class Replica(NamedTuple):
    """One data-parallel replica.

    - `walked`: what `walk` says of it.   - `delay_s` [P Q L 2]: of its switches.
    - `sent(at, which)`: one of the two all-to-alls of the block at [P Q L], as dispatch sends it.
    """

    walked: Walked
    delay_s: np.ndarray
    sent: Callable[[tuple[int, int, int], int], Sent]


class RunningBlocks:
    """The blocks of a replica one after the other."""

    def __init__(self, workload: Workload, one: Replica, rules: Rules):
        self.replica, self.order = one, order_of(workload)
        walked = jax.tree.map(lambda x: np.asarray(x, np.float64) if np.asarray(x).dtype.kind == "f" else x, one.walked)
        self.blocks, self.beside = jax.tree.map(np.asarray, walked.blocks), walked.beside
        parts, self.weights_s = _parts_of(workload, walked, rules)
        self.parts = [np.asarray(part, np.float64) for part in parts]
        self.together = np.zeros(self.order.kind.shape, bool)
        if self.order.paired is not None:
            self.together = self.order.paired | np.roll(self.order.paired, 1, axis=1)

    def of_pass(self, at: tuple[int, int]) -> Iterator[tuple[int, Block | None]]:
        """Those of a pass in running order; None pads."""
        for position in range(self.blocks.present.shape[2]):
            yield position, self._block((*at, position)) if self.blocks.present[(*at, position)] else None

    def _block(self, at: tuple[int, int, int]) -> Block:
        pass_, kind = at[:2], int(self.order.kind[at[:2]])
        lead, again, inner, behind, _, tp = (float(part[at]) for part in self.parts)
        twice = again > 0
        tp_s = tp / 2 if twice else tp
        beside = {name: seconds[at] for name, seconds in self.beside.items()}
        before, after = (sum(float(seconds[which]) for seconds in beside.values()) for which in (0, 1))
        forward = kind == FORWARD
        moe = bool(self.blocks.moe[at])
        inside = self.blocks.inside_s
        return Block(
            name=f"{DIRECTIONS[kind]} {self.order.micro_batch[pass_]}, block {self._number(at)}",
            kind=kind,
            before_s=lead - before - tp_s if forward or twice else 0.0,
            behind_s=0.0 if forward else behind - after - (tp_s if kind == BACKWARD else 0.0),
            weights_s=float(self.weights_s[at[0]]) if self.together[pass_] else 0.0,
            tp_s=tp_s,
            inner_s=inner,
            again_s=again,
            beside=beside,
            sent=(self.replica.sent(at, 0), self.replica.sent(at, 1)) if moe else None,
            inside_s=np.zeros(2) if inside is None else inside[at],
            switch=self.blocks.switch[at],
            delay_s=self.replica.delay_s[at],
            ahead=bool(self.blocks.ahead[at]),
        )

    def _number(self, at: tuple[int, int, int]) -> int:
        """Which block of its pass's part of the model it is."""
        forward = self.order.kind[at[:2]] == FORWARD
        return at[2] if forward else self.blocks.present.shape[2] - 1 - at[2]


def _parts_of(workload: Workload, walked: Walked, rules: Rules) -> tuple[_Parts, np.ndarray]:
    """What every block computes [P Q L], and gradients of attention's weights where two passes run together [P]."""
    order, blocks = order_of(workload), jax.tree.map(jnp.asarray, walked.blocks)
    every = Compute(*(jnp.broadcast_to(jnp.asarray(part), workload.pp) for part in walked.compute))
    kind, later = jnp.asarray(order.kind == BACKWARD), order.later
    kinds = Kind(kind) if later is None else Kind(kind, jnp.asarray(order.kind == WEIGHT), jnp.asarray(later))
    parts = _every_part((blocks, every, kinds), rules)
    if order.paired is None:
        return parts, np.zeros(workload.pp)
    slower = 1 / (1 - rules.comm_cores)
    stretched = jax.tree.map(lambda part: part * slower, every)._replace(tp_s=every.tp_s)
    together = (order.paired | np.roll(order.paired, 1, axis=1))[..., None]
    paired = _every_part((blocks, stretched, Kind(kind)), rules)
    merged = _Parts(*(jnp.where(together, two, one) for one, two in zip(parts, paired, strict=True)))
    return merged, np.asarray(stretched.attention_weights_s)


@functools.partial(jax.jit, static_argnames="rules")
def _every_part(arrays: tuple[Blocks, Compute, Kind], rules: Rules) -> _Parts:
    def one(block, compute, kind):
        return _parts(block, compute, kind, kind.backward & (rules.recompute == "block"), rules)

    over_blocks = jax.vmap(one, (0, None, None))
    return jax.vmap(jax.vmap(over_blocks, (0, None, 0)))(*arrays)
