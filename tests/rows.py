"""Rows by the values of their columns."""

import numpy as np


def column(rows, name, **values):
    """What a column holds in the rows with these."""
    return np.array([row[name] for row in rows if values.items() <= row.items()])


def only(rows, **values):
    """The one row with these."""
    (row,) = (row for row in rows if values.items() <= row.items())
    return row
