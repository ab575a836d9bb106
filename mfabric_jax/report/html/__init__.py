"""One HTML page of rows: words, a table and charts, with everything inside the file and nothing fetched."""

from mfabric_jax.report.html.page import check_page as check_page
from mfabric_jax.report.html.page import html_report as html_report
