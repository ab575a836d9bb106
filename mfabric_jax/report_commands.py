"""`mfabric report`, once its options are read."""

import sys


def run_report(options) -> int:
    """`mfabric report ROWS --out PAGE`"""
    from mfabric_jax import report

    report.check_page(options.out, options.pictures)
    rows, effective = report.read_rows(options.rows)
    print(report.html_report(rows, effective, options.out, options.pictures, options.title), file=sys.stderr)
    return 0
