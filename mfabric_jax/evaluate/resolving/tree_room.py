"""How many NICs the trees of a fabric hold with one tier and with two."""

from typing import Any, NamedTuple

from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.site import FabricSite
from mfabric_jax.fabric.tree import Tree

LEAST_RADIX = 4  # half of its ports go up


class TreeRoom(NamedTuple):
    """How many NICs one switch and two tiers of a fabric connect, and over how many separate trees its NICs divide.

    One switch connects 0 if an oversubscribed tree needs uplinks, None without a tree.
    """

    one_switch: int | None
    two_tiers: int
    trees: int

    def tiers_for(self, nics: float) -> int:
        """Return the fewest tiers that hold all NICs of the trees together."""
        each = -(-nics // self.trees)
        return 1 if each <= (self.one_switch or 0) else 2 if each <= self.two_tiers else 3


def tree_room(network: Any, on: Fabric) -> TreeRoom:
    """Return the room of a fabric's trees under the `network` of a case, whose NICs are filled."""
    at_edge = network.oversubscribed_at == "edge"
    two = Tree(1, network.radix, tiers=2).most_hosts * at_edge
    site = FabricSite(network=network, nics=network.nics).with_network(radix=max(network.radix, LEAST_RADIX))
    tree = on.links(site).tree
    if tree is None:
        return TreeRoom(None, two, 1)
    full = (network.oversubscription or tree.oversubscription) == 1
    return TreeRoom(tree.radix * (full and at_edge), two, tree.parts)
