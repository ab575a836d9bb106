"""Tables of policies under forecasts: a block for each workload, number of servers and routing."""

import math

from mfabric_jax.report.grid import Rows
from mfabric_jax.report.table import plain

_PLACE = ("workload", "servers", "routing")


def forecast_table(rows: Rows) -> str:
    """Mean time over the degree bound with its 95 % interval: a line for each policy, a column for each forecast.

    The best of a column is marked with *; a policy whose interval of the gain over greedy is above 0 with +, below
    with -.
    """
    blocks = []
    for place in dict.fromkeys(tuple(row[key] for key in _PLACE) for row in rows):
        shown = [row for row in rows if tuple(row[key] for key in _PLACE) == place]
        best: dict[str, float] = {}
        for row in shown:
            best[row["forecast"]] = min(best.get(row["forecast"], math.inf), row["over_bound"])
        lines = []
        for policy in dict.fromkeys(row["policy"] for row in shown):
            own = [row for row in shown if row["policy"] == policy]
            lines.append({"policy": policy} | {row["forecast"]: _cell(row, best[row["forecast"]]) for row in own})
        workload, servers, routing = place
        blocks.append(f"{workload}, {servers} servers, routing {routing}\n{plain(lines, width=140)}")
    legend = "mean time over the degree bound +- half of its 95 % interval; * least; + better, - worse than greedy"
    return "\n\n".join([*blocks, f"{legend} (interval of the difference)"])


def _cell(row, best: float) -> str:
    mark = "+" if row["gain_low"] > 0 else "-" if row["gain_high"] < 0 else " "
    least = "*" if row["over_bound"] == best else " "
    return f"{row['over_bound']:.3f} +-{(row['high'] - row['low']) / 2:.3f}{least}{mark}"
