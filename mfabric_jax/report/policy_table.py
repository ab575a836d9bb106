"""Tables of the scoreboard of policies: a block for each number of servers, routing and forecast error."""

import math

from mfabric_jax.report.grid import Rows
from mfabric_jax.report.table import plain

PLACE = ("servers", "routing", "sigma")


def scoreboard_table(rows: Rows) -> str:
    """A line for each policy, best first: mean, median and 90th percentile of the time over the degree bound (mean of
    the workloads), the mean of each workload, time over proved optima, decisions per second in a batch."""
    blocks = []
    for place in dict.fromkeys(tuple(row[key] for key in PLACE) for row in rows):
        here = [row for row in rows if tuple(row[key] for key in PLACE) == place]
        lines = [
            _line(name, [row for row in here if row["policy"] == name])
            for name in dict.fromkeys(row["policy"] for row in here)
        ]
        lines.sort(key=lambda line: float(line["mean"]))
        servers, routing, sigma = place
        blocks.append(f"{servers} servers, routing {routing}, forecast error {sigma:g}\n{plain(lines, width=160)}")
    return "\n\n".join([*blocks, "paced time over the degree bound; optimum: over proved optima of so many instances"])


def _line(name: str, rows: Rows) -> dict[str, str]:
    line, some = {"policy": name}, [row for row in rows if row["mean"] is not None]
    line |= {key: f"{_mean(row[key] for row in some):.3f}" for key in ("mean", "median", "p90")}
    line |= {row["workload"]: "-" if row["mean"] is None else f"{row['mean']:.3f}" for row in rows}
    proved = sum(row["proved"] for row in rows)
    if proved:
        over = sum(row["of_optimum"] * row["proved"] for row in rows if row["proved"]) / proved
        line["optimum"] = f"{over:.3f} ({proved})"
    speed = math.exp(_mean(math.log(row["decisions_per_s"]) for row in rows))
    return line | {"decisions/s": f"{speed:,.0f}"}


def _mean(values) -> float:
    values = list(values)
    return sum(values) / len(values) if values else math.nan
