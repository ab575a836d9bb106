"""Derive `mfabric_jax/workload/measured_kernels.toml` from tables of measured kernels of inference.

    python -m benchmarks.kernel_tables WHEEL [GPU ...] > measured_kernels.toml

WHEEL is that of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0; `pip download --no-deps aiconfigurator-core==0.12.0`).
Only its tables of kernels are read: `systems/data/GPU/{gemm,moe,attention,mla,comm,quantize}`, of one release of each
engine (`RELEASES`). Its tables of served models are not. Constants are least squares of logarithms, with outliers
damped (soft_l1). Needs pyarrow and scipy.

What is left out, and why:
- FP8 products by blocks of vLLM: they hold launches from Python (55 to 300 us).
- Experts of 7168 wide vectors with 256 experts: their router picks few groups, so some experts get no token although
  tokens are balanced. TensorRT-LLM's kernels of minimal latency: the same. Power laws of experts' loads: their active
  experts are not stated.
- Experts of TensorRT-LLM on Blackwell: its other tables hold CUTLASS and DeepGEMM, which it does not choose there.
- An engine's own constants for formats that it hardly supports: a mean error above `WORST`.
- Launches without a CUDA graph of all-reduces.
"""

import argparse
import collections
import io
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from scipy.optimize import least_squares

from mfabric_jax.workload import get_gpu
from mfabric_jax.workload import measured_kernels as forms
from mfabric_jax.workload.measured_kernels import FORMATS, ExpertWork, MeasuredKernels

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
TRTLLM_GEN = ("sglang", "vllm")  # tables with the fused experts that all engines call on Blackwell
GEMM = {"bfloat16": "bf16", "fp8_block": "fp8", "nvfp4": "nvfp4"}
MOE = {
    "bfloat16": "bf16",
    "fp8_block": "fp8",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4-fp8",
}
CACHES = {"bfloat16": "bf16", "fp8": "fp8"}
MOST_ROWS = 3000  # of a fit
WORST = 0.3  # mean error of constants that are kept
NOTHING = 1e-6  # a constant below it is 0

Rows = list[dict[str, Any]]


class Tables:
    """The tables of one GPU in the wheel."""

    def __init__(self, wheel: str, gpu: str):
        self.files, self.gpu = zipfile.ZipFile(wheel), gpu

    def rows(self, kind: str, engine: str, table: str, **only: Any) -> Rows:
        """Return the rows of an engine's table that have these values; none if its release has no such table."""
        path = f"/data/{self.gpu}/{kind}/{engine}/{RELEASES[engine]}/{table}_perf.parquet"
        named = [name for name in self.files.namelist() if name.endswith(path)]
        filters: Any = [(name, "=", value) for name, value in only.items()] or None
        return [
            row
            for name in named
            for row in parquet.read_table(io.BytesIO(self.files.read(name)), filters=filters).to_pylist()
        ]


def fastest(rows: Iterable[Mapping[str, Any]], *keys: str) -> dict[tuple, float]:
    """Return the least seconds by these keys."""
    least: dict[tuple, float] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        least[key] = min(row["latency"] / 1000, least.get(key, np.inf))
    return {key: seconds for key, seconds in least.items() if seconds > 0}


def fit(form: Callable[[Mapping[str, float]], Any], measured: Any, start: Mapping[str, tuple]) -> dict[str, float]:
    """Return the constants that make `form` fit the measured seconds; `start`: start, least, most of each."""
    names = list(start)
    first, low, high = (np.array([start[name][part] for name in names]) for part in range(3))

    def miss(values: Any) -> Any:
        return np.log(form(dict(zip(names, values, strict=True))) / measured)

    best = least_squares(miss, first, bounds=(low, high), loss="soft_l1", f_scale=0.15, x_scale=np.maximum(first, 1e-3))
    errors = np.expm1(miss(best.x))
    note = {"error": float(np.abs(errors).mean()), "bias": float(np.median(errors)), "rows": len(errors)}
    rounded = {name: float(f"{value:.4g}") for name, value in zip(names, best.x, strict=True)}
    return {name: value if value > NOTHING else 0.0 for name, value in rounded.items()} | note


def thinned(rows: Mapping[tuple, float]) -> tuple[Any, Any]:
    """Return keys [key, row] and seconds [row] of at most `MOST_ROWS` rows, evenly drawn."""
    some = sorted(rows.items())
    some = some[:: max(1, len(some) // MOST_ROWS)]
    return np.array([key for key, _ in some], float).T, np.array([seconds for _, seconds in some])


# ---------------------------------------------------------------------------------------------------------------- kinds
def products(tables: Tables, kernels: MeasuredKernels) -> dict[str, Any]:
    every = {engine: [row for row in tables.rows("gemm", engine, "gemm") if row["m"] <= 16384] for engine in ENGINES}
    constants = {}
    for stored, number in GEMM.items():
        some = [
            row
            for engine, rows in every.items()
            for row in rows
            if row["gemm_dtype"] == stored and not (engine == "vllm" and stored == "fp8_block")
        ]
        if some:
            (m, n, k), seconds = thinned(fastest(some, "m", "n", "k"))
            start = {"floor_us": (3, 0.5, 9), "rate": (0.75, 0.3, 1), "bw": (0.8, 0.3, 1), "p": (2, 1, 6)}
            start |= {"out": (1, 0.3, 3), "wave": (0.5, 0, 1), "cast": (0.8, 0.5, 1)}
            form = lambda facts, m=m, n=n, k=k, number=number: forms.product_form(  # noqa: E731
                facts, kernels, FORMATS[number], m, k, n
            )
            constants[number] = fit(form, seconds, start)
    return constants


def experts(tables: Tables, kernels: MeasuredKernels, engines: Sequence[str]) -> dict[str, Any]:
    keys = "moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"
    rows = [row for engine in engines for row in tables.rows("moe", engine, "moe", distribution="balanced")]
    rows = [row for row in rows if "min_latency" not in row["kernel_source"]]
    rows = [row for row in rows if (row["hidden_size"], row["num_experts"]) != (7168, 256)]
    rows = [row for row in rows if row["num_experts"] >= 16 and row["inter_size"] // row["moe_tp_size"] >= 96]
    rows = [row for row in rows if row["moe_ep_size"] <= 16 and "nongated" not in row["kernel_source"]]
    constants = {}
    for stored, number in MOE.items():
        least = fastest([row for row in rows if row["moe_dtype"] == stored], *keys)
        if len(least) > 50:
            least = {key[1:]: seconds for key, seconds in least.items()}
            (tokens, hidden, inner, k, every, tp, ep), seconds = thinned(least)
            active = np.minimum(every, tokens * k) / ep
            copies = np.where(ep > 1, tokens * k, 0.0)
            work = ExpertWork(active, tokens * k / ep, copies, hidden, inner / tp)
            start = {"floor_us": (22, 5, 60), "per_expert_us": (0.1, 0, 2), "rate": (0.6, 0.2, 1), "bw": (0.85, 0.3, 1)}
            start |= {"tile": (20, 0, 200), "perm": (0.5, 0.1, 3), "slot": (1.5, 0.1, 30)}
            form = lambda facts, work=work, number=number: forms.experts_form(  # noqa: E731
                facts, kernels, FORMATS[number], work
            )
            constants[number] = fit(form, seconds, start)
    return constants


DECODE = {"floor_us": (10, 2, 40), "bw": (0.8, 0.2, 1), "ns_a_context_token": (0.1, 0, 2)}


def decode(tables: Tables, kernels: MeasuredKernels, engines: Sequence[str]) -> dict[str, Any]:
    keys = "kv_cache_dtype", "batch_size", "num_heads", "num_key_value_heads", "head_dim", "step"
    rows = [
        row for engine in engines for row in tables.rows("attention", engine, "generation_attention", window_size=0)
    ]
    rows = [row for row in rows if row["head_dim"] in (64, 128)]
    rows = [row for row in rows if row["num_heads"] > row["num_key_value_heads"] and 255 <= row["step"] <= 65536]
    constants: dict[str, Any] = {"gqa": {}}
    for stored, cache in CACHES.items():
        least = fastest([row for row in rows if row["kv_cache_dtype"] == stored], *keys)
        if least:
            (batch, _, kv, width, step), seconds = thinned({key[1:]: value for key, value in least.items()})
            constants["gqa"][cache] = _decode(kernels, cache, 2 * kv * width, batch, step + 1, seconds)
    if len(engines) == 1:  # engines differ little in latent attention
        return constants
    rows = [row for engine in engines for row in tables.rows("mla", engine, "generation_mla")]
    for heads in (16, 32, 64, 128):
        own: dict[str, Any] = {}
        for stored, cache in CACHES.items():
            some = [row for row in rows if row["kv_cache_dtype"] == stored and row["num_heads"] == heads]
            least = fastest([row for row in some if 255 <= row["step"] <= 65536], "batch_size", "step")
            if len(least) > 20:
                (batch, step), seconds = thinned(least)
                own[cache] = _decode(kernels, cache, 576, batch, step + 1, seconds)
        if own:
            constants[str(heads)] = own
    return constants


def _decode(kernels: MeasuredKernels, cache: str, elements: Any, batch: Any, context: Any, seconds: Any) -> Any:
    return fit(lambda facts: forms.decode_form(facts, kernels, cache, elements, batch, context), seconds, DECODE)


LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)


def prompts(tables: Tables) -> dict[str, Any]:
    """Nanoseconds of a token and head by length, for one long or a few short prompts."""
    keys = "head_dim", "window_size", "isl", "batch_size", "num_heads"
    rows = [
        row
        for engine in ENGINES
        for row in tables.rows("attention", engine, "context_attention", attn_dtype="bfloat16")
    ]
    rows = [row for row in rows if row["kv_cache_dtype"] == "bfloat16"]
    cells: dict[str, dict[int, list]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for (width, window, length, batch, heads), seconds in fastest(rows, *keys).items():
        if 2**17 <= length * batch * heads <= 2**21 and length in LENGTHS and (width, window) in CELLS:
            cells[f"{width}/{window}"][length].append(1e9 * seconds / (length * batch * heads))
    rows = [row for engine in ("trtllm", "sglang") for row in tables.rows("mla", engine, "context_mla")]
    rows = [row for row in rows if row["mla_dtype"] == row["kv_cache_dtype"] == "bfloat16"]
    for (length, batch, heads), seconds in fastest(rows, "isl", "batch_size", "num_heads").items():
        if 2**17 <= length * batch * heads <= 2**21 and length in LENGTHS:
            cells["160/0"][length].append(1e9 * seconds / (length * batch * heads))
    return {
        name: {str(length): float(f"{np.median(some):.4g}") for length, some in sorted(by.items())}
        for name, by in sorted(cells.items())
    }


CELLS = ((64, 0), (64, 128), (128, 0))


def all_reduces(tables: Tables, engines: Sequence[str]) -> dict[str, Any]:
    """Microseconds by GPUs and bytes; the tables count elements of two bytes."""
    rows = [row for engine in engines for row in tables.rows("comm", engine, "custom_allreduce")]
    least = fastest([row for row in rows if "eager" not in row["kernel_source"]], "num_gpus", "message_size")
    known: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for (gpus, elements), seconds in sorted(least.items()):
        power = np.log2(2 * elements)
        if 10 <= power <= 30 and (power % 2 == 0 or power == 30) and power == int(power):
            known[str(gpus)][str(2 * elements)] = float(f"{1e6 * seconds:.3g}")
    return dict(known)


def pointwise(tables: Tables) -> dict[str, float]:
    """Floor of an elementwise kernel: the median of engines' casts of up to 16 tokens. Bytes at the rate of a copy."""
    rows = [row for engine in ENGINES for row in tables.rows("quantize", engine, "scale_matrix") if row["m"] <= 16]
    floor = float(np.median([1e6 * row["latency"] / 1000 for row in rows if row["latency"] > 0]))
    return {"floor_us": float(f"{floor:.3g}"), "bw": 0.82}


def latent(tables: Tables, kernels: MeasuredKernels) -> dict[str, float]:
    """What a module of latent attention (DeepSeek-V3) takes in decoding beside its products and its core: norms of
    latents, rotations, concatenations, writes of the cache."""
    rows = [
        row for engine in ENGINES for row in tables.rows("mla", engine, "mla_generation_module", gemm_type="bfloat16")
    ]
    rows = [row for row in rows if row["num_heads"] >= 8 and row["step"] >= 255]
    beside, tokens = [], []
    for (stored, heads, batch, step), seconds in fastest(
        rows, "kv_cache_dtype", "num_heads", "batch_size", "step"
    ).items():
        if batch <= 256 and step <= 8192:
            shapes = (7168, 2112), (1536, 192 * heads), (128, 512 * heads), (512, 128 * heads), (128 * heads, 7168)
            parts = sum(float(forms.product_s(kernels, "bf16", batch, *shape)) for shape in shapes)
            core = forms.decode_s(kernels, CACHES[stored], 576, batch, step + 1, max(16, heads))
            beside.append(1e6 * (seconds - parts - float(core)))
            tokens.append(batch)
    few, many = (np.array(beside)[np.array(tokens) <= 16], np.array(beside)[np.array(tokens) == 256])
    floor = max(0.0, float(np.median(few)))
    slope = max(0.0, (float(np.median(many)) - floor) / 256)
    return {"floor_us": float(f"{floor:.3g}"), "ns_a_token": float(f"{1000 * slope:.3g}")}


# ----------------------------------------------------------------------------------------------------------------- TOML
def facts_of(wheel: str, gpu: str, kinds: Sequence[str] = ()) -> dict[str, Any]:
    stored, sms = TABLES[gpu]
    tables = Tables(wheel, stored)
    facts: dict[str, Any] = {"sms": sms}
    kernels = MeasuredKernels(get_gpu(gpu), facts)
    makers: dict[str, Callable[[], Any]] = {
        "pointwise": lambda: pointwise(tables),
        "products": lambda: products(tables, kernels),
        "experts": lambda: experts(tables, kernels, ENGINES if gpu in HOPPER else TRTLLM_GEN),
        "decode": lambda: decode(tables, kernels, ENGINES),
        "latent": lambda: latent(tables, kernels),
        "prompt_ns": lambda: prompts(tables),
        "all_reduce": lambda: all_reduces(tables, ENGINES),
    }
    for kind, make in makers.items():
        if not kinds or kind in kinds:
            facts[kind] = make()
    for engine in ENGINES:
        own: dict[str, Callable[[], Any]] = {
            "decode": lambda engine=engine: decode(tables, kernels, (engine,)),
            "all_reduce": lambda engine=engine: all_reduces(tables, (engine,)),
        }
        if gpu in HOPPER:
            own["experts"] = lambda engine=engine: experts(tables, kernels, (engine,))
        facts[engine] = {kind: make() for kind, make in own.items() if not kinds or kind in kinds}
    return facts


def lines(prefix: str, facts: Mapping[str, Any]) -> Iterable[str]:
    """Yield a line of TOML for every table of numbers."""
    for name, value in facts.items():
        key = name if name.replace("_", "").replace("-", "").isalnum() else f'"{name}"'
        path = f"{prefix}.{key}" if prefix else key
        if not isinstance(value, Mapping):
            yield f"{path} = {value}"
        elif value and not any(isinstance(part, Mapping) for part in value.values()):
            note = {part: value[part] for part in ("error", "bias", "rows") if part in value}
            numbers = ", ".join(f"{part} = {number}" for part, number in value.items() if part not in note)
            if note.get("error", 0.0) > WORST:
                continue
            words = (
                f"  # {note['rows']} rows: mean error {note['error']:.0%}, median {note['bias']:+.0%}" if note else ""
            )
            yield f"{path} = {{ {numbers} }}{words}"
        else:
            yield from lines(path, value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel")
    parser.add_argument("gpus", nargs="*", default=list(TABLES))
    parser.add_argument("--kinds", nargs="*", default=())
    options = parser.parse_args()
    for gpu in options.gpus:
        print(f"\n[{gpu}]")
        print("\n".join(lines("", facts_of(options.wheel, gpu, options.kinds))))


if __name__ == "__main__":
    main()
