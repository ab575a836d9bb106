"""A self-contained HTML page of rows: who is best and why, charts, assumptions and a table."""

from mfabric_jax.report.html.page import check_page as check_page
from mfabric_jax.report.html.page import html_report as html_report
