"""One iteration on a whole cluster at once."""

from mfabric_jax.cluster.whole_cluster import WholeCluster, cluster_rows, solve_cluster

__all__ = ["WholeCluster", "cluster_rows", "solve_cluster"]
