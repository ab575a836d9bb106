"""Rows of results in, files and tables and pictures out. Rows are dicts of scalars; nothing in here imports jax."""

from mfabric_jax.atomic import check_folder as check_folder
from mfabric_jax.report.agreement import agreement as agreement
from mfabric_jax.report.figures import draw_fabric as draw_fabric
from mfabric_jax.report.figures import draw_graph as draw_graph
from mfabric_jax.report.figures import failures as failures
from mfabric_jax.report.figures import forecasts as forecasts
from mfabric_jax.report.figures import gantt as gantt
from mfabric_jax.report.figures import save_all as save_all
from mfabric_jax.report.figures import scoreboard as scoreboard
from mfabric_jax.report.figures import trace_load as trace_load
from mfabric_jax.report.figures import trace_pairs as trace_pairs
from mfabric_jax.report.figures import training as training
from mfabric_jax.report.figures import validation as validation
from mfabric_jax.report.html import check_page as check_page
from mfabric_jax.report.html import html_report as html_report
from mfabric_jax.report.perfetto import check_trace as check_trace
from mfabric_jax.report.perfetto import write_perfetto as write_perfetto
from mfabric_jax.report.policy_table import scoreboard_table as scoreboard_table
from mfabric_jax.report.rows import check_destination as check_destination
from mfabric_jax.report.rows import read_rows as read_rows
from mfabric_jax.report.rows import write_rows as write_rows
from mfabric_jax.report.style import check_picture as check_picture
from mfabric_jax.report.table import Column as Column
from mfabric_jax.report.table import comparison as comparison
from mfabric_jax.report.table import plain as plain
from mfabric_jax.report.under_forecasts import forecast_table as forecast_table
