"""Whether switch trees have ports left for the NICs of a spare server."""

from collections.abc import Sequence

from mfabric_jax.evaluate.resolving.resolved import Resolved, tree_room
from mfabric_jax.evaluate.resolving.set_up import tree_name
from mfabric_jax.evaluate.rows.costs import tree_nics


def full_tree_words(every: Sequence[Resolved]) -> str | None:
    """Return a sentence on switch trees with no ports left for a spare server; None without."""
    full = dict.fromkeys(tree_name(own) for own in every if not _holds_a_spare(own))
    if not full:
        return None
    return (
        f"The NICs fill all switch ports of {' and '.join(full)}, so a spare server has no port. Dollars count its "
        "ports like those of others; a further tier (network.tiers) or larger switches (network.radix) cost more."
    )


def _holds_a_spare(resolved: Resolved) -> bool:
    if resolved.fabric.links(resolved.site).tree is None:
        return True
    job, room = resolved.job, tree_room(resolved.case.network, resolved.fabric)
    return room.tiers_for(tree_nics(resolved, job) * (job.servers + 1) / job.servers) <= resolved.tiers
