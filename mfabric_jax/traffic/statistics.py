"""How skewed, how changing and how local the routing of a recording is.

Everything is per (iteration, layer), micro-batches added up: an array [iteration, layer, ...] of counts in, numbers
[iteration, layer] out. Letters: R ranks, E experts, S sources, g ranks per server. What is undefined is NaN.
"""

import numpy as np

from mfabric_jax.checks import InputError, whole

QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9}
TOP_PARTS = (0.1, 0.2)  # of all pairs, the largest ones


def source_rows(count: np.ndarray) -> np.ndarray:
    """[iteration, layer, source, target] from the five axes of a recording: micro-batches added up."""
    return count.sum(axis=2, dtype=np.float64)


def max_over_mean(load: np.ndarray) -> np.ndarray:
    """The largest of the last axis over its mean; 1 is balanced, and so is nothing at all."""
    mean = load.mean(axis=-1)
    return np.divide(load.max(axis=-1), mean, out=np.ones_like(mean), where=mean > 0)


def rank_matrix(rows: np.ndarray, ranks: int | None = None) -> np.ndarray:
    """[..., R R] selections from rank to rank, of rows [..., S E]; neighbouring sources and experts share a rank.

    - `ranks`: default one per source. `InputError` where it does not divide sources and experts.
    """
    sources, experts = rows.shape[-2:]
    count = sources if ranks is None else whole("ranks", ranks)
    if sources % count or experts % count:
        raise InputError(f"ranks must divide the {sources} sources and the {experts} experts, got {count}.")
    blocks = rows.reshape(*rows.shape[:-2], count, sources // count, count, experts // count)
    return blocks.sum(axis=(-3, -1))


def pair_traffic(matrix: np.ndarray) -> np.ndarray:
    """[..., R (R - 1)] traffic of ordered pairs of two different ranks."""
    return matrix[..., ~np.eye(matrix.shape[-1], dtype=bool)]


def top_share(traffic: np.ndarray, part: float) -> np.ndarray:
    """What the largest `part` of the last axis (rounded to whole pairs) carries of all; even traffic: `part`."""
    kept = round(part * traffic.shape[-1])
    largest = np.sort(traffic, axis=-1)[..., traffic.shape[-1] - kept :]
    return _ratio(largest.sum(axis=-1), traffic.sum(axis=-1))


def gini(traffic: np.ndarray) -> np.ndarray:
    """Gini coefficient along the last axis: 0 is even, 1 - 1/n all on one."""
    size = traffic.shape[-1]
    weight = 2 * np.arange(1, size + 1) - size - 1
    return _ratio((weight * np.sort(traffic, axis=-1)).sum(axis=-1), size * traffic.sum(axis=-1))


def locality(matrix: np.ndarray, ranks_per_server: int = 1) -> np.ndarray:
    """The part of the traffic [..., R R] that stays in a server of `ranks_per_server` neighbouring ranks."""
    ranks = matrix.shape[-1]
    if ranks % whole("ranks_per_server", ranks_per_server):
        raise InputError(f"ranks_per_server must divide the {ranks} ranks, got {ranks_per_server}.")
    server = np.arange(ranks) // ranks_per_server
    return _ratio(matrix[..., server[:, None] == server].sum(axis=-1), matrix.sum(axis=(-2, -1)))


def source_variation(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far the rows of sources [..., S E] are from their mean: total variation of shares, averaged over sources.

    Returns that, and what multinomial sampling from the mean would give: half the sum over experts of
    sqrt(2 p (1 - p) (1 - 1/S) / (pi n)), n selections a row.
    """
    total = rows.sum(axis=-1, keepdims=True)
    share = _ratio(rows, total)
    mean = share.mean(axis=-2, keepdims=True)
    variance = mean * (1 - mean) * (1 - 1 / rows.shape[-2])
    chance = np.sqrt(2 / np.pi * _ratio(np.broadcast_to(variance, rows.shape), total))
    return np.abs(share - mean).sum(axis=-1).mean(axis=-1) / 2, chance.sum(axis=-1).mean(axis=-1) / 2


def correlation(load: np.ndarray, lag: int) -> np.ndarray:
    """[T - lag, ...] Pearson correlation over the last axis of loads [T ... E] that are `lag` records apart."""
    centred = load - load.mean(axis=-1, keepdims=True)
    before, after = centred[:-lag], centred[lag:]
    spread = np.sqrt((before**2).sum(axis=-1) * (after**2).sum(axis=-1))
    return _ratio((before * after).sum(axis=-1), spread)


def variation(load: np.ndarray, lag: int) -> np.ndarray:
    """[T - lag, ...] total variation between the shares of loads [T ... E] that are `lag` records apart."""
    share = _ratio(load, load.sum(axis=-1, keepdims=True))
    return np.abs(share[lag:] - share[:-lag]).sum(axis=-1) / 2


def finite_mean(values: np.ndarray) -> float | None:
    """The mean of what is defined; None where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def _ratio(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """NaN where the total is 0."""
    shape = np.broadcast_shapes(part.shape, total.shape)
    return np.divide(part, total, out=np.full(shape, np.nan), where=np.broadcast_to(total, shape) > 0)


# The statistics of selections that a fit compares: a number for each, averaged or as quantiles over the recording.

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
    rows = source_rows(count)
    load, ranks = rows.sum(axis=2), rows.shape[2]
    found = _quantiles(LOAD, max_over_mean(load)) | _quantiles(LOAD_GINI, gini(load))
    if pairs and ranks > 1 and rows.shape[3] % ranks == 0:
        traffic = pair_traffic(rank_matrix(rows))
        for part, name in TOPS.items():
            found |= _quantiles(name, top_share(traffic, part))
        found |= _quantiles(GINI, gini(traffic)) | {ZERO: float((traffic == 0).mean())}
    if ranks > 1:
        found[ROWS], found[ROWS_CHANCE] = map(finite_mean, source_variation(rows))
    if count.shape[2] > 1:
        if ranks > 1:
            found[ROWS_ONE] = single_rows(count)[0]
        batches = count.sum(axis=3, dtype=np.float64)
        found[MICRO], found[MICRO_CHANCE] = map(finite_mean, source_variation(batches))
    found |= {LAGGED[lag]: finite_mean(correlation(load, lag)) for lag in LAGS if lag < len(load)}
    return {name: value for name, value in found.items() if value is not None}


def single_rows(count: np.ndarray) -> tuple[float | None, float | None]:
    """How far source rows of single micro-batches are off their mean, and by chance; of at most `MOST` records."""
    off, chance = source_variation(count[:: -(-len(count) // MOST)].astype(np.float64))
    return finite_mean(off), finite_mean(chance)


def _quantiles(name: str, values: np.ndarray) -> dict[str, float | None]:
    known = values[np.isfinite(values)]
    if not known.size:
        return {}
    quantiles = np.quantile(known, [*QUANTILES.values()])
    return {f"{name}, {quantile}": float(value) for quantile, value in zip(QUANTILES, quantiles, strict=True)}
