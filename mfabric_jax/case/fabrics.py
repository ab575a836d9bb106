"""The fabrics by name, and the module of `fabric/` that defines each. A new fabric is its file and a line here.

It stands outside of `fabric/`, whose modules need JAX: settings and help list the names without it.
"""

MODULES = {
    "fat-tree": "fat_tree",
    "oversub-fat-tree": "fat_tree",
    "rail-optimized": "rails",
    "rail-only": "rails",
    "topoopt": "topoopt",
    "mfabric": "mfabric",
    "nvl72": "scale_up",
    "mfabric-cpo": "scale_up",
    "torus": "torus",
    **dict.fromkeys(("dragonfly", "dragonfly-valiant"), "dragonfly"),
}
NAMES = tuple(MODULES)
