"""The name of every fabric, and the module of `fabric/` that defines it. A new fabric needs a module and a line here.

These names are outside `fabric/` so that settings and help load without JAX.
"""

from pathlib import Path

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
    "scale-up": "domains",
    "cloudmatrix384": "cloudmatrix",
    "acos": "acos",
    "photonic-rails": "photonic_rails",
    "torus": "torus",
    "twisted-torus": "twisted_torus",
    "full-mesh": "full_mesh",
    "railx": "railx",
    **dict.fromkeys(("dragonfly", "dragonfly-valiant"), "dragonfly"),
    **dict.fromkeys(("dragonfly-plus", "dragonfly-plus-valiant"), "dragonfly_plus"),
}
NAMES = tuple(MODULES)
TOPOLOGIES = ("ring", "rings", "torus", "expander")  # the graphs of fabric acos
GRAPH = "graph"  # the fabric read from the file network.graph; a list of fabrics may hold the file's name instead
GRAPHS = (
    ".json",
    ".xml",
    ".topo",
    ".yml",
    ".yaml",
    ".txt",
)  # suffixes of graph files; a file without one may be a graph too


def is_graph(word: str) -> bool:
    """Return whether a word names a graph's file, not a fabric. `a.xml*16` means 16 equal servers of that file."""
    return word not in NAMES and (word.lower().partition("*")[0].endswith(GRAPHS) or Path(word).is_file())
