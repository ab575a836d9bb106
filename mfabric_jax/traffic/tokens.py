"""Tokens that each source rank sends to each expert, over iterations, layers and micro-batches."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import MOST_WHOLE, InputError, whole
from mfabric_jax.support.host_arrays import NOT_NEGATIVE, host_indices, real_numbers, refuse, store_arrays
from mfabric_jax.workload import Workload

MOST = 1e100  # largest sum of counts: its square is still finite
AXES = ("iteration", "layer", "micro_batch", "source_rank", "expert")


class Reached(NamedTuple):
    """Tokens that reach groups of experts: `groups[n]` [iteration, layer, micro_batch, source_rank, n] for n groups.

    `count` is the array of counts to which they belong.
    """

    count: np.ndarray
    groups: dict[int, np.ndarray]


def check_sums(named: str, count: np.ndarray) -> None:
    """Raise `InputError` if sums of the counts could exceed `MOST` or the range of their type."""
    most = min(MOST, 2.0**63 if count.dtype.kind in "iu" else float(np.finfo(count.dtype).max))
    if count.size and not float(count.max()) * count.size <= most:
        raise InputError(f"{named} must have sums of at most {most:g}, got {count.max()} of {count.size:,}.")


def summable(named: str, count: np.ndarray) -> np.ndarray:
    """Return the counts in a type that holds their sums. Raise `InputError` if the sums are too large."""
    wide = count.astype(np.int64) if count.dtype.kind in "iu" and count.dtype.itemsize < 8 else count
    check_sums(named, wide)
    return wide


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
    """Selections, i.e. (token, expert) pairs; a token with k experts counts k times.

    - `count` [iteration, layer, micro_batch, source_rank, expert]: integers, or reals if they are expectations. "layer"
      counts only MoE blocks. A run with more micro-batches repeats them cyclically.
    - `source`: description in words.
    - `before` [layer, micro_batch, source_rank, expert]: counts of the iteration before the first, if known.
    - `slots` [iteration, layer, slot]: the expert in each physical slot, if the last axis of `count` is slots.
      `by_expert`: the same tokens before their experts were placed in slots.
    - `reached`: tokens that reach groups of experts, if known exactly.

    Raise `InputError` unless `count` has five non-empty axes and finite values of at least 0.
    """

    count: np.ndarray
    source: str
    before: np.ndarray | None = None
    slots: np.ndarray | None = None
    by_expert: "Tokens | None" = None
    reached: Reached | None = None

    def __post_init__(self) -> None:
        count = self.count
        if isinstance(count, np.ndarray) and count.dtype == np.float16:  # it holds at most 65504
            count = count.astype(np.float32)
            store_arrays(self, count=count)
        if not isinstance(count, np.ndarray) or count.ndim != len(AXES) or 0 in count.shape:
            shape = getattr(count, "shape", type(count).__name__)
            raise InputError(f"tokens must be an array [{', '.join(AXES)}], no axis empty, got shape {shape}.")
        if count.dtype.kind not in "iuf":
            raise InputError(f"tokens must be integers or reals, got dtype {count.dtype}.")
        wrong = ~((count >= 0) & np.isfinite(count))
        if wrong.any():
            index = tuple(np.argwhere(wrong)[0].tolist())
            raise InputError(
                f"tokens must be finite and not negative, got {count[index]} at [{', '.join(AXES)}] = {index}."
            )
        check_sums("tokens", count)
        if self.before is not None:
            store_arrays(self, before=np.asarray(real_numbers("before", self.before)))
            refuse("before", self.before, NOT_NEGATIVE)
        if self.slots is not None:
            host_indices("slots", self.slots, 0, MOST_WHOLE)

    @functools.cached_property
    def digest(self) -> bytes:
        """Digest of the counts and of the known groups; it identifies what ranks send."""
        known = self.reached.groups if self.reached is not None and self.reached.count is self.count else {}
        digest = hashlib.blake2b(digest_size=16)
        for parts, count in ((0, self.count), *sorted(known.items())):
            digest.update(f"{parts} {count.dtype} {count.shape} ".encode())
            digest.update(count.tobytes())
        return digest.digest()

    def scale_to(self, workload: Workload) -> "Tokens":
        """Return tokens with every source rank's row scaled to the workload's selections; empty rows stay empty."""
        total = self.count.sum(axis=-1, keepdims=True, dtype=np.float64)
        factor = np.divide(workload.selections, total, out=np.zeros_like(total), where=total > 0)
        return self.map_counts(lambda tokens: tokens * factor)

    def map_counts(self, change: Callable[[np.ndarray], np.ndarray], **other: Any) -> "Tokens":
        """Return tokens with `change` applied to counts and known groups, along axes before the last.

        `other` replaces fields.
        """
        count, reached = change(self.count), self.reached
        if reached is not None:
            reached = Reached(count, {parts: change(tokens) for parts, tokens in reached.groups.items()})
        return dataclasses.replace(self, count=count, reached=reached, **other)

    def tokens_by_server(self, servers: int) -> np.ndarray | None:
        """Return the tokens that reach each server [iteration, layer, micro_batch, source_rank, S]; None if unknown."""
        return (
            self.reached.groups.get(servers) if self.reached is not None and self.reached.count is self.count else None
        )

    def after_the_first(self) -> "Tokens":
        """Return all iterations except the first, which becomes `before`."""
        if len(self.count) < 2:
            raise InputError(f"tokens ({self.source}) must have an iteration before the first that is timed, got 1.")
        first = {"source": f"{self.source}, the first not timed", "before": self.count[0]}
        return self.map_counts(lambda tokens: tokens[1:], **first)

    def fold_experts(self, experts: int) -> "Tokens":
        """Return tokens with neighbouring experts summed to `experts` ones: expert e becomes e // (E / experts)."""
        return dataclasses.replace(self, count=self._fold(experts, "experts"))

    def rank_load_over_mean(self, ep: int) -> np.ndarray:
        """Return the load of the busiest of `ep` destination ranks over the mean [iteration, layer, micro_batch].

        It is 1 without tokens.
        """
        return max_over_mean(self._fold(ep, "ep").sum(axis=-2, dtype=np.float64))

    def _fold(self, groups: int, field: str) -> np.ndarray:
        experts = self.count.shape[-1]
        if experts % whole(field, groups):
            raise InputError(
                f"{field} must divide the {experts} experts of these tokens ({self.source}), got {groups}."
            )
        return self.count.reshape(*self.count.shape[:-1], groups, experts // groups).sum(axis=-1)


def max_over_mean(load: np.ndarray) -> np.ndarray:
    """Return the largest value of the last axis over its mean; 1 if all are 0."""
    mean = load.mean(axis=-1)
    return np.divide(load.max(axis=-1), mean, out=np.ones_like(mean), where=mean > 0)
