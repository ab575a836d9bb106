"""The command line: `mfabric compare`, `mfabric traffic`.

Every mistake in what was asked ends in one sentence on standard error and exit status 2, before any compute.
"""

import contextlib
import dataclasses
import io
import os
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Any

from mfabric_jax.checks import InputError, one_of

DEVICES = ("cpu", "gpu", "tpu")


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    """Compare fabrics for MoE training: one row per model, fabric and bandwidth.

    Lists are separated by commas. Defaults: five models, four fabrics, 100 to 800 Gbps, routing shares measured on
    trained models, compute time from model facts on an A100 at half its peak (not calibrated).
    """

    models: str = "mixtral-8x22b,mixtral-8x7b,llama-moe,qwen-moe,deepseek-r1"
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3"""
    fabrics: str = "fat-tree,oversub-fat-tree,rail-optimized,mfabric"
    """fat-tree, oversub-fat-tree, rail-optimized, mfabric"""
    nic_gbps: str = "100,200,400,800"
    """Bandwidth of every NIC; prices are known from 100 to 800."""
    nic_use: str = "own"
    """own: each GPU uses its own NIC; pooled: a server's NICs carry anything; own,pooled shows both (mFabric pools)."""
    policy: str = "greedy"
    """How mFabric chooses circuits: greedy, uniform, previous."""
    rule: str = "printed"
    """greedy's rule: printed, released, next."""
    routing: str = "unsplit"
    """How mFabric uses them: unsplit, best-path."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    delay_s: float = 0.025
    """Reconfiguration delay of the optical switch."""
    trace: str | None = None
    """Recorded routing: .npy or .npz of tokens, or a folder in the layout of the SmartMoE gate trace."""
    records: str | None = None
    """FIRST-LAST record of the trace (default for a gate trace: 2011-5001)."""
    traffic: str = "measured"
    """measured: expert shares of trained models; generated: popularity rank^-skew."""
    skew: float = 0.0
    """Skew of generated traffic; 0 is balanced."""
    drift: float = 0.05
    """How much expert popularity moves from iteration to iteration (standard deviation of its logarithm)."""
    iterations: int = 1
    """Iterations to simulate and average."""
    gpu: str = "A100-80GB-SXM"
    """A100-80GB-SXM, H100-SXM, H800-SXM, H200-SXM, B200-HGX, GB200-NVL72."""
    efficiency: float = 0.5
    """Achieved over peak FLOP/s."""
    nvswitch_gigabytes_per_s: float = 900.0
    """NVSwitch rate of a GPU, per direction."""
    dp: int | None = None
    """Override the model's degrees (with gpus), micro-batch and sequence."""
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    gpus: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    sequence: int | None = None
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figures: str | None = None
    """Pictures to a folder."""
    seed: int = 0
    dtype: str = "float32"
    """float32, float64."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


@dataclasses.dataclass(frozen=True)
class TrafficOptions:
    """Bytes of tensor, expert, pipeline and data parallelism in one iteration, beside measured shares."""

    model: str
    dp: int | None = None
    """Override the model's degrees (with gpus), micro-batch and sequence."""
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    gpus: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    sequence: int | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = _command(words)
        options = _parse(command, words[1:])
        return {"compare": run_compare, "traffic": run_traffic}[command](options)
    except InputError as mistake:
        print(f"mfabric: {mistake}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mfabric: interrupted.", file=sys.stderr)
        return 130


OPTIONS: dict[str, Any] = {"compare": CompareOptions, "traffic": TrafficOptions}
HELP = """usage: mfabric COMMAND [options]

  compare   iteration time, cost and performance per dollar of fabrics for MoE training
  traffic   bytes of each kind of parallelism in one iteration of a model

`mfabric COMMAND --help` lists the options; `mfabric --version` the version."""


def _command(words: list[str]) -> str:
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        raise SystemExit(0 if words else 2)
    if words[0] == "--version":
        import mfabric_jax

        print(f"mfabric {mfabric_jax.__version__}")
        raise SystemExit(0)
    return one_of("command", words[0], OPTIONS)


def _parse(command: str, words: list[str]) -> Any:
    """Options from words, by tyro; what it refuses becomes one sentence."""
    try:
        import tyro
    except ImportError:
        raise InputError("the command line needs its extra: pip install 'mfabric-jax[cli]'.") from None
    options = OPTIONS[command]
    fields = {field.name for field in dataclasses.fields(options)}
    for word in words:
        name = word.split("=")[0]
        if name.startswith("--") and name != "--help":
            one_of("option", name, sorted("--" + field.replace("_", "-") for field in fields))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            if command == "traffic":
                options = tyro.conf.configure(tyro.conf.PositionalRequiredArgs)(options)
            return tyro.cli(options, args=words, prog=f"mfabric {command}")
    except SystemExit as end:
        if not end.code:
            raise
        raise InputError(f"{command}: {_one_sentence(said.getvalue())}") from None


def _one_sentence(box: str) -> str:
    """The message inside tyro's frame."""
    lines = [re.sub(r"[│╭╮╰╯─]", " ", line).strip() for line in box.splitlines()]
    body = [line for line in lines if line and not line.startswith(("Parsing error", "For full helptext", "Required"))]
    text = re.sub(r"\s+", " ", " ".join(body)) or "the options could not be read"
    return text if text.endswith(".") else text + "."


def run_compare(options: CompareOptions) -> int:
    """`mfabric compare`"""
    _start_jax(options.dtype, options.device)
    from mfabric_jax import report
    from mfabric_jax.study.config import Compare

    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    out, figures = given.pop("out"), given.pop("figures")
    del given["device"]
    for field in ("models", "fabrics", "nic_use"):
        given[field] = _words(given[field])
    given["nic_gbps"] = tuple(_number("nic_gbps", word) for word in _words(given["nic_gbps"]))
    given["records"] = _range(given["records"])
    config = Compare(**given)
    if out is not None:
        report.check_destination(out)
    if figures is not None:
        report.check_folder(figures)
    rows, stopped = _run(config, out)
    print(report.comparison(rows) if rows else "no rows")
    if stopped:
        return 130
    if figures is not None:
        _draw(config, rows, figures)
    return 0


def _run(config, out: str | None) -> tuple[list[dict], bool]:
    """The rows, saved even when interrupted; and whether that happened."""
    from tqdm import tqdm

    from mfabric_jax import report, study

    rows: list[dict] = []
    total = len(config.models) * sum(1 if name == "mfabric" else len(config.nic_use) for name in config.fabrics)
    stopped = False
    with tqdm(total=total, desc="compare", unit="fabric", file=sys.stderr, disable=None) as bar:

        def progress(job):
            bar.set_postfix_str(f"{job.workload.model} on {job.fabric.name}")
            bar.update()

        try:
            for row in study.compare(config, progress=progress):
                rows.append(row)
        except KeyboardInterrupt:
            stopped = True
        finally:
            if out is not None and rows:
                report.write_rows(rows, out, study.effective(config) | {"complete": not stopped})
                tqdm.write(f"{len(rows)} rows in {out}", file=sys.stderr)
    return rows, stopped


def _draw(config, rows: list[dict], folder: str) -> None:
    from mfabric_jax import report, study

    regions, timelines = study.examples(config)
    for path in report.save_all(rows, folder, regions, timelines):
        print(path, file=sys.stderr)


def run_traffic(options: TrafficOptions) -> int:
    """`mfabric traffic MODEL`"""
    from mfabric_jax import report, workload

    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    model = given.pop("model")
    job = workload.get(model, **{name: value for name, value in given.items() if value is not None})
    print(
        f"{model}: {job.gpus} GPUs = DP {job.dp} x TP {job.tp} x PP {job.pp} x EP {job.ep}, "
        f"{job.micro_batches} micro-batches of {job.micro_batch} x {job.sequence} tokens per EP rank and iteration"
    )
    columns = [
        report.Column("parallelism"),
        report.Column("bytes_per_iteration", "bytes per iteration, all GPUs"),
        report.Column("share", percent=True),
        report.Column("measured"),
    ]
    print(report.plain(workload.share_table(job), columns))
    print(f"measured: {workload.MEASURED_SOURCE}; docs/assumptions.md says why the shares differ.")
    return 0


def _start_jax(dtype: str, device: str | None) -> None:
    """Device, precision and compilation cache: settings of the process, so they belong to the command line alone."""
    import jax

    if dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    if device is not None:
        one_of("device", device, DEVICES)
        try:
            jax.config.update("jax_default_device", jax.devices(device)[0])
        except RuntimeError:
            found = sorted({d.platform for d in jax.devices()})
            raise InputError(f"device {device!r} is not on this machine; JAX finds {', '.join(found)}.") from None
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "mfabric_jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(field: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise InputError(f"{field} must be numbers separated by commas, got {word!r}.") from None


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)-(\d+)", text.strip())
    if not found:
        raise InputError(f"records must be FIRST-LAST, such as 2011-5001, got {text!r}.")
    return int(found[1]), int(found[2])


if __name__ == "__main__":
    sys.exit(main())
