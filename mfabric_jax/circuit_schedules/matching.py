"""Matchings of servers, and the operations of schedulers that use them.

A matching is a 0/1 matrix [S S]. If circuits are directed, it is a permutation whose diagonal means an idle port;
otherwise it is symmetric with a zero diagonal. Heaviest matchings come from SciPy's assignment (directed) or the
blossom algorithm of networkx.
"""

import numpy as np

from mfabric_jax.support.extras import load_extra


def heaviest(weight: np.ndarray, directed: bool) -> np.ndarray:
    """Return a matching of the largest total weight; `weight` [S S] is 0 or more (and symmetric if not directed)."""
    return _assignment(weight) if directed else _pairing(weight, most_pairs=False)


def largest(allowed: np.ndarray, directed: bool) -> np.ndarray:
    """Return a matching of the most `allowed` cells [S S]; a permutation may also use cells that are not allowed."""
    return _assignment(allowed.astype(float)) if directed else _pairing(allowed.astype(float), most_pairs=True)


def _assignment(weight: np.ndarray) -> np.ndarray:
    optimize = load_extra("exact", "a schedule of circuits", "scipy.optimize")
    matching = np.zeros(weight.shape, np.int64)
    matching[optimize.linear_sum_assignment(weight, maximize=True)] = 1
    return matching


def _pairing(weight: np.ndarray, most_pairs: bool) -> np.ndarray:
    networkx = load_extra("plot", "a schedule of circuits that carry both directions", "networkx")
    graph = networkx.Graph()
    first, second = np.nonzero(np.triu(weight, 1))
    graph.add_weighted_edges_from(zip(first.tolist(), second.tolist(), weight[first, second].tolist(), strict=True))
    matching = np.zeros(weight.shape, np.int64)
    for i, j in networkx.max_weight_matching(graph, maxcardinality=most_pairs):
        matching[i, j] = matching[j, i] = 1
    return matching


def stuff_lines(matrix: np.ndarray) -> np.ndarray:
    """Raise entries until every row and column sums to the busiest: positive entries first, then the others.

    The diagonal may be raised: an idle port. Source: QuickStuff of Solstice (CoNEXT 2015).
    """
    full = matrix.astype(float)
    rows, columns = full.sum(1), full.sum(0)
    most = max(rows.max(), columns.max())
    for cells in (np.argwhere(matrix > 0), np.argwhere(matrix <= 0)):
        for i, j in cells:
            more = most - max(rows[i], columns[j])
            if more > 0:
                full[i, j] += more
                rows[i] += more
                columns[j] += more
    return full


def refine_seconds(wanted: np.ndarray, matchings: list[np.ndarray], seconds: list[float]) -> np.ndarray:
    """Raise the seconds [K], matching by matching, until all of `wanted` is carried. Source: step 2 of Spectra."""
    raised = np.array(seconds, float)
    left = wanted - sum((m * t for m, t in zip(matchings, raised, strict=True)), np.zeros(wanted.shape))
    for position, matching in enumerate(matchings):
        more = max(float((left * matching).max()), 0.0)
        raised[position] += more
        left = left - more * matching
    return raised
