"""Matchings of rows and columns, compiled by numba: the cheapest, or any above a threshold.

The cheapest: augmenting row reduction that starts from column prices, then shortest augmenting paths. Starting from the
prices of a similar problem saves most of the paths. Source: Jonker and Volgenant, Computing 38 (1987).
"""

import numpy as np

from mfabric_jax.support.loops import part_of_loops

compiled = part_of_loops(set(), inlined=False)


@compiled
def assign(cost, price, column, row, length, index):
    """Find the cheapest assignment of a square `cost` [S S]: write the `column` of each row, the `row` of each column.

    `price` [S] holds the prices to start from, and is updated; `length` [2 S] and `index` [2 S] are working arrays.
    """
    size = len(cost)
    column[:] = -1
    row[:] = -1
    for _ in range(2):
        _reduce(cost, price, column, row, 2 * size)
    for start in range(size):
        if column[start] < 0:
            _augment(cost, price, column, row, start, length[:size], index[:size], index[size : 2 * size])


@compiled
def _reduce(cost, price, column, row, most):
    """Give free rows their cheapest columns at the highest prices that allow it; a displaced row is free again."""
    size = len(cost)
    for start in range(size):
        i = start
        for _ in range(most):
            if column[i] >= 0:
                break
            low = second = np.inf
            cheapest = runner_up = -1
            for j in range(size):
                value = cost[i, j] - price[j]
                if value < low:
                    second, runner_up = low, cheapest
                    low, cheapest = value, j
                elif value < second:
                    second, runner_up = value, j
            if second > low and second < np.inf:
                price[cheapest] -= second - low
            elif row[cheapest] >= 0 and runner_up >= 0:
                cheapest = runner_up
            other = row[cheapest]
            row[cheapest], column[i] = i, cheapest
            if other < 0:
                break
            column[other] = -1
            if not second > low:
                break
            i = other


@compiled
def _augment(cost, price, column, row, start, length, before, order):
    """Find the shortest path from a free row to a free column, and shift every row on it to its next column."""
    size = len(cost)
    for j in range(size):
        length[j] = cost[start, j] - price[j]
        before[j] = start
        order[j] = j
    done, here, last, end = 0, 0, 0.0, -1
    while end < 0:
        if here == done:  # the next columns at the least distance
            last, done_before = np.inf, done
            here = done
            for k in range(done_before, size):
                j = order[k]
                if length[j] <= last:
                    if length[j] < last:
                        here = done_before
                        last = length[j]
                    order[k] = order[here]
                    order[here] = j
                    here += 1
            for k in range(done_before, here):
                if row[order[k]] < 0:
                    end = order[k]
                    break
            if end >= 0:
                break
        j = order[done]
        done += 1
        i = row[j]
        base = cost[i, j] - price[j] - last
        for k in range(here, size):
            other = order[k]
            value = cost[i, other] - price[other] - base
            if value < length[other]:
                length[other], before[other] = value, i
                if value <= last:
                    if row[other] < 0:
                        end = other
                        break
                    order[k] = order[here]
                    order[here] = other
                    here += 1
    for k in range(done):
        j = order[k]
        if length[j] < last:
            price[j] += length[j] - last
    while True:
        i = before[end]
        row[end] = i
        column[i], end = end, column[i]
        if i == start:
            break


@compiled
def match_above(value, threshold, column, row, index):
    """Return whether entries at or above the threshold allow a perfect matching.

    `column` and `row` hold a matching to start from, and receive the largest one found. `index` [2 S] is a working
    array.
    """
    size = len(value)
    before, queue = index[:size], index[size : 2 * size]
    for i in range(size):
        if column[i] >= 0 and value[i, column[i]] < threshold:
            row[column[i]] = -1
            column[i] = -1
    for start in range(size):
        if column[start] >= 0:
            continue
        before[:] = -1
        queue[0] = start
        here, there, end = 0, 1, -1
        while here < there and end < 0:
            i = queue[here]
            here += 1
            for j in range(size):
                if before[j] < 0 and value[i, j] >= threshold:
                    before[j] = i
                    if row[j] < 0:
                        end = j
                        break
                    queue[there] = row[j]
                    there += 1
        if end < 0:
            return False
        while end >= 0:
            i = before[end]
            row[end] = i
            column[i], end = end, column[i]
    return True
