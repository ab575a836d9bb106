"""The steps of `eclipse` for directed circuits, compiled by numba. An assignment starts from the last one's prices."""

import numpy as np

from mfabric_jax.circuit_schedules.assignment_loops import assign, compiled


def steps(wanted, work, delay, least, alphas, columns, seconds):
    """Fill a window and return the number of steps; write every row's column to `columns` [K S], and `seconds` [K].

    `work` [s]: time of all switches and ports together; `least`: smaller entries count as 0. See `eclipse.fill_window`.
    """
    size, step_count = len(wanted), 0
    left, cost, price = wanted.copy(), np.empty((size, size)), np.zeros(size)
    column, row = np.empty(size, np.int64), np.empty(size, np.int64)
    length, index, values = np.empty(2 * size), np.empty(2 * size, np.int64), np.empty(size * size)
    while work - delay > least and step_count < len(seconds):
        count = 0
        for i in range(size):
            for j in range(size):
                if left[i, j] > least:
                    values[count] = left[i, j]
                    count += 1
        if not count:
            break
        rising = np.sort(values[:count])
        many = 0
        for n in range(count):
            if not n or rising[n] != rising[many - 1]:
                rising[many] = rising[n]
                many += 1
        best, last = 0.0, -1.0
        for n in range(alphas):
            position = round(n * (many - 1) / max(alphas - 1, 1))
            alpha = min(rising[position], work - delay)
            if alpha == last or _most(left, alpha, length[:size]) <= best * (alpha + delay):
                continue
            last = alpha
            for i in range(size):
                for j in range(size):
                    cost[i, j] = -min(left[i, j], alpha)
            assign(cost, price, column, row, length, index)
            carried = 0.0
            for i in range(size):
                carried -= cost[i, column[i]]
            if carried > best * (alpha + delay):
                best = carried / (alpha + delay)
                seconds[step_count] = alpha
                columns[step_count] = column
        if best <= 0:
            break
        for i in range(size):
            j = columns[step_count, i]
            left[i, j] = max(left[i, j] - seconds[step_count], 0.0)
        work -= seconds[step_count] + delay
        step_count += 1
    return step_count


@compiled
def _most(left, alpha, lines):
    """Return an upper bound on what a matching carries in `alpha`: the sum of rows' or columns' largest entries."""
    rows = columns = 0.0
    lines[:] = 0
    for i in range(len(left)):
        most = 0.0
        for j in range(len(left)):
            value = min(left[i, j], alpha)
            most = max(most, value)
            lines[j] = max(lines[j], value)
        rows += most
    for j in range(len(left)):
        columns += lines[j]
    return min(rows, columns)
