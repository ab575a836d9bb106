"""Fabrics by name, and the module of `fabric/` that defines each; a new fabric needs its file and a line here.

It is outside `fabric/` so that settings and help load without JAX.
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
TOPOLOGIES = ("ring", "rings", "torus", "expander")  # graphs of acos
GRAPH = "graph"  # the fabric of a file, network.graph; in a list of fabrics the name of the file stands for it
GRAPHS = (".json", ".xml", ".topo", ".yml", ".yaml", ".txt")  # how files of graphs end, unless they have no extension


def is_graph(word: str) -> bool:
    """Whether a word names the file of a graph rather than a fabric; `a.xml*16` is one file of 16 equal servers."""
    return word not in NAMES and (word.lower().partition("*")[0].endswith(GRAPHS) or Path(word).is_file())
