"""The best pools on every fabric within `serving.tpot_ms`: how many GPUs share the experts in each, and the batch.

Both pools are independent but for their ratio, so the size that prefills the most tokens a second of a GPU is taken
first; with it every size that decodes gives a row, at its best batch.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from mfabric_jax.case import Case, Cases
from mfabric_jax.checks import Misfit
from mfabric_jax.resolving.resolve import model_of
from mfabric_jax.serving.deployment import DECODES_WITH, PREFILLS_WITH, kernels_of
from mfabric_jax.serving.group import group_of, lanes_of
from mfabric_jax.serving.rows import known, serve, varied_settings

SIZES = 4, 8, 16, 32, 64, 72, 128, 144, 256, 320  # GPUs that share the experts


def sizes_of(case: Case) -> tuple[int, ...]:
    """Those of `SIZES` that fabric and kernels have room for and copies of experts fill, at most one GPU an expert.
    `Misfit` for none."""
    serving = case.serving
    sizes = _with_room(case, serving.kernels, DECODES_WITH)
    slots = model_of(case).architecture.experts + (serving.redundant_experts or 0)
    filled = tuple(size for size in sizes if serving.redundant_experts is None or slots % size == 0)
    return filled or _refuse(case, "serving.ep")


def _prefill_sizes(case: Case) -> tuple[int, ...]:
    """As `sizes_of`, of the GPUs that prefill."""
    return _with_room(case, case.serving.prefill.kernels, PREFILLS_WITH) or _refuse(case, "serving.prefill.ep")


def _refuse(case: Case, path: str) -> NoReturn:
    said = ", ".join(map(str, SIZES))
    raise Misfit(f"{path} must be stated for {case.model.name} on {case.network.fabric}: none of {said} fits.")


def _with_room(case: Case, kernels: str | None, usual: str) -> tuple[int, ...]:
    most = model_of(case).architecture.experts
    return tuple(size for size in SIZES if size <= most and _has_room(case, size, kernels, usual))


def _has_room(case: Case, size: int, kernels: str | None, usual: str) -> bool:
    try:
        group = group_of(case, size)
        lanes_of(group, kernels_of(group, kernels, usual))
    except Misfit:
        return False
    tp = case.serving.tp
    return size % tp == 0 and group.shape.gpus_per_server % tp == 0


def search(
    cases: Cases, *, start: int = 0, progress: Callable[[str], None] = lambda words: None
) -> Iterator[dict[str, Any]]:
    """A row of `serve` for every size that decodes, of every case, one after the other; `start` as there."""
    each = ((case, size) for case in cases for size in sizes_of(case))
    for case, size in itertools.islice(each, start, None):
        sized = case.with_({"serving.ep": size, "serving.prefill.ep": case.serving.prefill.ep or _prefill_size(case)})
        for row in serve(sized, progress=progress):
            yield row | varied_settings(case, cases)


@functools.lru_cache(maxsize=64)
def _prefill_size(case: Case) -> int:
    """The size of a group that prefills most tokens a second of a GPU, of those whose memory holds the weights; the
    largest where none does."""
    sizes, any_size, seconds = _prefill_sizes(case), sizes_of(case)[0], {}
    for size in sizes:
        deployed = known(case.with_({"serving.ep": any_size, "serving.prefill.ep": size}))
        if deployed.prefill_fits:
            seconds[size] = float(deployed.prefilling(case.network.nic_gbps).step_s)
    return min(seconds, key=seconds.__getitem__, default=sizes[-1])


def in_time(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that fit their memory and keep to their time from token to token."""
    return [
        row for row in rows if row["fits"] and (row["tpot_limit_s"] is None or row["tpot_s"] <= row["tpot_limit_s"])
    ]


def fastest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The most tokens a second of a GPU; of several the smallest group."""
    return max(rows, key=lambda row: (row["tokens_per_s_per_gpu"], -row["ep"]))


def cheapest(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The fewest dollars a million tokens, both pools together; None without prices."""
    priced = [row for row in rows if row["usd_per_million_tokens"] is not None]
    return min(priced, key=lambda row: row["usd_per_million_tokens"], default=None)
