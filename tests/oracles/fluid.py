"""Completion times of fluid flows, exactly: rates hold until the next flow starts or ends."""

import math
from fractions import Fraction

from .max_min import max_min


def completion(capacity, paths, weight=None, cap=None, size=(), start=None):
    """Finish time of each flow, a Fraction or `math.inf`; all numbers in may be Fractions.

    Weights are 1, caps infinite and starts 0 unless given.
    """
    weight, cap, start = (given or [plain] * len(size) for given, plain in ((weight, 1), (cap, math.inf), (start, 0)))
    finish = [Fraction(begin) if not bytes_ else math.inf for begin, bytes_ in zip(start, size, strict=True)]
    left = {f: Fraction(bytes_) for f, bytes_ in enumerate(size) if bytes_}
    now = min([Fraction(s) for s in start], default=Fraction(0))
    while left:
        sending = [w if f in left and start[f] <= now else 0 for f, w in enumerate(weight)]
        rate = max_min(capacity, paths, sending, cap)
        for f in [f for f in left if rate[f] == math.inf]:
            finish[f] = now
            del left[f]
        ends = {f: now + left[f] / rate[f] for f in left if rate[f] > 0}
        upcoming = [Fraction(s) for f, s in enumerate(start) if f in left and s > now]
        if not ends and not upcoming:
            return finish
        then = min([*ends.values(), *upcoming])
        for f in list(left):
            left[f] -= rate[f] * (then - now)
            if not left[f]:
                finish[f] = then
                del left[f]
        now = then
    return finish
