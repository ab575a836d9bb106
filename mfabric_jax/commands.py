"""What the commands do once their options are read: `cli` reads them, `study` computes, `report` shows."""

import dataclasses
import os
import pathlib
import re
import sys
from typing import Any

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of

DEVICES = ("cpu", "gpu", "tpu")


def run_compare(options) -> int:
    """`mfabric compare`"""
    start_jax(options.dtype, options.device)
    from mfabric_jax import report
    from mfabric_jax.fabric import no_price
    from mfabric_jax.study.config import Compare

    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    out, figures = given.pop("out"), given.pop("figures")
    del given["device"], given["preset"]
    for field in ("models", "fabrics", "nic_use"):
        given[field] = listed_words(given[field])
    given["nic_gbps"] = tuple(number_in("nic_gbps", word) for word in listed_words(given["nic_gbps"]))
    given["records"] = record_range(given["records"])
    config = Compare(**given)
    check_outputs(out, figures)
    rows, stopped = _run(config, out)
    print(report.comparison(rows) if rows else "no rows")
    for name in config.fabrics:
        if why := no_price(name, config.price_list()):
            print(why)
    for said in dict.fromkeys(row["traffic"] for row in rows if config.trace is not None):
        print(f"traffic: {said}")
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


def run_calibrate(options) -> int:
    """`mfabric calibrate`"""
    start_jax("float32", options.device)
    from tqdm import tqdm

    from mfabric_jax import report, study

    given: dict[str, Any] = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    models, out = listed_words(given.pop("models")), given.pop("out")
    del given["device"], given["preset"]
    given |= {"models": models, "nic_use": listed_words(given["nic_use"])}
    config = study.Compare(**given)
    if out is not None:
        study.check_calibration(out)
    with tqdm(total=len(models), desc="calibrate", unit="model", file=sys.stderr, disable=None) as bar:
        found = study.calibrate(config, models, progress=lambda _: bar.update())
    columns = [report.Column("model"), report.Column("nic_gbps"), report.Column("efficiency", "rate over A100 peak")]
    columns += [report.Column("compute_s", "computation [s]"), report.Column("fitted"), report.Column("published")]
    print("fat-tree time over that at 800 Gbps")
    print(report.plain(study.calibration_rows(found), [*columns, report.Column("off", percent=True)]))
    if out is not None:
        print(study.write_calibration(found, config, out), file=sys.stderr)
    return 0


def run_traffic(options) -> int:
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
    start_jax(options.dtype, options.device)
    from tqdm import tqdm

    from mfabric_jax import report, study

    runs = study.read_runs(options.runs)
    check_outputs(options.out, options.figures)
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


def run_failures(options) -> int:
    """`mfabric failures`"""
    start_jax(options.dtype, options.device)
    from tqdm import tqdm

    from mfabric_jax import report, study
    from mfabric_jax.study.config import OF_JOB, Compare

    same = ("policy", "rule", "routing", "optical_degree", "electrical_nics", "delay_s", "eps_waits", "gpu", *OF_JOB)
    given = {field: getattr(options, field) for field in (*same, "efficiency", "iterations", "seed", "dtype")}
    setting = Compare(models=listed_words(options.models), fabrics=("mfabric",), nic_gbps=(options.nic_gbps,), **given)
    where = {field: getattr(options, field) for field in ("stage", "server", "at", "radix")}
    config = study.Failures(setting, kinds=listed_words(options.kinds), **where)
    check_outputs(options.out, options.figures)
    rows = []
    try:
        with tqdm(total=len(setting.models) * len(config.kinds), desc="failures", file=sys.stderr, disable=None) as bar:
            for row in study.failures(config, progress=bar.set_postfix_str):
                rows.append(row)
                bar.update()
    finally:
        if options.out is not None and rows:
            report.write_rows(rows, options.out, study.effective_failures(config))
    shown = [report.Column("model"), report.Column("failure")]
    shown += [report.Column("healthy_s", "healthy [s]"), report.Column("failed_s", "failed [s]")]
    shown += [report.Column("slow_down", "slow-down", percent=True), report.Column("published", percent=True)]
    if config.at:
        shown.append(report.Column("run_slow_down", "of the run", percent=True))
    print(report.plain(rows, shown))
    print("published: arXiv 2501.03905, 400 Gbps and 1,024 GPUs; docs/assumptions.md says what is modelled.")
    if options.figures is not None:
        print(report.failures(rows, pathlib.Path(options.figures) / "failures.png"), file=sys.stderr)
    return 0


def run_cluster(options) -> int:
    """`mfabric cluster`"""
    start_jax(options.dtype, options.device)
    from mfabric_jax import report, study

    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    files = {name: given.pop(name) for name in ("out", "links", "flows")}
    picture = given.pop("picture")
    del given["device"]
    config = study.WholeCluster(**given)
    for file in files.values():
        check_outputs(file, None)
    if picture is not None:
        report.check_picture(picture)
    solved = study.solve_cluster(config)
    rows = study.cluster_rows(solved)
    effective = study.effective_cluster(config)
    tables = {"out": lambda: rows, "links": lambda: study.link_rows(solved), "flows": lambda: study.flow_rows(solved)}
    for name, table in tables.items():
        if files[name] is not None:
            print(report.write_rows(table(), files[name], effective | {"table": name}), file=sys.stderr)
    columns = ["traffic", "flows", report.Column("gigabytes", "GB"), report.Column("end_s", "ends at [s]")]
    print(
        f"{config.model} on {rows[0]['fabric']}: {solved.job.gpus:,} GPUs, {rows[0]['links']:,} links; "
        f"built in {solved.build_s:.1f} s, solved in {solved.solve_s:.1f} s, at most {rows[0]['peak_mb']:,.0f} MB"
    )
    print(report.plain([row | {"gigabytes": units.to_gigabytes(row["bytes"])} for row in rows], columns))
    busiest = sorted(study.link_rows(solved), key=lambda row: -row["utilisation"])[:5]
    link = [report.Column("link"), report.Column("kind"), report.Column("from"), report.Column("to")]
    print("\nbusiest links")
    print(report.plain(busiest, [*link, report.Column("utilisation", percent=True)]))
    if picture is not None:
        _draw_solved(solved, picture)
    return 0


def _draw_solved(solved, picture: str) -> None:
    from mfabric_jax import report

    used, network = solved.transfers.utilisation, solved.network
    if solved.cluster is None:
        drawn = report.draw_graph(network, picture, utilisation=used)
    else:
        drawn = report.draw_fabric(solved.cluster, picture, utilisation=pooled_use(solved))
    print(drawn, file=sys.stderr)


def pooled_use(solved):
    """Utilisation of the links of `cluster.sprayed`; None where flows took single paths, which the picture pools."""
    return solved.transfers.utilisation if solved.network is solved.cluster.sprayed else None


def run_timeline(options) -> int:
    """`mfabric timeline`"""
    start_jax(options.dtype, options.device)
    from mfabric_jax import report, study

    given: dict[str, Any] = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    out, picture = given.pop("out"), given.pop("picture")
    del given["device"], given["preset"]
    for one, several in (("model", "models"), ("fabric", "fabrics"), ("nic_gbps", "nic_gbps"), ("nic_use", "nic_use")):
        given[several] = (given.pop(one),)
    given["records"] = record_range(given["records"])
    config = study.Compare(**given)
    if out is not None:
        report.check_trace(out)
    if picture is not None:
        report.check_picture(picture)
    segments, rows, effective = study.example_timeline(config)
    title = f"{options.model} on {options.fabric} at {options.nic_gbps:g} Gbps"
    print(f"{title}: an iteration of {rows[0]['iteration_s']:.4g} s; seconds of every pipeline stage")
    parts = {"compute_s": "compute", "tp_comm_s": "TP", "ep_comm_s": "EP", "dp_comm_s": "DP"}
    parts |= {"reconfig_s": "reconf", "bubble_s": "bubble"}
    print(report.plain(rows, ["stage", *(report.Column(key, name) for key, name in parts.items())]))
    if out is not None:
        print(report.write_perfetto(segments, out, effective), file=sys.stderr)
    if picture is not None:
        print(report.gantt(segments, picture, title), file=sys.stderr)
    return 0


def run_draw(options) -> int:
    """`mfabric draw FABRIC`"""
    from mfabric_jax import fabric, report, study

    report.check_picture(options.out)
    if pathlib.Path(options.fabric).suffix == ".json":
        print(report.draw_graph(fabric.read_graph(options.fabric), options.out))
        return 0
    start_jax("float32", None)
    given: dict[str, Any] = {f.name: getattr(options, f.name) for f in dataclasses.fields(options) if f.name != "out"}
    given["servers"] = options.servers or 0
    config = study.WholeCluster(**given)
    print(report.draw_fabric(study.example_cluster(config), options.out))
    return 0


def run_traces(options) -> int:
    """`mfabric traces info PATH`, `mfabric traces convert PATH OUT.npz` and `mfabric traces fit PATH`"""
    from mfabric_jax import traffic

    records = record_range(options.records)
    if options.what == "convert":
        if options.to is None:
            raise InputError("traces convert needs OUT.npz behind the path.")
        print(traffic.save_tokens(_one_trace(options).chosen(records), options.to))
        return 0
    if options.to is not None:
        what = "rows" if options.what == "info" else "knobs"
        raise InputError(f"traces {options.what} takes one path, got {options.to!r} too; {what} go to --out.")
    return _traces_fit(options, records) if options.what == "fit" else _traces_info(options, records)


def _one_trace(options):
    """The recording in a path that holds only one."""
    from mfabric_jax import traffic

    one, *others = traffic.open_trace(options.path)
    if others:
        names = ", ".join(str(pathlib.Path(options.path) / each.name) for each in (one, *others))
        raise InputError(f"{options.path} holds several recordings; {options.what} one of {names}.")
    return one


def _traces_fit(options, records: tuple[int, int] | None) -> int:
    """The knobs of generated traffic with the statistics of a recording, and both of these in a table."""
    from mfabric_jax import report, traffic

    if options.out is not None and pathlib.Path(options.out).suffix != ".json":
        raise InputError(f"knobs are written as .json, got {options.out!r}.")
    recording = _one_trace(options).chosen(records)
    found = traffic.fit(recording, options.iterations)
    print(f"{recording.format}, {recording.words}\n")
    print(report.plain([{"knob": name, "value": value} for name, value in found.knobs.turned.items()]))
    columns = ["statistic", "recorded", "fitted", report.Column("error", percent=True)]
    print(f"\n{report.plain(found.rows(), columns)}")
    if options.out is not None:
        print(found.knobs.write(options.out), file=sys.stderr)
    return 0


def _traces_info(options, records: tuple[int, int] | None) -> int:
    """Tables of every recording in a path; rows and pictures where asked for."""
    from mfabric_jax import report, traffic
    from mfabric_jax.traffic import survey

    check_outputs(options.out, options.figures)
    rows = []
    for whole in traffic.open_trace(options.path):
        recording = whole.chosen(records)
        table = survey.table(recording, options.ranks, options.ranks_per_server)
        rows += table
        shape = ", ".join(f"{name} {size:,}" for name, size in recording.axes.items())
        print(f"{recording.format}, {recording.words}\n{shape}")
        print(f"\nover iterations and layers\n{report.plain(survey.summary(table))}")
        drift = survey.drift(recording)
        if drift:
            print(f"\nloads of iterations apart\n{report.plain(drift)}")
        print()
        if options.figures is not None:
            _draw_trace(recording, pathlib.Path(options.figures), options.ranks)
    if options.out is not None:
        given = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
        print(report.write_rows(rows, options.out, given | {"command": "traces info"}), file=sys.stderr)
    return 0


def _draw_trace(recording, folder: pathlib.Path, ranks: int | None) -> None:
    from mfabric_jax import report
    from mfabric_jax.traffic import survey

    title = f"{recording.format} {recording.name}".rstrip()
    end = f"_{recording.name}.png" if recording.name else ".png"
    load = survey.loads(recording)
    target = recording.targets.value
    print(report.trace_load(load, recording.number, folder / f"trace_load{end}", title, target), file=sys.stderr)
    matrix = survey.sent(recording, ranks)
    if matrix is not None:
        rows, columns, counts = matrix
        print(report.trace_pairs(counts, folder / f"trace_pairs{end}", title, rows, columns), file=sys.stderr)


def check_outputs(out: str | None, figures: str | None) -> None:
    """Say now that a result could not be written."""
    from mfabric_jax import report

    if out is not None:
        report.check_destination(out)
    if figures is not None:
        report.check_folder(figures)


def start_jax(dtype: str, device: str | None) -> None:
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


def listed_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def number_in(field: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise InputError(f"{field} must be numbers separated by commas, got {word!r}.") from None


def record_range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)-(\d+)", text.strip())
    if not found:
        raise InputError(f"records must be FIRST-LAST, such as 2011-5001, got {text!r}.")
    return int(found[1]), int(found[2])
