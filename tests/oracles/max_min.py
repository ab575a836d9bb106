"""Max-min fair rates in exact fractions: one global bottleneck at a time."""

import math
from fractions import Fraction


def max_min(capacity, paths, weight, cap):
    """Rate of each flow, a Fraction or `math.inf`.

    `paths[f]` lists (link, share). All flows rise together on the level rate / weight; the link that fills first,
    or the flow that meets its own cap first, stops its flows. `weight[f] == 0`: the flow is absent, its rate 0.
    """
    rate = [Fraction(0)] * len(paths)
    rising = {f for f, w in enumerate(weight) if w}
    while rising:
        levels = [(Fraction(cap[f]) / weight[f], {f}) for f in rising if cap[f] != math.inf]
        for link, total in enumerate(capacity):
            users = {(f, share) for f in rising for hop, share in paths[f] if hop == link}
            if users and total != math.inf:
                settled = (
                    rate[f] * share
                    for f in range(len(paths))
                    if f not in rising
                    for hop, share in paths[f]
                    if hop == link
                )
                room = Fraction(total) - sum(settled, Fraction(0))
                load = sum((weight[f] * share for f, share in users), Fraction(0))
                levels.append((room / load, {f for f, _ in users}))
        if not levels:
            for f in rising:
                rate[f] = math.inf
            return rate
        level = min(value for value, _ in levels)
        for f in set.union(*(flows for value, flows in levels if value == level)):
            rate[f] = level * weight[f]
            rising.discard(f)
    return rate
