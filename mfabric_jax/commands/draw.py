"""`mfabric draw FABRIC`: a picture of a fabric."""

import dataclasses
from typing import Annotated

from mfabric_jax.case import Cases
from mfabric_jax.case.grid import UNREAD_BY_LINKS
from mfabric_jax.case.network import NAMES, is_graph
from mfabric_jax.commands import shared
from mfabric_jax.commands.cluster import READS
from mfabric_jax.commands.words import Positional

FIRST = f"a fabric first; allowed: {', '.join(NAMES)}, or the file of a graph"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Draw the fabric of a case: its tiers, or a region with circuits for its traffic."""

    fabric: Annotated[str, Positional("FABRIC", FIRST, states="network.fabric")]
    """The name of a fabric, or a graph's file in any format of docs/formats.md."""
    out: str
    """A .png, .pdf or .svg file."""


def run(cases: Cases, options: Options) -> None:
    from mfabric_jax import fabric, report
    from mfabric_jax.evaluate.whole_cluster import example_cluster

    shared.check_outputs(picture=options.out)
    if is_graph(options.fabric):
        shared.check_flags(cases, "draw on a graph", (), options.fabric)
        print(report.draw_graph(fabric.read_graph(options.fabric), options.out))
        return
    case = shared.one_case(cases, "draw")
    shared.check_flags(cases, "draw", READS, unread=UNREAD_BY_LINKS | {"network.in-network.sharp": ""})
    shared.start_jax(case.run.dtype, None)
    print(report.draw_fabric(example_cluster(case), options.out))
