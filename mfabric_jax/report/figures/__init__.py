"""Pictures: each function takes rows or arrays and a path, writes one picture and returns the path."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mfabric_jax.report.compared import COMPARISONS, comparison_charts
from mfabric_jax.report.drawing import drawn, paper
from mfabric_jax.report.figures.circuits import region as region
from mfabric_jax.report.figures.clusters import draw_fabric as draw_fabric
from mfabric_jax.report.figures.groups import groups as groups
from mfabric_jax.report.figures.measured import draw_measured_times as draw_measured_times
from mfabric_jax.report.figures.networks import draw_graph as draw_graph
from mfabric_jax.report.figures.serving import draw_kernel_errors as draw_kernel_errors
from mfabric_jax.report.figures.serving import draw_served_errors as draw_served_errors
from mfabric_jax.report.figures.serving import draw_serving as draw_serving
from mfabric_jax.report.figures.studies import failures as failures
from mfabric_jax.report.figures.studies import forecasts as forecasts
from mfabric_jax.report.figures.studies import interleaving as interleaving
from mfabric_jax.report.figures.studies import memory as memory
from mfabric_jax.report.figures.studies import steps as steps
from mfabric_jax.report.figures.studies import training as training
from mfabric_jax.report.figures.timelines import block_timeline as block_timeline
from mfabric_jax.report.figures.timelines import gantt as gantt
from mfabric_jax.report.figures.timelines import replay_picture as replay_picture
from mfabric_jax.report.figures.trace import trace_drift as trace_drift
from mfabric_jax.report.figures.trace import trace_foresight as trace_foresight
from mfabric_jax.report.figures.trace import trace_load as trace_load
from mfabric_jax.report.figures.trace import trace_pairs as trace_pairs
from mfabric_jax.report.grid import Rows, arrange


def save_all(
    rows: Rows,
    folder: str | Path,
    regions: Mapping[str, Mapping[str, Any]] | None = None,
    timelines: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> list[Path]:
    """Draw all pictures of a comparison into a folder and return their paths.

    `regions`, `timelines`: as in `save_examples`.
    """
    return save_comparisons(rows, folder) + save_examples(folder, regions or {}, timelines or {})


def save_comparisons(rows: Rows, folder: str | Path) -> list[Path]:
    """Draw the charts of a comparison into a folder and return their paths."""
    return [draw_comparison(name, rows, Path(folder) / f"{name}.png") for name in comparison_charts(rows)[0]]


def save_examples(
    folder: str | Path,
    regions: Mapping[str, Mapping[str, Any]],
    timelines: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[Path]:
    """Draw pictures of single regions and blocks into a folder and return their paths.

    - `regions`: examples by title, each `{"demand": [S S] bytes, "circuits": [S S]}` and optionally `"servers"`, names.
    - `timelines`: examples by title, each the segments of one block.
    """
    folder, written = Path(folder), []
    for title, example in regions.items():
        if len(example["demand"]) > 1:  # a single server has no circuits
            path = folder / f"region_{_slug(title)}.png"
            written.append(region(example["demand"], example["circuits"], path, title, example.get("servers")))
    for title, segments in timelines.items():
        written.append(block_timeline(segments, folder / f"timeline_{_slug(title)}.png", title))
    return written


def draw_comparison(name: str, rows: Rows, path: str | Path) -> Path:
    """Draw the chart `name` (a key of `COMPARISONS`) of a comparison and return its path."""
    comparison = COMPARISONS[name]
    grid = arrange(rows, comparison.needs)
    return paper.save(lambda: drawn.figure(comparison.chart(grid)), path)


def _slug(title: str) -> str:
    return "_".join("".join(c if c.isalnum() or c in "-." else " " for c in title.lower()).split())
