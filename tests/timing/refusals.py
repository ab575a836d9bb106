"""Mistakes that timing answers with one sentence."""

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.apps.learning import Drift, Recorded, RegionEnv, best_trajectory
from mfabric_jax.apps.learning.environment import Params
from mfabric_jax.evaluate.exchanges import exchanges_between
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan, greedy, uniform
from mfabric_jax.timing import First, Span
from tests.timing.jobs import job

REGION = Region(4, 8.0, 6, 1.0)
TOKENS = np.ones((2, 1, 8, 8))


def no_time(region, circuits, demand):
    return demand.sum() * 0, demand.sum() * 0


def even(demand, region, *, previous=None, key=None):
    return Plan(Circuits(jnp.zeros((4, 4), int)))


def sent(**given):
    return exchanges_between(job(ep=8, experts=8, micro_batches=1), REGION, TOKENS, even, **given)


PARAMS = Params(Region(4, 8.0, 3), Drift(8e9))
SCORES, CHOICE = RegionEnv(), RegionEnv(policies=(greedy, uniform))


def acted(env, action):
    return env.step(jax.random.key(0), env.reset(jax.random.key(0), PARAMS)[1], action, PARAMS)


REFUSED = [
    (lambda: First("blocks"), "first 'blocks' is unknown (did you mean 'block'?); allowed: block,"),
    (lambda: First("predict"), "first 'predict' needs the predicted tokens [layer M R E], got none."),
    (lambda: First("pays"), "first 'pays' needs the trade_off (delay, bandwidth, computation), got none."),
    (lambda: First("predict", TOKENS, scenarios=4), "scenarios of a prediction need sigma,"),
    (lambda: sent(first=First("random")), "first 'random' needs a key, got none."),
    (lambda: Span("stages"), "circuits_for 'stages' is unknown (did you mean 'stage'?); allowed: all-to-all,"),
    (lambda: Span("run"), "circuits_for 'run' needs the tokens seen [I layer M R E], got none."),
    (
        lambda: sent(first=First("predict", TOKENS), span=Span("run", TOKENS[None])),
        "circuits_for 'run' is known ahead: first must be 'block', got 'predict'.",
    ),
    (lambda: sent(carry=no_time, partial=True), "partial needs flows that spread; carry must be None."),
    (lambda: RegionEnv(routing="relay"), "routing 'relay' is unknown"),
    (lambda: RegionEnv(policies=()), "policies must be None or name at least one, got none."),
    (lambda: Drift(memory=1.5), "memory must be at most 1, got 1.5."),
    (lambda: Recorded(np.zeros((0, 4, 4))), "demands must be [T S S] with at least one step"),
    (lambda: SCORES.reset(jax.random.key(0), Params(PARAMS.region, Recorded(np.zeros((2, 5, 5))))), "4 servers"),
    (lambda: best_trajectory(np.zeros((0, 4, 4)), REGION, TOKENS[0]), "demands must be [T S S] with S = 4 servers"),
    (lambda: best_trajectory(np.zeros((3, 4, 4)), REGION, np.ones((4, 4))), "candidates must be [N S S]", "[4, 4]"),
    (lambda: acted(SCORES, 1), "action must be a dict of scores and change, or policies be given, got int."),
    (lambda: acted(SCORES, {"scores": np.ones((4, 4))}), "action must be a dict", "the keys ['scores']"),
    (
        lambda: acted(SCORES, {"scores": np.ones((2, 4, 4)), "change": 1}),
        *("scores of an action must be numbers [4, 4]", "float64 [2, 4, 4]"),
    ),
    (
        lambda: acted(SCORES, {"scores": np.ones((4, 4)), "change": 0.7}),
        "change of an action must be one whole number from 0 to 1, got 0.7.",
    ),
    (lambda: acted(CHOICE, 3), "action must be one whole number from 0 to 2, got 3."),
    (lambda: acted(CHOICE, np.array([1, 2])), "action must be one whole number from 0 to 2, got int64 [2]."),
]
