"""The best pools on every fabric within `serving.tpot_ms`: how many GPUs share the experts in each, and the batch.

Both pools are independent but for their ratio, so the size that prefills the most tokens a second of a GPU is taken
first; with it every size that decodes gives a row, at its best batch.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from mfabric_jax import units
from mfabric_jax.case import Case, Cases
from mfabric_jax.case.paths import named_files
from mfabric_jax.checks import Misfit
from mfabric_jax.resolving.resolve import model_of
from mfabric_jax.serving.deployment import DECODES_WITH, PREFILLS_WITH, Deployment, kernels_of
from mfabric_jax.serving.group import group_of, lanes_of
from mfabric_jax.serving.rows import known, serve, varied_settings
from mfabric_jax.text_files import cached_by_files

PASSES = 1024, 2048, 4096, 8192  # tokens of a micro-batch of prefill
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
        sized = case.with_({"serving.ep": size} | _prefill(case))
        for row in serve(sized, progress=progress):
            yield row | varied_settings(case, cases)


@cached_by_files(named_files, maxsize=64)
def _prefill(case: Case) -> dict[str, Any]:
    """Settings of the pool that prefills, those that are open: the size of its groups, tokens of a pass and overlap.

    Of those whose memory holds the weights, in time for the first token where a time is stated, what reads the most
    tokens a second of a GPU; else the least late; the largest group where none holds them.
    """
    serving, any_size = case.serving, sizes_of(case)[0]
    sizes = (serving.prefill.ep,) if serving.prefill.ep else _prefill_sizes(case)
    tokens = (serving.prefill.tokens,) if serving.prefill.tokens else PASSES
    own = serving.overlap if serving.prefill.overlap is None else serving.prefill.overlap
    found = {}
    for chosen in itertools.product(sizes, tokens, (True, False) if own is None else (own,)):
        said = dict(
            zip(("serving.prefill.ep", "serving.prefill.tokens", "serving.prefill.overlap"), chosen, strict=True)
        )
        deployed = known(case.with_({"serving.ep": any_size} | said))
        if deployed.prefill_fits:
            found[chosen] = said, _worth(deployed)
    largest = {"serving.prefill.ep": sizes[-1]}
    return min(found.values(), key=lambda one: one[1])[0] if found else largest


def _worth(deployed: Deployment) -> tuple[float, float]:
    """How late a lone prompt's first token is [s], and seconds of a GPU for a token; the less the better."""
    serving, nic_gbps = deployed.case.serving, deployed.case.network.nic_gbps
    each_s = float(deployed.prefilling(nic_gbps).step_s) / deployed.pass_tokens
    if serving.load.ttft_ms is None:
        return 0.0, each_s
    decoding_ms = (serving.tpot_ms or 0.0) * (1 + serving.drafts.accepted)
    late_s = float(deployed.prompt_s(nic_gbps, deployed.judged_pass_s(nic_gbps)))
    return max(0.0, late_s - units.ms(serving.load.ttft_ms - decoding_ms)), each_s


def in_time(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that fit their memory and keep to their times: from token to token, and to the first token; as `by` says,
    predicted or at the slower end. Under a load, those that keep `serving.load.keep` of its requests in time."""
    return [row for row in rows if row["fits"] and _keeps(row)]


def _keeps(row: dict[str, Any]) -> bool:
    end, times = "_high" if row["by"] == "high" else "", ["tpot"]
    if row.get("in_slo") is None:  # under a load requests say how late a first token is
        times.append("ttft")
    limits = [(row[f"{what}{end}_s"], row[f"{what}_limit_s"]) for what in times]
    if any(limit is not None and seconds > limit for seconds, limit in limits):
        return False
    kept, least = row.get("in_slo"), row.get("in_slo_limit")
    return kept is None or least is None or kept >= least


def fastest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The most tokens a second of a GPU, under a load the fewest GPUs of both pools; of several the smallest group."""
    return max(rows, key=lambda row: (_of_a_gpu(row), -row["ep"]))


def gpus_of(row: dict[str, Any]) -> int | None:
    """GPUs of both pools under a load; None without one."""
    return None if row.get("load_requests") is None else row["load_prefill_gpus"] + row["load_decode_gpus"]


def _of_a_gpu(row: dict[str, Any]) -> float:
    gpus = gpus_of(row)
    return row["tokens_per_s_per_gpu"] if gpus is None else -gpus


def cheapest(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The fewest dollars a million tokens, both pools together, at its load where there is one; None without prices."""
    priced = [row for row in rows if usd_of(row) is not None]
    return min(priced, key=usd_of, default=None)


def usd_of(row: dict[str, Any]) -> Any:
    """Dollars a million tokens: at the load of a row, or of full pools."""
    return row["usd_per_million_tokens"] if row.get("load_requests") is None else row["load_usd_per_million_tokens"]
