"""Seconds of single kernels of inference as they were measured (`measured_kernels.toml`), by GPU and engine.

A kernel has a floor: it takes microseconds, however small its work is. Above it, a matrix product follows a soft knee
between its FLOPs and its bytes, and pays for an incomplete last wave of tiles and for casts of activations to FP8 or
NVFP4. Fused experts follow tokens and active experts, attention of prompts width, window and length, attention of
decoding the bytes of caches, and all-reduces bytes and GPUs. A GPU without measurements takes the wide estimate of
`kernels.toml`, with sharp knees.

Numbers may be arrays that broadcast. Constants are least squares over tables of kernels, never over served models;
`benchmarks/kernel_tables.py` derives them.
"""

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.support.array_module import array_module
from mfabric_jax.support.text_files import cached_by_files
from mfabric_jax.workload.dispatch_kernels import shares_of
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.kernels import KernelRates, is_blackwell, rates_of, table
from mfabric_jax.workload.volume import ACTIVATION_BYTES

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
    """The kernels of one engine on one GPU: `facts` by kind, as in `measured_kernels.toml`."""

    gpu: Gpu
    facts: Mapping[str, Any]

    @property
    def memory_Bps(self) -> float:
        return self.gpu.memory_Bps or 0.0

    @property
    def sms(self) -> int:
        """Streaming multiprocessors of the GPU."""
        return self.facts["sms"]


@functools.cache
def _table() -> Mapping[str, Any]:
    text = (resources.files("mfabric_jax.workload") / "measured_kernels.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def measured_gpus() -> list[str]:
    """Return the names of the GPUs with measured kernels."""
    return list(_table())


@cached_by_files(lambda gpu, engine=FASTEST, how="usual", path=None: (path,), maxsize=64)
def measured_kernels(gpu: Gpu, engine: str = FASTEST, how: str = "usual", path: str | None = None) -> MeasuredKernels:
    """Return the kernels of an engine on a GPU.

    - `engine`: one of `ENGINES`, or `FASTEST`; `how`: low, usual or high rates of a GPU without measurements.
    - `path`: a user's table in the form of `kernels.toml`, which replaces the measurements of every GPU.

    Raise `InputError` for an unknown engine, and if a GPU's memory bandwidth is not known.
    """
    one_of("engine", engine, (*ENGINES, FASTEST))
    if gpu.memory_Bps is None:
        raise InputError(f"serving needs gpu.memory_gigabytes_per_s, which is not known for {gpu.name}.")
    known = _table().get(gpu.name)
    if known is None or path is not None:
        return MeasuredKernels(gpu, _estimated_facts(gpu, how, path))
    return MeasuredKernels(gpu, _merge(known, known.get(engine, {})))


def _merge(facts: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the fastest engine, replaced where an engine has its own."""
    both = {name: _merge(facts[name], value) for name, value in own.items() if isinstance(facts.get(name), dict)}
    return {**facts, **own, **both}


SHARP = 30.0  # exponent of a knee that is hardly soft
OTHER_SMS = 132  # of a GPU that nobody measured


def _estimated_facts(gpu: Gpu, how: str, path: str | None = None) -> dict[str, Any]:
    """Facts of a GPU without measured kernels: the rates of `kernels.toml`, and a launch as the floor. NVFP4 has the
    achieved fraction of FP8."""
    rates, launch_us = rates_of(gpu, how, path), float(table(path)["launch"]["us"])
    bw = rates.memory_Bps / (gpu.memory_Bps or rates.memory_Bps)
    share, grouped = (
        {name: rate / (FORMATS[name].rate * gpu.bf16_flops) for name, rate in known.items()}
        for known in (rates.products, rates.grouped)
    )
    if is_blackwell(gpu):
        share["nvfp4"], grouped["nvfp4"] = share["fp8"], grouped["fp8"]
    products = {
        name: {"floor_us": launch_us, "rate": part, "bw": bw, "p": SHARP, "wave": 0.0, "cast": bw}
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
    ring_Bps = gpu.nvlink * shares_of(1, "nccl", how, path).ring_nvlink
    scores = {
        f"{width}/0": {
            str(length): 2 * float(width) * length / units.ns(rates.scores(length, float(width), backward=False))
            for length in LENGTHS
        }
        for width in rates.attention[0]
    }
    reduces = {
        str(gpus): {str(size): 2 * (gpus - 1) * (launch_us + units.to_us(size / (gpus * ring_Bps))) for size in SIZES}
        for gpus in (2, 4, 8)
    }
    return {
        "sms": OTHER_SMS,
        "pointwise": {"floor_us": launch_us, "bw": bw},
        "products": products,
        "experts": experts,
        "decode": _estimated_decode(gpu, rates, launch_us),
        "latent": {"floor_us": 0.0, "ns_a_token": 0.0},
        "prompt_ns": scores,
        "all_reduce": reduces,
    }


def _estimated_decode(gpu: Gpu, rates: KernelRates, launch_us: float) -> dict[str, Any]:
    """Kernels of attention in decoding. Latent attention reads its cache, or takes its FLOPs at the rate of scores."""
    known: dict[str, Any] = {}
    for name in ("gqa", *map(str, HEADS)):
        flops = LATENT_FLOPS * int(name) if name != "gqa" else 0.0  # for every cached element
        least_s = flops / rates.scores(LENGTHS[-2], LATENT_WIDTH, backward=False)
        known[name] = {
            cache: {
                "floor_us": launch_us,
                "bw": size / max(size / rates.memory_Bps, least_s) / gpu.memory_Bps,  # type: ignore[operator]
                "ns_a_context_token": 0.0,
            }
            for cache, size in CACHE.items()
        }
    return known


LENGTHS = (256, 1024, 4096, 16384)  # of prompts, tokens
HEADS, LATENT_WIDTH = (16, 32, 64, 128), 160  # of latent attention
LATENT_FLOPS = 2 * (2 * 512 + 64) / 576  # of a head for every cached element of latents, as released models have them
SIZES = tuple(2**power for power in range(10, 31, 2))  # of all-reduces, bytes


# ------------------------------------------------------------------------------------------------------------- products
def product_s(kernels: MeasuredKernels, number: str, rows: Any, inner: Any, outer: Any) -> Any:
    """Return the seconds of a product of `rows` x `inner` activations with `inner` x `outer` weights.

    - `number`: a key of `FORMATS`. The cast of activations is included.

    floor + (F^p + M^p)^(1/p) + cast, with F the FLOPs at the achieved rate, times waves^wave, and M the bytes at the
    achieved bandwidth.
    """
    facts = _facts_of(kernels.facts["products"], number, kernels.gpu)
    return product_form(facts, kernels, FORMATS[number], rows, inner, outer)


def product_form(
    facts: Mapping[str, float], kernels: MeasuredKernels, form: KernelFormat, rows: Any, inner: Any, outer: Any
) -> Any:
    """Return `product_s` for these constants."""
    xp, memory_Bps = array_module(rows, inner, outer), kernels.memory_Bps
    rows = xp.asarray(rows, float)
    tiles = xp.ceil(rows / TILE) * xp.ceil(xp.asarray(outer, float) / TILE)
    waves = xp.ceil(tiles / kernels.sms) * kernels.sms / tiles
    flops_s = 2 * rows * inner * outer / (form.rate * kernels.gpu.bf16_flops * facts["rate"])
    moved = form.weight * inner * outer + form.activation * rows * inner + ACTIVATION_BYTES * rows * outer
    return (
        units.us(facts["floor_us"])
        + soft_max(flops_s * waves ** facts["wave"], moved / (memory_Bps * facts["bw"]), facts["p"])
        + form.cast * rows * inner / (memory_Bps * facts["cast"])
    )


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

    floor + a term for each active expert + hypot(F, W) + permutation, with F the FLOPs of all rows, each expert's
    filled up by half a tile, and W the weights of active experts.
    """
    return experts_form(_facts_of(kernels.facts["experts"], number, kernels.gpu), kernels, FORMATS[number], work)


def experts_form(facts: Mapping[str, float], kernels: MeasuredKernels, form: KernelFormat, work: ExpertWork) -> Any:
    """Return `experts_s` for these constants."""
    memory_Bps, matrix = kernels.memory_Bps, work.matrices * work.width * work.inner
    filled = work.rows + 0.5 * facts["tile"] * work.active
    flops_s = 2 * filled * matrix / (form.rate * kernels.gpu.bf16_flops * facts["rate"])
    read_s = work.active * matrix * form.weight / (memory_Bps * facts["bw"])
    moved = work.rows * (2 * work.width + work.matrices * work.inner) * ACTIVATION_BYTES
    return (
        units.us(facts["floor_us"] + facts["per_expert_us"] * work.active)
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
    return decode_form(kind[one_of("cache format", cache, CACHE)], kernels, cache, elements, requests, context)


def decode_form(
    facts: Mapping[str, float], kernels: MeasuredKernels, cache: str, elements: Any, requests: Any, context: Any
) -> Any:
    """Return `decode_s` for these constants."""
    read = requests * context * elements * CACHE[cache]
    serial_s = units.ns(facts["ns_a_context_token"]) * context
    return units.us(facts["floor_us"]) + read / (kernels.memory_Bps * facts["bw"]) + serial_s


def _nearest(known: Mapping[str, Any], heads: int) -> str:
    """The measured number of heads nearest to `heads` by ratio."""
    return min((name for name in known if name.isdigit()), key=lambda name: abs(np.log(int(name) / max(heads, 1))))


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
    full = f"{near:g}/0"
    each_ns = log_interpolated(cells[full], length) * width / near
    windowed = f"{near:g}/{WINDOW}"
    if window and length > window and windowed not in cells:  # a prompt whose queries see as much on average
        each_ns = log_interpolated(cells[full], 2 * window - window**2 / length) * width / near
    elif window and length > window:
        in_window = log_interpolated(cells[windowed], min(length, max(map(float, cells[windowed]))))
        each_ns = min(each_ns, in_window * max(1.0, window / WINDOW))
    return units.ns(each_ns) * heads * tokens


WINDOW = 128  # tokens of the measured window


def log_interpolated(known: Mapping[str, float], size: Any) -> Any:
    """Return the value at `size`, interpolated by logarithms; beyond the ends, the first value, and the last one in
    proportion to `size`."""
    xp, (sizes, values) = array_module(size), np.array(sorted((float(name), value) for name, value in known.items())).T
    inside = xp.exp(xp.interp(xp.log(xp.maximum(size, sizes[0])), np.log(sizes), np.log(values)))
    return inside * xp.maximum(1.0, size / sizes[-1])


# ---------------------------------------------------------------------------------------------- all-reduces, small ones
def all_reduce_s(kernels: MeasuredKernels, gpus: int, size: Any) -> Any:
    """Return the seconds of an all-reduce of `size` bytes on `gpus` GPUs of one NVLink domain; 0 for one GPU."""
    if gpus == 1:
        return 0.0 * size
    known = kernels.facts["all_reduce"]
    nearest = min(known, key=lambda name: abs(np.log(int(name) / gpus)))
    return units.us(log_interpolated(known[nearest], size))


def pointwise_s(kernels: MeasuredKernels, count: float, size: Any) -> Any:
    """Return the seconds of `count` kernels that together move `size` bytes: norms, rotations, gates, casts, sums."""
    facts = kernels.facts["pointwise"]
    return units.us(count * facts["floor_us"]) + size / (kernels.memory_Bps * facts["bw"])
