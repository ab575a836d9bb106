"""Mistakes of the room `report`: a call, then the words of its sentence (see `tests/test_refusals.py`)."""

import pathlib
import tempfile

import numpy as np

from mfabric_jax import report
from mfabric_jax.checks import one_of
from mfabric_jax.fabric import FabricGraph
from mfabric_jax.report import QueryOptions, comparison, figures, html_report, query, read_rows, write_rows
from mfabric_jax.report.figures.clusters import build_fabric
from mfabric_jax.report.figures.networks import build_graph
from mfabric_jax.report.figures.trace import build_load, build_pairs
from mfabric_jax.report.perfetto import check_trace
from tests.report import synthetic
from tests.report.test_fabric_figure import made

HELD = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(HELD.name)
ROWS = synthetic.rows(models=["llama-moe"])
PNG = FOLDER / "none.png"
ONES, NONE = np.ones((3, 3)), np.zeros(0)
SPANS = [{"rank": -1, "track": "critical path", "begin_s": 0.0, "end_s": 1.0}]
write_rows([{"fabric": "x", "cost": 1.0, "pooled": True}], FOLDER / "asked" / "rows.parquet", {})
write_rows([{"fabric": "x", "iteration_s": s} for s in (1.0, 2.0)], FOLDER / "two" / "rows.parquet", {})
(FOLDER / "broken.parquet").write_text("PAR1")
(FOLDER / "folder.json").mkdir()
(FOLDER / "twice.csv").write_text("a,b,a\n1,2,3\n")


def tree():
    return made("fat-tree", 2, radix=8)


def asked(**how):
    return lambda: query([FOLDER / "asked"], QueryOptions(**how))


def two(**how):
    return lambda: query([FOLDER / "two"], QueryOptions(**how))


def files(*names):
    return lambda: query([FOLDER / name for name in names], QueryOptions())


REFUSED = [
    (lambda: comparison([]), "at least one row"),
    (lambda: comparison([*ROWS, ROWS[0]]), "two results for llama-moe on fat-tree at 100 Gbps"),
    (lambda: comparison([{"model": "m", "fabric": "f", "nic_gbps": 400}]), "the rows have no column iteration_s"),
    (lambda: html_report([], {}, FOLDER / "a.html"), "at least one row"),
    (lambda: html_report(ROWS, {}, FOLDER / "a.html", FOLDER / "asked"), "holds no .png or .svg file"),
    # pictures
    (lambda: figures.failures([], PNG), "the figure of failures needs slow-downs, but there are no rows."),
    (lambda: figures.failures([{"model": "a", "slow_down": 0.1}], PNG), "but rows lack failure."),
    (lambda: figures.forecasts([], PNG), "needs rows, got none"),
    (lambda: figures.training([{"step": 0}], PNG), "lines of metrics with a time, got none"),
    (lambda: figures.region(ONES, np.ones((2, 2)), PNG), "circuits must have the shape of demand (3, 3), got (2, 2)"),
    (lambda: figures.region(np.ones(3), np.ones(3), PNG), "square matrix"),
    (lambda: figures.region(ONES, ONES, PNG, servers=["a"]), "must name all 3 servers"),
    (lambda: figures.gantt([], PNG), "segments must hold at least one segment, got none."),
    (lambda: figures.replay_picture(SPANS, [], PNG), "spans must hold at least one with a rank, got none."),
    (lambda: figures.block_timeline(synthetic.segments(), FOLDER / "a.gif"), "allowed: .png, .pdf, .svg"),
    (lambda: build_load(np.ones((3, 4)), [0, 1, 2]), "load must have three non-empty axes", "got shape (3, 4)"),
    (lambda: build_load(np.ones((3, 1, 4)), [0]), "number must name each of the 3 iterations of load, got 1"),
    (lambda: build_pairs(-np.ones((1, 4, 4))), "matrix must have three non-empty axes and no negative numbers"),
    (
        lambda: build_graph(FabricGraph(NONE, NONE, NONE, NONE, (), ())),
        "network must have nodes to be drawn, got none.",
    ),
    (lambda: build_fabric(tree(), utilisation=np.zeros(3)), "utilisation must have the shape [", "got [3]."),
    (
        lambda: build_fabric(tree(), utilisation=np.full(len(tree().pooled_network.tail), np.nan)),
        "utilisation must be between 0 and 1, got nan..nan.",
    ),
    # traces
    (lambda: report.write_perfetto([], FOLDER / "t.json"), "segments must hold at least one segment, got none."),
    (lambda: report.write_task_trace([], FOLDER / "t.txt"), "extension", "allowed: .json"),
    (lambda: check_trace(FOLDER / "folder.json"), "is a folder; give a .json file."),
    # files of rows
    (lambda: write_rows([{"x": np.ones(2)}], FOLDER / "r.csv", {}), "column 'x' holds"),
    (lambda: read_rows(FOLDER / "rows.txt"), "allowed: .csv, .parquet."),
    (lambda: read_rows(FOLDER / "absent.csv"), "No such file"),
    (
        lambda: read_rows(FOLDER / "broken.parquet"),
        "broken.parquet' does not hold rows",
    ),
    (lambda: read_rows(FOLDER / "twice.csv"), "does not hold rows (two columns are called 'a'); give a file"),
    (files("folder.json"), "holds no .parquet file of rows; give a folder"),
    # questions
    (asked(where=["fabrik = x"]), "column 'fabrik' is unknown (did you mean 'fabric'?)"),
    (lambda: one_of("column", "gpu", ["gpus", "gpu.name"]), "column 'gpu' is unknown (did you mean 'gpu.name'?)"),
    (asked(where=["cost =< 3"]), "a condition is COLUMN OP VALUE with =, !=, <, <=, > or >=, got 'cost =< 3'"),
    (asked(where=["cost > dear"]), "column cost holds numbers, got 'dear'"),
    (asked(where=["cost > 1|2"]), "several values need = or !=, got 'cost > 1|2'"),
    (asked(where=["pooled = maybe"]), "pooled 'maybe' is unknown; allowed: true, false"),
    (asked(by=["fabric"], measures=["cost:most"]), "measure 'most' is unknown"),
    (asked(by=["fabric"], measures=["fabric:mean"]), "column fabric must hold numbers here, got string"),
    (asked(measures=["cost:mean"]), "measures need groups; name columns to group by, got cost:mean alone"),
    (asked(over="fabric = x"), "over needs groups; name columns to group by, got over 'fabric = x' alone."),
    (asked(over="fabric = y", by=["fabric"], measures=["cost"]), "over 'fabric = y' must match at least one row"),
    (two(over="fabric = x", by=["fabric"]), "one row to compare with, got 2 rows; add conditions to where."),
    (asked(sort="cost:high"), "sort 'cost:high': direction 'high' is unknown; allowed: up, down"),
]
