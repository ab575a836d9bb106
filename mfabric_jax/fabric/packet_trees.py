"""What fabrics share whose NICs all hang on one switch tree."""

from collections.abc import Sequence

from mfabric_jax.fabric.cost import PartGroup, tree_attachment
from mfabric_jax.fabric.design import (
    SERVER_GPUS,
    Asked,
    ClusterShape,
    Form,
    check_own,
    nics_of,
)
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.workload import Workload


def tree_groups(
    settings: Asked, job: Workload, nic_gbps: float, nic_uses: Sequence[str], ratio: float | None = None
) -> list[Electrical]:
    """A star of ports for every use of NICs."""
    nics = nics_of(settings, job)
    for use in nic_uses:
        check_own(use, nics, job.gpus_per_server)
    return [Electrical(nic_gbps, nics, ratio, use) for use in nic_uses]


def ratio_of(form: Form, usual: float = 1.0) -> float:
    """Oversubscription of a tree: as asked for, or the fabric's own."""
    return usual if form.oversubscription is None else form.oversubscription


def nic_tree(form: Form, ratio: float = 1.0, parts: int = 1) -> Tree:
    """The switch tree of a fabric whose own oversubscription is `ratio`, over one host in each part."""
    return Tree(parts, form.radix, form.tiers if parts == 1 else 2, ratio_of(form, ratio), form.at, parts)


def roomy_radix(least: int, servers: int, nics: int) -> int:
    """Ports of switches, `least` or twice, four times, ... as many, whose trees have room for all NICs: of three tiers
    for all together, of two for one of every server."""
    radix = least
    while radix**3 < 4 * servers * nics or radix**2 < 2 * servers:
        radix *= 2
    return radix


def tree_parts(form: Form, ratio: float = 1.0) -> tuple[PartGroup, ...]:
    """All NICs of a server on one switch tree."""
    nics = SERVER_GPUS if form.nics is None else form.nics
    return (PartGroup(nics, "switch tree", tree_attachment(ratio_of(form, ratio), form.tiers, form.at)),)


def tree_form(settings: Asked, job: ClusterShape) -> Form:
    """NICs as the user has them, else one for each GPU."""
    return Form(nics=nics_of(settings, job), tiers=settings.tiers, gpu_tbps=settings.gpu_tbps)
