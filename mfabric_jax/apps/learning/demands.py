"""Demands for training policies and held-out demands for judging them. Policies depend only on proportions."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mfabric_jax import traffic, workload
from mfabric_jax.traffic.demand_families import (
    BROAD,
    FAMILIES,
    draw_demands,
    draw_family,
    fold_to_servers,
    gate_trace,
    record_digests,
)
from mfabric_jax.traffic.generator import TrafficShape, draw
from mfabric_jax.traffic.knobs import WORKLOADS
from mfabric_jax.traffic.log_errors import error_of
from mfabric_jax.traffic.predictor import WINDOW
from mfabric_jax.traffic.samplers import SPLITS, split_key, split_records

POOL = 192  # most demands that a pool takes from one source
DRAWN_AT_ONCE = 24  # demands drawn at a time; gates need much memory
OTHER_SEEDS = 1_000_003  # added to the seed of NumPy's draws for every split after the first
FOLDED = ("deepseek-r1", "qwen-moe-ep16")  # models of the measured tables; their ranks fold to servers
MEAN_OF = 256  # draws that the mean demand of a drawn workload averages
DRIFT, ITERATIONS = 0.1, 8  # for the measured tables: the drift makes predictions err


def pool(
    servers: int,
    seed: int,
    trace: str | None = None,
    records: tuple[int, int] | None = None,
    *,
    split: str = "train",
) -> Float[np.ndarray, "N S S"]:
    """Return the demands of a split (`traffic.samplers`).

    The pool takes at most 192 demands from each drawn family, from the named workloads, from each measured table whose
    ranks fold to these servers, and from the trace. Training records replace a split of the trace that has no records.
    """
    key, seed = split_key(jax.random.key(seed), split), seed_of(seed, split)
    random = np.random.default_rng(seed)
    parts = [*_from_families(servers, key), from_knobs(servers, seed)]
    parts += [
        fold_to_servers(traffic.measured_tokens(job, 1, 2, seed=seed).count, servers) for job in _foldable_jobs(servers)
    ]
    if trace is not None:
        count = gate_trace(trace, records).count
        chosen = count[split_records(len(count), split)]
        parts.append(fold_to_servers(chosen if len(chosen) else count[split_records(len(count), "train")], servers))
    return np.concatenate([part[random.permutation(len(part))[:POOL]] for part in parts])


def windows(
    trace: str, records: tuple[int, int] | None, split: str, servers: int, steps: int
) -> Float[np.ndarray, "N T S S"]:
    """Return all runs of `steps` consecutive records in a recording's split, for every layer and micro-batch."""
    every = gate_trace(trace, records).count
    count = every[split_records(len(every), split)]
    demands = fold_to_servers(count, servers).reshape(len(count), -1, servers, servers)
    starts = range(len(count) - steps + 1)
    runs = [demands[start : start + steps].swapaxes(0, 1) for start in starts]
    return np.concatenate(runs) if runs else np.zeros((0, steps, servers, servers), np.float32)


def records_of(trace: str, records: tuple[int, int] | None, split: str) -> tuple[int, int]:
    """Return the number of records in a split of the recording and in the whole recording."""
    every = len(gate_trace(trace, records).count)
    return len(range(every)[split_records(every, split)]), every


def seed_of(seed: int, split: str) -> int:
    """Return the seed of NumPy's draws for a split."""
    return seed + OTHER_SEEDS * SPLITS.index(split)


def learned_records(trace: str | None, records: tuple[int, int] | None) -> dict[str, Any]:
    """Return the trace's first and last record for training, validation and tests; {} without a trace.

    "digests" identifies the records of training and validation.
    """
    if trace is None:
        return {}
    numbers, digests = zip(*record_digests(trace, records), strict=True)
    train, validation, test = (split_records(len(numbers), split) for split in SPLITS)

    def ends(where: slice) -> list[int] | None:
        chosen = numbers[where]
        return [chosen[0], chosen[-1]] if chosen else None

    ranges = {"records": ends(train), "validation": ends(validation), "held_out": ends(test)}
    return ranges | {"digests": list(digests[: validation.stop])}


def _from_families(servers: int, key: jax.Array) -> list[np.ndarray]:
    keys = jax.random.split(key, POOL * len(FAMILIES))
    usual = draw_demands(keys, jnp.arange(len(keys)) % len(FAMILIES), servers)
    parts = [np.asarray(usual)[first :: len(FAMILIES)] for first in range(len(FAMILIES))]
    for family in BROAD.values():
        some = [
            draw_family(keys[first : first + DRAWN_AT_ONCE], family, servers) for first in range(0, POOL, DRAWN_AT_ONCE)
        ]
        parts.append(np.concatenate(some))
    return parts


def _foldable_jobs(servers: int) -> list[workload.Workload]:
    return [job for job in map(workload.get, FOLDED) if job.ep % servers == 0]


def from_knobs(servers: int, seed: int) -> np.ndarray:
    shape = TrafficShape(layers=4, micro_batches=1, ranks=servers, experts=4 * servers, selections=4096)
    runs = [dataclasses.replace(knobs, row_noise=0.3) for knobs in WORKLOADS.values()]
    return np.concatenate([fold_to_servers(draw(shape, knobs, seed, np.arange(4)), servers) for knobs in runs])


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """Demands of one workload, never used for training."""

    name: str
    demand: Float[jax.Array | np.ndarray, "N S S"]  # bytes
    predicted: Float[np.ndarray, "N S S"] | None  # by `traffic.predict_selections`; None without earlier iterations
    mean: Float[jax.Array | np.ndarray, "S S"]  # of other demands, for policies that use only the mean
    error: float = 0.0  # standard deviation of the log errors of `predicted`, measured on other demands


def held_out_demands(
    servers: int, samples: int, seed: int, trace: str | None, records: tuple[int, int] | None
) -> list[HeldOut]:
    """Return the held-out workloads: "drawn" (all `FAMILIES` in turn), "tables" (measured shares) and "trace".

    "tables" needs a measured model whose ranks fold to the servers; "trace" needs a trace.
    """
    workloads = [_family_demands(servers, samples, seed)]
    if jobs := _foldable_jobs(servers):
        count = traffic.measured_tokens(jobs[-1], ITERATIONS, 2, DRIFT, seed_of(seed, "test")).count
        workloads.append(_with_past("tables", traffic.Tokens(count, "tables"), 1, servers, samples, seed))
    if trace is not None:
        workloads.append(_with_past("trace", gate_trace(trace, records), WINDOW, servers, samples, seed))
    return workloads


def _family_demands(servers: int, samples: int, seed: int) -> HeldOut:
    keys = jax.random.split(split_key(jax.random.key(seed), "test"), samples + MEAN_OF)
    demand = np.asarray(draw_demands(keys, jnp.arange(len(keys)) % len(FAMILIES), servers))
    total = demand.sum(axis=(1, 2), keepdims=True)  # 0 if a sparse demand has no pair at all
    share = np.divide(demand, total, out=np.zeros_like(demand), where=total > 0)
    return HeldOut("drawn", demand[:samples], None, share[samples:].mean(axis=0))


def _with_past(name: str, tokens: traffic.Tokens, skipped: int, servers: int, samples: int, seed: int) -> HeldOut:
    """Return samples of the iterations after the first `skipped`."""
    count = tokens.count
    skipped = min(skipped, len(count) - 1)
    true, guess = (fold_to_servers(x[skipped:], servers) for x in (count, traffic.predict_selections(tokens)))
    mixed = np.random.default_rng(seed).permutation(len(true))
    chosen, others = mixed[:samples], mixed[samples:]
    error = error_of(guess[others], true[others]) if len(others) else 0.0
    mean = fold_to_servers(count[: max(skipped, 1)], servers).mean(axis=0)
    return HeldOut(name, true[chosen], guess[chosen], mean, error)
