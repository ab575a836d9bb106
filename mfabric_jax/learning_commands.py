"""`mfabric policies bench`, `mfabric train` and `mfabric evaluate`, once their options are read."""

import dataclasses
import pathlib
import sys
import time
from typing import Any

from mfabric_jax import commands
from mfabric_jax.checks import InputError


def run_policies(options) -> int:
    """`mfabric policies bench`"""
    commands.start_jax(options.dtype, options.device)
    from tqdm import tqdm

    from mfabric_jax import report, study

    given: dict[str, Any] = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    out, figures = given.pop("out"), given.pop("figures")
    del given["device"], given["what"]
    for field in ("policies", "workloads", "routings"):
        words = given.pop(field)
        given |= {} if words is None else {field: commands.listed_words(words)}
    if "workloads" not in given and options.trace is not None:
        given["workloads"] = (*study.FAMILIES, study.RECORDED)
    given["servers"] = tuple(_whole("servers", word) for word in commands.listed_words(given["servers"]))
    given["sigmas"] = tuple(commands.number_in("sigmas", word) for word in commands.listed_words(given["sigmas"]))
    given["records"] = commands.record_range(given["records"])
    config = study.Scoreboard(**given)
    commands.check_outputs(out, figures)
    rows = []
    try:
        with tqdm(total=config.rows, desc="policies bench", unit="row", file=sys.stderr, disable=None) as bar:
            for row in study.scoreboard(config, progress=bar.set_postfix_str):
                rows.append(row)
                bar.update()
    finally:
        if out is not None and rows:
            effective = study.effective_scoreboard(config) | {"complete": len(rows) == config.rows}
            print(report.write_rows(rows, out, effective), file=sys.stderr)
    print(report.scoreboard_table(rows))
    if figures is not None:
        print(report.scoreboard(rows, pathlib.Path(figures) / "policies.png"), file=sys.stderr)
    return 0


def run_train(options) -> int:
    """`mfabric train`"""
    commands.start_jax("float32", options.device)
    from tqdm import tqdm

    from mfabric_jax import report, study

    given: dict[str, Any] = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    out = pathlib.Path(given.pop("out"))
    del given["device"]
    given["sizes"] = tuple(_whole("sizes", word) for word in commands.listed_words(given["sizes"]))
    given["records"] = commands.record_range(given["records"])
    config = study.Training(**given)
    commands.check_outputs(None, str(out))
    began = time.monotonic()
    with tqdm(total=config.steps, desc="train", unit="step", file=sys.stderr, disable=None) as bar:

        def progress(step: int, line: dict[str, float]) -> None:
            bar.update(step - bar.n)
            if "time" in line:
                bar.set_postfix({"time over bound": f"{line['time']:.3f}"}, refresh=False)

        lines = study.train(config, out, progress)
    shown = [line for line in lines if any(name.startswith("held_out") for name in line)]
    print("mean time over the degree bound; held_out: on demand that no step sees; the policy with the least is kept")
    print(report.plain(shown, ["step", "time", *(name for name in shown[0] if name != "step")]))
    print(f"{report.training(lines, out / 'curves.png')}\n{out / study.TRAINED_POLICY}", file=sys.stderr)
    print(f"{config.steps} steps, {time.monotonic() - began:.0f} s in this process", file=sys.stderr)
    return 0


def run_evaluate(options) -> int:
    """`mfabric evaluate`"""
    commands.start_jax("float32", options.device)
    from tqdm import tqdm

    from mfabric_jax import report, study

    given: dict[str, Any] = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    out, figures = given.pop("out"), given.pop("figures")
    del given["device"]
    for field in ("policies", "routings"):
        given[field] = commands.listed_words(given.pop(field))
    given["sizes"] = tuple(_whole("sizes", word) for word in commands.listed_words(given["sizes"]))
    given["sigmas"] = tuple(commands.number_in("sigmas", word) for word in commands.listed_words(given["sigmas"]))
    given["records"] = commands.record_range(given["records"])
    config = study.Evaluation(**given)
    commands.check_outputs(out, figures)
    rows, complete = [], False
    try:
        with tqdm(desc="evaluate", unit="row", file=sys.stderr, disable=None) as bar:
            for row in study.evaluate_policies(config, progress=bar.set_postfix_str):
                rows.append(row)
                bar.update()
        complete = True
    finally:
        if out is not None and rows:
            effective = dataclasses.asdict(config) | study.provenance("float32") | {"complete": complete}
            print(report.write_rows(rows, out, {"command": "evaluate"} | effective), file=sys.stderr)
    print(report.forecast_table(rows))
    if figures is not None:
        print(report.forecasts(rows, pathlib.Path(figures) / "policies_under_forecasts.png"), file=sys.stderr)
    return 0


def _whole(field: str, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise InputError(f"{field} must be whole numbers separated by commas, got {word!r}.") from None
