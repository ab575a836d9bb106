"""Fat-trees: every NIC on one switch tree, non-blocking or oversubscribed 3:1. Source: arXiv 2501.03905."""

from functools import partial

from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.packet_trees import nic_tree, tree_form, tree_groups, tree_parts

OVERSUBSCRIPTION = 3.0

FAT_TREE = Fabric(
    name="fat-tree",
    summary="all NICs on one non-blocking switch tree",
    look=("Fat-tree", "#0072B2", "s"),
    groups=tree_groups,
    tree=nic_tree,
    parts=tree_parts,
    form=tree_form,
    variants={"own NICs": {"nic_use": ("own",)}, "pooled NICs": {"nic_use": ("pooled",)}},
)
OVERSUB_FAT_TREE = Fabric(
    name="oversub-fat-tree",
    summary="all NICs on one switch tree, 3:1 at the edge unless `oversubscription` says otherwise",
    look=("Oversubscribed fat-tree", "#56B4E9", "v"),
    groups=partial(tree_groups, ratio=OVERSUBSCRIPTION),
    tree=partial(nic_tree, ratio=OVERSUBSCRIPTION),
    parts=partial(tree_parts, ratio=OVERSUBSCRIPTION),
    form=tree_form,
)
