"""Every kind of demand on every kind of port: stars and two-level trees, drawn."""

import math

import numpy as np


def skewed(rng, n):
    """Zipf weights for sources and sinks, times noise: the load of hot experts."""
    heat = 1 / (1 + np.arange(n)) ** 1.2
    return np.outer(rng.permutation(heat), rng.permutation(heat)) * rng.uniform(0.5, 2, (n, n))


def hot_column(rng, n):
    size = rng.uniform(0, 0.1, (n, n))
    size[:, rng.integers(n)] += 10
    return size


def one_pair(rng, n):
    size = np.zeros((n, n))
    size[rng.integers(n), rng.integers(n)] = 3
    return size


DEMANDS = {
    "uniform": lambda rng, n: rng.uniform(0, 1, (n, n)),
    "skewed": skewed,
    "sparse": lambda rng, n: rng.uniform(1, 2, (n, n)) * (rng.random((n, n)) < 1.5 / n),
    "hot column": hot_column,
    "one pair": one_pair,
    "empty": lambda rng, n: np.zeros((n, n)),
    "all equal": lambda rng, n: np.ones((n, n)),
    "all equal, no diagonal": lambda rng, n: 1 - np.eye(n),
    "few values": lambda rng, n: rng.integers(0, 3, (n, n)).astype(float),
    "a permutation": lambda rng, n: np.eye(n)[rng.permutation(n)] * 2,
    "twelve decades": lambda rng, n: 10.0 ** rng.uniform(-6, 6, (n, n)),
}
PORTS = {
    "equal": lambda rng, n: np.ones(n),
    "unequal": lambda rng, n: rng.uniform(0.2, 3, n),
    "two speeds": lambda rng, n: rng.choice([1.0, 2.0], n),
    "one dead": lambda rng, n: np.where(np.arange(n) == rng.integers(n), 0.0, rng.uniform(1, 2, n)),
}


def instances(n, groups=None, ports=tuple(PORTS)):
    """Every kind of demand on every kind of port, stacked: size [B N N], up [B N], down [B N], and groups [B G]."""
    drawn = []
    for kind, demand in enumerate(DEMANDS.values()):
        for index, port in enumerate(ports):
            rng = np.random.default_rng([n, groups or 0, kind, index])
            one = [demand(rng, n), PORTS[port](rng, n), PORTS[port](rng, n)]
            if groups:
                one += [rng.uniform(0.3, 1.5, groups) * n / groups, rng.choice([0.5, 1, math.inf], groups) * n / groups]
            drawn.append(one)
    return [np.stack(column) for column in zip(*drawn, strict=True)]
