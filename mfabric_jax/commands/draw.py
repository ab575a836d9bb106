"""`mfabric draw FABRIC`: a picture of a fabric."""

import dataclasses
import pathlib
from typing import Annotated

from mfabric_jax.cluster.whole_cluster import ClusterForm, WholeCluster
from mfabric_jax.commands import shared
from mfabric_jax.commands.options import settings
from mfabric_jax.commands.words import Positional
from mfabric_jax.fabric import NAMES

FIRST = f"a fabric first; allowed: {', '.join(NAMES)}, or a graph's .json file"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ClusterForm):
    """Draw a fabric: its tiers, or a region with its circuits."""

    fabric: Annotated[str, Positional("FABRIC", FIRST)]
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo, torus, or the path
    of a graph in networkx node-link JSON"""
    out: str
    """A .png, .pdf or .svg file."""
    model: str = "mixtral-8x22b"
    """Whose traffic the circuits are chosen for."""
    seed: int = 0
    """Of the traffic."""


def run(options: Options) -> int:
    """Returns the exit status."""
    from mfabric_jax import fabric, report
    from mfabric_jax.cluster.whole_cluster import check_beside_graph, example_cluster
    from mfabric_jax.report.style import check_picture

    check_picture(options.out)
    if pathlib.Path(options.fabric).suffix == ".json":
        own = {field.name for field in dataclasses.fields(options)} - {"fabric", "out"}
        check_beside_graph(options, sorted(own))
        print(report.draw_graph(fabric.read_graph(options.fabric), options.out))
        return 0
    shared.start_jax("float32", None)
    config = settings(WholeCluster, options)
    print(report.draw_fabric(example_cluster(config), options.out))
    return 0
