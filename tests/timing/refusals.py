"""Mistakes that timing answers with one sentence."""

import jax.numpy as jnp
import numpy as np

from mfabric_jax.evaluate.exchanges import exchanges_between
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan
from mfabric_jax.timing import CircuitSpan, First
from tests.timing.jobs import job

REGION = Region(4, 8.0, 6, 1.0)
TOKENS = np.ones((2, 1, 8, 8))


def no_time(region, circuits, demand):
    return demand.sum() * 0, demand.sum() * 0


def even(demand, region, *, previous=None, key=None):
    return Plan(Circuits(jnp.zeros((4, 4), int)))


def sent(**given):
    return exchanges_between(job(ep=8, experts=8, micro_batches=1), REGION, TOKENS, even, **given)


REFUSED = [
    (lambda: First("blocks"), "first 'blocks' is unknown (did you mean 'block'?); allowed: block,"),
    (lambda: First("predict"), "first 'predict' needs the predicted tokens [layer M R E], got none."),
    (lambda: First("pays"), "first 'pays' needs the trade_off (delay, bandwidth, computation), got none."),
    (lambda: First("predict", TOKENS, scenarios=4), "scenarios of a prediction need sigma,"),
    (lambda: sent(first=First("random")), "first 'random' needs a key, got none."),
    (lambda: CircuitSpan("stages"), "circuits_for 'stages' is unknown (did you mean 'stage'?); allowed: all-to-all,"),
    (lambda: CircuitSpan("run"), "circuits_for 'run' needs the tokens seen [I layer M R E], got none."),
    (
        lambda: sent(first=First("predict", TOKENS), span=CircuitSpan("run", TOKENS[None])),
        "first must be 'block' with circuits_for 'run' (circuits known ahead), got 'predict'.",
    ),
    (lambda: sent(carry=no_time, partial=True), "carry must be None with partial, which needs flows that spread."),
]
