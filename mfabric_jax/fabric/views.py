"""Classes that need JAX, loaded at first use: what expert-parallel groups see of a fabric, and meshes.

Files of fabrics import them from here, so that settings are checked and help is shown without JAX.
"""

from mfabric_jax.support.lazily import at_first_use

__getattr__ = at_first_use(
    __name__,
    {
        "mfabric_jax.fabric.direct_links": ("DirectLinks", "Mesh", "mesh_of", "mesh_of_links"),
        "mfabric_jax.fabric.electrical": ("Electrical",),
        "mfabric_jax.fabric.graph_links": ("GraphLinks",),
        "mfabric_jax.fabric.rail_rings": ("RailRings", "ring_of"),
        "mfabric_jax.fabric.region": ("Region",),
    },
)
