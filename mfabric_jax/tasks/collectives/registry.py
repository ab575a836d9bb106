"""The algorithms of collectives by name. A new one is a file of its own and a line in `ALGORITHMS`."""

from mfabric_jax.tasks.collectives.binomial_tree import BINOMIAL_TREE
from mfabric_jax.tasks.collectives.chain import CHAIN
from mfabric_jax.tasks.collectives.direct import DIRECT
from mfabric_jax.tasks.collectives.dissemination import DISSEMINATION
from mfabric_jax.tasks.collectives.double_tree import DOUBLE_TREE
from mfabric_jax.tasks.collectives.halving_doubling import HALVING_DOUBLING
from mfabric_jax.tasks.collectives.hierarchical import HIERARCHICAL
from mfabric_jax.tasks.collectives.pairwise import PAIRWISE
from mfabric_jax.tasks.collectives.pattern import Builds
from mfabric_jax.tasks.collectives.ring import RING
from mfabric_jax.tasks.collectives.rings import RINGS
from mfabric_jax.tasks.graph import Op

ALGORITHMS: dict[str, Builds] = {
    "ring": RING,
    "rings": RINGS,
    "halving-doubling": HALVING_DOUBLING,
    "double-tree": DOUBLE_TREE,
    "hierarchical": HIERARCHICAL,
    "direct": DIRECT,
    "pairwise": PAIRWISE,
    "tree": BINOMIAL_TREE,
    "chain": CHAIN,
    "dissemination": DISSEMINATION,
}
BY_SERVER = ("rings", "hierarchical")  # whose pattern depends on which members share a server
OWN_BYTES = (("direct", Op.ALL_TO_ALL), ("pairwise", Op.ALL_TO_ALL))  # nothing forwarded: members' bytes may differ
ROOTED = (Op.REDUCE, Op.GATHER, Op.SCATTER, Op.BROADCAST)
USUAL_ALGORITHM = {
    Op.ALL_REDUCE: "ring",
    Op.ALL_GATHER: "ring",
    Op.REDUCE_SCATTER: "ring",
    Op.ALL_TO_ALL: "direct",
    Op.BROADCAST: "tree",
    Op.REDUCE: "tree",
    Op.GATHER: "direct",
    Op.SCATTER: "direct",
    Op.BARRIER: "dissemination",
}
