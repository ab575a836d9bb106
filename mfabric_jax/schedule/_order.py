"""The order in which pipeline stages run their passes, as static index arrays: 1F1B, interleaved 1F1B, GPipe."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mfabric_jax.workload import Workload

FORWARD, BACKWARD = 0, 1
Step = tuple[int, int, int]  # kind, micro-batch, chunk


class Order(NamedTuple):
    """P stages, Q = 2 M V passes each: forward and backward of M micro-batches through each of V chunks of blocks.

    - `kind`, `micro_batch`, `chunk` [P Q]: what each stage runs, in its own order.
    - `stage`, `position` [P*Q]: all passes of all stages in one order in which every pass follows what it needs.
    - `needs` [P*Q]: stage * Q + position of the neighbour's pass that it waits for, -1 for none.
    - `crossing` [P*Q]: over which boundary that arrives: p is between stages p and p + 1, P - 1 from the last to the
      first.
    """

    kind: np.ndarray
    micro_batch: np.ndarray
    chunk: np.ndarray
    stage: np.ndarray
    position: np.ndarray
    needs: np.ndarray
    crossing: np.ndarray


def one_f_one_b(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Step]:
    """Warm-up forwards, then one forward, one backward, then the backwards that remain."""
    warm_up = min(stages - stage - 1, micro_batches)
    forwards = [(FORWARD, m, 0) for m in range(micro_batches)]
    return _alternating(forwards, [(BACKWARD, m, 0) for m in range(micro_batches)], warm_up)


def interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Step]:
    """As many micro-batches as there are stages go through one chunk after the other; warm-up is that much longer."""
    at = np.arange(micro_batches * chunks)
    group, within = np.divmod(at, stages * chunks)
    chunk, micro_batch = within // stages, group * stages + within % stages
    forwards = [(FORWARD, int(m), int(c)) for m, c in zip(micro_batch, chunk, strict=True)]
    backwards = [(BACKWARD, int(m), int(chunks - 1 - c)) for m, c in zip(micro_batch, chunk, strict=True)]
    warm_up = 2 * (stages - stage - 1) + (chunks - 1) * stages
    return _alternating(forwards, backwards, min(warm_up, len(at)))


def gpipe(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Step]:
    """All forwards, then all backwards, the last micro-batch first."""
    forwards = [(FORWARD, m, 0) for m in range(micro_batches)]
    return forwards + [(BACKWARD, m, 0) for m in reversed(range(micro_batches))]


def _alternating(forwards: list[Step], backwards: list[Step], warm_up: int) -> list[Step]:
    steady = zip(forwards[warm_up:], backwards, strict=False)
    steps = forwards[:warm_up] + [step for pair in steady for step in pair]
    return steps + backwards[len(forwards) - warm_up :]


SCHEDULES: dict[str, Callable[..., list[Step]]] = {"1f1b": one_f_one_b, "interleaved": interleaved, "gpipe": gpipe}


def order_of(workload: Workload) -> Order:
    """The order in which the stages of a workload run."""
    return order(workload.schedule, workload.pp, workload.micro_batches, workload.chunks)


@functools.lru_cache(maxsize=64)
def order(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> Order:
    """The order of all stages; the blocks of chunk c on stage p come behind those of stage p - 1, or of chunk c - 1 on
    the last stage.

    Sources: Huang et al., GPipe, NeurIPS 2019; Narayanan et al., Megatron-LM (1F1B and interleaved), SC 2021.
    """
    steps = [SCHEDULES[schedule](p, stages, micro_batches, chunks) for p in range(stages)]
    passes = len(steps[0])
    where = {(p, *one): q for p, row in enumerate(steps) for q, one in enumerate(row)}

    def needed(p: int, kind: int, m: int, chunk: int) -> tuple[int, int] | None:
        place = chunk * stages + p + (-1 if kind == FORWARD else 1)
        if not 0 <= place < chunks * stages:
            return None
        before, neighbour = divmod(place, stages)
        return neighbour, where[neighbour, kind, m, before]

    done, merged = [0] * stages, []
    while len(merged) < stages * passes:
        for p in range(stages):
            if done[p] == passes:
                continue
            kind = steps[p][done[p]][0]
            need = needed(p, *steps[p][done[p]])
            if need is None or done[need[0]] > need[1]:
                flat = -1 if need is None else need[0] * passes + need[1]
                merged.append((p, done[p], flat, (p - 1) % stages if kind == FORWARD else p))
                done[p] += 1
    table = np.asarray(steps, np.int32).reshape(stages, passes, 3)
    stage, position, needs, crossing = np.asarray(merged, np.int32).reshape(-1, 4).T
    return Order(table[..., 0], table[..., 1], table[..., 2], stage, position, needs, crossing)
