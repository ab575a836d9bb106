"""One training iteration on a whole cluster at once."""

from mfabric_jax.cluster.whole_cluster import cluster_rows, solve_cluster

__all__ = ["cluster_rows", "solve_cluster"]
