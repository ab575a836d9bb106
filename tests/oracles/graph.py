"""Fluid flows that wait for each other, exactly: rates hold until the next flow begins or ends."""

import math
from fractions import Fraction

from .max_min import max_min


def run(capacity, paths, size, after=(), start=None, lag=None, weight=None, cap=None):
    """When each flow begins and ends, two lists of Fractions or `math.inf`; all numbers in may be Fractions.

    A flow begins `lag` after the last of `start` and the ends of what it waits for: `after` lists (before, then).
    Starts and lags are 0, weights 1 and caps infinite unless given.
    """
    flows = range(len(size))
    start, lag, weight, cap = (
        given if given is not None else [usual] * len(size)
        for given, usual in ((start, 0), (lag, 0), (weight, 1), (cap, math.inf))
    )
    awaited = [{before for before, then in after if then == f} for f in flows]
    begin, finish = [math.inf] * len(size), [math.inf] * len(size)
    due, left, now = {}, {}, Fraction(0)  # flows that will begin, and those that run

    def come_due():
        for f in flows:
            ends = [finish[g] for g in awaited[f]]
            if begin[f] == math.inf and f not in due and math.inf not in [start[f], *ends]:
                due[f] = max([Fraction(start[f]), *ends]) + Fraction(lag[f])

    while True:
        come_due()
        rate = rates(left, capacity, paths, weight, cap)
        ends = {f: now if rate[f] == math.inf else now + left[f] / rate[f] for f in left if rate[f]}
        if not ends and not due:
            return begin, finish
        then = min([*ends.values(), *due.values()])
        for f in list(left):
            if ends.get(f) == then:
                finish[f] = then
                del left[f]
            else:
                left[f] -= rate[f] * (then - now)
        for f in [f for f, moment in due.items() if moment == then]:
            del due[f]
            begin[f] = then
            if size[f]:
                left[f] = Fraction(size[f])
            else:
                finish[f] = then
        now = then


def completion(capacity, paths, weight=None, cap=None, size=(), start=None):
    """Finish time of each flow where none waits for another."""
    return run(capacity, paths, size, start=start, weight=weight, cap=cap)[1]


def rates(running, capacity, paths, weight, cap):
    """Rate of each running flow."""
    crossed = sorted({link for f in running for link, _ in paths[f]})
    place = {link: at for at, link in enumerate(crossed)}
    rate = max_min(
        [capacity[link] for link in crossed],
        [[(place[link], share) for link, share in paths[f]] for f in running],
        [weight[f] for f in running],
        [cap[f] for f in running],
    )
    return dict(zip(running, rate, strict=True))


# ----------------------------------------------------------------------------------------------------- graphs of tasks
def longest_path(flows, bytes_per_s):
    """Begin and finish of each flow where every message has the bandwidth for itself."""
    begin, finish = {}, {}
    before = {flow: [] for flow in range(flows.flows)}
    for first, then in flows.after.tolist():
        before[then].append(first)
    stack = list(range(flows.flows))
    while stack:
        flow = stack.pop()
        missing = [other for other in before[flow] if other not in finish]
        if missing:
            stack += [flow, *missing]
            continue
        free = max([flows.start[flow], *(finish[other] for other in before[flow])])
        begin[flow] = float(free + flows.lag[flow])
        finish[flow] = begin[flow] + float(flows.seconds[flow] + flows.bytes[flow] / bytes_per_s)
    return [begin[flow] for flow in range(flows.flows)], [finish[flow] for flow in range(flows.flows)]
