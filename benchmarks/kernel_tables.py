"""Derive `mfabric_jax/workload/measured_kernels.toml` from tables of measured kernels of inference.

    python -m benchmarks.kernel_tables WHEEL [GPU ...] > measured_kernels.toml
    python -m benchmarks.kernel_tables WHEEL [GPU ...] --check     # errors of the shipped table against the same cells

WHEEL is that of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0; `pip download --no-deps aiconfigurator-core==0.12.0`).
Only its tables of kernels are read: `systems/data/GPU/{gemm,moe,attention,mla,comm,quantize}`, of one release of each
engine (`RELEASES`), of every release of NCCL, and of SGLang's releases with DeepEP. Its tables of served models are
not. Constants are least squares of logarithms, with outliers damped (soft_l1). Needs pyarrow and scipy.

A cell is a shape that was measured. Of engines, the fastest counts, in cells that two of them measured (`SHARED`), so
that no constant joins the shapes of one engine with the speed of another. `fast` and `slow` are the 10 % and the 90 %
quantile of measured over predicted seconds in all cells of all engines.

What is left out, and why:
- FP8 products by blocks of vLLM and casts of SGLang: they hold launches from Python (55 to 300 us; 8 us).
- Experts of 7168 wide vectors with 256 experts: their router picks few groups, so some experts get no token although
  tokens are balanced. TensorRT-LLM's kernels of minimal latency: the same. Power laws of experts' loads: their active
  experts are not stated.
- Experts without a gate (Nemotron: 22 experts of a token, or 2688 x 1856), which have two matrices of three, and which
  SGLang runs on Hopper at a third of the speed. Experts with an activation of their own (`situ`).
- TensorRT-LLM's CUTLASS experts on Blackwell, which it does not choose there; its DeepGEMM stays, which all engines
  have, and which is faster than TRTLLM-gen from about 1000 tokens. Triton's and CUTLASS's experts of other engines on
  Blackwell, to which these resort for models that TRTLLM-gen does not cover, at 0.3 to 0.5 of its speed: they count in
  `slow` alone.
- Attention in decoding where more than 16 heads share keys and values (`MOST_GROUPED`): beyond 32, TensorRT-LLM's
  kernel is up to 30 times slower. Nearly all public models have 16 at most.
- SGLang's latent attention on Hopper over FP8 caches, up to 9 times slower than TensorRT-LLM's, and of prompts, up to 3
  times slower, as if in the absorbed form of decoding, with 3.4 times the FLOPs.
- An engine's own constants for formats that it hardly supports: a mean error above `WORST`.
- Launches without a CUDA graph of all-reduces.
"""

import argparse
import collections
import fnmatch
import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as parquet
from scipy.optimize import least_squares

from mfabric_jax import units
from mfabric_jax.workload import get_gpu
from mfabric_jax.workload import measured_kernels as forms
from mfabric_jax.workload.measured_kernels import FORMATS, ExpertWork, MeasuredKernels, log_interpolated

TABLES = {  # name of a GPU in the tables, streaming multiprocessors
    "H100-SXM": ("h100_sxm", 132),
    "H200-SXM": ("h200_sxm", 132),
    "B200-HGX": ("b200_sxm", 148),
    "B300-HGX": ("b300_sxm", 148),
    "GB200-NVL72": ("gb200", 152),
}
RELEASES = {"trtllm": "1.3.0rc20", "sglang": "0.5.14", "vllm": "0.24.0"}
ENGINES = tuple(RELEASES)
HOPPER = ("H100-SXM", "H200-SXM")
BLACKWELL_EXPERTS = ("trtllm", "deepgemm")  # parts of names of the fused experts that all engines have there
GEMM = {"bfloat16": "bf16", "fp8_block": "fp8", "nvfp4": "nvfp4"}
MOE = {
    "bfloat16": "bf16",
    "fp8_block": "fp8",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4-fp8",
}
CACHES = {"bfloat16": "bf16", "fp8": "fp8"}
SHARED = 2  # engines that measured a cell
MOST_GROUPED = 16
MOST_ROWS = 3000  # of a fit
WORST = 0.2  # mean error of constants that are kept
NOTHING = 1e-6  # a constant below it is 0
SPREAD = {"fast": 0.1, "slow": 0.9}  # quantiles

Rows = list[dict[str, Any]]
Facts = Mapping[str, Any]
Start = Mapping[str, tuple[float, float, float]]


class Tables:
    """The tables of one GPU in the wheel."""

    def __init__(self, wheel: str, gpu: str):
        self.files, self.gpu = zipfile.ZipFile(wheel), gpu

    def rows(self, kind: str, engine: str, table: str, *, release: str = "", **only: Any) -> Rows:
        """Return the rows of an engine's table that have these values; none if its release has no such table."""
        path = f"*/data/{self.gpu}/{kind}/{engine}/{release or RELEASES[engine]}/{table}_perf.parquet"
        filters: Any = [(name, "=", value) for name, value in only.items()] or None
        return [
            row
            for name in fnmatch.filter(self.files.namelist(), path)
            for row in parquet.read_table(io.BytesIO(self.files.read(name)), filters=filters).to_pylist()
            if row.get("latency", 1) > 0
        ]

    def by_engine(self, engines: Sequence[str], kind: str, table: str, **only: Any) -> dict[str, Rows]:
        return {engine: self.rows(kind, engine, table, **only) for engine in engines}


# ---------------------------------------------------------------------------------------------------------------- cells
class Cells(NamedTuple):
    """Measured cells: their seconds [cell], and what a form says of them for some constants."""

    form: Callable[[Facts], Any]
    seconds: Any


class Line(NamedTuple):
    """A line of the table.

    - `best`: cells of the fastest engine; `every`: cells of each engine.
    - `start`: start, least and most of each constant that is fitted to `best`; None if `facts` are the line.
    - `note`: what stands behind the line in place of its errors.
    """

    path: tuple[str, ...]
    best: Cells
    every: Cells
    start: Start | None = None
    facts: Facts | None = None
    note: str = ""


def fastest(rows: Iterable[Mapping[str, Any]], *keys: str) -> dict[tuple[Any, ...], float]:
    """Return the least seconds by these keys."""
    least: dict[tuple[Any, ...], float] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        least[key] = min(row["latency"] / 1000, least.get(key, np.inf))
    return least


def fastest_shared(rows: Mapping[str, Rows], *keys: str) -> dict[tuple[Any, ...], float]:
    """Return the seconds of the fastest engine, in cells that `SHARED` engines measured, or all that there are."""
    each = [fastest(own, *keys) for own in rows.values() if own]
    count = collections.Counter(key for own in each for key in own)
    least: dict[tuple[Any, ...], float] = {}
    for own in each:
        for key, seconds in own.items():
            if count[key] >= min(SHARED, len(each)):
                least[key] = min(seconds, least.get(key, np.inf))
    return least


def cells(form: Callable[..., Any], some: Iterable[tuple[tuple[Any, ...], float]], most: int = MOST_ROWS) -> Cells:
    """Return at most about `most` cells, evenly drawn; `form` takes constants and a column [cell] for each key."""
    known = sorted(some)
    known = known[:: max(1, len(known) // most)]
    columns = np.array([key for key, _ in known], float).T
    return Cells(lambda facts: form(facts, *columns), np.array([seconds for _, seconds in known]))


def line(
    path: tuple[str, ...],
    form: Callable[..., Any],
    keys: Sequence[str],
    rows: Mapping[str, Rows],
    start: Start | None = None,
    facts: Facts | None = None,
    every: Mapping[str, Rows] | None = None,
) -> Line:
    """Return a line from the rows of engines; `every`: rows for its spread, if these are more."""
    each = [item for own in (every or rows).values() for item in fastest(own, *keys).items()]
    return Line(path, cells(form, fastest_shared(rows, *keys).items()), cells(form, each, 10 * MOST_ROWS), start, facts)


def select(rows: Mapping[str, Rows], **only: Any) -> dict[str, Rows]:
    """Return the rows of engines that have these values."""
    return {
        engine: [row for row in own if all(row[name] == value for name, value in only.items())]
        for engine, own in rows.items()
    }


def keep_rows(rows: Mapping[str, Rows], wanted: Callable[[Mapping[str, Any]], bool]) -> dict[str, Rows]:
    return {engine: [row for row in own if wanted(row)] for engine, own in rows.items()}


def has_rows(rows: Mapping[str, Rows], least: int = 20) -> bool:
    return sum(map(len, rows.values())) > least


# -------------------------------------------------------------------------------------------------------------- fitting
def fit(some: Cells, start: Start) -> dict[str, float]:
    """Return the constants that make the form fit the measured seconds."""
    names = list(start)
    first, low, high = (np.array([start[name][part] for name in names]) for part in range(3))

    def miss(values: Any) -> Any:
        return np.log(some.form(dict(zip(names, values, strict=True))) / some.seconds)

    best = least_squares(miss, first, bounds=(low, high), loss="soft_l1", f_scale=0.15, x_scale=np.maximum(first, 1e-3))
    rounded = {name: float(f"{value:.4g}") for name, value in zip(names, best.x, strict=True)}
    return {name: value if value > NOTHING else 0.0 for name, value in rounded.items()}


def facts_of(row: Line) -> dict[str, float]:
    """Return the constants of a line with their spread."""
    facts = dict(row.facts or {}) if row.start is None else fit(row.best, row.start)
    ratios = row.every.seconds / row.every.form(facts)
    fast, slow = (float(f"{np.quantile(ratios, part):.3g}") for part in SPREAD.values())
    return facts | {"fast": min(fast, 1.0), "slow": max(slow, 1.0)}


class Errors(NamedTuple):
    """Of a line: cells of the fastest engine, mean magnitude and median of predicted / measured - 1, and the spread of
    measured / predicted over all engines."""

    rows: int
    mean: float
    median: float
    fast: float
    slow: float


def errors_of(row: Line, facts: Facts) -> Errors:
    errors = row.best.form(facts) / row.best.seconds - 1
    ratios = row.every.seconds / row.every.form(facts)
    spread = (float(np.quantile(ratios, part)) for part in SPREAD.values())
    return Errors(len(errors), float(np.abs(errors).mean()), float(np.median(errors)), *spread)


# ---------------------------------------------------------------------------------------------------------------- kinds
PRODUCT = {
    **{"floor_us": (3, 0.5, 9), "rate": (0.75, 0.3, 1), "bw": (0.8, 0.3, 1), "p": (2, 1, 6)},
    **{"out": (1, 0.3, 3), "wave": (0.5, 0, 1), "cast": (0.8, 0.5, 1)},
}


def products(tables: Tables, kernels: MeasuredKernels) -> Iterator[Line]:
    rows = keep_rows(tables.by_engine(ENGINES, "gemm", "gemm"), lambda row: row["m"] <= 16384)
    for stored, number in GEMM.items():
        some = select(rows, gemm_dtype=stored)
        if stored == "fp8_block":
            some["vllm"] = []

        def form(facts: Facts, m: Any, n: Any, k: Any, number: str = number) -> Any:
            return forms.product_form(facts, kernels, FORMATS[number], m, k, n)

        if has_rows(some):
            yield line(("products", number), form, ("m", "n", "k"), some, PRODUCT)


EXPERT_KEYS = "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"
EXPERTS = {
    **{"floor_us": (22, 5, 60), "split_us": (5, 0, 60), "per_expert_us": (0.1, 0, 2), "rate": (0.6, 0.2, 1)},
    **{"bw": (0.85, 0.3, 1), "tile": (20, 0, 200), "perm": (0.5, 0.1, 3), "slot": (1.5, 0.1, 30)},
}


def experts(tables: Tables, kernels: MeasuredKernels, engines: Sequence[str]) -> Iterator[Line]:
    every = keep_rows(tables.by_engine(engines, "moe", "moe", distribution="balanced"), _usual_experts)
    rows = every
    if kernels.gpu.name not in HOPPER:
        every["trtllm"] = [row for row in every["trtllm"] if _of_blackwell(row)]
        rows = keep_rows(every, _of_blackwell)
    for stored, number in MOE.items():
        some, all_of = select(rows, moe_dtype=stored), select(every, moe_dtype=stored)

        def form(facts: Facts, *columns: Any, number: str = number) -> Any:
            tokens, hidden, inner, k, count, tp, ep = columns
            copies = np.where(ep > 1, tokens * k, 0.0)
            work = ExpertWork(np.minimum(count, tokens * k) / ep, tokens * k / ep, copies, hidden, inner / tp)
            return forms.experts_form(facts, kernels, FORMATS[number], work)

        if has_rows(some, 50):
            yield line(("experts", number), form, EXPERT_KEYS, some, EXPERTS, every=all_of)


def _usual_experts(row: Mapping[str, Any]) -> bool:
    hidden, inner, source = row["hidden_size"], row["inter_size"], row["kernel_source"]
    gated = row["topk"] != 22 and (hidden, inner) != (2688, 1856)
    plain = not any(word in source for word in ("min_latency", "nongated", "situ"))
    wide = inner // row["moe_tp_size"] >= 96 and row["num_experts"] >= 16 and row["moe_ep_size"] <= 16
    return gated and plain and wide and (hidden, row["num_experts"]) != (7168, 256)


def _of_blackwell(row: Mapping[str, Any]) -> bool:
    return any(word in row["kernel_source"] for word in BLACKWELL_EXPERTS)


DECODE_KEYS = "batch_size", "num_heads", "num_key_value_heads", "head_dim", "step"
DECODE = {"floor_us": (10, 2, 40), "bw": (0.8, 0.2, 1), "ns_a_context_token": (0.1, 0, 2)}


def decode(tables: Tables, kernels: MeasuredKernels, engines: Sequence[str]) -> Iterator[Line]:
    """Grouped-query attention."""
    rows = tables.by_engine(engines, "attention", "generation_attention", window_size=0)
    rows = keep_rows(rows, lambda row: row["head_dim"] in (64, 128) and 255 <= row["step"] <= 65536)
    rows = keep_rows(rows, lambda row: 1 < row["num_heads"] / row["num_key_value_heads"] <= MOST_GROUPED)
    for stored, cache in CACHES.items():

        def form(facts: Facts, batch: Any, _: Any, kv: Any, width: Any, step: Any, cache: str = cache) -> Any:
            return forms.decode_form(facts, kernels, cache, 2 * kv * width, batch, step + 1)

        some = select(rows, kv_cache_dtype=stored)
        if has_rows(some):
            yield line(("decode", "gqa", cache), form, DECODE_KEYS, some, DECODE)


LATENT = ("trtllm", "sglang")  # tables with latent attention alone


def latent_decode(tables: Tables, kernels: MeasuredKernels) -> Iterator[Line]:
    """Latent attention, in which engines differ little."""
    rows = tables.by_engine(LATENT, "mla", "generation_mla")
    rows = keep_rows(rows, lambda row: 255 <= row["step"] <= 65536)
    if kernels.gpu.name in HOPPER:
        rows["sglang"] = [row for row in rows["sglang"] if row["kv_cache_dtype"] != "fp8"]
    for heads in (16, 32, 64, 128):
        for stored, cache in CACHES.items():

            def form(facts: Facts, batch: Any, step: Any, cache: str = cache) -> Any:
                return forms.decode_form(facts, kernels, cache, 576, batch, step + 1)

            some = select(rows, kv_cache_dtype=stored, num_heads=heads)
            if has_rows(some):
                yield line(("decode", str(heads), cache), form, ("batch_size", "step"), some, DECODE)


PROMPT_KEYS = "isl", "batch_size", "num_heads"
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
WIDTHS = {"64/0": (64, 0), "64/128": (64, 128), "128/0": (128, 0)}


def prompts(tables: Tables, gpu: str) -> Iterator[Line]:
    """Nanoseconds of a token and head by length, for one long or a few short prompts."""
    plain = tables.by_engine(
        ENGINES, "attention", "context_attention", attn_dtype="bfloat16", kv_cache_dtype="bfloat16"
    )
    latent = tables.by_engine(
        LATENT[:1] if gpu in HOPPER else LATENT, "mla", "context_mla", mla_dtype="bfloat16", kv_cache_dtype="bfloat16"
    )
    by_width = {name: select(plain, head_dim=width, window_size=window) for name, (width, window) in WIDTHS.items()} | {
        "160/0": latent
    }

    def form(facts: Facts, length: Any, batch: Any, heads: Any) -> Any:
        return units.ns(log_interpolated(facts, length)) * length * batch * heads

    for name, rows in sorted(by_width.items()):
        some = keep_rows(rows, lambda row: 2**17 <= row["isl"] * row["batch_size"] * row["num_heads"] <= 2**21)
        some = keep_rows(some, lambda row: row["isl"] in LENGTHS)
        by: dict[int, list[float]] = collections.defaultdict(list)
        for (length, batch, heads), seconds in fastest_shared(some, *PROMPT_KEYS).items():
            by[length].append(1e9 * seconds / (length * batch * heads))
        facts = {str(length): float(f"{np.median(own):.4g}") for length, own in sorted(by.items())}
        yield line(("prompt_ns", name), form, PROMPT_KEYS, some, facts=facts)


# ---------------------------------------------------------------------------------------------------------- collectives
def by_size(path: tuple[str, ...], rows: Mapping[str, Rows]) -> Line:
    """Microseconds by bytes: at powers of four and at the largest size. Tables count elements of two bytes. A message
    takes no longer than a larger one."""
    least = sorted(fastest([row for own in rows.values() for row in own], "message_size").items())
    sizes = np.array([2 * elements for (elements,), _ in least])
    seconds = np.minimum.accumulate(np.array([own for _, own in least])[::-1])[::-1]
    facts = {
        str(size): float(f"{units.to_us(own):.3g}")
        for size, own in zip(sizes.tolist(), seconds, strict=True)
        if 2**10 <= size <= 2**30 and (size in forms.SIZES or size == sizes[-1])
    }

    def form(facts: Facts, elements: Any) -> Any:
        return units.us(log_interpolated(facts, 2 * elements))

    each = [item for own in rows.values() for item in fastest(own, "message_size").items()]
    return Line(path, cells(form, least), cells(form, each), facts=facts)


def all_reduces(tables: Tables, engines: Sequence[str]) -> Iterator[Line]:
    rows = tables.by_engine(engines, "comm", "custom_allreduce")
    rows = keep_rows(rows, lambda row: "eager" not in row["kernel_source"] and 2**9 <= row["message_size"] <= 2**29)
    for gpus in sorted({row["num_gpus"] for own in rows.values() for row in own}):
        yield by_size(("all_reduce", str(gpus)), select(rows, num_gpus=gpus))


NCCL = {name: name.replace("all_to_all", "alltoall") for name in forms.COLLECTIVES}


def nccl(tables: Tables) -> Iterator[Line]:
    """The fastest release counts. A size is that of the whole buffer of a rank: with it, no measured time needs more
    than NVLink's bandwidth, except all-reduces in switches."""
    rows = tables.rows("comm", "nccl", "nccl", release="*", nccl_dtype="half")
    rows = [row for row in rows if 2**9 <= row["message_size"] <= 2**29]
    by_release: dict[str, Rows] = collections.defaultdict(list)
    for row in rows:
        by_release[row.get("version", "")].append(row)
    for what, stored in NCCL.items():
        for gpus in sorted({row["num_gpus"] for row in rows}):
            yield by_size(("nccl", what, str(gpus)), select(by_release, op_name=stored, num_gpus=gpus))


DEEPEP_SMS = 20  # DeepEP's default
DEEPEP_COLUMNS = {
    ("normal", "dispatch"): "dispatch_transmit_us",
    ("normal", "combine"): "combine_transmit_us",
    ("normal", "dispatch_notify"): "dispatch_notify_us",
    ("normal", "combine_notify"): "combine_notify_us",
    ("ll", "dispatch"): "dispatch_avg_t_us",
    ("ll", "combine"): "combine_avg_t_us",
}


def deepep(tables: Tables) -> Iterator[Line]:
    """Microseconds of 8 of 256 experts by servers and by tokens a GPU, 7168 wide, in the newest release that measured
    as many servers; the spread is over all widths. Tokens are dispatched in FP8 and combined in bf16: bytes over
    seconds of the tables of low latency say so."""
    for (mode, what), column in DEEPEP_COLUMNS.items():
        rows = tables.rows("comm", "sglang", f"wideep_deepep_{mode}", release="*", num_topk=8, num_experts=256)
        rows = [row for row in rows if row.get("dispatch_sms", DEEPEP_SMS) == DEEPEP_SMS and row[column] > 0]
        rows = [row for row in rows if row.get("combine_sms", DEEPEP_SMS) == DEEPEP_SMS]
        for nodes in sorted({row["node_num"] for row in rows}):
            own = [row for row in rows if row["node_num"] == nodes]
            newest = max(_release(row) for row in own)
            own = [row for row in own if _release(row) == newest]
            yield _by_tokens(("deepep", mode, what, str(nodes)), own, column)


def _by_tokens(path: tuple[str, ...], rows: Rows, column: str) -> Line:
    every = [((row["num_token"], row["hidden_size"]), units.us(row[column])) for row in rows]
    measured = {tokens: seconds for (tokens, width), seconds in every if width == 7168}
    ends = min(measured), max(measured)
    facts = {
        str(tokens): float(f"{units.to_us(seconds):.3g}")
        for tokens, seconds in sorted(measured.items())
        if tokens in ends or np.log2(tokens) % 2 == 0
    }

    def form(facts: Facts, tokens: Any, width: Any) -> Any:
        return units.us(log_interpolated(facts, tokens * width / 7168))

    best = [((tokens, 7168), seconds) for tokens, seconds in measured.items()]
    return Line(path, cells(form, best), cells(form, every), facts=facts)


def _release(row: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in row["version"].split(".") if part.isdigit())


# ------------------------------------------------------------------------------------------------------- small kernels
def pointwise(tables: Tables) -> Iterator[Line]:
    """Floor of an elementwise kernel: the median of engines' casts of up to 16 tokens. Bytes at the rate of a copy."""
    rows = keep_rows(tables.by_engine(("trtllm", "vllm"), "quantize", "scale_matrix"), lambda row: row["m"] <= 16)
    seconds = np.array([row["latency"] / 1000 for own in rows.values() for row in own])
    some = Cells(lambda facts: np.full(len(seconds), units.us(facts["floor_us"])), seconds)
    facts = {"floor_us": float(f"{units.to_us(np.median(seconds)):.3g}"), "bw": 0.82}
    yield Line(("pointwise",), some, some, facts=facts)


def latent(tables: Tables, kernels: MeasuredKernels) -> Iterator[Line]:
    """What a module of latent attention (DeepSeek-V3) takes in decoding beside its products and its core. Errors and
    spread are of whole modules."""
    rows = tables.by_engine(ENGINES, "mla", "mla_generation_module", gemm_type="bfloat16")
    rows = keep_rows(
        rows, lambda row: row["num_heads"] >= 8 and 255 <= row["step"] <= 8192 and row["batch_size"] <= 256
    )
    keys = "kv_cache_dtype", "num_heads", "batch_size", "step"

    def other_s(stored: str, heads: int, batch: int, step: int) -> float:
        shapes = (7168, 2112), (1536, 192 * heads), (128, 512 * heads), (512, 128 * heads), (128 * heads, 7168)
        parts = sum(float(forms.product_s(kernels, "bf16", batch, *shape)) for shape in shapes)
        return parts + float(forms.decode_s(kernels, CACHES[stored], 576, batch, step + 1, max(16, heads)))

    def form(facts: Facts, batch: Any, other: Any) -> Any:
        return other + forms.latent_form(facts, batch)

    best = [((key[2], other_s(*key)), seconds) for key, seconds in fastest_shared(rows, *keys).items()]
    each = [item for own in rows.values() for item in fastest(own, *keys).items()]
    every = [((key[2], other_s(*key)), seconds) for key, seconds in each]
    few = np.median([units.to_us(seconds - other) for (batch, other), seconds in best if batch <= 16])
    many = np.median([units.to_us(seconds - other) for (batch, other), seconds in best if batch == 256])
    floor = max(0.0, float(few))
    slope = max(0.0, (float(many) - floor) / 256)
    facts = {"floor_us": float(f"{floor:.3g}"), "ns_a_token": float(f"{1000 * slope:.3g}")}
    yield Line(("latent",), cells(form, best), cells(form, every), facts=facts)


# ---------------------------------------------------------------------------------------------------------------- lines
def lines_of(wheel: str, kernels: MeasuredKernels, kinds: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the lines of a GPU. Those of latent attention need its products and decoding in `kernels`."""
    gpu = kernels.gpu.name
    tables = Tables(wheel, TABLES[gpu][0])
    makers: dict[str, Callable[[], Iterator[Line]]] = {
        "pointwise": lambda: pointwise(tables),
        "products": lambda: products(tables, kernels),
        "experts": lambda: experts(tables, kernels, ENGINES),
        "decode": lambda: decode(tables, kernels, ENGINES),
        "latent_decode": lambda: latent_decode(tables, kernels),
        "latent": lambda: latent(tables, kernels),
        "prompt_ns": lambda: prompts(tables, gpu),
        "all_reduce": lambda: all_reduces(tables, ENGINES),
        "nccl": lambda: nccl(tables),
        "deepep": lambda: deepep(tables),
    }
    for kind, make in makers.items():
        if not kinds or kind in kinds:
            yield from make()
    for engine in ENGINES:
        own: dict[str, Callable[[], Iterator[Line]]] = {
            "decode": lambda engine=engine: decode(tables, kernels, (engine,)),
            "all_reduce": lambda engine=engine: all_reduces(tables, (engine,)),
        }
        if gpu in HOPPER:
            own["experts"] = lambda engine=engine: experts(tables, kernels, (engine,))
        for kind, make in own.items():
            if not kinds or kind in kinds:
                yield from (row._replace(path=(engine, *row.path)) for row in make())


def derive(wheel: str, gpu: str, kinds: Sequence[str]) -> Iterator[str]:
    """Yield the lines of TOML of a GPU."""
    facts: dict[str, Any] = {"sms": TABLES[gpu][1]}
    yield f"sms = {facts['sms']}"
    yield from toml_lines(lines_of(wheel, MeasuredKernels(get_gpu(gpu), facts), kinds), facts)


def toml_lines(rows: Iterable[Line], facts: dict[str, Any]) -> Iterator[str]:
    """Yield TOML of these lines, and put their constants into `facts`."""
    for row in rows:
        own = facts_of(row)
        errors = errors_of(row, own)
        if row.start is not None and errors.mean > WORST and row.path[0] in ENGINES:
            continue
        put(facts, row.path, own)
        words = f"{errors.rows} rows: mean error {errors.mean:.0%}, median {errors.median:+.0%}"
        numbers = ", ".join(f"{name} = {number}" for name, number in own.items())
        yield f"{'.'.join(map(_key, row.path))} = {{ {numbers} }}  # {row.note or words}"


def put(facts: dict[str, Any], path: Sequence[str], own: Facts) -> None:
    for name in path[:-1]:
        facts = facts.setdefault(name, {})
    facts[path[-1]] = own


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else f'"{name}"'


# ---------------------------------------------------------------------------------------------------------------- check
def check(wheel: str, gpu: str, kinds: Sequence[str]) -> Iterator[tuple[str, Errors]]:
    """Yield the errors of the lines of the shipped table."""
    shipped = forms.known_facts()[gpu]
    yield from errors_in(lines_of(wheel, MeasuredKernels(get_gpu(gpu), shipped), kinds), shipped)


def errors_in(rows: Iterable[Line], shipped: Facts) -> Iterator[tuple[str, Errors]]:
    """Yield the errors of the constants that these lines have in a table."""
    for row in rows:
        facts: Any = shipped
        for name in row.path:
            facts = facts.get(name, {})
        if facts:
            yield ".".join(row.path), errors_of(row, facts)


def print_errors(gpu: str, errors: Iterable[tuple[str, Errors]]) -> None:
    print(f"\n{gpu:34}{'cells':>6}{'mean':>7}{'median':>8}{'fast':>7}{'slow':>7}")
    for path, each in errors:
        print(f"{path:34}{each.rows:6}{each.mean:7.1%}{each.median:+8.1%}{each.fast:7.2f}{each.slow:7.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel")
    parser.add_argument("gpus", nargs="*", default=list(TABLES))
    parser.add_argument("--kinds", nargs="*", default=())
    parser.add_argument("--check", action="store_true", help="print errors of the shipped table")
    options = parser.parse_args()
    for gpu in options.gpus:
        if options.check:
            print_errors(gpu, check(options.wheel, gpu, options.kinds))
        else:
            print(f"\n[{gpu}]")
            print(*derive(options.wheel, gpu, options.kinds), sep="\n")


if __name__ == "__main__":
    main()
