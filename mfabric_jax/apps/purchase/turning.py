"""Prices at which another network becomes the best, if all other prices stay."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mfabric_jax.apps.purchase.offers import Offer

MOST = 100.0  # factors of a price are tried from 1 / this to this
STEPS = 400  # factors that are tried on either side, as far apart in their logarithms; then the nearest is bisected
EXACT = 1e-9  # relative


class Turning(NamedTuple):
    """What the price of a part decides.

    - `share`: of the best offer's dollars that go to the part, the mean over jobs.
    - `below`, `above`: the nearest factors of its price at which another offer becomes the best, and that offer; None:
      none from 1/100 to 100 does.
    """

    part: str
    share: float
    below: tuple[float, Offer] | None
    above: tuple[float, Offer] | None


def turning_points(offers: Sequence[Offer]) -> list[Turning]:
    """Return what the price of each part of any offer decides, the largest share of the best offer first.

    `offers`: the best first. Times and failures do not depend on prices.
    """
    parts = dict.fromkeys(part for offer in offers for each in offer.usd_of for part, usd in each.items() if usd)
    return sorted((_turning(part, offers) for part in parts), key=lambda turning: -turning.share)


def _turning(part: str, offers: Sequence[Offer]) -> Turning:
    best = offers[0]
    share = statistics.fmean(each.get(part, 0.0) / usd for each, usd in zip(best.usd_of, best.usd, strict=True))
    usd = np.array([offer.usd for offer in offers])
    own = np.array([[each.get(part, 0.0) for each in offer.usd_of] for offer in offers])

    def best_at(factor: float) -> int:
        now = usd + (factor - 1) * own
        return int((now / now.min(axis=0)).mean(axis=1).argmin())

    def nearest(end: float) -> tuple[float, Offer] | None:
        before = 1.0
        for factor in np.geomspace(1.0, end, STEPS)[1:]:
            if best_at(factor):
                while abs(factor / before - 1) > EXACT:
                    middle = float(np.sqrt(before * factor))
                    before, factor = (before, middle) if best_at(middle) else (middle, factor)
                return float(factor), offers[best_at(factor)]
            before = float(factor)
        return None

    return Turning(part, share, nearest(1 / MOST), nearest(MOST))
