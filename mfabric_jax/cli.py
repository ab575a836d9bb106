"""The command line: `mfabric compare`, `mfabric traffic`, `mfabric validate`.

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = _command(words)
        options = _parse(command, words[1:])
        return {"compare": run_compare, "traffic": run_traffic, "validate": run_validate}[command](options)
    except InputError as mistake:
        print(f"mfabric: {mistake}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mfabric: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:                # the reader of our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


COMMANDS = ("compare", "traffic", "validate")
VALIDATIONS = ("packet",)
HELP = """usage: mfabric COMMAND [options]

  compare   iteration time, cost and performance per dollar of fabrics for MoE training
  traffic   bytes of each kind of parallelism in one iteration of a model
  validate  predictions against recorded packet-level runs

`mfabric COMMAND --help` lists the options; `mfabric --version` the version."""


def _command(words: list[str]) -> str:
    if not words or words[0] in ("-h", "--help"):
        print(HELP, file=sys.stdout if words else sys.stderr)
        raise SystemExit(0 if words else 2)
    if words[0] == "--version":
        import mfabric_jax

        print(f"mfabric {mfabric_jax.__version__}")
        raise SystemExit(0)
    return one_of("command", words[0], COMMANDS)


def _parse(command: str, words: list[str]) -> Any:
    """Options from words, by tyro; what it refuses becomes one sentence."""
    try:
        import tyro

        from mfabric_jax import options as declared
    except ImportError:
        raise InputError("the command line needs its extra: pip install 'mfabric-jax[cli]'.") from None
    options = declared.COMMANDS[command]
    fields = {field.name for field in dataclasses.fields(options)}
    for word in words:
        name = word.split("=")[0]
        if name.startswith("--") and name != "--help":
            one_of("option", name, sorted("--" + field.replace("_", "-") for field in fields))
    if command == "traffic" and not (words and (words[0] == "--help" or not words[0].startswith("--"))):
        from mfabric_jax.workload import NAMES

        raise InputError(f"traffic needs the name of a model first; allowed: {', '.join(NAMES)}.")
    if command == "validate" and not {"-h", "--help"} & set(words):
        if not words or words[0].startswith("--"):
            raise InputError(f"validate needs to know what first; allowed: {', '.join(VALIDATIONS)}.")
        one_of("validation", words[0], VALIDATIONS)
        if not any(word.split("=")[0] == "--runs" for word in words):
            raise InputError("validate packet needs --runs, a folder of packet-level runs.")
    said, width = io.StringIO(), os.environ.get("COLUMNS")
    try:
        with contextlib.redirect_stderr(said):
            if not {"-h", "--help"} & set(words):
                os.environ["COLUMNS"] = "1000"                       # tyro's message on one line, to be read below
            return tyro.cli(options, args=words, prog=f"mfabric {command}")
    except SystemExit as end:
        if not end.code:
            raise
        raise InputError(_one_sentence(said.getvalue(), command)) from None
    finally:
        os.environ.pop("COLUMNS", None)
        if width is not None:
            os.environ["COLUMNS"] = width


def _one_sentence(box: str, command: str) -> str:
    """The message inside tyro's frame, which has a title line and comes in Unicode or in ASCII."""
    lines = [re.sub(r"[│╭╮╰╯+]|─+|-{3,}", " ", line).strip(" |") for line in box.splitlines()]
    text = re.sub(r"\s+", " ", " ".join([line for line in lines if line][1:])).split(" For full helptext")[0]
    value = re.search(r"Error parsing (--[\w-]+): .*?(\S+) Argument helptext: --\S+ (\S+)", text)
    missing = re.search(r"Missing value for argument '(\S+)'", text)
    unknown = re.search(r"Unrecognized options: (.+?)\.?$", text)
    if value:
        kinds = {"INT": "a whole number", "FLOAT": "a number"}
        kind = next((words for name, words in kinds.items() if name in value[3]), value[3])
        return f"option {value[1]} takes {kind}, got {value[2]}."
    if missing:
        return f"option {missing[1]} needs a value behind it; mfabric {command} --help says which."
    if unknown:
        return f"{command} does not take {unknown[1]!r}; mfabric {command} --help lists what it takes."
    return text if text.endswith(".") else (text or "the options could not be read") + "."


def run_compare(options) -> int:
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
    total = sum(len(config.variants(model)) for model in config.models)
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


def run_traffic(options) -> int:
    """`mfabric traffic MODEL`"""
    from mfabric_jax import report, units, workload

    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    model = given.pop("model")
    job = workload.get(model, **{name: value for name, value in given.items() if value is not None})
    print(
        f"{model}: {job.gpus} GPUs = DP {job.dp} x TP {job.tp} x PP {job.pp} x EP {job.ep}, "
        f"{job.micro_batches} micro-batches of {job.micro_batch} x {job.sequence} tokens per EP rank and iteration"
    )
    columns = [
        report.Column("parallelism"),
        report.Column("gigabytes", "GB per iteration, all GPUs"),
        report.Column("share", percent=True),
        report.Column("measured"),
    ]
    table = workload.share_table(job)
    rows = [row | {"gigabytes": float(units.to_gigabytes(row["bytes_per_iteration"]))} for row in table]
    print(report.plain(rows, columns))
    print(f"measured: {workload.MEASURED_SOURCE}; docs/assumptions.md says why the shares differ.")
    return 0


def run_validate(options) -> int:
    """`mfabric validate packet`"""
    _start_jax(options.dtype, options.device)
    from tqdm import tqdm

    from mfabric_jax import report, study

    runs = study.read_runs(options.runs)
    if options.out is not None:
        report.check_destination(options.out)
    if options.figures is not None:
        report.check_folder(options.figures)
    bar = tqdm(runs, desc="validate", unit="run", file=sys.stderr, disable=None)
    predictions = [study.predict(run, options.dtype) for run in bar]
    rows = study.packet_rows(predictions)
    if options.out is not None:
        given = {"command": "validate packet", "runs": options.runs}
        report.write_rows(rows, options.out, given | study.provenance(options.dtype))
        print(f"{len(rows)} rows in {options.out}", file=sys.stderr)
    print(report.agreement(rows, study.packet_groups(predictions)))
    if options.figures is not None:
        print(report.validation(rows, pathlib.Path(options.figures) / "packet_validation.png"), file=sys.stderr)
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
