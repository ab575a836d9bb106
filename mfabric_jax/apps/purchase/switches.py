"""The cases of a purchase with switches of twice the ports, where a tree has several tiers of the usual switch."""

import dataclasses

from mfabric_jax.case import CaseBlock, Cases
from mfabric_jax.case.paths import flat
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax
from mfabric_jax.evaluate.resolving.set_up import has_tiers

RADIX, TIERS = "network.radix", "network.tiers"


def with_larger_switches(cases: Cases) -> tuple[int, Cases] | None:
    """Return twice the ports of the usual switch, and the cases with such switches, their set-ups as they are.

    None if no tree has several tiers, or if the ports or the tiers are stated.
    """
    stated = {*cases.stated, *cases.varied, *(path for variant in cases.variants for path in variant.stated)}
    usual = {flat(block.case)[RADIX] for block in cases.blocks}
    if len(usual) > 1 or stated & {RADIX, TIERS} or not any(map(_is_deep, cases.blocks)):
        return None
    ports = 2 * usual.pop()
    return ports, dataclasses.replace(cases, blocks=tuple(_with_ports(block, ports) for block in cases.blocks))


def _is_deep(block: CaseBlock) -> bool:
    try:
        return has_tiers(resolve_without_jax(block.case))
    except Misfit:
        return False


def _with_ports(block: CaseBlock, ports: int) -> CaseBlock:
    """Return the block with such switches, or as it is if they cannot be."""
    larger = dataclasses.replace(block, case=block.case.with_({RADIX: ports}))
    try:
        resolve_without_jax(larger.case)
    except Misfit:
        return block
    return larger
