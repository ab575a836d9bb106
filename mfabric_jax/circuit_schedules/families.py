"""Demands to compare schedulers on, `family(servers, seed) -> [S S]`; the busiest line sums to 1.

`standard`: the matrix that Solstice, Eclipse and Spectra are published on: a few heavy and many light permutations with
a little noise. Its parameters are those commonly cited; no source was checked. `moe`: hot and cold servers send to hot
and cold experts. Zipf exponents of real all-to-alls: 0.4 to 0.8 (FAST, arXiv 2505.09764).
"""

import numpy as np


def standard(
    servers: int, seed: int, *, heavy: int = 4, light: int = 12, share: float = 0.7, noise: float = 0.003
) -> np.ndarray:
    """Return a sum of permutations: `heavy` of them hold `share` of the bytes, `light` the rest; all lines sum to 1.

    Entries vary by the relative `noise`.
    """
    random = np.random.default_rng(seed)
    weights = [share / heavy] * heavy + [(1 - share) / light] * light
    matrix = np.sum([weight * _permutation(servers, random) for weight in weights], axis=0)
    return _level_lines(matrix * (1 + noise * random.standard_normal(matrix.shape)))


def moe(servers: int, seed: int, *, skew: float = 0.4, senders: float | None = None, shape: float = 4.0) -> np.ndarray:
    """Return the outer product of senders' and receivers' Zipf shares, times gamma noise of this `shape` and mean 1.

    `skew`: Zipf exponent of receivers. `senders`: Zipf exponent of senders; None: `skew`; 0: all send equally much.
    """
    random = np.random.default_rng(seed)
    sent = _shares(servers, skew if senders is None else senders, random)
    matrix = np.outer(sent, _shares(servers, skew, random))
    return _scale(matrix * random.gamma(shape, 1 / shape, matrix.shape))


def uniform(servers: int, seed: int) -> np.ndarray:
    """Return entries drawn uniformly between 0 and 1, scaled."""
    return _scale(np.random.default_rng(seed).random((servers, servers)))


def zipf(servers: int, seed: int, *, skew: float = 0.8) -> np.ndarray:
    """Return a Zipf distribution over pairs: the r-th largest pair has r^-skew of the largest."""
    random = np.random.default_rng(seed)
    return _scale(_shares(servers * servers, skew, random).reshape(servers, servers))


def permutation(servers: int, seed: int) -> np.ndarray:
    """Return a demand in which every server sends to one other."""
    return _permutation(servers, np.random.default_rng(seed))


def one_hot(servers: int, seed: int) -> np.ndarray:
    """Return a demand in which all servers send to one server, which sends to all."""
    matrix = np.zeros((servers, servers))
    hot = int(np.random.default_rng(seed).integers(servers))
    matrix[:, hot] = matrix[hot, :] = 1
    return _scale(matrix)


FAMILIES = {
    "standard": standard,
    "moe": moe,
    "uniform": uniform,
    "zipf": zipf,
    "permutation": permutation,
    "one-hot": one_hot,
}


def _shares(count: int, skew: float, random: np.random.Generator) -> np.ndarray:
    shares = np.arange(1.0, count + 1) ** -skew
    return random.permutation(shares / shares.sum())


def _permutation(servers: int, random: np.random.Generator) -> np.ndarray:
    """Return a random permutation [S S] in which no server sends to itself."""
    while True:
        targets = random.permutation(servers)
        if (targets != np.arange(servers)).all():
            return np.eye(servers)[targets]


def _scale(matrix: np.ndarray) -> np.ndarray:
    matrix = matrix * (1 - np.eye(len(matrix)))
    return matrix / max(matrix.sum(0).max(), matrix.sum(1).max())


def _level_lines(matrix: np.ndarray) -> np.ndarray:
    """Scale rows and columns to 1 alternately (Sinkhorn)."""
    for _ in range(200):
        matrix = matrix / matrix.sum(1, keepdims=True)
        matrix = matrix / matrix.sum(0)
    return _scale(matrix)
