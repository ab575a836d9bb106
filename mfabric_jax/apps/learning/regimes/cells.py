"""The regimes of demand, NICs and forecasts in which policies over time are compared."""

from typing import NamedTuple

from mfabric_jax import units

DELAYS_S = (0.0, units.ms(0.1), units.ms(1), units.ms(10), units.ms(100))
PREVIOUS = "previous"  # the forecast of a demand is the demand before
DRIFT, RECORDED = "drift", "recorded"
NIC_GBPS = 400.0


class Regime(NamedTuple):
    """Demand that drifts (`Drift`) or is recorded, on one region.

    `sigma`: "previous"; or the standard deviation of the log errors of forecasts of the demand itself, 0: known.
    """

    servers: int = 16
    optical: int = 6
    electrical: int = 2
    pairs: float | None = 0.5
    memory: float | None = 0.98
    skew: float | None = 1.0
    sigma: str | float = PREVIOUS
    routing: str = "split"
    demand: str = DRIFT


BASE = Regime()
PAIRS = Regime(pairs=2.0, optical=4, electrical=1)
DRIFTING = (
    BASE,
    BASE._replace(optical=7, electrical=1),
    BASE._replace(optical=4, electrical=4),
    BASE._replace(skew=0.3),
    BASE._replace(skew=2.0),
    BASE._replace(pairs=2.0),
    BASE._replace(memory=0.0),
    BASE._replace(memory=0.9),
    BASE._replace(memory=0.999),
    BASE._replace(sigma=0.0),
    BASE._replace(sigma=0.3),
    BASE._replace(sigma=1.0),
    PAIRS,
    PAIRS._replace(sigma=0.0),
    PAIRS._replace(sigma=1.0),
    PAIRS._replace(memory=0.9),
    PAIRS._replace(servers=8),
    PAIRS._replace(servers=32),
    BASE._replace(pairs=2.0, routing="unsplit"),
)
OF_RECORDINGS = tuple(
    Regime(servers, *nics, pairs=None, memory=None, skew=None, demand=RECORDED)
    for servers in (8, 16)
    for nics in ((6, 2), (4, 1))
)
