"""The statistics of selections that a fit compares: a number for each, averaged or as quantiles over the recording."""

import numpy as np

from mfabric_jax.traffic import statistics
from mfabric_jax.traffic.statistics import QUANTILES, TOP_PARTS, finite_mean

LAGS = (1, 10, 100)  # records
MOST = 32  # records that the rows of single micro-batches are taken from

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
LAGGED = {lag: f"correlation, lag {lag}" for lag in LAGS}


def moments_of(count: np.ndarray, pairs: bool = True) -> dict[str, float]:
    """Statistics of selections [iteration, layer, micro_batch, source, expert], in the order of a table.

    Load, pairs and source rows: micro-batches added up, quantiles (`QUANTILES`) over iterations and layers; "pairs
    without traffic", "... off their mean" (total variation of shares) and correlations are means. Left out: pairs
    unless the experts divide over two or more sources (or not `pairs`), rows with one source, micro-batches with one,
    lags longer than the recording, and what is not defined anywhere.
    """
    rows = statistics.source_rows(count)
    load, ranks = rows.sum(axis=2), rows.shape[2]
    found = _quantiles(LOAD, statistics.max_over_mean(load)) | _quantiles(LOAD_GINI, statistics.gini(load))
    if pairs and ranks > 1 and rows.shape[3] % ranks == 0:
        traffic = statistics.pairs(statistics.rank_matrix(rows))
        for part, name in TOPS.items():
            found |= _quantiles(name, statistics.top_share(traffic, part))
        found |= _quantiles(GINI, statistics.gini(traffic)) | {ZERO: float((traffic == 0).mean())}
    if ranks > 1:
        found[ROWS], found[ROWS_CHANCE] = map(finite_mean, statistics.source_variation(rows))
    if count.shape[2] > 1:
        if ranks > 1:
            found[ROWS_ONE] = single_rows(count)[0]
        batches = count.sum(axis=3, dtype=np.float64)
        found[MICRO], found[MICRO_CHANCE] = map(finite_mean, statistics.source_variation(batches))
    found |= {LAGGED[lag]: finite_mean(statistics.correlation(load, lag)) for lag in LAGS if lag < len(load)}
    return {name: value for name, value in found.items() if value is not None}


def single_rows(count: np.ndarray) -> tuple[float | None, float | None]:
    """How far source rows of single micro-batches are off their mean, and by chance; of at most `MOST` records."""
    off, chance = statistics.source_variation(count[:: -(-len(count) // MOST)].astype(np.float64))
    return finite_mean(off), finite_mean(chance)


def _quantiles(name: str, values: np.ndarray) -> dict[str, float | None]:
    known = values[np.isfinite(values)]
    if not known.size:
        return {}
    quantiles = np.quantile(known, [*QUANTILES.values()])
    return {f"{name}, {quantile}": float(value) for quantile, value in zip(QUANTILES, quantiles, strict=True)}
