"""The statistics of selections that a fit compares: a number for each, averaged or as quantiles over the recording."""

import numpy as np

from mfabric_jax.traffic import statistics

QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9}
PARTS = (0.1, 0.2)  # of all pairs, the largest ones
LAGS = (1, 10, 100)  # records

LOAD = "hottest expert / mean"
LOAD_GINI = "Gini coefficient of experts"
TOPS = {part: f"top {round(100 * part)} % pairs" for part in PARTS}
GINI = "Gini coefficient of pairs"
ZERO = "pairs without traffic"
ROWS = "source rows off their mean"
ROWS_CHANCE = "source rows, by sampling alone"
ROWS_ONE = "source rows of one micro-batch"
MICRO = "micro-batches off their mean"
MICRO_CHANCE = "micro-batches, by sampling alone"
MOST = 32  # records that the rows of single micro-batches are taken from
LAGGED = {lag: f"correlation, lag {lag}" for lag in LAGS}


def moments(count: np.ndarray, pairs: bool = True) -> dict[str, float]:
    """Statistics of selections [iteration, layer, micro_batch, source, expert], in the order of a table.

    Load, pairs and source rows: micro-batches added up, quantiles (`QUANTILES`) over iterations and layers; "pairs
    without traffic", "... off their mean" (total variation of shares) and correlations are means. Left out: pairs
    unless the experts divide over two or more sources (or not `pairs`), rows with one source, micro-batches with one,
    lags longer than the recording, and what is not defined anywhere.
    """
    rows = statistics.rows_of(count)
    load = rows.sum(axis=2)
    found = _quantiles(LOAD, statistics.max_over_mean(load)) | _quantiles(LOAD_GINI, statistics.gini(load))
    ranks = rows.shape[2]
    if pairs and ranks > 1 and rows.shape[3] % ranks == 0:
        found |= _of_pairs(rows)
    if ranks > 1:
        found |= _off(ROWS, ROWS_CHANCE, rows)
    if count.shape[2] > 1:
        if ranks > 1:
            found[ROWS_ONE] = single_rows(count)[0]
        found |= _off(MICRO, MICRO_CHANCE, count.sum(axis=3, dtype=np.float64))
    found |= lags(load)
    return {name: value for name, value in found.items() if np.isfinite(value)}


def lags(load: np.ndarray) -> dict[str, float]:
    """Mean correlations over the experts of loads [T, layer, expert] that are `LAGS` records apart."""
    return {LAGGED[lag]: _mean(statistics.correlation(load, lag)) for lag in LAGS if lag < len(load)}


def single_rows(count: np.ndarray) -> tuple[float, float]:
    """How far source rows of single micro-batches are off their mean, and by chance; of at most `MOST` records."""
    off, chance = statistics.source_variation(count[:: -(-len(count) // MOST)].astype(np.float64))
    return _mean(off), _mean(chance)


def _of_pairs(rows: np.ndarray) -> dict[str, float]:
    traffic = statistics.pairs(statistics.rank_matrix(rows))
    found: dict[str, float] = {}
    for part, name in TOPS.items():
        found |= _quantiles(name, statistics.top_share(traffic, part))
    found |= _quantiles(GINI, statistics.gini(traffic))
    return found | {ZERO: float((traffic == 0).mean())}


def _off(name: str, by_chance: str, rows: np.ndarray) -> dict[str, float]:
    off, chance = statistics.source_variation(rows)
    return {name: _mean(off), by_chance: _mean(chance)}


def _quantiles(name: str, values: np.ndarray) -> dict[str, float]:
    known = values[np.isfinite(values)]
    if not known.size:
        return {}
    at = np.quantile(known, list(QUANTILES.values()))
    return {f"{name}, {quantile}": float(value) for quantile, value in zip(QUANTILES, at, strict=True)}


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
