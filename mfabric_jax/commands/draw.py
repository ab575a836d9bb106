"""`mfabric draw FABRIC`: a picture of a fabric."""

import dataclasses
import pathlib
from typing import Annotated

import tyro

from mfabric_jax.commands import shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Draw a fabric: its tiers, or a region with its circuits."""

    fabric: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FABRIC")]
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo, or the path of a
    graph in networkx node-link JSON"""
    out: str
    """A .png, .pdf or .svg file."""
    servers: int | None = None
    """Servers (or scale-up domains) of the cluster (default: those of the model)."""
    model: str = "mixtral-8x22b"
    """Whose traffic the circuits are chosen for."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    policy: str = "greedy"
    """How circuits are chosen: greedy, uniform, topoopt, matching, threshold, local-search, relaxed, joint, index,
    learned, exact; a .policy file of mfabric train; or FILE.py:FUNCTION."""
    rule: str = "printed"
    """greedy's rule: printed, released, next."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric of mfabric."""
    radix: int = 64
    """Ports of every electrical switch."""
    tiers: int = 3
    """Tiers of the switch tree: 2 or 3."""
    oversubscription: float | None = None
    """Of the tree (default: 3 on oversub-fat-tree, else 1)."""
    at: str = "edge"
    """Where it is oversubscribed: edge, aggregation."""
    seed: int = 0


def run(options: Options) -> int:
    """Returns the exit status."""
    from mfabric_jax import fabric, report, study
    from mfabric_jax.report.style import check_picture

    check_picture(options.out)
    if pathlib.Path(options.fabric).suffix == ".json":
        print(report.draw_graph(fabric.read_graph(options.fabric), options.out))
        return 0
    shared.start_jax("float32", None)
    given = shared.as_given(options)
    del given["out"]
    given["servers"] = options.servers or 0
    config = study.WholeCluster(**given)
    print(report.draw_fabric(study.example_cluster(config), options.out))
    return 0
