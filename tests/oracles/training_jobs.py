"""Training jobs that share links, exactly: every job computes, then sends, again and again; no graph, no arrays."""

import math
from fractions import Fraction

from .max_min import max_min


def iteration_ends(capacity, jobs, function=None, pieces=1):
    """Ends of the iterations of each job, Fractions.

    - `jobs`: (start, iterations, phases) each; a phase is (seconds, [(links, bytes), ...]), all flows at once; the
      n-th flow over the same links of every phase is one connection.
    - `function`: weight of a flow by the part of its connection's bytes of the iteration that it has sent, taken at the
      middle of each of `pieces` pieces; None: 1.
    """
    state = [[Fraction(start), 0, -1, {}, {}] for start, _, _ in jobs]  # ready, iteration, phase, left, sent
    ends = [[] for _ in jobs]
    now = Fraction(0)
    while True:
        for number, (_, iterations, phases) in enumerate(jobs):
            _advance(state[number], iterations, phases, now, ends[number])
        flows = [(job, key) for job, one in enumerate(state) for key in one[3]]
        waiting = [
            one[0] for one, (_, iterations, _) in zip(state, jobs, strict=True) if one[1] < iterations and not one[3]
        ]
        if not flows and not waiting:
            return ends
        weights = [_weight(jobs[job][2], state[job], key, function, pieces) for job, key in flows]
        paths = [[(link, 1) for link in key[0]] for _, key in flows]
        rates = max_min(capacity, paths, weights, [math.inf] * len(flows))
        steps = [time - now for time in waiting if time > now]
        for (job, key), rate in zip(flows, rates, strict=True):
            steps.append(_until_piece_ends(jobs[job][2], state[job], key, pieces) / rate)
        step = min(steps)
        for (job, key), rate in zip(flows, rates, strict=True):
            state[job][3][key] -= rate * step
            state[job][4][key] = state[job][4].get(key, 0) + rate * step
            if state[job][3][key] == 0:
                del state[job][3][key]
        now += step
        for job, _ in flows:
            if not state[job][3]:
                state[job][0] = now


def _advance(one, iterations, phases, now, ends):
    """Whatever takes no more time: flows that start, phases and iterations that end."""
    while one[1] < iterations and not one[3] and one[0] <= now:
        if one[2] == -1 or one[2] % 2:  # what is through is a communication phase, or nothing yet
            if one[2] == 2 * len(phases) - 1:
                ends.append(one[0])
                one[1], one[2], one[4] = one[1] + 1, -1, {}
                if one[1] == iterations:
                    return
            one[2] += 1
            one[0] += Fraction(phases[one[2] // 2][0])
        else:
            one[2] += 1
            one[3] = dict(_keyed(phases[one[2] // 2][1]))


def _keyed(flows):
    counts = {}
    for links, size in flows:
        key = tuple(links), counts.get(tuple(links), 0)
        counts[key[0]] = key[1] + 1
        if size:
            yield key, Fraction(size)


def _sizes(phases, one, key):
    """(bytes of the connection before this phase, in this phase, in the iteration)."""
    sizes = [dict(_keyed(flows)).get(key, Fraction(0)) for _, flows in phases]
    phase = one[2] // 2
    return sum(sizes[:phase]), sizes[phase], sum(sizes)


def _piece(phases, one, key, pieces):
    before, size, total = _sizes(phases, one, key)
    sent = one[4].get(key, Fraction(0)) - before
    return before, size, total, sent, math.floor(sent * pieces / size)


def _weight(phases, one, key, function, pieces):
    before, size, total, _, piece = _piece(phases, one, key, pieces)
    return (
        Fraction(1) if function is None else function((before + size * (Fraction(2 * piece + 1, 2 * pieces))) / total)
    )


def _until_piece_ends(phases, one, key, pieces):
    _, size, _, sent, piece = _piece(phases, one, key, pieces)
    return size * Fraction(piece + 1, pieces) - sent
