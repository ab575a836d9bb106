"""What is known of an iteration before it runs: iterations before it, predictions and their errors, decision times."""

import statistics
import time
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax import traffic
from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import Policy, uniform
from mfabric_jax.routing import Plan
from mfabric_jax.traffic import Tokens, dispatched_bytes, server_bytes
from mfabric_jax.traffic.placement import in_slots
from mfabric_jax.traffic.predictor import DEFAULT, WINDOW
from mfabric_jax.traffic.scenarios import error_of
from mfabric_jax.workload import Workload

SIGMA = 0.3  # of a prediction that has no past: about that of the moving average on traffic of trained models
WARM_UP, TIMED = 3, 15  # decisions


def predicted_tokens(tokens: Tokens, predictor: str | None) -> np.ndarray:
    """Predicted selections [I layer M R E]."""
    return as_placed(tokens, lambda own: traffic.predicted(own, predictor or DEFAULT))


def errors_so_far(sent: np.ndarray, predicted: np.ndarray, workload: Workload) -> np.ndarray:
    """The error that the predictor had in the last iterations before each [I], between servers: the standard deviation
    of its logarithm. Iteration 0, which is predicted even, tells nothing."""
    seen, true = (_between(workload, np.asarray(count)) for count in (predicted, sent))
    past = [slice(max(1, at - WINDOW), at) for at in range(len(true))]
    servers = true.shape[-1]
    flat = [(seen[some].reshape(-1, servers, servers), true[some].reshape(-1, servers, servers)) for some in past]
    return np.array([error_of(*both) if len(both[0]) else SIGMA for both in flat])


def _between(workload: Workload, count: np.ndarray) -> np.ndarray:
    """Bytes between servers [I layer M S S]."""
    work = jax.jit(jax.vmap(lambda one: server_bytes(dispatched_bytes(workload, one), workload.ranks_per_server)))
    flat = np.asarray(work(jnp.asarray(count.reshape(-1, *count.shape[3:]))))
    return flat.reshape(*count.shape[:3], *flat.shape[1:])


def iterations_before(tokens: Tokens) -> np.ndarray:
    """Selections of the iteration before each [I layer M R E]."""

    def before(own: Tokens) -> np.ndarray:
        assert own.before is not None
        return np.concatenate([own.before[None], own.count[:-1]])

    return as_placed(tokens, before)


def as_placed(tokens: Tokens, work: Callable[[Tokens], np.ndarray]) -> np.ndarray:
    """What `work` finds [I layer M R E] for tokens by expert, by slot where experts are placed."""
    if tokens.slots is None or tokens.by_expert is None:
        return work(tokens)
    return in_slots(work(tokens.by_expert), tokens.slots)


def measured_decision_s(policy: Policy, region, demand: Float[Array, "S S"], key: Array) -> float:
    """Seconds in which the compiled policy decides for one region on this machine, the median of some."""

    @eqx.filter_jit
    def decide(region, demand, before):
        return policy(demand, region, previous=Plan(Circuits(before)), key=key).circuits.count

    given, found = (region, demand, uniform(None, region).circuits.count), []
    for _ in range(WARM_UP + TIMED):
        began = time.perf_counter()
        jax.block_until_ready(decide(*given))
        found.append(time.perf_counter() - began)
    return statistics.median(found[WARM_UP:])
