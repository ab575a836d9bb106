"""Fabrics by name, and the module of `fabric/` that defines each; a new fabric needs its file and a line here.

It is outside `fabric/` so that settings and help load without JAX.
"""

MODULES = {
    "fat-tree": "fat_tree",
    "oversub-fat-tree": "fat_tree",
    "rail-optimized": "rails",
    "rail-only": "rails",
    "multi-plane": "multi_plane",
    "topoopt": "topoopt",
    "mfabric": "mfabric",
    "nvl72": "scale_up",
    "mfabric-cpo": "scale_up",
    "torus": "torus",
    **dict.fromkeys(("dragonfly", "dragonfly-valiant"), "dragonfly"),
}
NAMES = tuple(MODULES)
