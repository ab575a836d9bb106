"""The placement policies by name."""

from mfabric_jax.checks import one_of
from mfabric_jax.traffic.placement import PlacementPolicy, contiguous, hierarchical, longest_processing_time
from mfabric_jax.traffic.placement_with_circuits import with_circuits

REGISTRY: dict[str, PlacementPolicy] = {
    "contiguous": contiguous,
    "longest-processing-time": longest_processing_time,
    "hierarchical": hierarchical,
    "with-circuits": with_circuits,
}


def placement_policy(name: str) -> PlacementPolicy:
    """The policy of that name; `InputError` for one that is unknown."""
    return REGISTRY[one_of("placement", name, REGISTRY)]
