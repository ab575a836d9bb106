"""Mistakes in training and judging, each answered with one sentence; see `tests/test_refusals.py`."""

import functools

import jax
import numpy as np

from mfabric_jax.apps.learning import (
    Drift,
    Evaluation,
    Recorded,
    RegionEnv,
    Scoreboard,
    TrainingSettings,
    best_trajectory,
)
from mfabric_jax.apps.learning.environment import Params
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy, uniform
from tests.timing.refusals import REGION, TOKENS

UNNAMED = "needs the workload 'recorded' in workloads, got zipf"
PARAMS = Params(Region(4, 8.0, 3), Drift(8e9))
SCORES, CHOICE = RegionEnv(), RegionEnv(policies=(greedy, uniform))


def acted(env, action):
    return env.step(jax.random.key(0), env.reset(jax.random.key(0), PARAMS)[1], action, PARAMS)


REFUSED = [
    (functools.partial(TrainingSettings, routing="split"), "routing must be relay for a network, got 'split'"),
    (functools.partial(TrainingSettings, sizes=()), "sizes must name at least one and repeat none, got []"),
    (functools.partial(TrainingSettings, varied=1.1), "varied must be at most 1, got 1.1"),
    (
        functools.partial(TrainingSettings, checkpoint_every=75),
        "checkpoint_every must be a multiple of log_every 50, got 75",
    ),
    (functools.partial(Scoreboard, policies=("gredy",)), "policy 'gredy' is unknown (did you mean 'greedy'?)"),
    (functools.partial(Scoreboard, workloads=("cold",)), "workloads 'cold' is unknown"),
    (functools.partial(Scoreboard, workloads=("recorded",)), "workloads 'recorded' needs trace, the recording"),
    (functools.partial(Scoreboard, axes="layer,expert"), f"axes {UNNAMED}"),
    (functools.partial(Scoreboard, workloads=("zipf",), trace="none.npz"), f"trace {UNNAMED}"),
    (functools.partial(Scoreboard, servers=(8, 8)), "servers must name at least one and repeat none, got [8, 8]"),
    (functools.partial(Scoreboard, sigmas=(-1.0,)), "sigmas must be finite and not negative, got -1.0"),
    (functools.partial(Scoreboard, instances=0), "instances must be a whole number of at least 1, got 0"),
    (functools.partial(Evaluation, routings=("spray",)), "routings 'spray' is unknown"),
    (functools.partial(Evaluation, delay=0.1), "delay applies only to schedules; leave it out, got 0.1"),
    (
        functools.partial(Evaluation, scenarios=8),
        "scenarios applies only to policy sample-average; leave it out, got 8",
    ),
    (functools.partial(Evaluation, records=(0, 4)), "records applies only to a trace; leave it out, got (0, 4)"),
    (
        functools.partial(Evaluation, routings=("split",), share_steps=9),
        "share_steps applies only to routings relay and relay-planned; leave it out, got 9",
    ),
    (
        functools.partial(Evaluation, sizes=(4, 5), trace="other.npz"),
        "sizes must divide the 16 ranks of a trace, got 5",
    ),
    (lambda: RegionEnv(routing="own"), "routing 'own' is unknown; allowed: unsplit, best-path, split, relay"),
    (lambda: RegionEnv(routing="relay", share_steps=-1), "share_steps must be a whole number of at least 0, got -1"),
    (lambda: SCORES.num_actions, "num_actions needs policies, whose numbers are the actions"),
    (lambda: RegionEnv(policies=()), "policies must be None or name at least one, got none."),
    (lambda: Drift(memory=1.5), "memory must be at most 1, got 1.5."),
    (lambda: Recorded(np.zeros((0, 4, 4))), "demands must be [T S S] with at least one step"),
    (lambda: SCORES.reset(jax.random.key(0), Params(PARAMS.region, Recorded(np.zeros((2, 5, 5))))), "4 servers"),
    (lambda: best_trajectory(np.zeros((0, 4, 4)), REGION, TOKENS[0]), "demands must be [T S S] with S = 4 servers"),
    (lambda: best_trajectory(np.zeros((3, 4, 4)), REGION, np.ones((4, 4))), "candidates must be [N S S]", "[4, 4]"),
    (lambda: acted(SCORES, 1), "action must be a dict of scores and change, unless policies are set, got int."),
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
