"""`mfabric make-graph KIND --gpus N --out FILE.json`: a graph of a common kind, to edit or to simulate."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Literal

from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional
from mfabric_jax.fabric.grids import sizes

NAMES = ("leaf-spine", "planes", "fat-tree", "torus", "twisted-torus", "full-mesh", "dragonfly")
KIND = f"a kind of graph first; allowed: {', '.join(NAMES)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Make a graph of GPUs and switches as node-link JSON, which --graph, draw and networkx read.

    Trees, planes and dragonflies have servers with an NVSwitch and one NIC per GPU. Tori and meshes link the GPUs
    directly, and GPUs forward for each other. Every link has a delay of 1 us.
    """

    kind: Annotated[
        Literal[NAMES],  # type: ignore[valid-type]
        Positional("KIND", KIND, label="kind of graph"),
    ]
    """leaf-spine, planes (separate leaf-spines, each with a NIC of every server), fat-tree (three tiers), torus,
    twisted-torus (sizes n and 2n), full-mesh (in every dimension), dragonfly."""
    out: str
    """A .json file for the graph."""
    gpus: int | None = None
    """Number of GPUs (default: that of --shape)."""
    shape: str | None = None
    """Sizes of a torus or mesh, such as 4x4x8 (default: a nearly cubic torus, a mesh of one dimension)."""
    nic_gbps: float | None = None
    """Bandwidth of NICs, switch ports and links of a torus or mesh, per direction (default: 400)."""
    nvlink_gbps: float | None = None
    """Bandwidth of a GPU into its server's NVSwitch, per direction; 0: no NVSwitch (default: 7200)."""
    oversubscription: float | None = None
    """Ports down over ports up of the switches next to NICs (default: 1)."""
    radix: int | None = None
    """Ports of a switch in trees, each of a NIC's bandwidth; --split splits them like NICs (default: 64)."""
    planes: int | None = None
    """Number of planes P; NIC j of a server is on plane j mod P (default: 1)."""
    split: bool = False
    """Split every NIC over all planes, in equal parts (default: a NIC is on one plane)."""
    pooled: bool = False
    """Put NICs behind the NVSwitch, shared by all GPUs of the server (default: each GPU has its own)."""
    gpus_per_server: int | None = None
    """GPUs in a server (default: 8)."""


def run(options: Options) -> None:
    from mfabric_jax.fabric.graph import graph_text
    from mfabric_jax.fabric.graphs.made import KINDS, GraphNumbers, make_graph
    from mfabric_jax.support.atomic import check_file, replacing

    check_file("out", options.out, (".json",))
    numbers = {
        field.name: getattr(options, field.name) for field in dataclasses.fields(GraphNumbers) if field.name != "shape"
    }
    numbers |= {"shape": None if options.shape is None else sizes("shape", options.shape)}
    stated = {name: value for name, value in numbers.items() if value is not None and value is not False}
    for name in stated:
        if name not in ("gpus", "nic_gbps", *KINDS[options.kind].reads):
            raise InputError(f"{name} is not read by {options.kind}; leave it out.")
    if "gpus" not in stated:
        stated["gpus"] = _gpus(numbers["shape"])
    network = make_graph(options.kind, GraphNumbers(**stated))
    with replacing(Path(options.out)) as (part,):
        part.write_text(graph_text(network), encoding="utf-8")
    nodes = ", ".join(f"{count:,} {kind}" for kind, count in network.nodes)
    print(f"{options.kind}: {nodes}; {len(network.tail):,} one-way links")
    shared.tell(options.out)


def _gpus(shape: tuple[int, ...] | None) -> int:
    if shape is None:
        raise InputError("make-graph needs --gpus, the number of GPUs, or --shape.")
    return math.prod(shape)
