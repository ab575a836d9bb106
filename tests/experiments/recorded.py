"""A recording made up, and what its tokens are between servers."""

import numpy as np
import pytest

from tests.rows import column

RANKS, EXPERTS = 16, 32


def written(path, records, drift=0.0):
    """So many records of two layers, one micro-batch: popular experts that may drift; ranks hardly agree on them."""
    rng = np.random.default_rng(0)
    popular = rng.dirichlet(np.full(EXPERTS, 0.3), (1 if drift else records, 2, 1, 1))
    if drift:
        popular = popular + drift * rng.uniform(size=(records, 2, 1, 1, EXPERTS))
    share = 0.7 * popular + 0.3 * rng.dirichlet(np.full(EXPERTS, 0.3), (records, 2, 1, RANKS))
    np.save(path, np.round(4096 * share))
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Two records."""
    return written(tmp_path_factory.mktemp("trace") / "tokens.npy", 2)


def between(tokens, servers):
    """Selections between servers, up to a factor: every rank's row sums to the same, expert e is on rank e // 2."""
    ranks = (tokens / tokens.sum(1, keepdims=True)).reshape(RANKS, RANKS, 2).sum(2)
    demand = ranks.reshape(servers, RANKS // servers, servers, RANKS // servers).sum((1, 3))
    return demand - np.diag(np.diagonal(demand))


def over(rows, **values):
    """Times over the degree bound of the rows with these values."""
    return column(rows, "over_bound", **values)
