"""The loops of `dispatch.chances` and `dispatch.reach_probabilities`, compiled by numba; vector lanes process rows
side by side.

The chance of a set of experts is a polynomial in the experts' independent chances. A forward pass multiplies them from
the first expert (and group) on; a backward pass takes derivatives of all that follow. Together they tell how often
every expert is taken, without a division.
"""

import numpy as np

from mfabric_jax.support.loops import part_of_loops

LANES = 8  # rows processed side by side
ROUNDS = 100  # most rounds of a fit; impossible rows stay approximate
EXACT = 1e-12  # tolerance of a fit
LONGEST = 3.0  # longest step of a fit, in log odds
EPS = 2.0**-52  # in a step, no chance is closer to 0 or 1
FAST = {"contract"}
compiled = part_of_loops(FAST)


@compiled
def _nothing(array):
    for i in range(array.shape[0]):
        for lane in range(LANES):
            array[i, lane] = 0.0


@compiled
def _with_experts(left, taken, own, first, last):
    """Set `own` [k+1] to the chances that 0 to k of the experts from `first` to before `last` are taken."""
    _nothing(own)
    for lane in range(LANES):
        own[0, lane] = 1.0
    for e in range(first, last):
        for j in range(own.shape[0] - 1, 0, -1):
            for lane in range(LANES):
                own[j, lane] = left[e, lane] * own[j, lane] + taken[e, lane] * own[j - 1, lane]
        for lane in range(LANES):
            own[0, lane] *= left[e, lane]


@compiled
def _with_group(own, before, after):
    """Set `after` [M+1 k+1] to the chances of each number of groups and experts, with one more group than `before`."""
    most, k = before.shape[0] - 1, before.shape[1] - 1
    for m in range(most + 1):
        for i in range(k + 1):
            for lane in range(LANES):
                after[m, i, lane] = own[0, lane] * before[m, i, lane]
            if m:
                for j in range(1, i + 1):
                    for lane in range(LANES):
                        after[m, i, lane] += own[j, lane] * before[m - 1, i - j, lane]


@compiled
def _without_group(own, after, before):
    """Turn `after`, derivatives by the chances after a group, into `before`, derivatives by the chances before it."""
    most, k = before.shape[0] - 1, before.shape[1] - 1
    for m in range(most + 1):
        for i in range(k + 1):
            for lane in range(LANES):
                before[m, i, lane] = own[0, lane] * after[m, i, lane]
            if m < most:
                for j in range(1, k + 1 - i):
                    for lane in range(LANES):
                        before[m, i, lane] += own[j, lane] * after[m + 1, i + j, lane]


@compiled
def _of_group(before, after, slope):
    """Set `slope` [k+1] to derivatives by the chances of a group's own counts."""
    most, k = before.shape[0] - 1, before.shape[1] - 1
    _nothing(slope)
    for m in range(most + 1):
        for i in range(k + 1):
            for lane in range(LANES):
                slope[0, lane] += after[m, i, lane] * before[m, i, lane]
            if m < most:
                for j in range(1, k + 1 - i):
                    for lane in range(LANES):
                        slope[j, lane] += after[m + 1, i + j, lane] * before[m, i, lane]


@compiled
def _total(of_groups, every):
    for lane in range(LANES):
        every[lane] = 0.0
    for m in range(of_groups.shape[0]):
        for lane in range(LANES):
            every[lane] += of_groups[m, -1, lane]


@compiled
def _forward(left, taken, own, through, every):
    """Set `every` to the chance of all allowed sets; keep `own` [G k+1] and `through` [G+1 M+1 k+1] for later."""
    groups, experts = own.shape[0], taken.shape[0]
    for g in range(groups):
        _with_experts(left, taken, own[g], g * experts // groups, (g + 1) * experts // groups)
        _with_group(own[g], through[g], through[g + 1])
    _total(through[groups], every)


@compiled
def _begin(through):
    for m in range(through.shape[1]):
        _nothing(through[0, m])
    for lane in range(LANES):
        through[0, 0, 0, lane] = 1.0


@compiled
def _errors(target, sure, chance, left, own, through, behind, states, slope, every, error):
    """Set `error` to each expert's frequency in `target` minus its frequency by the independent chances."""
    groups, experts, size = own.shape[0], chance.shape[0], own.shape[1]
    for e in range(experts):
        for lane in range(LANES):
            left[e, lane] = 1 - chance[e, lane]
    _forward(left, chance, own, through, every)
    for m in range(behind.shape[1]):
        _nothing(behind[groups, m])
        for lane in range(LANES):
            behind[groups, m, size - 1, lane] = 1.0
    for g in range(groups - 1, -1, -1):
        _without_group(own[g], behind[g + 1], behind[g])
        _of_group(through[g], behind[g + 1], slope)
        first, last = g * experts // groups, (g + 1) * experts // groups
        for j in range(size):
            for lane in range(LANES):
                states[0, j, lane] = 0.0 if j else 1.0
        for e in range(first, last - 1):
            for lane in range(LANES):
                states[e - first + 1, 0, lane] = left[e, lane] * states[e - first, 0, lane]
            for j in range(1, size):
                for lane in range(LANES):
                    states[e - first + 1, j, lane] = (
                        left[e, lane] * states[e - first, j, lane] + chance[e, lane] * states[e - first, j - 1, lane]
                    )
        for e in range(last - 1, first - 1, -1):
            for lane in range(LANES):
                error[e, lane] = 0.0
            for j in range(1, size):
                for lane in range(LANES):
                    error[e, lane] += slope[j, lane] * states[e - first, j - 1, lane]
            for lane in range(LANES):
                missing = target[e, lane] - chance[e, lane] * error[e, lane] / every[lane]
                error[e, lane] = missing * (1 - sure[e, lane])
            for j in range(size - 1):
                for lane in range(LANES):
                    slope[j, lane] = left[e, lane] * slope[j, lane] + chance[e, lane] * slope[j + 1, lane]
            for lane in range(LANES):
                slope[size - 1, lane] *= left[e, lane]


@compiled
def _largest(array, largest):
    for lane in range(LANES):
        largest[lane] = 0.0
    for e in range(array.shape[0]):
        for lane in range(LANES):
            size = abs(array[e, lane])
            if not size <= largest[lane]:
                largest[lane] = size if size < np.inf else np.inf  # NaN counts as infinite


@compiled
def _likely(target, sure, chance, every, lane):
    likelihood = -np.log(every[lane])
    for e in range(len(target)):
        if sure[e, lane] == 0:
            likelihood += target[e, lane] * np.log(chance[e, lane]) + (1 - target[e, lane]) * np.log1p(-chance[e, lane])
    return likelihood


@compiled
def _ascend(target, sure, chance, error, step, groups, move, trial):
    """Take a near-Newton step of the likelihood; experts of a group vary together as if by its mean."""
    experts = len(target)
    for g in range(groups):
        first, last = g * experts // groups, (g + 1) * experts // groups
        for lane in range(LANES):
            wrong, alone = 0.0, EPS
            for e in range(first, last):
                probability = min(max(target[e, lane] - error[e, lane], EPS), 1 - EPS)
                free = 1 - sure[e, lane]
                move[e, lane] = free * error[e, lane] / (probability * (1 - probability))
                wrong += free * error[e, lane]
                alone += free * probability * (1 - probability)
            for e in range(first, last):
                move[e, lane] -= step[1, lane] * wrong / alone
    for lane in range(LANES):
        longest = 1.0
        for e in range(experts):
            longest = max(longest, abs(move[e, lane]) / LONGEST)
        for e in range(experts):
            if sure[e, lane]:
                trial[e, lane] = target[e, lane]
            else:
                odds = np.exp(move[e, lane] * step[0, lane] / longest)
                trial[e, lane] = chance[e, lane] * odds / (1 - chance[e, lane] + chance[e, lane] * odds)


def chances_of_all(taken, top_k, groups, most):
    """Return independent chances of each expert [N E] that reproduce `taken` [N E], and errors of the fits [N].

    Sets have `top_k` experts from at most `most` of `groups` groups.
    """
    many, experts = taken.shape
    size, per_group = top_k + 1, experts // groups
    fitted, off = np.empty((many, experts)), np.empty(many)
    target, sure, chance, left, trial, error, new, move = np.zeros((8, experts, LANES))
    own, slope = np.zeros((groups, size, LANES)), np.zeros((size, LANES))
    through, behind = np.zeros((2, groups + 1, most + 1, size, LANES))
    states = np.zeros((per_group, size, LANES))
    every, total, wrong, worse = np.zeros((4, LANES))
    step = np.zeros((2, LANES))
    spread = 1 + top_k / most - top_k / groups  # variance of a group's experts, relative to independent ones
    _begin(through)
    for start in range(0, many, LANES):
        for lane in range(LANES):
            row = min(start + lane, many - 1)
            step[0, lane], step[1, lane] = 1.0, 1 - 1 / spread
            for e in range(experts):
                frequency = taken[row, e]
                target[e, lane] = chance[e, lane] = frequency
                sure[e, lane] = 1.0 if frequency <= 0 or frequency >= 1 else 0.0
        _errors(target, sure, chance, left, own, through, behind, states, slope, every, error)
        _largest(error, wrong)
        for _ in range(ROUNDS):
            done = True
            for lane in range(LANES):
                done = done and wrong[lane] <= EXACT
            if done:
                break
            _ascend(target, sure, chance, error, step, groups, move, trial)
            _errors(target, sure, trial, left, own, through, behind, states, slope, total, new)
            _largest(new, worse)
            for lane in range(LANES):
                if not worse[lane] < wrong[lane]:
                    likely = _likely(target, sure, trial, total, lane)
                    if not likely > _likely(target, sure, chance, every, lane):
                        step[0, lane] /= 2
                        continue
                every[lane], wrong[lane] = total[lane], worse[lane]
                for e in range(experts):
                    chance[e, lane], error[e, lane] = trial[e, lane], new[e, lane]
        for lane in range(LANES):
            if start + lane < many:
                off[start + lane] = wrong[lane]
                for e in range(experts):
                    fitted[start + lane, e] = chance[e, lane]
    return fitted, off


def reached_of_all(fitted, kept, top_k, servers, groups, most):
    """Return the chances [N S] that a token reaches a server, for chances `fitted` and fractions `kept` [N E]."""
    many, experts = fitted.shape
    size, per_server = top_k + 1, experts // servers
    reached = np.empty((many, servers))
    chance, left, trial = np.zeros((3, experts, LANES))
    own, through = np.zeros((groups, size, LANES)), np.zeros((groups + 1, most + 1, size, LANES))
    every, total = np.zeros((2, LANES))
    _begin(through)
    for start in range(0, many, LANES):
        for lane in range(LANES):
            row = min(start + lane, many - 1)
            for e in range(experts):
                trial[e, lane] = chance[e, lane] = fitted[row, e]
                left[e, lane] = 1 - chance[e, lane]
        _forward(left, chance, own, through, every)
        for server in range(servers):
            for lane in range(LANES):
                row = min(start + lane, many - 1)
                for e in range(server * per_server, (server + 1) * per_server):
                    trial[e, lane] = chance[e, lane] * (1 - kept[row, e])
            _forward(left, trial, own, through, total)
            for lane in range(LANES):
                for e in range(server * per_server, (server + 1) * per_server):
                    trial[e, lane] = chance[e, lane]
                if start + lane < many:
                    reached[start + lane, server] = 1 - total[lane] / every[lane]
    return reached
