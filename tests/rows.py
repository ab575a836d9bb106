"""Rows by the values of their columns."""


def only(rows, **values):
    """The one row with these."""
    (row,) = (row for row in rows if values.items() <= row.items())
    return row
