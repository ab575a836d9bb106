"""Demand that is known before it is sent: predictions, their errors, and past iterations."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from mfabric_jax import traffic
from mfabric_jax.evaluate.problem import Problem
from mfabric_jax.policies import takes_many
from mfabric_jax.traffic import Tokens, dispatched_bytes, server_bytes
from mfabric_jax.traffic.dispatch import send_selections
from mfabric_jax.traffic.placement import in_slots
from mfabric_jax.workload import Workload

_ONE = threading.Lock()  # blocks of cases that run in parallel share one forecast of the same tokens
SIGMA = 0.3  # assumed error before any iteration is past; the moving average errs about as much on trained models


def guess_of(problem: Problem) -> np.ndarray:
    """Return the predicted selections of all replicas [I layer M R E]."""
    reconfigure: Any = problem.resolved.case.circuits.reconfigure
    each = (predict_tokens(own, reconfigure.predictor) for own in problem.every_replica)
    return np.concatenate([send_selections(problem.workload, guess) for guess in each])


def sigma_of(problem: Problem) -> np.ndarray:
    """Return the standard deviation of the log prediction error, for every iteration of all replicas [I]."""
    return np.concatenate([_sigma(replica) for replica in problem.each_replica])


def _sigma(problem: Problem) -> np.ndarray:
    reconfigure: Any = problem.resolved.case.circuits.reconfigure
    sent = problem.own_selections
    if reconfigure.sigma is None and takes_many(problem.resolved.circuits_policy()):
        return errors_so_far(
            sent,
            send_selections(problem.workload, predict_tokens(problem.tokens, reconfigure.predictor)),
            problem.workload,
        )
    return np.full(len(sent), SIGMA if reconfigure.sigma is None else reconfigure.sigma)


def planning_selections(problem: Problem) -> np.ndarray:
    """Return the selections [I layer M R E] for which long spans of a replica are planned."""
    if problem.resolved.plan_on == "span":
        return np.asarray(problem.own_selections)
    with _ONE:
        return _past(
            problem.workload.ep_group, problem.tokens, 1 if problem.circuits_for == "run" else len(problem.tokens.count)
        )


@functools.lru_cache(maxsize=4)
def _past(workload: Workload, tokens: Tokens, iterations: int) -> np.ndarray:
    return send_selections(workload, iterations_before(tokens)[:iterations])


def predict_tokens(tokens: Tokens, predictor: str) -> np.ndarray:
    with _ONE:
        return _predict(tokens, predictor)


@functools.lru_cache(maxsize=8)
def _predict(tokens: Tokens, predictor: str) -> np.ndarray:
    return as_placed(tokens, lambda own: traffic.predict_selections(own, predictor))


def errors_so_far(sent: np.ndarray, predicted: np.ndarray, workload: Workload) -> np.ndarray:
    """Return the standard deviation of the log prediction error between servers, before each iteration [I].

    It covers the last `WINDOW` iterations, without iteration 0, whose prediction is uniform.
    """
    sizes = (dispatched_bytes(workload, np.asarray(x, float)) for x in (predicted, sent))
    seen, true = (server_bytes(size, workload.ranks_per_server) for size in sizes)
    past = [slice(max(1, iteration - traffic.WINDOW), iteration) for iteration in range(len(true))]
    servers = true.shape[-1]
    flat = [(seen[some].reshape(-1, servers, servers), true[some].reshape(-1, servers, servers)) for some in past]
    return np.array([traffic.error_of(*both) if len(both[0]) else SIGMA for both in flat])


def iterations_before(tokens: Tokens) -> np.ndarray:
    def before(own: Tokens) -> np.ndarray:
        assert own.before is not None
        return np.concatenate([own.before[None], own.count[:-1]])

    return as_placed(tokens, before)


def as_placed(tokens: Tokens, work: Callable[[Tokens], np.ndarray]) -> np.ndarray:
    """Return the result of `work` [I layer M R E], by slot instead of by expert if experts are placed."""
    if tokens.slots is None or tokens.by_expert is None:
        return work(tokens)
    return in_slots(work(tokens.by_expert), tokens.slots)
