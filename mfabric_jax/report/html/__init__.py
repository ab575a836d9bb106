"""A self-contained HTML page of rows: texts, a table and charts."""

from mfabric_jax.report.html.page import check_page as check_page
from mfabric_jax.report.html.page import html_report as html_report
