"""Seconds of single kernels of inference as they were measured (`measured_kernels.toml`), by GPU and engine.

A kernel has a floor: it takes microseconds, however small its work is. Above it, a matrix product follows a soft knee
between its FLOPs and its bytes, and pays for an incomplete last wave of tiles and for casts of activations to FP8 or
NVFP4. Fused experts follow tokens and active experts, attention of prompts width, window and length, attention of
decoding the bytes of caches, collectives bytes and GPUs, and DeepEP's dispatches bytes and servers. A GPU without
measurements takes the wide estimate of `kernels.toml`, with sharp knees, and has no DeepEP; a GPU that stands in both
(AMD's) takes estimates for the kernels that were not measured.

Engines differ, and so do kernels of one engine: `fast` and `slow` of a fact are the 10 % and the 90 % quantile of
measured over predicted seconds, over the cells of all engines, or of the engine whose own constants they are.

Numbers may be arrays that broadcast. Constants are least squares over tables of kernels, never over served models;
`benchmarks/kernel_tables.py` and `benchmarks/amd_kernel_tables.py` derive them.
"""

import functools
import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.support.array_module import array_module
from mfabric_jax.support.rings import nvls_bytes
from mfabric_jax.support.text_files import cached_by_files
from mfabric_jax.workload.gpus import GPUS, Gpu
from mfabric_jax.workload.kernels import (
    HOW,
    BandwidthShares,
    KernelRates,
    has_family,
    is_blackwell,
    rates_of,
    shares_of,
    states,
    table,
)
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.volume import ACTIVATION_BYTES, nvls_gain, pp_bytes

ENGINES = ("trtllm", "sglang", "vllm")
FASTEST = "fastest"  # of all engines
TILE = 128  # rows and columns of a tile of a product


class KernelFormat(NamedTuple):
    """A number format of products.

    - `rate`: peak FLOP/s over that of bf16; `weight`, `activation`: bytes of a weight, scales included, and of an
      activation that the product reads.
    - `cast`: bytes that the cast of an activation reads and writes. `like`: the format whose measured products it has.
    """

    rate: float
    weight: float
    activation: float
    cast: float
    like: str


FORMATS = {
    "bf16": KernelFormat(1.0, 2.0, 2.0, 0.0, "bf16"),
    "fp8": KernelFormat(2.0, 1.0, 1.0, 3.0, "fp8"),
    "nvfp4": KernelFormat(4.0, 0.5 + 1 / 16, 0.5 + 1 / 16, 2.5, "nvfp4"),  # an FP8 scale for 16
    # Weights of four bits that become bf16 before they are multiplied (weight only), and, on Blackwell, MXFP4 weights
    # with MXFP8 activations, which multiply at the rate of FP8.
    "int4": KernelFormat(1.0, 0.5 + 2 / 128, 2.0, 0.0, "bf16"),  # a bf16 scale for 128 (W4A16: arXiv 2306.00978)
    "mxfp4": KernelFormat(1.0, 0.5 + 1 / 32, 2.0, 0.0, "bf16"),  # 8 bits for 32 (OCP Microscaling Formats 1.0)
    "mxfp4-fp8": KernelFormat(2.0, 0.5 + 1 / 32, 1.0, 3.0, "fp8"),
}


class MeasuredKernels(NamedTuple):
    """The kernels of one engine on one GPU: `facts` by kind, as in `measured_kernels.toml`; `how`: one of `HOW`.

    `links`: NVLink bandwidth of the GPU that was measured over that of this one. A message on other links takes as long
    as one of as many times its bytes.
    """

    gpu: Gpu
    facts: Mapping[str, Any]
    how: str = "usual"
    links: float = 1.0

    @property
    def memory_Bps(self) -> float:
        return math.inf if self.gpu.memory_Bps is None else self.gpu.memory_Bps

    def spread(self, facts: Mapping[str, Any]) -> float:
        """Return what the usual seconds of a fact are multiplied by."""
        return facts.get(self.how, 1.0)

    @property
    def sms(self) -> int:
        """Streaming multiprocessors of the GPU."""
        return self.facts["sms"]


@functools.cache
def known_facts() -> Mapping[str, Any]:
    """Return the facts of measured GPUs, as in `measured_kernels.toml`."""
    text = (resources.files("mfabric_jax.workload") / "measured_kernels.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def is_measured(gpu: Gpu) -> bool:
    """Return whether kernels of a GPU were measured, or those of the same GPU with other links."""
    return LIKE.get(gpu.name, gpu.name) in known_facts()


def measured_gpus() -> list[str]:
    """Return the names of the GPUs with measured kernels."""
    return list(known_facts())


LIKE = {"H800-SXM": "H100-SXM", "GB300-NVL72": "B300-HGX"}  # the same GPU with other links


@cached_by_files(lambda gpu, engine=FASTEST, how="usual", path=None: (path,), maxsize=64)
def measured_kernels(gpu: Gpu, engine: str = FASTEST, how: str = "usual", path: str | None = None) -> MeasuredKernels:
    """Return the kernels of an engine on a GPU.

    - `engine`: one of `ENGINES`, or `FASTEST`.
    - `how`: one of `HOW`. Slow and fast seconds are the usual ones times `slow` and `fast` of their fact; a GPU without
      measurements takes the slow and fast rates of `kernels.toml`.
    - `path`: a user's table of rates, which decides for the GPUs that it names.

    Raise `InputError` for an unknown engine or `how`.
    """
    one_of("engine", engine, (*ENGINES, FASTEST))
    one_of("how", how, HOW)
    name = LIKE.get(gpu.name, gpu.name)
    known = known_facts().get(name)
    if known is None or states(path, gpu):
        return MeasuredKernels(gpu, _estimated_facts(gpu, how, path), how)
    facts = _merge(known, known.get(engine, {}))
    if has_family(gpu):
        facts = _fill(facts, _estimated_facts(gpu, how))
    links = GPUS[name].nvlink / gpu.nvlink
    return MeasuredKernels(gpu, facts if links == 1 else facts | {"deepep": {}}, how, links)


def _merge(facts: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the fastest engine, replaced where an engine has its own."""
    both = {name: _merge(facts[name], value) for name, value in own.items() if isinstance(facts.get(name), dict)}
    return {**facts, **own, **both}


def _fill(known: Mapping[str, Any], estimated: Mapping[str, Any]) -> dict[str, Any]:
    """The measured facts, and estimates of those that were not measured."""
    groups = {name for name, own in known.items() if isinstance(own, dict) and _is_group(own)}
    both = {name: _fill(known[name], estimated[name]) for name in groups & set(estimated)}
    return {**estimated, **known, **both}


def _is_group(facts: Mapping[str, Any]) -> bool:
    """Whether facts hold others, not numbers."""
    return any(isinstance(value, dict) for value in facts.values())


SHARP = 30.0  # exponent of a knee that is hardly soft
OTHER_SMS = 132  # of a GPU that nobody measured


def _estimated_facts(gpu: Gpu, how: str, path: str | None = None) -> dict[str, Any]:
    """Facts of a GPU without measured kernels: the rates of `kernels.toml`, and a launch as the floor. NVFP4 has the
    achieved fraction of FP8."""
    rates, launch_us = rates_of(gpu, how, path), float(table(path)["launch"]["us"])
    bw = 1.0 if gpu.memory_Bps is None else rates.memory_Bps / gpu.memory_Bps
    share, grouped = (
        {name: rate / (FORMATS[name].rate * gpu.bf16_flops) for name, rate in known.items()}
        for known in (rates.products, rates.grouped)
    )
    if is_blackwell(gpu):
        share["nvfp4"], grouped["nvfp4"] = share["fp8"], grouped["fp8"]
    products = {
        name: {"floor_us": launch_us, "rate": part, "bw": bw, "out": bw, "p": SHARP, "wave": 0.0, "cast": bw}
        for name, part in share.items()
    }
    experts = {
        name: {
            "floor_us": 4 * launch_us,
            "per_expert_us": 0.0,
            "rate": part,
            "bw": bw,
            "tile": 0.0,
            "perm": bw,
            "slot": bw,
        }
        for name, part in grouped.items()
    }
    scores = {
        f"{width}/0": {
            str(length): 2 * float(width) * length / units.ns(rates.scores(length, float(width), backward=False))
            for length in LENGTHS
        }
        for width in rates.attention[0]
    }
    collectives = _estimated_collectives(gpu, how, path)
    return {
        "sms": OTHER_SMS,
        "pointwise": {"floor_us": launch_us, "bw": bw},
        "products": products,
        "experts": experts,
        "decode": _estimated_decode(gpu, rates, launch_us, bw),
        "latent": {"floor_us": 0.0, "ns_a_token": 0.0},
        "prompt_ns": scores,
        "all_reduce": collectives["all_reduce"],
        "nccl": collectives,
    }


def _estimated_collectives(gpu: Gpu, how: str, path: str | None) -> dict[str, Any]:
    """Microseconds of rings by GPUs and bytes: a launch and a share of the bytes in each step. An all-to-all sends all
    of its shares at once. If NVSwitches reduce (`Gpu.nvls`), an all-reduce is a ring or, in two steps, NVLS."""
    shares, launch_us = shares_of(1, "nccl", how, path), float(table(path)["launch"]["us"])
    ring_Bps, all_Bps = gpu.nvlink * shares.ring_nvlink, gpu.nvlink * shares.nvlink

    def us_of(what: str, gpus: int, size: float) -> float:
        part = size / gpus
        if what == "all_to_all":
            return launch_us + (gpus - 1) * units.to_us(part / all_Bps)
        steps = (2 if what == "all_reduce" else 1) * (gpus - 1)
        ring_us = steps * (launch_us + units.to_us(part / ring_Bps))
        if what != "all_reduce" or not gpu.reduction_part:
            return ring_us
        nvls_Bps = ring_Bps * gpu.reduction_part
        return min(ring_us, NVLS_STEPS * launch_us + units.to_us(nvls_bytes(size, gpus) / nvls_Bps))

    return {
        what: {str(gpus): {str(size): us_of(what, gpus, size) for size in SIZES} for gpus in (2, 4, 8)}
        for what in COLLECTIVES
    }


def _estimated_decode(gpu: Gpu, rates: KernelRates, launch_us: float, bw: float) -> dict[str, Any]:
    """Kernels of attention in decoding. Latent attention reads its cache, or takes its FLOPs at the rate of scores."""
    known: dict[str, Any] = {
        "gqa": {cache: {"floor_us": launch_us, "bw": bw, "ns_a_context_token": 0.0} for cache in CACHE}
    }
    for heads in HEADS:
        least_s = LATENT_FLOPS * heads / rates.scores(LENGTHS[-2], LATENT_WIDTH, backward=False)  # a cached element
        name = str(heads)
        known[name] = {
            cache: {
                "floor_us": launch_us,
                "bw": 1.0 if gpu.memory_Bps is None else min(bw, size / (least_s * gpu.memory_Bps)),
                "ns_a_context_token": 0.0,
            }
            for cache, size in CACHE.items()
        }
    return known


NVLS_STEPS = 2  # a load of sums, and a store to all
LENGTHS = (256, 1024, 4096, 16384)  # of prompts, tokens
HEADS, LATENT_WIDTH = (16, 32, 64, 128), 160  # of latent attention
LATENT_FLOPS = 2 * (2 * 512 + 64) / 576  # of a head for every cached element of latents, as released models have them
SIZES = tuple(2**power for power in range(10, 31, 2))  # of collectives, bytes
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


# ------------------------------------------------------------------------------------------------------------- products
def product_s(kernels: MeasuredKernels, number: str, rows: Any, inner: Any, outer: Any) -> Any:
    """Return the seconds of a product of `rows` x `inner` activations with `inner` x `outer` weights.

    - `number`: a key of `FORMATS`. The cast of activations is included.

    floor + (F^p + R^p)^(1/p) + W + cast, with F the FLOPs at the achieved rate, times waves^wave, R the bytes read,
    and W the bytes written, which products write when they have finished.
    """
    facts = _facts_of(kernels.facts["products"], number, kernels.gpu)
    return kernels.spread(facts) * product_form(facts, kernels, FORMATS[number], rows, inner, outer)


def product_form(
    facts: Mapping[str, float], kernels: MeasuredKernels, form: KernelFormat, rows: Any, inner: Any, outer: Any
) -> Any:
    """Return `product_s` for these constants."""
    xp, memory_Bps = array_module(rows, inner, outer), kernels.memory_Bps
    rows = xp.asarray(rows, float)
    read = form.weight * inner * outer + form.activation * rows * inner
    return (
        units.us(facts["floor_us"])
        + multiply_s(facts, kernels, form, 2 * rows * inner * outer, read, (rows, outer))
        + ACTIVATION_BYTES * rows * outer / (memory_Bps * facts["out"])
        + form.cast * rows * inner / (memory_Bps * facts["cast"])
    )


def multiply_s(
    facts: Mapping[str, float],
    kernels: MeasuredKernels,
    form: KernelFormat,
    flops: Any,
    read: Any,
    output: tuple[Any, Any],
    groups: float = 1,
) -> Any:
    """Return the seconds of `groups` products in one kernel, without its floor and without writing outputs.

    - `flops`, `read`: FLOPs, and bytes of operands, of all. `output`: rows and columns of each output.
    """
    xp = array_module(*output)
    tiles = groups * xp.ceil(xp.asarray(output[0], float) / TILE) * xp.ceil(xp.asarray(output[1], float) / TILE)
    waves = xp.ceil(tiles / kernels.sms) * kernels.sms / tiles
    flops_s = flops / (form.rate * kernels.gpu.bf16_flops * facts["rate"])
    return soft_max(flops_s * waves ** facts["wave"], read / (kernels.memory_Bps * facts["bw"]), facts["p"])


def soft_max(first: Any, second: Any, power: float) -> Any:
    """Return (first^power + second^power)^(1/power), the larger of two times with a soft knee."""
    xp = array_module(first, second)
    larger, smaller = xp.maximum(first, second), xp.minimum(first, second)
    ratio = smaller / xp.where(larger > 0, larger, 1.0)
    return larger * (1 + ratio**power) ** (1 / power)


def _facts_of(known: Mapping[str, Any], number: str, gpu: Gpu) -> Mapping[str, Any]:
    """The facts of a number format, or of the one whose kernels it has."""
    name = number if number in known else FORMATS[one_of("number format", number, FORMATS)].like
    if name not in known:
        raise InputError(f"weights {number} have no measured kernels on {gpu.name}; allowed: {', '.join(known)}.")
    return known[name]


# -------------------------------------------------------------------------------------------------------------- experts
class ExpertWork(NamedTuple):
    """Work of one GPU's routed experts in a layer.

    - `active`: experts with a token; `rows`: copies of tokens that they take; `copies`: copies of tokens of all GPUs
      if experts are split between GPUs (each GPU then sorts all of them), else 0.
    - `width`: of a token's vector; `inner`: inner width of an expert on this GPU; `matrices`: 3 with a gate, else 2.
    """

    active: Any
    rows: Any
    copies: Any
    width: float
    inner: float
    matrices: int = 3


def experts_s(kernels: MeasuredKernels, number: str, work: ExpertWork) -> Any:
    """Return the seconds of a whole fused layer of routed experts, router and projections around them left out.

    floor, a longer one if experts are split between GPUs, + a term for each active expert + hypot(F, W) + permutation,
    with F the FLOPs of all rows, each expert's filled up by half a tile, and W the weights of active experts.
    """
    facts = _facts_of(kernels.facts["experts"], number, kernels.gpu)
    return kernels.spread(facts) * experts_form(facts, kernels, FORMATS[number], work)


def experts_form(facts: Mapping[str, float], kernels: MeasuredKernels, form: KernelFormat, work: ExpertWork) -> Any:
    """Return `experts_s` for these constants."""
    memory_Bps, matrix = kernels.memory_Bps, work.matrices * work.width * work.inner
    filled = work.rows + 0.5 * facts["tile"] * work.active
    flops_s = 2 * filled * matrix / (form.rate * kernels.gpu.bf16_flops * facts["rate"])
    read_s = work.active * matrix * form.weight / (memory_Bps * facts["bw"])
    moved = work.rows * (2 * work.width + work.matrices * work.inner) * ACTIVATION_BYTES
    split_us = facts.get("split_us", 0.0) * (np.asarray(work.copies) > 0)
    return (
        units.us(facts["floor_us"] + split_us + facts["per_expert_us"] * work.active)
        + array_module(flops_s, read_s).hypot(flops_s, read_s)
        + moved / (memory_Bps * facts["perm"])
        + work.copies * work.width * ACTIVATION_BYTES / (memory_Bps * facts["slot"])
    )


# ------------------------------------------------------------------------------------------------------------ attention
CACHE = {"bf16": 2.0, "fp8": 1.0}  # bytes of a cached element


def decode_s(kernels: MeasuredKernels, cache: str, elements: Any, requests: Any, context: Any, heads: int = 0) -> Any:
    """Return the seconds of attention in decoding, without projections.

    - `cache`: format of cached keys and values; `elements`: that a GPU reads for a token of a request's context.
    - `context`: tokens that a query sees. `heads`: of a GPU, for latent attention; 0: grouped-query attention.
    """
    known = kernels.facts["decode"]
    kind = known["gqa"] if not heads else known[_nearest(known, heads)]
    facts = kind[one_of("cache format", cache, CACHE)]
    return kernels.spread(facts) * decode_form(facts, kernels, cache, elements, requests, context)


def decode_form(
    facts: Mapping[str, float], kernels: MeasuredKernels, cache: str, elements: Any, requests: Any, context: Any
) -> Any:
    """Return `decode_s` for these constants."""
    read = requests * context * elements * CACHE[cache]
    serial_s = units.ns(facts["ns_a_context_token"]) * context
    return units.us(facts["floor_us"]) + read / (kernels.memory_Bps * facts["bw"]) + serial_s


def _nearest(known: Mapping[str, Any], count: int) -> str:
    """The measured count, of heads or GPUs or servers, that is nearest to `count` by ratio."""
    return min((name for name in known if name.isdigit()), key=lambda name: abs(np.log(int(name) / max(count, 1))))


def latent_s(kernels: MeasuredKernels, tokens: Any) -> Any:
    """Return the seconds of a module of latent attention in decoding beside its products and its core: norms of
    latents, rotations, concatenations, writes of the cache."""
    facts = kernels.facts["latent"]
    return kernels.spread(facts) * latent_form(facts, tokens)


def latent_form(facts: Mapping[str, float], tokens: Any) -> Any:
    """Return `latent_s` for these constants."""
    return units.us(facts["floor_us"]) + units.ns(facts["ns_a_token"]) * tokens


def prompt_attention_s(
    kernels: MeasuredKernels, width: float, window: int, heads: float, tokens: Any, length: float
) -> Any:
    """Return the seconds of causal attention scores over whole prompts, without projections.

    - `width`: of a head's keys and values; `window`: tokens that a query sees, 0: all; `heads`: of a GPU.
    - `tokens`: of all prompts; `length`: of each.

    Interpolated by the logarithms of length and time; beyond the measured lengths, time grows with the length, except
    within a window. Without measurements of a window, queries take what those of a shorter prompt take.
    """
    cells = kernels.facts["prompt_ns"]
    widths = sorted({float(name.partition("/")[0]) for name in cells})
    near = min(widths, key=lambda known: abs(np.log(known / width)))
    full = cells[f"{near:g}/0"]
    each_ns = _at_size(kernels, full, length) * width / near
    windowed = cells.get(f"{near:g}/{WINDOW}")
    if window and length > window and windowed is None:  # a prompt whose queries see as much on average
        each_ns = _at_size(kernels, full, 2 * window - window**2 / length) * width / near
    elif window and length > window:
        in_window = _at_size(kernels, windowed, min(length, max(_cells(windowed))))
        each_ns = min(each_ns, in_window * max(1.0, window / WINDOW))
    return units.ns(each_ns) * heads * tokens


def score_flop_s(kernels: MeasuredKernels, width: float, length: float) -> float:
    """Return the seconds of a FLOP of scores over whole prompts of `length` tokens, by heads of this width."""
    return float(prompt_attention_s(kernels, width, 0, 1.0, 1.0, length)) / (2 * width * length)


WINDOW = 128  # tokens of the measured window


def _cells(facts: Mapping[str, float]) -> dict[float, float]:
    """The values of a fact by size, without its spread."""
    return {float(name): value for name, value in facts.items() if name.isdigit()}


def _at_size(kernels: MeasuredKernels, facts: Mapping[str, float], size: Any) -> Any:
    return kernels.spread(facts) * log_interpolated(facts, size)


def log_interpolated(facts: Mapping[str, float], size: Any) -> Any:
    """Return the value at `size`, interpolated by logarithms; beyond the ends, the first value, and the last one in
    proportion to `size`."""
    xp, (sizes, values) = array_module(size), np.array(sorted(_cells(facts).items())).T
    inside = xp.exp(xp.interp(xp.log(xp.maximum(size, sizes[0])), np.log(sizes), np.log(values)))
    return inside * xp.maximum(1.0, size / sizes[-1])


# ---------------------------------------------------------------------------------------------------------- collectives
def all_reduce_s(kernels: MeasuredKernels, gpus: int, size: Any) -> Any:
    """Return the seconds of an engine's all-reduce of `size` bytes on `gpus` GPUs of one NVLink domain; 0 for one GPU.

    The fastest of an engine's own kernels and NCCL; small kernels are in a CUDA graph.
    """
    return _by_gpus(kernels, kernels.facts["all_reduce"], gpus, size)


def collective_s(kernels: MeasuredKernels, what: str, gpus: int, size: Any) -> Any:
    """Return the seconds of a collective of NCCL on `gpus` GPUs of one NVLink domain; 0 for one GPU.

    - `what`: one of `COLLECTIVES`.
    - `size`: bytes of the whole buffer of one rank: what it holds after an all-gather, before a reduce-scatter, and
      before and after an all-reduce or an all-to-all, its own share included. Of these, (gpus - 1) / gpus go over each
      GPU's links, twice in a ring of an all-reduce.

    Of the measured numbers of GPUs, that nearest to `gpus` counts.
    """
    return _by_gpus(kernels, kernels.facts["nccl"][one_of("collective", what, COLLECTIVES)], gpus, size)


def _by_gpus(kernels: MeasuredKernels, known: Mapping[str, Any], gpus: int, size: Any) -> Any:
    """Seconds among the nearest measured number of GPUs; more GPUs than that have the same bandwidth of links."""
    if gpus == 1:
        return 0.0 * size
    near = _nearest(known, gpus)
    more = max(1.0, (1 - 1 / gpus) / (1 - 1 / int(near)))
    return more * units.us(_at_size(kernels, known[near], size * kernels.links))


DEEPEP_MODES, DEEPEP_WAYS = ("normal", "ll"), ("dispatch", "combine")
# Bytes of a token's vector, as it was measured: 7168 elements in FP8 with a scale of 4 bytes for 128, and in bf16.
DEEPEP_BYTES = {"dispatch": 7168 * (1 + 4 / 128), "combine": 7168 * 2.0}


def deepep_s(kernels: MeasuredKernels, mode: str, what: str, nodes: int, tokens: Any, token_bytes: float) -> Any:
    """Return the seconds of a dispatch or combine of DeepEP, whose tokens go to 8 of 256 experts on all GPUs.

    - `mode`: `normal` with 20 multiprocessors, DeepEP's default, or `ll`, low latency.
    - `what`: `dispatch` or `combine`; `nodes`: servers; `tokens`: that each GPU sends, or gets back.
    - `token_bytes`: of a token's vector as it is sent. Vectors of other widths take the time of as many measured ones
      as have the same bytes.

    In the normal mode, a wait for the other ranks' counts (`notify`) adds to the transmission. Raise `InputError` for
    a GPU without measurements, and for several servers where one was measured.
    """
    known = kernels.facts.get("deepep", {}).get(one_of("mode", mode, DEEPEP_MODES))
    if known is None:
        raise InputError(f"DeepEP has no measured times on {kernels.gpu.name}; allowed: {', '.join(deepep_gpus())}.")
    by_nodes = known[one_of("what", what, DEEPEP_WAYS)]
    if nodes > 1 and set(by_nodes) == {"1"}:
        raise InputError(f"nodes must be 1 for DeepEP on {kernels.gpu.name}, got {nodes}: no other was measured.")
    near = "1" if nodes == 1 else _nearest({name: 0 for name in by_nodes if name != "1"}, nodes)
    alike = tokens * (token_bytes / DEEPEP_BYTES[what])
    waits = known.get(f"{what}_notify", {}).get(near)
    wait_us = _at_size(kernels, waits, alike) if waits else 0.0
    return units.us(_at_size(kernels, by_nodes[near], alike) + wait_us)


def deepep_gpus() -> list[str]:
    """Return the names of the GPUs with measured times of DeepEP."""
    return [name for name, facts in known_facts().items() if "deepep" in facts]


def copied_Bps(kernels: MeasuredKernels) -> float:
    """Return the bytes/s at which kernels that only move bytes read and write memory."""
    facts = kernels.facts["pointwise"]
    return kernels.memory_Bps * facts["bw"] / kernels.spread(facts)


def pointwise_s(kernels: MeasuredKernels, count: float, size: Any) -> Any:
    """Return the seconds of `count` kernels that together move `size` bytes: norms, rotations, gates, casts, sums."""
    facts = kernels.facts["pointwise"]
    return units.us(kernels.spread(facts) * count * facts["floor_us"]) + size / copied_Bps(kernels)


# --------------------------------------------------------------------------------------------- messages inside a server
# Small messages are slow: an all-gather of 64 MB among eight H100 achieves 63 % of a GPU's NVLink, one of 16 MB 49 %.
def by_size(
    shares: BandwidthShares, job: Workload, gpu: Gpu, dispatcher: str, how: str = "usual", path: str | None = None
) -> BandwidthShares:
    """Return the shares of a job's messages by their size: TP collectives, and all-to-alls of NCCL, inside a server.

    Those of GPUs without measurements and in a user's table stay as they are, except that NVSwitches may reduce.
    Measured all-reduces contain what NCCL chose on the machine: eight H100 and H200 reach a bus bandwidth of 470 GB/s,
    above the 450 GB/s of their links, so NVLS is in them; those of B200 and B300, 728 of 900 GB/s, may be rings.
    """
    if dispatcher == "ideal" or not is_measured(gpu) or states(path, gpu):
        return with_nvls(shares, job)
    kernels = measured_kernels(gpu, how=how, path=path)
    if job.attention_tp > 1:
        shares = shares._replace(tp_nvlink=_ring_share(kernels, job))
    if dispatcher == "nccl" and job.ep > 1:
        shares = shares._replace(nvlink=_all_to_all_share(kernels, job))
    return shares


def with_nvls(shares: BandwidthShares, job: Workload) -> BandwidthShares:
    """Return the shares of a job whose TP collectives were not measured, if NVSwitches reduce (`Workload.nvls`).

    Under sequence parallelism these are all-gathers and reduce-scatters, which NVLS does not speed up.
    """
    gain = 1.0 if job.sequence_parallel else nvls_gain(job.nvls, job.attention_tp)
    return shares._replace(tp_nvlink=shares.tp_nvlink * gain) if gain > 1 else shares


def _ring_share(kernels: MeasuredKernels, job: Workload) -> float:
    gpus, size = job.attention_tp, job.folded * pp_bytes(job)
    parts = ("all_gather", "reduce_scatter") if job.sequence_parallel else ("all_reduce",)
    seconds = sum(float(collective_s(kernels, what, gpus, size)) for what in parts)
    return 2 * (gpus - 1) / gpus * size / (seconds * kernels.gpu.nvlink)


def _all_to_all_share(kernels: MeasuredKernels, job: Workload) -> float:
    """The share of balanced all-to-alls, mean of dispatch and combine, among the EP ranks of a server."""
    ranks = min(job.ep, job.ranks_per_server)
    rows = job.selections * ranks / job.ep
    width = job.architecture.routed_width
    sizes = [rows * width * each / job.tp for each in (job.dispatch_bytes, job.combine_bytes)]
    seconds = sum(float(collective_s(kernels, "all_to_all", ranks, size)) for size in sizes)
    return (ranks - 1) / ranks * sum(sizes) / (seconds * kernels.gpu.nvlink) if ranks > 1 else 1.0
