"""The statistics of a whole recording, as rows of a table."""

import numpy as np

from mfabric_jax.checks import InputError, whole
from mfabric_jax.traffic import statistics
from mfabric_jax.traffic.recording import Recording, Sources, Targets
from mfabric_jax.traffic.statistics import QUANTILES, TOP_PARTS, finite_mean

LAGS = (1, 2, 5, 10, 50, 100)  # records
SERVER = 8  # GPUs of a server, unless said

TITLES = {
    "expert_max_over_mean": "hottest expert / mean",
    "rank_max_over_mean": "hottest destination rank / mean",
    "top10_pairs_share": "traffic of the top 10 % pairs",
    "top20_pairs_share": "traffic of the top 20 % pairs",
    "pairs_gini": "Gini coefficient of pairs",
    "zero_pairs": "pairs without traffic",
    "own_rank_share": "stays on its rank",
    "server_share": "stays in its server",
    "source_variation": "source rows off their mean (total variation)",
    "source_variation_by_chance": "the same by sampling alone",
}


def statistics_by_layer(
    recording: Recording, ranks: int | None = None, ranks_per_server: int | None = None
) -> list[dict]:
    """A row for every iteration and layer: the statistics in `TITLES`, None where they are not defined.

    - `ranks`: EP ranks, default those recorded (if experts divide over them); neighbouring sources and experts are
      added up. Without source ranks it only tells the load of destination ranks.
    - `ranks_per_server`: default `ranks_in_server`, where that divides the ranks into several servers.
    """
    rows = statistics.source_rows(recording.tokens().count)
    found = _of_targets(recording, rows.sum(axis=2), ranks)
    if recording.sources is Sources.RANKS and (ranks is not None or rows.shape[3] % rows.shape[2] == 0):
        found |= _of_pairs(recording, statistics.rank_matrix(rows, ranks), ranks_per_server)
    if recording.sources is not Sources.UNKNOWN and rows.shape[2] > 1:
        found["source_variation"], found["source_variation_by_chance"] = statistics.source_variation(rows)
    first = {"recording": recording.name} if recording.name else {}
    total = rows.sum(axis=(2, 3))
    return [
        first
        | {"iteration": int(recording.number[i]), "layer": layer, "selections": float(total[i, layer])}
        | {name: finite_mean(found[name][i, layer]) if name in found else None for name in TITLES}
        for i, layer in np.ndindex(total.shape)
    ]


def ranks_in_server(recording: Recording) -> int:
    """EP ranks of a group that share a server, unless said: by the layout of its job on servers of 8 GPUs; without a
    layout every GPU is taken for a rank."""
    return SERVER if recording.layout is None else recording.layout.ranks_per_server(SERVER)


def _of_targets(recording: Recording, load: np.ndarray, ranks: int | None) -> dict[str, np.ndarray]:
    found = {}
    if recording.targets is Targets.EXPERTS:
        found["expert_max_over_mean"] = statistics.max_over_mean(load)
    ranks = _ranks(recording) if ranks is None else whole("ranks", ranks)
    if ranks is not None:
        if load.shape[-1] % ranks:
            raise InputError(f"ranks must divide the {load.shape[-1]} columns of {recording.path}, got {ranks}.")
        found["rank_max_over_mean"] = statistics.max_over_mean(load.reshape(*load.shape[:2], ranks, -1).sum(axis=-1))
    return found


def _ranks(recording: Recording) -> int | None:
    """How many EP ranks a recording has, where it tells."""
    sources, targets = recording.count.shape[-2:]
    if recording.targets is Targets.RANKS:
        return targets
    return sources if recording.sources is Sources.RANKS and targets % sources == 0 else None


def _of_pairs(recording: Recording, matrix: np.ndarray, asked: int | None) -> dict[str, np.ndarray]:
    ranks = matrix.shape[-1]
    per_server = ranks_in_server(recording) if asked is None else asked
    found = {"own_rank_share": statistics.locality(matrix)}
    if asked is not None or (ranks % per_server == 0 and ranks > per_server):
        found["server_share"] = statistics.locality(matrix, per_server)
    if ranks > 1:
        traffic = statistics.pair_traffic(matrix)
        found |= {f"top{round(100 * part)}_pairs_share": statistics.top_share(traffic, part) for part in TOP_PARTS}
        found |= {"pairs_gini": statistics.gini(traffic), "zero_pairs": (traffic == 0).mean(axis=-1)}
    return found


def quantile_rows(rows: list[dict]) -> list[dict]:
    """Quantiles over iterations and layers: a row for every one of `statistics_by_layer` that is defined somewhere."""
    found = []
    for name, title in TITLES.items():
        values = [row[name] for row in rows if row[name] is not None]
        if values:
            quantiles = np.quantile(values, [*QUANTILES.values()])
            found.append({"statistic": title} | dict(zip(QUANTILES, map(float, quantiles), strict=True)))
    return found


def drift_rows(recording: Recording) -> list[dict]:
    """A row for every lag that the recording is long enough for: how alike loads are that many records apart.

    `records` and `iterations` apart (None where records are not evenly spaced), mean `correlation` and
    `total_variation` of the loads of targets, sources and micro-batches added up; `correlation_p10` and `_p90`: of the
    means of single layers.
    """
    load = target_loads(recording)
    step = np.unique(np.diff(recording.number))
    rows = []
    for lag in (lag for lag in LAGS if lag < len(load)):
        alike = statistics.correlation(load, lag)
        layers = [mean for layer in alike.T if (mean := finite_mean(layer)) is not None]
        low, high = map(float, np.quantile(layers, (0.1, 0.9))) if layers else (None, None)
        rows.append(
            {
                "records": lag,
                "iterations": int(lag * step[0]) if len(step) == 1 else None,
                "correlation": finite_mean(alike),
                "correlation_p10": low,
                "correlation_p90": high,
                "total_variation": finite_mean(statistics.variation(load, lag)),
            }
        )
    return rows


def target_loads(recording: Recording) -> np.ndarray:
    """[iteration, layer, target]: sources and micro-batches added up."""
    return statistics.source_rows(recording.tokens().count).sum(axis=2)


def sent_selections(recording: Recording, ranks: int | None = None) -> tuple[str, str, np.ndarray] | None:
    """What rows and columns are, and [layer, row, column] selections of all records; None without sources.

    From rank to rank where there are source ranks over which the experts divide, else from source to expert.
    """
    if recording.sources is Sources.UNKNOWN:
        return None
    rows = statistics.source_rows(recording.tokens().count).sum(axis=0)
    if recording.sources is Sources.RANKS and (ranks or _ranks(recording)):
        return recording.sources.value, Targets.RANKS.value, statistics.rank_matrix(rows, ranks)
    return recording.sources.value, recording.targets.value, rows
