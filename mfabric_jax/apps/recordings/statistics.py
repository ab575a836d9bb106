"""Skew, drift and locality of recorded routing, per iteration and layer. Undefined values are NaN.

Letters: R ranks, E experts, S sources, T records, g ranks per server.
"""

import numpy as np

from mfabric_jax.checks import InputError, whole
from mfabric_jax.traffic.recording import Recording, Sources, Targets
from mfabric_jax.traffic.tokens import max_over_mean

QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9}
TOP_PARTS = (0.1, 0.2)  # fractions of all pairs, largest first


def source_rows(count: np.ndarray) -> np.ndarray:
    """Return selections [iteration, layer, source, target]: the five axes of a recording, micro-batches summed."""
    return count.sum(axis=2, dtype=np.float64)


def rank_matrix(rows: np.ndarray, ranks: int | None = None) -> np.ndarray:
    """Return selections between ranks [..., R R] from rows [..., S E]. Raise `InputError` unless R divides S and E."""
    sources, experts = rows.shape[-2:]
    count = sources if ranks is None else whole("ranks", ranks)
    if sources % count or experts % count:
        raise InputError(f"ranks must divide the {sources} sources and the {experts} experts, got {count}.")
    blocks = rows.reshape(*rows.shape[:-2], count, sources // count, count, experts // count)
    return blocks.sum(axis=(-3, -1))


def pair_traffic(matrix: np.ndarray) -> np.ndarray:
    """Return the traffic of ordered pairs of different ranks [..., R (R - 1)]."""
    return matrix[..., ~np.eye(matrix.shape[-1], dtype=bool)]


def top_share(traffic: np.ndarray, part: float) -> np.ndarray:
    """Return the share of traffic in the largest `part` of the last axis, rounded to whole pairs. Even traffic gives
    `part`."""
    kept = round(part * traffic.shape[-1])
    largest = np.sort(traffic, axis=-1)[..., traffic.shape[-1] - kept :]
    return _ratio(largest.sum(axis=-1), traffic.sum(axis=-1))


def gini(traffic: np.ndarray) -> np.ndarray:
    """Return the Gini coefficient along the last axis: 0 if even, 1 - 1/n if one of n entries has everything."""
    size = traffic.shape[-1]
    weight = 2 * np.arange(1, size + 1) - size - 1
    return _ratio((weight * np.sort(traffic, axis=-1)).sum(axis=-1), size * traffic.sum(axis=-1))


def locality(matrix: np.ndarray, ranks_per_server: int = 1) -> np.ndarray:
    """Return the part of the traffic [..., R R] that stays in a server of `ranks_per_server` neighbouring ranks."""
    ranks = matrix.shape[-1]
    if ranks % whole("ranks_per_server", ranks_per_server):
        raise InputError(f"ranks_per_server must divide the {ranks} ranks, got {ranks_per_server}.")
    server = np.arange(ranks) // ranks_per_server
    return _ratio(matrix[..., server[:, None] == server].sum(axis=-1), matrix.sum(axis=(-2, -1)))


def source_variation(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the total variation [...] between each source's shares and their mean, averaged over sources, and the
    value [...] that sampling alone gives; `rows` [..., S E]: selections.

    The latter assumes multinomial sampling from the mean p with n selections per row: half the sum over experts of
    sqrt(2 p (1 - p) (1 - 1/S) / (pi n)).
    """
    total = rows.sum(axis=-1, keepdims=True)
    share = _ratio(rows, total)
    mean = share.mean(axis=-2, keepdims=True)
    variance = mean * (1 - mean) * (1 - 1 / rows.shape[-2])
    chance = np.sqrt(2 / np.pi * _ratio(np.broadcast_to(variance, rows.shape), total))
    return np.abs(share - mean).sum(axis=-1).mean(axis=-1) / 2, chance.sum(axis=-1).mean(axis=-1) / 2


def correlation(load: np.ndarray, lag: int) -> np.ndarray:
    """Return the Pearson correlation [T - lag, ...] over E between loads [T ... E] `lag` records apart."""
    centred = load - load.mean(axis=-1, keepdims=True)
    before, after = centred[:-lag], centred[lag:]
    spread = np.sqrt((before**2).sum(axis=-1) * (after**2).sum(axis=-1))
    return _ratio((before * after).sum(axis=-1), spread)


def variation(load: np.ndarray, lag: int) -> np.ndarray:
    """Return the total variation [T - lag, ...] between shares of loads [T ... E] `lag` records apart."""
    share = _ratio(load, load.sum(axis=-1, keepdims=True))
    return np.abs(share[lag:] - share[:-lag]).sum(axis=-1) / 2


def finite_mean(values: np.ndarray) -> float | None:
    """Return the mean of the finite values; None if there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _ratio(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    shape = np.broadcast_shapes(part.shape, total.shape)
    return np.divide(part, total, out=np.full(shape, np.nan), where=np.broadcast_to(total, shape) > 0)


# ------------------------------------------------------------ statistics that a fit compares: means or quantiles

MOST = 32  # records from which rows of single micro-batches are taken
LOAD = "hottest expert / mean"
LOAD_GINI = "Gini coefficient of experts"
TOPS = {part: f"top {round(100 * part)} % pairs" for part in TOP_PARTS}
GINI = "Gini coefficient of pairs"
ZERO = "pairs without traffic"
ROWS = "source rows off their mean"
ROWS_CHANCE = "source rows, by sampling alone"
ROWS_ONE = "source rows of one micro-batch"
MICRO = "micro-batches off their mean"
MICRO_CHANCE = "micro-batches, by sampling alone"
LAGGED = {lag: f"correlation, lag {lag}" for lag in (1, 10, 100)}  # lags in records


def moments_of(count: np.ndarray, pairs: bool = True) -> dict[str, float]:
    """Return statistics by name, in table order, of selections [iteration, layer, micro_batch, source, expert].

    Load, pairs and source rows sum micro-batches. Load and pairs give quantiles (`QUANTILES`) over iterations and
    layers; the others are means. Undefined statistics are omitted, such as pairs unless two or more sources divide the
    experts.
    """
    rows = source_rows(count)
    load, ranks = rows.sum(axis=2), rows.shape[2]
    moments = _quantiles(LOAD, max_over_mean(load)) | _quantiles(LOAD_GINI, gini(load))
    if pairs and ranks > 1 and rows.shape[3] % ranks == 0:
        traffic = pair_traffic(rank_matrix(rows))
        for part, name in TOPS.items():
            moments |= _quantiles(name, top_share(traffic, part))
        moments |= _quantiles(GINI, gini(traffic)) | {ZERO: float((traffic == 0).mean())}
    if ranks > 1:
        moments[ROWS], moments[ROWS_CHANCE] = map(finite_mean, source_variation(rows))
    if count.shape[2] > 1:
        if ranks > 1:
            moments[ROWS_ONE] = single_rows(count)[0]
        batches = count.sum(axis=3, dtype=np.float64)
        moments[MICRO], moments[MICRO_CHANCE] = map(finite_mean, source_variation(batches))
    moments |= {name: finite_mean(correlation(load, lag)) for lag, name in LAGGED.items() if lag < len(load)}
    return {name: value for name, value in moments.items() if value is not None}


def single_rows(count: np.ndarray) -> tuple[float | None, float | None]:
    """Return `source_variation` of the rows of single micro-batches, averaged over at most `MOST` records: the value
    found, and the value by sampling alone."""
    off, chance = source_variation(count[:: -(-len(count) // MOST)].astype(np.float64))
    return finite_mean(off), finite_mean(chance)


def _quantiles(name: str, values: np.ndarray) -> dict[str, float | None]:
    known = values[np.isfinite(values)]
    if not known.size:
        return {}
    quantiles = np.quantile(known, [*QUANTILES.values()])
    return {f"{name}, {quantile}": float(value) for quantile, value in zip(QUANTILES, quantiles, strict=True)}


# ------------------------------------------------------------------------------------- a whole recording, as table rows

LAGS = (1, 2, 5, 10, 50, 100)  # records
SERVER = 8  # GPUs of a server
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
    """Return a row per iteration and layer with the statistics in `TITLES`; None where undefined.

    - `ranks`: EP ranks, by default as recorded. Neighbouring sources and experts are summed to that number.
    - `ranks_per_server`: by default `ranks_in_server`.
    """
    rows = source_rows(recording.tokens().count)
    columns = _of_targets(recording, rows.sum(axis=2), ranks)
    if recording.sources is Sources.RANKS and (ranks is not None or rows.shape[3] % rows.shape[2] == 0):
        columns |= _of_pairs(recording, rank_matrix(rows, ranks), ranks_per_server)
    if recording.sources is not Sources.UNKNOWN and rows.shape[2] > 1:
        columns["source_variation"], columns["source_variation_by_chance"] = source_variation(rows)
    first = {"recording": recording.name} if recording.name else {}
    total = rows.sum(axis=(2, 3))
    return [
        first
        | {"iteration": int(recording.number[i]), "layer": layer, "selections": float(total[i, layer])}
        | {name: finite_mean(columns[name][i, layer]) if name in columns else None for name in TITLES}
        for i, layer in np.ndindex(total.shape)
    ]


def ranks_in_server(recording: Recording) -> int:
    """Return the EP ranks of a group on a server of 8 GPUs, by the job's layout; without one, every GPU is a rank."""
    return SERVER if recording.layout is None else recording.layout.ranks_per_server(SERVER)


def _of_targets(recording: Recording, load: np.ndarray, ranks: int | None) -> dict[str, np.ndarray]:
    columns = {}
    if recording.targets is Targets.EXPERTS:
        columns["expert_max_over_mean"] = max_over_mean(load)
    ranks = _ranks(recording) if ranks is None else whole("ranks", ranks)
    if ranks is not None:
        if load.shape[-1] % ranks:
            raise InputError(f"ranks must divide the {load.shape[-1]} columns of {recording.path}, got {ranks}.")
        columns["rank_max_over_mean"] = max_over_mean(load.reshape(*load.shape[:2], ranks, -1).sum(axis=-1))
    return columns


def _ranks(recording: Recording) -> int | None:
    sources, targets = recording.count.shape[-2:]
    if recording.targets is Targets.RANKS:
        return targets
    return sources if recording.sources is Sources.RANKS and targets % sources == 0 else None


def _of_pairs(recording: Recording, matrix: np.ndarray, ranks_per_server: int | None) -> dict[str, np.ndarray]:
    ranks = matrix.shape[-1]
    per_server = ranks_in_server(recording) if ranks_per_server is None else ranks_per_server
    columns = {"own_rank_share": locality(matrix)}
    if ranks_per_server is not None or (ranks % per_server == 0 and ranks > per_server):
        columns["server_share"] = locality(matrix, per_server)
    if ranks > 1:
        traffic = pair_traffic(matrix)
        columns |= {f"top{round(100 * part)}_pairs_share": top_share(traffic, part) for part in TOP_PARTS}
        columns |= {"pairs_gini": gini(traffic), "zero_pairs": (traffic == 0).mean(axis=-1)}
    return columns


def quantile_rows(rows: list[dict]) -> list[dict]:
    """Return quantiles over iterations and layers, one row per defined statistic of `statistics_by_layer`."""
    table = []
    for name, title in TITLES.items():
        values = [row[name] for row in rows if row[name] is not None]
        if values:
            quantiles = np.quantile(values, [*QUANTILES.values()])
            table.append({"statistic": title} | dict(zip(QUANTILES, map(float, quantiles), strict=True)))
    return table


def drift_rows(recording: Recording) -> list[dict]:
    """Return a row per lag, in `records` and `iterations` (None if unevenly spaced).

    `correlation` and `total_variation` are means for target loads summed over sources and micro-batches;
    `correlation_p10` and `correlation_p90` are quantiles over the layers' means.
    """
    load = target_loads(recording)
    step = np.unique(np.diff(recording.number))
    rows = []
    for lag in (lag for lag in LAGS if lag < len(load)):
        alike = correlation(load, lag)
        layers = [mean for layer in alike.T if (mean := finite_mean(layer)) is not None]
        low, high = map(float, np.quantile(layers, (0.1, 0.9))) if layers else (None, None)
        rows.append(
            {
                "records": lag,
                "iterations": int(lag * step[0]) if len(step) == 1 else None,
                "correlation": finite_mean(alike),
                "correlation_p10": low,
                "correlation_p90": high,
                "total_variation": finite_mean(variation(load, lag)),
            }
        )
    return rows


def target_loads(recording: Recording) -> np.ndarray:
    """Return loads [iteration, layer, target], summed over sources and micro-batches."""
    return source_rows(recording.tokens().count).sum(axis=2)


def selection_matrix(recording: Recording, ranks: int | None = None) -> tuple[str, str, np.ndarray] | None:
    """Return the names of rows and columns, and selections [layer, row, column] summed over records.

    They are from rank to rank if source ranks divide the experts, else from source to expert. None without sources.
    """
    if recording.sources is Sources.UNKNOWN:
        return None
    rows = source_rows(recording.tokens().count).sum(axis=0)
    if recording.sources is Sources.RANKS and (ranks or _ranks(recording)):
        return recording.sources.value, Targets.RANKS.value, rank_matrix(rows, ranks)
    return recording.sources.value, recording.targets.value, rows
