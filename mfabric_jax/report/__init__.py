"""Turn rows of results (dicts of scalars) into files, tables and pictures, without importing jax."""

from typing import TYPE_CHECKING

from mfabric_jax.report.query import QueryOptions as QueryOptions
from mfabric_jax.report.query import query as query
from mfabric_jax.support.lazily import at_first_use

if TYPE_CHECKING:
    from mfabric_jax.report.figures import draw_fabric as draw_fabric
    from mfabric_jax.report.figures import draw_graph as draw_graph
    from mfabric_jax.report.figures import save_all as save_all
    from mfabric_jax.report.html import html_report as html_report
    from mfabric_jax.report.perfetto import write_perfetto as write_perfetto
    from mfabric_jax.report.perfetto import write_task_trace as write_task_trace
    from mfabric_jax.report.row_remarks import remarks as remarks
    from mfabric_jax.report.rows import read_rows as read_rows
    from mfabric_jax.report.rows import write_rows as write_rows
    from mfabric_jax.report.tables import TableColumn as TableColumn
    from mfabric_jax.report.tables import comparison as comparison
    from mfabric_jax.report.tables import plain as plain
    from mfabric_jax.support.notebooks import frame as frame

__getattr__ = at_first_use(
    __name__,
    {
        "mfabric_jax.support.notebooks": ("frame",),
        "figures": (
            "draw_fabric",
            "draw_graph",
            "save_all",
        ),
        "html": ("html_report",),
        "row_remarks": ("remarks",),
        "perfetto": (
            "write_perfetto",
            "write_task_trace",
        ),
        "rows": (
            "read_rows",
            "write_rows",
        ),
        "tables": (
            "TableColumn",
            "comparison",
            "plain",
        ),
    },
)
