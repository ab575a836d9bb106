"""Derive AMD's GPUs in `mfabric_jax/workload/measured_kernels.toml`, and how they train in `kernels.toml`, from public
tables of measured kernels.

    python -m benchmarks.amd_kernel_tables FOLDER [GPU ...]             # lines of TOML
    python -m benchmarks.amd_kernel_tables FOLDER [GPU ...] --check     # errors of the shipped table
    python -m benchmarks.amd_kernel_tables FOLDER [GPU ...] --training  # rates of training over it

FOLDER holds checkouts of public repositories (`SOURCES` has their commits, licences and what is read). AITER's tuner
times kernels on the device with operands that are in no cache; MI300X has 304 compute units there, MI355X 256.
Primus-Turbo times operators of training from PyTorch. Constants are least squares of logarithms, as in `kernel_tables`;
nothing is fitted to a training step or a served model.

- Products: those with at most 16,384 rows; at most `MOST_A_SIZE` of each power of two of rows, since most were tuned
  between 1,024 and 8,192. FP8 has block scales, without the cast. MI300X has no bf16 table but gpt-oss's (Triton, up to
  128 rows, December 2025) and Primus-Turbo's dense models (from 4,096 rows).
- Experts: both products of fused layers without sorting and casts, whose tokens go to experts at random. Times that
  stand at several numbers of tokens are copies and left out. No table splits experts between GPUs: `slot` is that of a
  copy in memory.
- Attention in decoding: latent attention on MI350 (a table of AITER's README). None was found for MI300X, nor for
  grouped-query attention: `kernels.toml`'s estimate.
- Collectives: RCCL's all-reduce of eight MI300X. The others follow from it (`mesh`): each pair of GPUs has a link, so a
  collective takes what the bytes of a link take. MI355X: MI300X at the ratio of their links.
"""

import argparse
import collections
import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from benchmarks.kernel_tables import (
    EXPERTS,
    PRODUCT,
    Cells,
    Facts,
    Line,
    Start,
    cells,
    errors_in,
    print_errors,
    toml_lines,
)
from mfabric_jax import units
from mfabric_jax.workload import get_gpu
from mfabric_jax.workload import measured_kernels as forms
from mfabric_jax.workload.measured_kernels import FORMATS, ExpertWork, MeasuredKernels, log_interpolated

SOURCES = {
    "aiter": "github.com/ROCm/aiter at e4048607 (MIT): aiter/configs, aiter/ops/triton/gluon/README.md",
    "aiter-2025": "the same at e010caf5: aiter/configs/model_configs/gptoss_bf16_tuned_gemm.csv",
    "Primus-Turbo": "github.com/AMD-AGI/Primus-Turbo at 6094c573 (MIT): output, benchmark, agent_docs",
    "HipKittens": "github.com/HazyResearch/HipKittens at f09e9685 (MIT): analysis",
    "attn-dsl-bench": "github.com/midiareshadi/attn-dsl-bench at 94ea7f31 (MIT): results/raw/sweep_v1.csv",
    "rocm-blogs": "github.com/ROCm/rocm-blogs at 0e81c2ca (MIT): blogs/software-tools-optimization/mi300x-rccl-xgmi",
}


class Device(NamedTuple):
    """A GPU in the tables: name of its family, compute units, the greatest share of memory's bandwidth that a kernel
    reaches in reading, and that of a copy with its spread."""

    family: str
    units: int
    read: float
    copy: Facts


# Copies: BabelStream on Azure's ND MI300X v5 (copy 4.11, dot 3.87, mul 4.26 of 5.3 TB/s; samuel-bohman's fork of
# Azure/AI-benchmarking-guide, Azure_Results/ND_MI300X_v5_results.md, second hand). MI355X: an estimate, as there. Slow:
# HipKittens' layer norm on MI355X, 3.89 of 8 TB/s. Floor: the fastest of all measured kernels.
DEVICES = {
    "MI300X": Device("gfx942", 304, 0.80, {"floor_us": 3.01, "bw": 0.775, "fast": 0.965, "slow": 1.59}),
    "MI355X": Device("gfx950", 256, 0.86, {"floor_us": 2.41, "bw": 0.775, "fast": 0.905, "slow": 1.59}),
}
MOST_ROWS = 16_384
MOST_A_SIZE = 250
Shapes = dict[tuple[Any, ...], float]


class Folder:
    """The checkouts."""

    def __init__(self, path: Path):
        self.path = path

    def tuned(self, gpu: str, wanted: str, folder: str = "aiter") -> Iterator[dict[str, str]]:
        """Yield the rows of AITER's tables of tuned kernels of a GPU, whose names contain `wanted`."""
        device = DEVICES[gpu]
        for file in sorted((self.path / folder / "aiter/configs").glob("**/*.csv")):
            if wanted in file.name and "untuned" not in file.name and "batched" not in file.name:
                for row in read_csv(file):
                    same = row.get("cu_num") == str(device.units) and row.get("gfx") in (device.family, None)
                    if same and float(row["us"] or 0) > 0:
                        yield row | {"file": file.name}

    def read_json(self, file: str) -> dict[str, Any]:
        return json.loads((self.path / file).read_text(encoding="utf-8"))

    def trained(self, gpu: str, file: str) -> list[dict[str, str]]:
        """Return the rows of a table of Primus-Turbo of a GPU."""
        return [row for row in read_csv(self.path / "Primus-Turbo" / file) if row["GPU"] == gpu]


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def keep_least(shapes: Shapes, key: tuple[Any, ...], seconds: float) -> None:
    shapes[key] = min(seconds, shapes.get(key, np.inf))


# ------------------------------------------------------------------------------------------------------------- products
def product_shapes(folder: Folder, gpu: str, number: str) -> Shapes:
    """Return the seconds of products by rows, outer and inner width."""
    shapes: Shapes = {}
    folders = ("aiter", "aiter-2025") if number == "bf16" and gpu == "MI300X" else ("aiter",)
    for row in (row for name in folders for row in folder.tuned(gpu, "_gemm", name)):
        if kind_of(row) == number and int(row["M"]) <= MOST_ROWS:
            keep_least(shapes, tuple(int(row[name]) for name in "MNK"), units.us(float(row["us"])))
    if number == "bf16":
        for row in folder.trained(gpu, "output/baseline_gemm.csv"):
            if int(row["M"]) <= MOST_ROWS:
                keep_least(shapes, tuple(int(row[name]) for name in "MNK"), forward_s(row))
    return shapes


def kind_of(row: Mapping[str, str]) -> str | None:
    """The number format of a tuned product; None: another than those of the table."""
    if "a8w8_blockscale" in row["file"]:
        return "fp8"
    return "bf16" if "bf16" in row["file"] and row["dtype"] == "torch.bfloat16" else None


def flops_of(row: Mapping[str, str]) -> float:
    return 2.0 * int(row.get("B", 1)) * int(row["M"]) * int(row["N"]) * int(row["K"])


def forward_s(row: Mapping[str, str]) -> float:
    return flops_of(row) / units.tflops(float(row["Forward TFLOPS"]))


def by_rows(shapes: Shapes) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Yield at most about `MOST_A_SIZE` shapes of each power of two of rows."""
    sizes = collections.defaultdict(list)
    for key, seconds in sorted(shapes.items()):
        sizes[int(np.log2(key[0]))].append((key, seconds))
    for some in sizes.values():
        yield from some[:: max(1, len(some) // MOST_A_SIZE)]


def products(folder: Folder, kernels: MeasuredKernels) -> Iterator[Line]:
    read = DEVICES[kernels.gpu.name].read
    start = PRODUCT | {"floor_us": (3, 0.5, 14), "bw": (0.75, 0.3, read), "out": (0.7, 0.3, read)}
    start |= {"cast": (0.775, 0.774, 0.776)}  # not in the tables: a copy
    for number in ("bf16", "fp8"):
        shapes = product_shapes(folder, kernels.gpu.name, number)

        def form(facts: Facts, m: Any, n: Any, k: Any, number: str = number) -> Any:
            return forms.product_form(facts, kernels, FORMATS[number]._replace(cast=0.0), m, k, n)

        yield least_squares_line(("products", number), form, by_rows(shapes), shapes.items(), start)


def least_squares_line(
    path: tuple[str, ...],
    form: Callable[..., Any],
    best: Iterable[tuple[tuple[Any, ...], float]],
    every: Iterable[tuple[tuple[Any, ...], float]],
    start: Start,
) -> Line:
    most = 10**6
    return Line(path, cells(form, best, most), cells(form, every, most), start)


# -------------------------------------------------------------------------------------------------------------- experts
EXPERT_FORMATS = {  # number formats of activations and weights, and what a scale is of
    "bf16": {("bfloat16", "bfloat16", "No")},
    "fp8": {("float8_e4m3fnuz", "float8_e4m3fnuz", "per_1x128"), ("float8_e4m3fn", "float8_e4m3fn", "per_1x128")},
    "mxfp4": {("bfloat16", "float4_e2m1fn_x2", "per_1x32")},
    "mxfp4-fp8": {("float8_e4m3fn", "float4_e2m1fn_x2", "per_1x32")},
    "int4": {("bfloat16", "int4", "per_1x32")},
}
COPIED = 3  # equal times of a layer


def expert_shapes(folder: Folder, gpu: str, number: str) -> Shapes:
    """Return the seconds of fused layers by tokens, width, inner width, experts of a token and experts."""
    rows = [row for row in folder.tuned(gpu, "fmoe") if quantized(row) in EXPERT_FORMATS[number]]
    layer = lambda row: tuple(int(row[name]) for name in ("model_dim", "inter_dim", "topk", "expert"))  # noqa: E731
    count = collections.Counter((layer(row), row["us"]) for row in rows)
    shapes: Shapes = {}
    for row in rows:
        if count[layer(row), row["us"]] < COPIED and int(row["token"]) <= MOST_ROWS:
            keep_least(shapes, (int(row["token"]), *layer(row)), units.us(float(row["us"])))
    return shapes


def quantized(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name].rpartition(".")[2] for name in ("q_dtype_a", "q_dtype_w", "q_type"))


def active_experts(tokens: Any, choices: Any, count: Any) -> Any:
    """Return the experts that have a token if each token goes to `choices` of `count` at random."""
    return count * (1 - (1 - choices / count) ** tokens)


def experts(folder: Folder, kernels: MeasuredKernels) -> Iterator[Line]:
    device = DEVICES[kernels.gpu.name]
    start = {name: limits for name, limits in EXPERTS.items() if name not in ("split_us", "slot")}
    start |= {"rate": (0.4, 0.1, 1), "bw": (0.75, 0.3, device.read), "slot": (0.775, 0.774, 0.776)}
    for number in EXPERT_FORMATS:
        shapes = expert_shapes(folder, kernels.gpu.name, number)

        def form(facts: Facts, tokens: Any, *layer: Any, number: str = number) -> Any:
            width, inner, k, count = layer
            work = ExpertWork(active_experts(tokens, k, count), tokens * k, 0.0 * tokens, width, inner)
            return forms.experts_form(facts, kernels, FORMATS[number], work)

        if shapes:
            yield least_squares_line(("experts", number), form, shapes.items(), shapes.items(), start)


# ------------------------------------------------------------------------------------------------------------ attention
LATENT = 2 * 512 + 64  # products of a head and a cached token: scores over 576 elements, sums over 512
FLOOR_US = 15.0  # of latent attention of many heads: an estimate, as on H100
ALIKE = "of FLOPs: the seconds of a bf16 cache, not measured"


def decode(folder: Folder, kernels: MeasuredKernels) -> Iterator[Line]:
    """Latent attention in decoding on MI350, few rows. FLOPs limit 64 and 128 heads, so that an FP8 cache takes the
    seconds of a bf16 one; 32 heads lie between 16 and 64."""
    if kernels.gpu.name != "MI355X":
        return
    text = (folder.path / "aiter/aiter/ops/triton/gluon/README.md").read_text(encoding="utf-8")
    few = {
        (int(batch), 1000 * int(thousands)): units.us(float(us))
        for thousands, batch, us in re.findall(r"\| (\d+)K +\| (\d+) +\| \d+ +\| \d+ +\| ([\d.]+) ", text)
    }
    rates = re.findall(r"\| (\d+) +\| (\d+) +\| [\d.]+ +\| ([\d.]+) +\| [\d.]+&times;", text)
    many: dict[int, Shapes] = collections.defaultdict(dict)
    for batch, heads, rate in rates:
        flops = 2.0 * LATENT * int(heads) * CONTEXT * int(batch)
        many[int(heads)][int(batch), CONTEXT] = flops / units.tflops(float(rate))

    def form(facts: Facts, batch: Any, context: Any) -> Any:
        return forms.decode_form(facts, kernels, "bf16", 576, batch, context)

    start = {"floor_us": (15, 2, 40), "bw": (0.6, 0.2, DEVICES["MI355X"].read), "ns_a_context_token": (0.1, 0, 2)}
    yield least_squares_line(("decode", "16", "bf16"), form, few.items(), few.items(), start)
    bws = {}
    for heads in (64, 128):
        own = many[heads]
        ratios = [2 * 576 * batch * context / (kernels.memory_Bps * own[batch, context]) for batch, context in own]
        bws[heads] = float(np.mean(ratios))
        yield decode_line(heads, "bf16", bws[heads], cells(form, own.items()))
        yield decode_line(heads, "fp8", bws[heads] / 2, cells(form, own.items()), ALIKE)
    between = float(np.sqrt(bws[64] * DEVICES["MI355X"].read))
    yield decode_line(32, "bf16", between, cells(form, many[64].items()), "between 16 and 64 heads, not measured")
    yield decode_line(32, "fp8", between / 2, cells(form, many[64].items()), ALIKE)


CONTEXT = 16_384


def decode_line(heads: int, cache: str, bw: float, some: Cells, note: str = "") -> Line:
    facts = {"floor_us": FLOOR_US, "bw": float(f"{bw:.3g}"), "ns_a_context_token": 0.0}
    every = Cells(some.form, some.form(facts)) if note else some
    return Line(("decode", str(heads), cache), every, every, facts=facts, note=note)


def prompt_cells(folder: Folder, gpu: str, width: int) -> dict[tuple[int, str], list[float]]:
    """Return the seconds, over tokens and heads, of causal attention forward by length and kernel."""
    known: dict[tuple[int, str], list[float]] = collections.defaultdict(list)
    if gpu == "MI300X":
        for row in read_csv(folder.path / "attn-dsl-bench/results/raw/sweep_v1.csv"):
            if int(row["head_dim"]) == width and row["implementation"] != "tilelang":
                length = int(row["seq_len"])
                work = int(row["batch"]) * int(row["num_heads"]) * length
                known[length, row["implementation"]].append(units.ms(float(row["median_time_ms"])) / work)
        for row in attention_rows(folder, width):
            length = int(row["SeqLen"])
            known[length, "primus"].append(units.ms(float(row["Forward Time (ms)"])) / work_of(row))
        return known
    for name, batch, heads in (("mha", 16, 16), ("gqa", 16, 64)):
        prefix = "" if width == 128 else "d64_"
        file = f"HipKittens/analysis/attn/fwd/benchmark/mi355x_{prefix}{name}_causal_fwd.json"
        for size, row in folder.read_json(file).items():
            for field in ("avg_time_ref", "avg_time"):  # AITER's, and theirs
                known[int(size), field].append(units.ms(row[field]) / (batch * heads * int(size)))
    return known


def attention_rows(folder: Folder, width: int) -> list[dict[str, str]]:
    rows = folder.trained("MI300X", "output/baseline_attention.csv")
    return [row for row in rows if row["Causal"] == "True" and int(row["head_dim_qk"]) == width]


def work_of(row: Mapping[str, str]) -> int:
    """Tokens times heads."""
    return int(row["Batch"]) * int(row["SeqLen"]) * int(row["num_head_q"])


def prompts(folder: Folder, gpu: str) -> Iterator[Line]:
    """Nanoseconds of a token and head by length: of the fastest kernel, the median of its shapes."""

    def form(facts: Facts, length: Any) -> Any:
        return units.ns(log_interpolated(facts, length))

    for width in (64, 128):
        known = prompt_cells(folder, gpu, width)
        fastest: dict[int, list[float]] = {}
        for (length, _), some in known.items():
            if length not in fastest or np.median(some) < np.median(fastest[length]):
                fastest[length] = some
        facts = {str(length): float(f"{1e9 * np.median(some):.4g}") for length, some in sorted(fastest.items())}
        best = [((length,), seconds) for length, some in fastest.items() for seconds in some]
        every = [((length,), seconds) for (length, _), some in known.items() for seconds in some]
        yield Line(("prompt_ns", f"{width}/0"), cells(form, best), cells(form, every), facts=facts)


# ---------------------------------------------------------------------------------------------------------- collectives
MEASURED = 8  # GPUs


def rccl_tables(folder: Folder) -> list[dict[int, float]]:
    """Return the seconds of all-reduces of eight MI300X by bytes: issued one by one, and in a graph."""
    file = folder.path / "rocm-blogs/blogs/software-tools-optimization/mi300x-rccl-xgmi/README.md"
    row = r"^ *(\d+) +\d+ +float +sum +-1 +([\d.]+)"
    tables: list[dict[int, float]] = []
    for size, us in re.findall(row, file.read_text(encoding="utf-8"), re.MULTILINE):
        if int(size) == 8:
            tables.append({})
        tables[-1][int(size)] = units.us(float(us))
    return tables


def mesh(measured: Mapping[int, float], what: str, gpus: int, links: float) -> dict[float, float]:
    """Return the seconds of a collective by bytes of a rank's buffer, on `gpus` GPUs that have a link between each two.

    - `measured`: of an all-reduce of `MEASURED` GPUs. `links`: bandwidth of a link over that which was measured.

    In an all-reduce each link carries 1/gpus of the buffer twice, and in other collectives once, for which everything
    beyond the floor halves.
    """
    scale, floor = gpus / MEASURED * links, min(measured.values())
    beyond = 1.0 if what == "all_reduce" else 0.5
    scaled = {size * scale: floor + beyond * (seconds - floor) for size, seconds in measured.items()}
    return {size: seconds for size, seconds in scaled.items() if LEAST <= size <= MOST}


def collectives(folder: Folder, gpu: str) -> Iterator[Line]:
    """Microseconds by bytes, in a graph; `slow`: issued one by one."""
    tables = [{size: us for size, us in each.items() if size >= LEAST} for each in rccl_tables(folder)]
    links = get_gpu(gpu).nvlink / get_gpu("MI300X").nvlink

    def form(facts: Facts, size: Any) -> Any:
        return units.us(log_interpolated(facts, size))

    for what in forms.COLLECTIVES:
        for gpus in (2, 4, 8):
            alone, graph = (mesh(each, what, gpus, links) for each in tables)
            facts = {str(size): float(f"{units.to_us(log_interpolated_s(graph, size)):.3g}") for size in forms.SIZES}
            known = gpu == "MI300X" and (what, gpus) == ("all_reduce", MEASURED)
            each = [[((size,), seconds) for size, seconds in some.items()] for some in (graph, alone)]
            row = Line((), cells(form, each[0]), cells(form, each[0] + each[1]), facts=facts)
            row = row._replace(note="" if known else "from all_reduce.8 of MI300X, not measured")
            yield row._replace(path=("nccl", what, str(gpus)))
            if what == "all_reduce":
                yield row._replace(path=("all_reduce", str(gpus)))


LEAST, MOST = 2**10, 2**32  # bytes


def log_interpolated_s(seconds: Mapping[float, float], size: float) -> float:
    known = sorted(seconds.items())
    sizes, values = (np.log([pair[part] for pair in known]) for part in (0, 1))
    return float(np.exp(np.interp(np.log(size), sizes, values)))


# ------------------------------------------------------------------------------------------------------- small kernels
def pointwise(gpu: str) -> Iterator[Line]:
    """The floor and copies of `DEVICES`, whose spread stands there too."""
    one = units.us(DEVICES[gpu].copy["floor_us"])
    low, high = (DEVICES[gpu].copy[name] for name in ("fast", "slow"))
    some = Cells(lambda facts: np.full(10, units.us(facts["floor_us"])), one * np.array([low] * 5 + [high] * 5))
    facts = {name: DEVICES[gpu].copy[name] for name in ("floor_us", "bw")}
    yield Line(("pointwise",), some, some, facts=facts, note="copies of BabelStream on MI300X")


# ---------------------------------------------------------------------------------------------------------------- lines
def lines_of(folder: Folder, kernels: MeasuredKernels) -> Iterator[Line]:
    gpu = kernels.gpu.name
    yield from pointwise(gpu)
    yield from products(folder, kernels)
    yield from experts(folder, kernels)
    yield from decode(folder, kernels)
    yield from prompts(folder, gpu)
    yield from collectives(folder, gpu)


# ------------------------------------------------------------------------------------------------------------- training
def shares(values: Iterable[float]) -> str:
    """The 10 %, 50 % and 90 % quantiles."""
    return "[" + ", ".join(f"{value:.3f}" for value in np.quantile([*values], (0.1, 0.5, 0.9))) + "]"


def weight_rates(rows: Iterable[Mapping[str, str]], kernels: MeasuredKernels, number: str = "bf16") -> Iterator[float]:
    """Yield the rate of gradients of weights over that of the forward pass, if gradients of inputs take its seconds and
    each writes its output in bf16 apart."""
    written_Bps = kernels.memory_Bps * kernels.facts["products"][number]["out"]
    for row in rows:
        groups, m, n, k = (int(row.get(name, 1)) for name in "BMNK")
        forward, both = forward_s(row), 2 * flops_of(row) / units.tflops(float(row["Backward TFLOPS"]))
        yield (forward - 2 * groups * m * n / written_Bps) / (both - forward - 2 * groups * n * k / written_Bps)


CAST = 3.0  # bytes of an element: read in bf16, written in FP8
LONG = 2048  # rows of an expert from which its products count


def product_s(
    kernels: MeasuredKernels, number: str, row: Mapping[str, str], rate: float = 1.0, moved: float = 0.0
) -> float:
    """Return the seconds of products whose FLOPs run at `rate` times that of the table, and of `moved` bytes beside."""
    facts, form = kernels.facts["products"][number], FORMATS[number]
    groups, m, n, k = (int(row.get(name, 1)) for name in "BMNK")
    read = groups * form.activation * (m * k + n * k)
    large_s = forms.multiply_s(facts, kernels, form, flops_of(row) / rate, read, (m, n), groups)
    written_s = groups * 2 * m * n / (kernels.memory_Bps * facts["out"])
    return units.us(facts["floor_us"]) + float(large_s) + written_s + moved / forms.copied_Bps(kernels)


def rates_over(
    rows: Iterable[Mapping[str, str]], kernels: MeasuredKernels, number: str, cast: float = 0.0
) -> Iterator[float]:
    """Yield the rates over those of the table that explain the measured seconds of forward passes, which contain casts
    of `cast` bytes of each element."""
    for row in rows:
        moved, seconds = cast * int(row["K"]) * (int(row["M"]) + int(row["N"])), forward_s(row)
        over: Any = brentq(lambda rate: product_s(kernels, number, row, rate, moved) - seconds, 0.1, 10)  # noqa: B023
        yield over


def training_of_mi300x(folder: Folder, kernels: MeasuredKernels) -> Iterator[str]:
    trained = lambda file: folder.trained("MI300X", file)  # noqa: E731
    dense, fp8 = (
        trained(file) for file in ("output/baseline_gemm.csv", f"{OPTIMIZED}/gemm_fp8_tensorwise_optimized.csv")
    )
    grouped = [row for row in trained("output/baseline_grouped_gemm.csv") if int(row["M"]) >= LONG]
    yield f"products, bf16: {shares(rates_over(dense, kernels, 'bf16'))} of {len(dense)}"
    yield f"products, FP8: {shares(rates_over(fp8, kernels, 'fp8', CAST))} of {len(fp8)}"
    yield f"grouped: {shares(rates_over(grouped, kernels, 'bf16'))} of {len(grouped)}"
    for name, rows, number in (("dense", dense, "bf16"), ("experts", grouped, "bf16"), ("dense, FP8", fp8, "fp8")):
        yield f"weights, {name}: {shares(weight_rates(rows, kernels, number))} of {len(rows)}"
    for width in (64, 128, 192):
        ratios = collections.defaultdict(list)
        for row in attention_rows(folder, width):
            ratios[row["SeqLen"]].append(float(row["Backward Time (ms)"]) / float(row["Forward Time (ms)"]))
        medians = {size: round(float(np.median(own)), 2) for size, own in ratios.items()}
        yield f"attention backward, {width}: {medians}"


OPTIMIZED = "benchmark/results_optimized"
# report/baseline/mi355x_19fe104.json of Primus-Turbo at 1653a663: 65,536 rows of 32 experts.
MEGA_MOE_MS = {(4096, 7168): 3.148, (2048, 7168): 1.606, (7168, 2048): 1.732, (7168, 4096): 3.52}  # outer, inner width
MEGA_MOE_WEIGHTS, WEIGHTS_MS = (4096, 7168), 3.337
BY_BLOCKS = "agent_docs/MI355X/blockwise-fp8/round10/gemm_turbo_fp8_blockwise_20260403_MI355X.csv"


def training_of_mi355x(folder: Folder, kernels: MeasuredKernels) -> Iterator[str]:
    read = lambda file: folder.read_json(f"HipKittens/analysis/{file}")  # noqa: E731
    squares = read("fp8_gemm/mi350x/mi355x_fp8_gemm.json").items()
    rows = [{"M": n, "N": n, "K": n, "Forward TFLOPS": str(row["tflops_hipblaslt"])} for n, row in squares]
    yield f"products, FP8 by tensors: {[round(rate, 2) for rate in rates_over(rows, kernels, 'fp8')]}"
    for (n, k), ms in MEGA_MOE_MS.items():
        row = {"B": "32", "M": "2048", "N": str(n), "K": str(k)}
        row |= {"Forward TFLOPS": str(flops_of(row) / units.ms(ms) / units.tflops(1.0))}
        yield f"grouped, {n} x {k}: {next(rates_over([row], kernels, 'bf16')):.2f}"
        if (n, k) == MEGA_MOE_WEIGHTS:
            both = 2 * flops_of(row) / units.ms(ms + WEIGHTS_MS) / units.tflops(1.0)
            row["Backward TFLOPS"] = str(both)
            yield f"weights, {n} x {k}: {next(weight_rates([row], kernels)):.2f}"
    fp8 = folder.trained("MI355X", BY_BLOCKS)
    yield f"weights, FP8 by blocks: {shares(weight_rates(fp8, kernels, 'fp8'))} of {len(fp8)}"
    for name in ("mha", "gqa"):
        ahead, back = (
            read(f"attn/{way}/benchmark/mi355x_{name}_{file}.json")
            for way, file in (("fwd", "causal_fwd"), ("bkwd", "bkwd_causal"))
        )
        least = lambda row: min(row["avg_time_ref"], row["avg_time"])  # noqa: E731
        yield f"attention backward, {name}: { {n: round(least(back[n]) / least(ahead[n]), 2) for n in ahead} }"


TRAINING = {"MI300X": training_of_mi300x, "MI355X": training_of_mi355x}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("gpus", nargs="*", default=list(DEVICES))
    parser.add_argument("--check", action="store_true", help="print errors of the shipped table")
    parser.add_argument(
        "--training", action="store_true", help="print rates of training over those of the shipped table"
    )
    options = parser.parse_args()
    folder = Folder(options.folder)
    for gpu in options.gpus:
        facts: dict[str, Any] = {"sms": DEVICES[gpu].units}
        if options.training:
            kernels = MeasuredKernels(get_gpu(gpu), forms.known_facts()[gpu])
            print(f"\n{gpu}", *TRAINING[gpu](folder, kernels), sep="\n")
        elif options.check:
            shipped = forms.known_facts()[gpu]
            print_errors(gpu, errors_in(lines_of(folder, MeasuredKernels(get_gpu(gpu), shipped)), shipped))
        else:
            print(f"\n[{gpu}]", f"sms = {facts['sms']}", sep="\n")
            print(*toml_lines(lines_of(folder, MeasuredKernels(get_gpu(gpu), facts)), facts), sep="\n")


if __name__ == "__main__":
    main()
