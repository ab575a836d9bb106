"""`mfabric traces info PATH`, `convert PATH OUT.npz` and `fit PATH`; see also `traces_study` and `traces_place`."""

import dataclasses
import pathlib
from typing import Annotated, Literal

from mfabric_jax.checks import InputError, check_unread
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional

WHAT = ("info", "convert", "fit", "study", "place")

READ_BY = {"ranks": ("info",), "ranks_per_server": ("info",), "iterations": ("fit",), "out": ("info", "fit")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowOptions):
    """Analyse recorded routing: shape, skew, shares of pairs, drift and locality, over iterations and layers.

    Formats: .npy, .npz, .json or .pt of counts [layer, expert], [iteration, layer, micro-batch, source, expert] or the
    axes of --axes, num_global_tokens_per_expert [tp, ep, expert], logical_count (SGLang) or expert_load_window (vLLM)
    [iteration, layer, expert] or weight [layer, expert]; .csv or .parquet with columns iteration, layer, micro_batch,
    source, expert, tokens; .jsonl of a Megatron router trace, or a folder of such files; .txt of an mFabric weight
    matrix; a folder of a SmartMoE gate trace, OLMoE expert counts, a LAER-MoE token analysis or SGLang's .pt files.
    """

    what: Annotated[
        Literal["info", "convert", "fit", "study", "place"],
        Positional("info|convert|fit|study|place", f"a subcommand first; allowed: {', '.join(WHAT)}", "traces command"),
    ]
    """info: statistics; convert: the counts as .npz of tokens, or summed as an mFabric weight matrix .txt; fit: knobs
    of generated traffic with similar statistics; study: the all-to-alls' share of an iteration, whether circuits help,
    which predictor works (mfabric traces study --help); place: experts placed by the recorded loads (mfabric traces
    place --help)."""
    path: Annotated[str, Positional("PATH", "the path of a trace next; mfabric traces --help lists formats")]
    """The recording; PATH/NAME if the path has several."""
    to: Annotated[str | None, Positional("OUT.npz|OUT.txt")] = None
    """The output of convert."""
    records: tuple[int, int] | None = None
    """Range of records, FIRST-LAST (default: all; for a SmartMoE gate trace 2011-5001)."""
    iterations: int | None = None
    """fit: iterations to generate for the comparison (default: as many as recorded)."""
    ranks: int | None = None
    """EP ranks, if they are not recorded, or if neighbouring ranks count as one."""
    ranks_per_server: int | None = None
    """info: EP ranks in a server (default: those of 8 GPUs by --tp or --model, if a group spans several servers)."""
    axes: str | None = None
    """Axes of an array in a file, in order: some of iteration,layer,micro-batch,source,expert (or destination)."""
    model: str | None = None
    """Router trace: the recorded job's model, which sets the defaults of the options below."""
    tp: int | None = None
    """Router trace: tensor-parallel degree (default of this and the next four options: the model's, else 1)."""
    ep: int | None = None
    """Router trace: expert-parallel degree."""
    dp: int | None = None
    """Router trace: data-parallel degree: replicas of an expert-parallel group."""
    pp: int | None = None
    """Router trace: pipeline stages."""
    chunks: int | None = None
    """Router trace: model chunks of a pipeline stage."""
    order: str | None = None
    """Router trace: order of global ranks, innermost first (default: tp-ep-dp-pp, as in Megatron)."""
    experts: int | None = None
    """Router trace: experts of the model (default: the model's, else the largest recorded number + 1)."""
    out: str | None = None
    """info: write a row per iteration and layer to this .csv or .parquet file; fit: the knobs to this .json file."""


def run(options: Options) -> None:
    from mfabric_jax import traffic
    from mfabric_jax.apps import recordings

    records = options.records
    if options.what in ("study", "place"):
        raise InputError(f"traces {options.what} must be the first two words; its arguments follow them.")
    for name, reads in READ_BY.items():
        if options.what not in reads:
            check_unread(options, (name,), f"traces {' and '.join(reads)}")
    if options.what == "convert":
        if options.to is None:
            raise InputError("traces convert needs OUT.npz after the path.")
        save = recordings.save_weight_matrix if options.to.endswith(".txt") else traffic.save_tokens
        print(save(_one_trace(options).select(records), options.to))
        return
    if options.to is not None:
        what = {"info": "rows go", "fit": "knobs go"}[options.what]
        raise InputError(f"traces {options.what} takes one path, got {options.to!r} too; {what} to --out.")
    (_traces_fit if options.what == "fit" else _traces_info)(options, records)


def _recordings(options):
    """Return the recordings at the path; options give the global ranks of a router trace."""
    from mfabric_jax import traffic, workload
    from mfabric_jax.case import Case
    from mfabric_jax.evaluate import resolve

    fields = [field.name for field in dataclasses.fields(workload.RankLayout)]
    degrees = {name: value for name in fields if (value := getattr(options, name)) is not None}
    layout = workload.RankLayout()
    if options.model is not None:
        layout = resolve(Case().with_({"model.name": options.model, "model.recipe": "paper"})).job.layout
    recordings = traffic.open_trace(options.path, dataclasses.replace(layout, **degrees), options.axes)
    if (degrees or options.model) and recordings[0].layout is None:
        name = next(iter(degrees), "model")
        raise InputError(f"--{name} is for Megatron router traces, but {options.path} holds {recordings[0].format}.")
    return recordings


def _one_trace(options):
    """Return the recording at a path that has only one."""
    recording, *others = _recordings(options)
    if others:
        names = ", ".join(str(pathlib.Path(options.path) / each.name) for each in (recording, *others))
        raise InputError(f"{options.path} holds several recordings; {options.what} one of {names}.")
    return recording


def _traces_fit(options, records: tuple[int, int] | None) -> None:
    """Fit knobs of generated traffic to a recording, and print the statistics of both."""
    from mfabric_jax import report
    from mfabric_jax.apps import recordings

    if options.out is not None and pathlib.Path(options.out).suffix != ".json":
        raise InputError(f"knobs are written as .json, got {options.out!r}.")
    recording = _one_trace(options).select(records)
    result = recordings.fit(recording, options.iterations)
    print(f"{recording.format}, {recording.words}\n")
    print(report.plain([{"knob": name, "value": value} for name, value in result.knobs.changes.items()]))
    columns = ["statistic", "recorded", "fitted", report.TableColumn("error", percent=True)]
    print(f"\n{report.plain(result.rows(), columns)}")
    if options.out is not None:
        shared.tell(result.knobs.write(options.out))


def _traces_info(options, records: tuple[int, int] | None) -> None:
    """Print tables of every recording at a path, and write rows if requested."""
    from mfabric_jax import report
    from mfabric_jax.apps.recordings import statistics

    shared.check_outputs(options.out)
    rows = []
    for whole in _recordings(options):
        recording = whole.select(records)
        table = statistics.statistics_by_layer(recording, options.ranks, options.ranks_per_server)
        rows += table
        shape = ", ".join(f"{name} {size:,}" for name, size in recording.axes.items())
        print(f"{recording.format}, {recording.words}\n{shape}")
        print(f"\nover iterations and layers\n{report.plain(statistics.quantile_rows(table))}")
        if any(row["server_share"] is not None for row in table):
            print(_server(recording, options.ranks_per_server))
        drift = statistics.drift_rows(recording)
        if drift:
            print(f"\nloads by distance between iterations\n{report.plain(drift)}")
        print()
    records_text = None if records is None else f"{records[0]}-{records[1]}"
    config = dataclasses.asdict(options) | {"command": "traces info", "records": records_text}
    shared.write(rows, options.out, config, options.columns("traces info"))


def _server(recording, ranks_per_server: int | None) -> str:
    """Return the assumed size of a server, in words."""
    from mfabric_jax.apps.recordings import statistics

    if ranks_per_server is not None:
        return f"a server: {ranks_per_server} ranks (--ranks-per-server)"
    ranks = statistics.ranks_in_server(recording)
    known = "no degrees are known, so every GPU is a rank" if recording.layout is None else recording.layout.words
    return f"a server: {ranks} ranks ({statistics.SERVER} GPUs; {known}); --ranks-per-server changes this"
