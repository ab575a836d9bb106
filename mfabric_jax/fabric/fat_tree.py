"""Fat-trees: all NICs on one switch tree, non-blocking or 3:1. Source: arXiv 2501.03905."""

from collections.abc import Collection

from mfabric_jax.fabric.design import OnTree
from mfabric_jax.fabric.site import About

OVERSUBSCRIPTION = 3.0

FAT_TREE = OnTree(
    About(
        name="fat-tree",
        summary="all NICs on one non-blocking switch tree",
        look=("Fat-tree", "#0072B2", "s"),
    )
)
OVERSUB_FAT_TREE = OnTree(
    About(
        name="oversub-fat-tree",
        summary="all NICs on one switch tree, 3:1 at the edge unless `oversubscription` says otherwise",
        look=("Oversubscribed fat-tree", "#56B4E9", "v"),
        ratio=OVERSUBSCRIPTION,
    )
)


def same_tree_notice(fabrics: Collection[str], ratio: float | None) -> str | None:
    """Return a sentence if `network.oversubscription` makes two compared fabrics the same network; else None."""
    full, thin = FAT_TREE.name, OVERSUB_FAT_TREE.name
    if ratio is None or ratio == 1 or not {full, thin} <= set(fabrics):
        return None
    return (
        f"network.oversubscription {ratio:g} applies to {full} too and makes it the same network as {thin}; leave it "
        f"out to compare a full {full} with one of {OVERSUBSCRIPTION:g}:1."
    )
