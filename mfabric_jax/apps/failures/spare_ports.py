"""Whether switch trees have ports left for the NICs of a spare server."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.evaluate.resolving.resolve import resolve
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


def spare_port_lines(cases: Cases, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the sentence on trees of the cases without ports for a spare server, if a failure in `rows` takes one."""
    takes_one = any(row["spare_usd"] for row in rows)
    words = full_tree_words([resolve(block.case) for block in cases.blocks]) if takes_one else None
    return [words] if words else []


def _holds_a_spare(resolved: Resolved) -> bool:
    if resolved.fabric.links(resolved.site).tree is None:
        return True
    job, room = resolved.job, tree_room(resolved.case.network, resolved.fabric)
    return room.tiers_for(tree_nics(resolved, job) * (job.servers + 1) / job.servers) <= resolved.tiers
