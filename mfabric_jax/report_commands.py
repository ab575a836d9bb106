"""`mfabric report`, once its options are read."""

import pathlib
import sys

from mfabric_jax.checks import InputError

MOST_ROWS = 20_000                         # a browser sorts and filters so many at once


def run_report(options) -> int:
    """`mfabric report ROWS --out PAGE`"""
    from mfabric_jax import report

    report.check_page(options.out, options.pictures)
    if pathlib.Path(options.rows).is_dir():
        rows, effective = report.query([options.rows], report.Asked())
    else:
        rows, effective = report.read_rows(options.rows)
    if len(rows) > MOST_ROWS:
        fewer = "take fewer by mfabric query --out"
        raise InputError(f"{options.rows} holds {len(rows):,} rows, a page at most {MOST_ROWS:,}: {fewer}.")
    print(report.html_report(rows, effective, options.out, options.pictures, options.title), file=sys.stderr)
    return 0
