"""When the passes of a pipeline end, if every pass takes a known time: a clock by passes instead of blocks.

Loops of numba. Sources of the orders: `workload.schedules`.
"""

from typing import Any

import numpy as np

FORWARD, BACKWARD, WEIGHT, INPUT = range(4)


def alternate(
    stages: Any,
    micro_batches: Any,
    chunks: Any,
    warm: Any,
    overlap: Any,
    kind: Any,
    micro_batch: Any,
    chunk: Any,
    paired: Any,
) -> None:
    """Fill the passes [P Q] of stages that alternate forwards and backwards after `warm` [P] forwards."""
    every = micro_batches * chunks
    for stage in range(stages):
        first, column = min(warm[stage], every), 0
        for step in range(every + first):
            together = first <= step < every
            for back in range(2):
                index = step - first if back else step
                if index < 0 or index >= every or (back == 0 and step >= every):
                    continue
                group = index // (stages * chunks) * stages
                size = min(stages, micro_batches - group)
                inside = index - group * chunks
                of = inside // size
                kind[stage, column] = BACKWARD if back else FORWARD
                chunk[stage, column] = chunks - 1 - of if back else of
                micro_batch[stage, column] = group + inside % size
                paired[stage, column] = overlap and together and back == 0
                column += 1


def play_passes(
    kind: Any,
    micro_batch: Any,
    position: Any,
    paired: Any,
    many: Any,
    times: Any,
    pair: Any,
    send: Any,
    alone_f: Any,
    alone_b: Any,
    blocks: Any,
    ends: Any,
    last: Any,
    of_last: Any,
) -> bool:
    """Fill the ends [P] of stages, and end and kind of the last backward pass of every place on a stage [P places].

    `times` [4 places]: seconds by kind; `pair` [2]: seconds of two passes beside each other, fixed and by block;
    `send` [places]: seconds from a place to the next; `alone_f`, `alone_b`: of a block; `blocks` [places].
    """
    stages, passes = kind.shape
    places = times.shape[1]
    done = np.full((2, places, many), -1.0)
    column = np.zeros(stages, np.int64)
    left = stages * passes
    while left > 0:
        moved = False
        for stage in range(stages):
            while column[stage] < passes:
                q = column[stage]
                if position[stage, q] < 0:
                    column[stage] += 1
                    left -= 1
                    moved = True
                    continue
                width = 2 if paired[stage, q] else 1
                start, ready = ends[stage], True
                for k in range(q, q + width):
                    own, p, m = kind[stage, k], position[stage, k], micro_batch[stage, k]
                    if own == WEIGHT:
                        continue
                    if own == FORWARD and p > 0:
                        came = done[0, p - 1, m]
                        came = came + send[p - 1] if came >= 0 else came
                    elif own != FORWARD and p < places - 1:
                        came = done[1, p + 1, m]
                        came = came + send[p] if came >= 0 else came
                    elif own != FORWARD:
                        came = done[0, p, m]
                    else:
                        came = 0.0
                    if came < 0:
                        ready = False
                        break
                    start = max(start, came)
                if not ready:
                    break
                if width == 2:
                    f, b = position[stage, q], position[stage, q + 1]
                    both = min(blocks[f], blocks[b])
                    length = times[FORWARD, f] - both * alone_f + times[BACKWARD, b] - both * alone_b
                    length += pair[0] + pair[1] * both if both > 0 else 0.0
                else:
                    length = times[kind[stage, q], position[stage, q]]
                end = start + length
                ends[stage] = end
                for k in range(q, q + width):
                    own, p, m = kind[stage, k], position[stage, k], micro_batch[stage, k]
                    if own != WEIGHT:
                        done[0 if own == FORWARD else 1, p, m] = end
                    if own != FORWARD:
                        last[stage, p], of_last[stage, p] = end, own
                column[stage] += width
                left -= width
                moved = True
        if not moved:
            return False
    return True
