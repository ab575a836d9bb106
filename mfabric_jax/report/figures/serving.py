"""Pictures of serving and of the errors of its predictions."""

from pathlib import Path

from mfabric_jax.report.drawing import drawn, paper
from mfabric_jax.report.grid import Rows
from mfabric_jax.report.serving import kernel_errors_chart, served_errors_chart, serving_chart


def draw_served_errors(rows: Rows, path: str | Path) -> Path:
    """Draw rows of `mfabric validate serving --rows` and return the path."""
    return paper.save(lambda: drawn.figure(served_errors_chart(rows)), path)


def draw_kernel_errors(rows: Rows, path: str | Path) -> Path:
    """Draw rows of dispatch and combine from `mfabric validate serving` and return the path."""
    return paper.save(lambda: drawn.figure(kernel_errors_chart(rows)), path)


def draw_serving(rows: Rows, path: str | Path) -> Path:
    """Draw rows of `mfabric serve` and return the path."""
    return paper.save(lambda: drawn.figure(serving_chart(rows)), path)
