"""Pools that a search chooses from: sizes of groups that a case has room for, and prefill pools."""

import dataclasses
import itertools
import math
from typing import NoReturn

import msgspec

from mfabric_jax.apps.serving.deployment import (
    DECODES_WITH,
    PREFILLS_WITH,
    Deployment,
    check_size,
    deployment,
    prompt_of,
)
from mfabric_jax.apps.serving.disaggregated import is_split as split_stated
from mfabric_jax.apps.serving.disaggregated import split_deployment
from mfabric_jax.apps.serving.group import check_network
from mfabric_jax.apps.serving.kinds import prefill_case
from mfabric_jax.apps.serving.sizing import PrefillChoice
from mfabric_jax.case import Case
from mfabric_jax.case.paths import files_of_case
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.resolving.resolve import gpu_of, model_of
from mfabric_jax.support.text_files import cached_by_files

PASSES = 1024, 2048, 4096, 8192  # tokens of a prefill micro-batch
LEAST, MOST = 4, 320  # GPUs that share the experts


@cached_by_files(files_of_case, maxsize=64)
def _of_shape(case: Case) -> Deployment:
    return split_deployment(case) if split_stated(case) else deployment(case)


SHAPED = {"serving.batch": 1.0, "serving.context": 1.0, "serving.drafts.accepted": 0.0, "serving.host_s": 0.0}
SHAPED |= {"serving.overlap": None, "serving.prefill.overlap": None, "serving.prefill.tokens": None}


def cached_deployment(case: Case) -> Deployment:
    """Return the `deployment` of a case, cached over settings that only enter the arithmetic of a step."""
    prompt = prompt_of(case)
    return dataclasses.replace(_of_shape(case.with_(SHAPED | {"serving.prompt": prompt})), case=case)


def sizes_of(case: Case) -> tuple[int, ...]:
    """Return the group sizes to search for decoding, from 4 to 320 GPUs, whatever `serving.ep` is.

    A group is whole servers (multiples of 4 GPUs if servers are smaller), or a part that divides a server, since
    DeepEP's kernels run on 2, 4 or 8 GPUs of one. Fabric and kernels must have room for it, each GPU must have a slot,
    and experts with stated copies must fill all GPUs evenly. Raise `Misfit` if no size is left.
    """
    return _sizes_of(msgspec.structs.replace(case, serving=msgspec.structs.replace(case.serving, ep=LEAST)))


@cached_by_files(files_of_case, maxsize=256)
def _sizes_of(case: Case) -> tuple[int, ...]:
    check_network(case)
    serving = case.serving
    slots = model_of(case).architecture.experts + (serving.redundant_experts or 0)
    sizes = _with_room(case, serving.kernels, DECODES_WITH, slots)
    filled = tuple(size for size in sizes if serving.redundant_experts is None or slots % size == 0)
    return filled or _refuse(case, "serving.ep")


def _prefill_sizes(case: Case) -> tuple[int, ...]:
    """The group sizes to search for prefill, as in `sizes_of`."""
    most = model_of(case).architecture.experts
    sizes = _with_room(prefill_case(case), case.serving.prefill.kernels, PREFILLS_WITH, most)
    return sizes or _refuse(case, "serving.prefill.ep")


def _refuse(case: Case, path: str) -> NoReturn:
    raise Misfit(
        f"{path} must be stated for {case.model.name} on {case.network.fabric}: none of {LEAST} to {MOST} GPUs fits."
    )


def _with_room(case: Case, kernels: str | None, usual: str, slots: int) -> tuple[int, ...]:
    server = gpu_of(case).gpus_per_server
    every = range(LEAST, min(MOST, slots) + 1)
    step = server if server >= LEAST else math.lcm(server, LEAST)
    whole = (size for size in every if server % size == 0 or size % step == 0)
    return tuple(size for size in whole if _has_room(case, size, kernels, usual))


def _has_room(case: Case, size: int, kernels: str | None, usual: str) -> bool:
    try:
        check_size(case, size, kernels, usual)
    except Misfit:
        return False
    return True


def with_prefill_only(case: Case) -> Case:
    """Return the case with the smallest group that decodes, so that prefill pools, which do not read it, are searched
    once; unchanged if copies of experts are stated or no size has room."""
    if case.serving.redundant_experts is not None:
        return case
    try:
        return case.with_({"serving.ep": sizes_of(case)[0]})
    except Misfit:
        return case


@cached_by_files(files_of_case, maxsize=64)
def prefill_choices(case: Case) -> list[PrefillChoice]:
    """Return the prefill pools to search: every open group size, tokens per pass and overlap that fits the memory.

    If none fits, return the largest group. Pools with the most prompt tokens per second and GPU come first. A pool is
    left out if another one of its size is no worse by any criterion and better by one. Criteria are tokens per second
    and, if the time to first token has a limit, the time of a lone prompt.
    """
    serving = case.serving
    sizes = (serving.prefill.ep,) if serving.prefill.ep else _prefill_sizes(case)
    tokens = (serving.prefill.tokens,) if serving.prefill.tokens else PASSES
    own = serving.overlap if serving.prefill.overlap is None else serving.prefill.overlap
    kept: list[PrefillChoice] = []
    for size in sizes:
        deployed, some = cached_deployment(case.with_({"serving.prefill.ep": size})), []
        for count, overlap in itertools.product(tokens, (True, False) if own is None else (own,)):
            changes = {"serving.prefill.ep": size, "serving.prefill.tokens": count, "serving.prefill.overlap": overlap}
            choice = dataclasses.replace(deployed, case=case.with_(changes))
            some += [PrefillChoice.of(choice)] if choice.prefill_fits else []
        kept += [choice for choice in some if not any(_beats(other, choice) for other in some)]
    if not kept:
        return [PrefillChoice.of(cached_deployment(case.with_({"serving.prefill.ep": sizes[-1]})))]
    return sorted(kept, key=lambda choice: choice.s_per_token)


def _beats(choice: PrefillChoice, other: PrefillChoice) -> bool:
    """Whether a pool is no worse than another of its size in any respect, and better in one."""
    timed = choice.deployed.case.serving.load.ttft_ms is not None
    each, than = ((pool.s_per_token, pool.lone_s) if timed else (pool.s_per_token,) for pool in (choice, other))
    return each != than and all(mine <= theirs for mine, theirs in zip(each, than, strict=True))
