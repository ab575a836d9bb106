"""Demands between servers, and the indices by which a walk identifies demands, forecasts and random keys."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Num

from mfabric_jax.support.array_module import Array, array_module
from mfabric_jax.support.host_arrays import distinct_rows
from mfabric_jax.timing.passes import Places
from mfabric_jax.traffic import dispatched_bytes, server_bytes
from mfabric_jax.traffic.dispatch import even_bytes
from mfabric_jax.workload import Workload

Tokens = Float[np.ndarray, "I layer M R C"]
Share = Float[np.ndarray, "R S"]


class BetweenServers(NamedTuple):
    """Demands between a region's servers [I layer M S S], and the demand of balanced experts [S S]; zero diagonals."""

    demand: np.ndarray
    even: np.ndarray

    @classmethod
    def of(cls, job: Workload, sent: Tokens, share: Share | None = None) -> "BetweenServers":
        even = even_bytes(job, np.dtype(float))
        return cls(between_servers(job, sent, share), _between_servers(job, even, share))


def between_servers(
    job: Workload, sent: Num[np.ndarray, "*N R C"], share: Share | None = None
) -> Float[np.ndarray, "*N S S"]:
    """Return the bytes between servers; bytes that stay on a server are left out.

    `share`: part of each rank on each server; None: ranks are whole.
    """
    return _between_servers(job, dispatched_bytes(job, np.asarray(sent, float)), share)


def _between_servers(job: Workload, ranks: np.ndarray, share: Share | None) -> Float[np.ndarray, "*N S S"]:
    if share is None:
        return away(server_bytes(ranks, job.ranks_per_server))
    return away(np.einsum("rs,...rq,qt->...st", share, away(ranks), share, optimize=True))


def away(demand: Float[np.ndarray, "*N S S"]) -> Float[np.ndarray, "*N S S"]:
    return demand * (1.0 - np.eye(demand.shape[-1]))


# ------------------------------------------------------------------------------------------------------------- numbers
class NumberedAllToAlls(NamedTuple):
    """All-to-alls of C iterations, as indices into a solver's tables.

    - `demand` [C layer M]: the demand of each; `even` [C]: the demand of balanced experts.
    - `forecast` [C layer M]: the expected demand; for long spans [C P span]: the demand for which circuits are chosen.
    - `key` [C P B]: random keys of blocks or spans in running order; `own_key` [C]: key of the iteration.
    - `case` [C]: bandwidth and delay; `busy` [C P Q L]: the value of `expert_load`, not an index.
    - `spans` [P span]: which spans have all-to-alls; None: circuits stay for at most one block.
    """

    demand: np.ndarray
    even: np.ndarray
    forecast: np.ndarray
    key: np.ndarray
    own_key: np.ndarray
    case: np.ndarray
    busy: Any = None
    spans: np.ndarray | None = None

    def of(self, iteration: np.ndarray) -> "NumberedAllToAlls":
        """Return the all-to-alls of some iterations."""
        each = jax.tree.map(lambda x: x[iteration], self._replace(spans=None))
        return each._replace(spans=self.spans)


class Forecasts(NamedTuple):
    """Expected demands for which circuits are chosen: one per forecast (`single` [G S S]) or many (`samples` [G K S
    S]).

    - `times` [G K]: how often each sample is sent.
    - `number` [I ..]: index of the forecast of every demand or span; `spans` [P span]: spans with all-to-alls.
    """

    number: np.ndarray | None = None
    single: Any = None
    samples: Any = None
    times: Any = None
    spans: np.ndarray | None = None


def forecasts_of(guess: Float[Array, "I layer M S S"]) -> Forecasts:
    """Return one forecast for every demand."""
    single = guess.reshape(-1, *guess.shape[-2:])
    return Forecasts(np.arange(len(single)).reshape(guess.shape[:3]), single)


def forecasts_of_spans(
    samples: Float[Array, "G P span K S S"], times: np.ndarray, own: np.ndarray, many: bool, dtype: Any
) -> Forecasts:
    """Return the forecasts of long spans: demands, each sent `times` [G P span K].

    - `own` [I]: index into G for every iteration; `many`: the policy takes many demands instead of their mean.
    """
    each, steps = np.arange(times[..., 0].size).reshape(times.shape[:3]), times[0].sum(-1) > 0
    if not many:
        mean = mean_of(samples, times)
        return Forecasts(each[own], mean.reshape(-1, *mean.shape[-2:]), spans=steps)
    samples, times = samples.reshape(-1, *samples.shape[3:]), times.reshape(-1, times.shape[-1])
    times = array_module(samples).asarray(times, dtype)
    return Forecasts(each[own], samples=samples, times=times, spans=steps)


def in_numbers(
    where: Places,
    demand: Float[Array, "I layer M S S"],
    even: Float[Array, "S S"],
    ahead: Forecasts,
    *,
    keyed: bool,
    busy: Any = None,
) -> tuple[Array, NumberedAllToAlls]:
    """Return the distinct demands [D S S] (inside a JAX program: all of them), and the all-to-alls as indices.

    Keys of iterations are indexed first, then those of their steps; all of these indices are 0 unless `keyed`.
    """
    xp, shape = array_module(demand, even), demand.shape[:3]
    single = [] if ahead.single is None else [ahead.single]
    every = xp.concatenate([demand.reshape(-1, *even.shape), even[None], *single])
    number, first = distinct_rows(every) if xp is np else (np.arange(len(every)), slice(None))
    number, many = number.astype(np.int32), int(np.prod(shape))
    forecast = demands = number[:many].reshape(shape)
    if ahead.number is not None:
        forecast = number[many + 1 :][ahead.number] if single else ahead.number.astype(np.int32)
    steps = where.layer.reshape(len(where.layer), -1).shape if ahead.spans is None else ahead.spans.shape
    own_keys = np.arange(shape[0], dtype=np.int32) * np.int32(keyed)
    keys = shape[0] + np.arange(shape[0] * np.prod(steps), dtype=np.int32).reshape(-1, *steps)
    none = np.zeros_like(own_keys)
    balanced, keys = none + number[many], keys * np.int32(keyed)
    return every[first], NumberedAllToAlls(demands, balanced, forecast, keys, own_keys, none, busy, ahead.spans)


# --------------------------------------------------------------------------------------------------------------- spans
def samples_of_spans(
    where: Places, span: str, demand: Float[Array, "layer M S S"], seen: Float[Array, "I layer M S S"]
) -> tuple[Float[Array, "P span K S S"], Float[np.ndarray, "P span K"]]:
    """Return the demands for which the circuits of every span are chosen, and how often each is sent."""
    return _of_passes(where, demand, seen) if span == "stage" else _of_stage(where, seen)


def _of_passes(where: Places, demand: Array, seen: Array):
    known = where.backward[..., None, None]
    own, past = demand[where.pick(*demand.shape[:2])], seen[0][where.pick(*seen.shape[1:3])]
    return array_module(demand).where(known, own, past), (where.layer >= 0).astype(float)


def _of_stage(where: Places, seen: Array):
    xp = array_module(seen)
    iterations, layers, micro_batches = seen.shape[:3]
    layer, micro_batch = where.pick(layers, micro_batches)
    moe, names = where.layer >= 0, layer * micro_batches + micro_batch
    sent = [np.unique(names[stage][moe[stage]], return_counts=True) for stage in range(len(moe))]
    most = max(1, *(len(which) for which, _ in sent))
    which, times = (
        np.stack([np.pad(distinct[part], (0, most - len(distinct[part]))) for distinct in sent]) for part in (0, 1)
    )
    flat = seen.reshape(iterations, layers * micro_batches, *seen.shape[3:])
    samples = xp.moveaxis(flat[:, which], 0, 1)  # [P I K S S]
    samples = samples.reshape(len(moe), 1, iterations * most, *seen.shape[3:])
    return samples, np.tile(times, iterations)[:, None].astype(float)


def mean_of(samples: Float[Array, "*N K S S"], times: Float[np.ndarray, "*N K"]) -> Float[Array, "*N S S"]:
    """Return the mean of demands, weighted by how often each is sent (`times`)."""
    xp, times = array_module(samples), array_module(samples).asarray(times, samples.dtype)
    total = xp.maximum(times.sum(-1), 1)
    return (times[..., None, None] * samples).sum(-3) / total[..., None, None]
