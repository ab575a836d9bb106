"""`mfabric traces study PATH`: three answers about a recording, as text or as a page with pictures."""

import dataclasses
import functools
import pathlib
import tempfile
from typing import Annotated, Any

from mfabric_jax.case import Cases
from mfabric_jax.case.layers import preset_layers
from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional

PAGE = "study.html"
WIDTH = 120
COLUMNS = {"design": "", "iteration_s": "", "over_tree": "over fat-tree", "ep_share": "all-to-all"}
COLUMNS |= {
    "ep_share_without_bubble": "without bubble",
    "network_cost_usd": "network $",
    "cluster_cost_usd": "cluster $",
}
PRESET = "designs"  # the designs to compare
(DESIGNS,) = preset_layers(PRESET)
BELOW = [dataclasses.replace(DESIGNS, variants=())]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowOptions, shared.OnDevice):
    """Study the effect of recorded routing on a job: the all-to-alls' share of an iteration, whether circuits help,
    and which predictor works. Six designs of fat-trees and mFabric are compared (mfabric show --preset designs).
    """

    path: Annotated[str, Positional("PATH", "the path of a trace next; mfabric traces --help lists formats")]
    """The recording; PATH/NAME if the path has several."""
    records: tuple[int, int] | None = None
    """Range of records, FIRST-LAST (default: all; for a SmartMoE gate trace 2011-5001)."""
    axes: str | None = None
    """Axes of an array in a file, in order: some of iteration,layer,micro-batch,source,expert (or destination)."""
    ranks_per_server: int | None = None
    """EP ranks in a server (default: the job's)."""
    out: str | None = None
    """A .html file for the page, or a folder for the page, pictures and rows."""


def run(cases: Cases, options: Options) -> None:
    case = shared.one_case(cases, "traces study")
    if "model.name" not in cases.stated:
        raise InputError("traces study needs --model, the model of the job that is studied.")
    decided = {path for variant in DESIGNS.variants for path in variant.stated}
    shared.refuse_flags(cases, decided, f"traces study compares the designs of preset {PRESET}, which set this value")
    page = None if options.out is None else _page_in(pathlib.Path(options.out))
    shared.start_jax(case.run.dtype, options.device)
    from mfabric_jax.apps.recordings.study import TraceStudy, answers, trace_study
    from mfabric_jax.evaluate.rows.results import record_of_cases
    from mfabric_jax.traffic.recording import recording_of

    config = TraceStudy(case=case, ranks_per_server=options.ranks_per_server)
    recording = recording_of(config.job, options.path, options.axes).select(options.records)
    with shared.bar("traces study", "part", len(config.designs) + 1) as bar:
        study = trace_study(recording, config, functools.partial(shared.advance, bar))
    by_question = answers(study)
    print(_text(study, by_question))
    if page is not None:
        _write(
            study,
            by_question,
            page,
            record_of_cases(cases) | {"command": "traces study", "path": str(options.path)},
            options,
        )


def _page_in(out: pathlib.Path) -> pathlib.Path:
    """Return the path of the page: `out` itself, or a page in that folder."""
    from mfabric_jax.report.html import check_page

    page = out if out.suffix else out / PAGE
    check_page(page)
    return page


def _text(study: Any, by_question: dict[str, list[str]]) -> str:
    """Return the answers and their tables as text."""
    from mfabric_jax import report
    from mfabric_jax.apps.recordings.study import CIRCUITS

    recording = study.recording
    parts = [f"{recording.format}, {recording.words}, for {study.job.model} ({study.job.gpus} GPUs)"]
    percent = ("ep_share", "ep_share_without_bubble")
    columns = [report.TableColumn(key, title or None, percent=key in percent) for key, title in COLUMNS.items()]
    for question, sentences in by_question.items():
        table = f"{report.plain(study.rows, columns, WIDTH)}\n" if question == CIRCUITS else ""
        parts.append(f"{question}\n{table}" + "\n".join(f"- {sentence}" for sentence in sentences))
    return "\n\n".join(parts)


def _write(
    study: Any, by_question: dict[str, list[str]], page: pathlib.Path, effective: dict[str, Any], options: Options
) -> None:
    """Write the page and, in a folder, the pictures and rows."""
    from mfabric_jax import report
    from mfabric_jax.evaluate.rows.results import provenance

    title = f"{study.recording.format} for {study.job.model}"
    effective = effective | provenance("float32")
    with tempfile.TemporaryDirectory() as scratch:
        folder = page.parent if page.name == PAGE else pathlib.Path(scratch)
        pictures = folder / "pictures"
        for path in _draw(study, pictures):
            if folder == page.parent:
                shared.tell(path)
        if folder == page.parent:
            shared.write(study.rows, folder / "designs.csv", effective, options.columns("traces study designs"))
            if study.foresight:
                shared.write(
                    study.foresight, folder / "predictors.csv", effective, options.columns("traces study predictors")
                )
        shared.tell(report.html_report(study.rows, effective, page, pictures, title, answers=by_question))


def _draw(study: Any, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw skew, drift, locality and predictors, as far as the recording has them."""
    from mfabric_jax.apps.recordings import statistics
    from mfabric_jax.report import figures

    recording = study.recording
    load, target = statistics.target_loads(recording), recording.targets.value
    title = f"{recording.format} {recording.name}".rstrip()
    layers = load.sum(axis=0, keepdims=True)
    made = [figures.trace_load(layers, [0], folder / "1_skew.png", f"{title}: load of every layer", target)]
    if len(load) > 1:
        drift = statistics.drift_rows(recording)
        made.append(figures.trace_load(load, recording.number, folder / "2_load.png", f"{title}: over time", target))
        made.append(figures.trace_drift(drift, folder / "3_drift.png", f"{title}: drift"))
    if (matrix := statistics.selection_matrix(recording, study.ranks)) is not None:
        rows, columns, counts = matrix
        made.append(figures.trace_pairs(counts, folder / "4_pairs.png", f"{title}: who sends to whom", rows, columns))
    if study.foresight:
        made.append(figures.trace_foresight(study.foresight, folder / "5_predictors.png", f"{title}: predictors"))
    return made
