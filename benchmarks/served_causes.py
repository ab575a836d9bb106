"""What each property moves in predicted times per token: all measured rows again, with one property left out at a time.

    python -m benchmarks.served_causes ROWS.csv

ROWS.csv: measured rows of served models (docs/serving.md, "One replica, as engines serve it"). Takes a minute or two.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

from mfabric_jax.apps.serving import layer_parts, served_rows
from mfabric_jax.apps.serving import replica as replicas
from mfabric_jax.apps.serving.replica import HABITS, USUAL, TokenSeconds
from mfabric_jax.workload.measured_kernels import FASTEST, MeasuredKernels
from mfabric_jax.workload.mixers import GroupedQuery

Patches = Callable[[], Sequence[Any]]
EXPERTS_US = 5.0  # in place of the floor of fused experts
NO_CAST = 1e9  # times the memory's bandwidth


def set_facts(kind: str, constants: Mapping[str, float]) -> Patches:
    """Every constant of these names below a kind of kernels has these values."""

    def change(facts: Mapping[str, Any]) -> dict[str, Any]:
        below = {name: change(value) for name, value in facts.items() if isinstance(value, Mapping)}
        return {**facts, **below, **{name: value for name, value in constants.items() if name in facts}}

    def kernels_of(*given: Any, **named: Any) -> MeasuredKernels:
        kernels = layer_parts.served_kernels(*given, **named)
        return kernels._replace(facts={**kernels.facts, kind: change(kernels.facts[kind])})

    return lambda: [mock.patch.object(replicas, "served_kernels", kernels_of)]


def without_time(name: str) -> Patches:
    """A kind of kernels takes no time."""
    return lambda: [mock.patch.object(module, name, return_value=0.0) for module in (layer_parts, replicas)]


def set_habits(**changed: Any) -> Patches:
    """All engines have these habits."""
    return lambda: [mock.patch.dict(HABITS, {name: habits._replace(**changed) for name, habits in HABITS.items()})]


def set_replica(**changed: Any) -> Patches:
    """Replicas are made with other options."""
    made = replicas.replica
    return lambda: [mock.patch.object(served_rows, "replica", lambda *given, **named: made(*given, **named | changed))]


def fastest_kernels() -> Sequence[Any]:
    of = layer_parts.served_kernels
    return [mock.patch.object(replicas, "served_kernels", lambda gpu, engine, **named: of(gpu, FASTEST, **named))]


def answers_alone() -> Sequence[Any]:
    def seconds(*given: Any) -> TokenSeconds:
        return replicas.token_seconds(*given)._replace(prompts_s=0.0)

    return [mock.patch.object(served_rows, "token_seconds", seconds)]


def norms_by_heads() -> Sequence[Any]:
    return [mock.patch.object(GroupedQuery, "whole_norm", property(lambda _: False, lambda *_: None))]


CAUSES: Mapping[str, Patches] = {
    "none": lambda: [],
    "all-reduces": without_time("all_reduce_s"),
    "the floor of fused experts (5 us in its place)": set_facts("experts", {"floor_us": EXPERTS_US, "split_us": 0.0}),
    "floors of products": set_facts("products", {"floor_us": 0.0}),
    "others' prompts": answers_alone,
    "small kernels": without_time("pointwise_s"),
    "floors of attention in decoding": set_facts("decode", {"floor_us": 0.0}),
    "kernels by engine (the fastest of all)": fastest_kernels,
    "prompts that mix with answers": set_habits(mixes=False),
    "TensorRT-LLM's fused norms and rotations": set_habits(norms=USUAL.norms, attention=USUAL.attention),
    "popular experts (all alike)": set_replica(measured_experts=False),
    "MiniMax's norms over all heads": norms_by_heads,
    "TensorRT-LLM's FP8 latents (bf16 in their place)": set_habits(latent_cache=None),
    "waves": set_facts("products", {"wave": 0.0}),
    "casts": set_facts("products", {"cast": NO_CAST}),
}


def errors(rows: Sequence[Mapping[str, str]], patches: Patches) -> np.ndarray:
    """Return predicted over measured time per token - 1 of the measured rows."""
    served_rows._replica.cache_clear()
    with contextlib.ExitStack() as stack:
        for patch in patches():
            stack.enter_context(patch)
        found = [row["error"] for row in served_rows.predict_rows(rows)]
    served_rows._replica.cache_clear()
    return np.array([error for error in found if error is not None])


def lines(path: str) -> Iterator[str]:
    """Yield a table, the largest median first."""
    rows = served_rows.read_served(path)
    found = {cause: errors(rows, patches) for cause, patches in CAUSES.items()}
    yield f"| without | median of {len(found['none'])} rows | mean | bias |"
    yield "|---|---|---|---|"
    for cause, error in sorted(found.items(), key=lambda pair: -np.median(abs(pair[1]))):
        yield f"| {cause} | {np.median(abs(error)):.1%} | {abs(error).mean():.1%} | {error.mean():+.1%} |"


if __name__ == "__main__":
    print("\n".join(lines(sys.argv[1])))
