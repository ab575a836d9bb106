"""The order in which pipeline stages run their passes (1F1B), as static index arrays."""

import functools
from typing import NamedTuple

import numpy as np

FORWARD, BACKWARD = 0, 1


class Order(NamedTuple):
    """P stages, Q = 2 M passes each.

    - `kind`, `micro_batch` [P Q]: what each stage runs, in its own order.
    - `stage`, `position` [P*Q]: all passes of all stages in one order in which every pass follows what it needs.
    - `needs` [P*Q]: stage * Q + position of the neighbour's pass that it waits for, -1 for none.
    """

    kind: np.ndarray
    micro_batch: np.ndarray
    stage: np.ndarray
    position: np.ndarray
    needs: np.ndarray


def stage_passes(stage: int, stages: int, micro_batches: int) -> list[tuple[int, int]]:
    """(kind, micro-batch) of one stage under 1F1B: warm-up forwards, then one forward, one backward, then the rest."""
    warm_up = min(stages - stage - 1, micro_batches)
    passes = [(FORWARD, m) for m in range(warm_up)]
    for m in range(warm_up, micro_batches):
        passes += [(FORWARD, m), (BACKWARD, m - warm_up)]
    return passes + [(BACKWARD, m) for m in range(micro_batches - warm_up, micro_batches)]


@functools.lru_cache(maxsize=64)
def one_f_one_b(stages: int, micro_batches: int) -> Order:
    """The 1F1B order of all stages. Source: Narayanan et al., PipeDream-Flush / Megatron-LM, SC 2021."""
    passes = [stage_passes(p, stages, micro_batches) for p in range(stages)]
    where = {(p, *one): q for p, row in enumerate(passes) for q, one in enumerate(row)}

    def needed(p: int, kind: int, m: int) -> tuple[int, int] | None:
        neighbour = p - 1 if kind == FORWARD else p + 1
        return (neighbour, where[neighbour, kind, m]) if 0 <= neighbour < stages else None

    done, merged = [0] * stages, []
    while len(merged) < stages * 2 * micro_batches:
        for p in range(stages):
            if done[p] == len(passes[p]):
                continue
            need = needed(p, *passes[p][done[p]])
            if need is None or done[need[0]] > need[1]:
                flat = -1 if need is None else need[0] * 2 * micro_batches + need[1]
                merged.append((p, done[p], flat))
                done[p] += 1
    table = np.asarray(passes, np.int32).reshape(stages, 2 * micro_batches, 2)
    stage, position, needs = np.asarray(merged, np.int32).reshape(-1, 3).T
    return Order(table[..., 0], table[..., 1], stage, position, needs)
