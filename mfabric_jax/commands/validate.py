"""`mfabric validate packet`, `training`, `layers` and `serving`: predictions and measurements compared."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from mfabric_jax.checks import InputError, check_unread
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional


@dataclasses.dataclass(frozen=True)
class Options(shared.RowOptions, shared.OnDevice):
    """Predict measured times, and report the errors of the predictions.

    packet: packet-level runs, predicted by exact max-min fluid completion at the line rate without headers, and by the
    same corrected for the run's transport. Neither models queues or losses.
    training: steps of trainings on real clusters, which the package contains with their sources.
    layers: single MoE layers, forward and backward, also from the package.
    serving: dispatch and combine kernels, decoding steps and prefill passes, also from the package; or, with --rows,
    rows of served models from a file of your own.
    """

    what: Annotated[
        Literal["packet", "training", "layers", "serving"],
        Positional(
            "packet|training|layers|serving",
            "a subcommand first; allowed: packet, training, layers, serving",
            "validation",
        ),
    ]
    """packet: packet-level runs; training: training steps; layers: single MoE layers; serving: inference."""
    names: Annotated[tuple[str, ...], Positional("ROW")] = ()
    """Rows of `training` or `serving` (default: all); for `serving`, a benchmark's name selects all of its rows."""
    rows: str | None = None
    """For `serving`: a .csv file of served models to predict (docs/serving.md lists its columns)."""
    runs: str | None = None
    """A folder of packet-level runs, one .json file per run."""
    transport: str = "named"
    """Transport that corrects the prediction: named (ndp or dctcp if the run names it), none, ndp, dctcp, or a .toml or
    .json file of your own constants (docs/fabrics.md)."""
    dtype: Literal["float32", "float64"] = "float64"
    """Arithmetic of the prediction."""
    out: str | None = None
    """Write the rows to this .csv or .parquet file."""
    picture: str | None = None
    """Draw the errors of `training` to this .png, .pdf or .svg file, and memory to NAME-memory beside it."""
    figures: str | None = None
    """Draw the errors of `serving` to this folder."""


def run(options: Options) -> None:
    if options.what != "packet" and options.runs is not None:
        raise InputError(f"runs apply only to validate packet; leave out --runs {options.runs}.")
    if options.what != "training" and options.picture is not None:
        raise InputError(f"picture applies only to validate training; leave out --picture {options.picture}.")
    if options.what != "serving" and options.figures is not None:
        raise InputError(f"figures apply only to validate serving; leave out --figures {options.figures}.")
    if options.rows is not None and (options.what != "serving" or options.names):
        beside = options.names[0] if options.names else f"--rows {options.rows}"
        raise InputError(f"--rows is a file of served models, for validate serving alone; leave out {beside}.")
    if options.what != "packet":
        check_unread(options, ("transport", "dtype"), "validate packet")
        if options.what == "layers" and options.names:
            raise InputError(f"rows apply only to validate training and serving; leave out {options.names[0]!r}.")
        kinds = {
            "training": _trainings,
            "layers": _layers,
            "serving": _servings if options.rows is None else _predict_served,
        }
        return kinds[options.what](options)
    if options.runs is None:
        raise InputError("validate packet needs --runs, a folder of packet-level runs.")
    if options.names:
        raise InputError(f"rows apply only to validate training and serving; leave out {options.names[0]!r}.")
    shared.start_jax(options.dtype, options.device)
    from mfabric_jax.apps import validation
    from mfabric_jax.apps.validation.packets import NAMED
    from mfabric_jax.evaluate.rows.results import provenance
    from mfabric_jax.fabric.transport import get_transport
    from mfabric_jax.report.tables import agreement

    runs = validation.read_runs(options.runs)
    shared.check_outputs(options.out)
    transport = options.transport if options.transport == NAMED else get_transport(options.transport)
    with shared.bar("validate", "run", len(runs)) as bar:
        predictions = []
        for run in runs:
            predictions.append(validation.predict(run, options.dtype, transport))
            bar.update()
    rows = validation.packet_rows(predictions)
    config = {"command": "validate packet", "runs": options.runs, "transport": options.transport}
    shared.write(rows, options.out, config | provenance(options.dtype), options.columns("validate packet"))
    print(agreement(rows, validation.packet_groups(predictions)))


def _collect_rows(rows: Iterable[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Collect `count` rows with a progress bar."""
    kept = []
    with shared.bar("validate", "row", count) as bar:
        for row in rows:
            kept.append(row)
            bar.update()
    return kept


def _trainings(options: Options) -> None:
    from mfabric_jax.apps.validation.sources import summarize_sources
    from mfabric_jax.apps.validation.training_steps import training_ratios, training_rows, training_summary, trainings

    measured = trainings(options.names)
    shared.check_outputs(options.out, picture=options.picture)
    shared.start_jax("float32", options.device)
    from mfabric_jax.evaluate.rows.results import provenance
    from mfabric_jax.report.tables import trainings as table

    rows = _collect_rows(training_rows(measured), len(measured))
    config = {"command": "validate training", "rows": [training.name for training in measured]}
    shared.write(rows, options.out, config | provenance("float32"), options.columns("validate training"))
    ratios = training_ratios(rows)
    print(table(rows, training_summary(rows), ratios, summarize_sources(rows, ratios)))
    if options.picture is not None:
        from mfabric_jax.report import figures

        path = Path(options.picture)
        shared.tell(figures.steps(rows, path))
        shared.tell(figures.memory(rows, path.with_stem(f"{path.stem}-memory")))


def _layers(options: Options) -> None:
    shared.check_outputs(options.out)
    from mfabric_jax.apps.validation.layers import layer_rows
    from mfabric_jax.evaluate.rows.results import provenance
    from mfabric_jax.report.tables import layers as table

    rows = list(layer_rows())
    shared.write(
        rows, options.out, {"command": "validate layers"} | provenance("float64"), options.columns("validate layers")
    )
    print(table(rows))


def _servings(options: Options) -> None:
    shared.check_outputs(options.out, figures=options.figures)
    shared.start_jax("float64", options.device)
    from mfabric_jax.apps.serving.serving_steps import serving_bands, serving_rows, serving_summary, servings
    from mfabric_jax.evaluate.rows.results import provenance
    from mfabric_jax.report.tables import servings as table

    measured = servings(options.names)
    rows = _collect_rows(serving_rows(measured), len(measured))
    config = {"command": "validate serving", "rows": [serving.name for serving in measured]}
    shared.write(rows, options.out, config | provenance("float64"), options.columns("validate serving"))
    print(table(rows, serving_summary(rows), serving_bands(rows)))
    if options.figures is not None:
        from mfabric_jax.report import figures

        steps = [row for row in rows if row["low_s"] is not None]
        if len(steps) < len(rows):
            shared.tell(figures.draw_kernel_errors(rows, Path(options.figures) / "calls.png"))
        if steps:
            shared.tell(figures.steps(steps, Path(options.figures) / "steps.png"))


def _predict_served(options: Options) -> None:
    from mfabric_jax.apps.serving.served_rows import predict_rows, read_served, summarize_served
    from mfabric_jax.report.tables import served_errors as table

    measured = read_served(str(options.rows))
    shared.check_outputs(options.out, figures=options.figures)
    from mfabric_jax.evaluate.rows.results import provenance

    rows = _collect_rows(predict_rows(measured), len(measured))
    config = {"command": "served rows", "rows": options.rows}  # of no kind: columns are those of a user's file
    shared.write(rows, options.out, config | provenance("float64"))
    print(table(rows, summarize_served(rows)))
    if options.figures is not None:
        from mfabric_jax.report import figures

        shared.tell(figures.draw_served_errors(rows, Path(options.figures) / "served.png"))
