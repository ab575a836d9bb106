"""`mfabric cluster`: one iteration on a whole cluster."""

import dataclasses
import sys

import tyro

from mfabric_jax import units
from mfabric_jax.commands import shared
from mfabric_jax.commands.setup import SetUp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SetUp):
    """All expert, data and pipeline parallel bytes of one iteration on a whole cluster at once.

    Every link and every flow can be written to a file: bytes, utilisation, what holds each flow back.
    """

    model: str = "mixtral-8x7b"
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3"""
    fabric: str = "mfabric"
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo"""
    graph: str | None = None
    """Instead of a fabric: your own, networkx node-link JSON whose gpu (or host) nodes are the GPUs."""
    servers: int = 0
    """Servers of the cluster (default: the model's own); data parallelism grows with them."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    routing: str = "spray"
    """spray, ecmp, least-loaded (and weighted, on a graph)."""
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
    pxn: tyro.conf.FlagCreatePairsOff[bool] = False
    """On rails, data crosses the NVSwitch to the rail of its destination first."""
    goodput: float = 1.0
    """Part of the line rate that is payload."""
    resolution: float = 0.01
    """Rates are solved again at most every this part of the lower bound on the time; 0 is exact."""
    out: str | None = None
    """A row per kind of traffic to a .csv or .parquet file."""
    links: str | None = None
    """A row per link to a .csv or .parquet file."""
    flows: str | None = None
    """A row per flow to a .csv or .parquet file."""
    picture: str | None = None
    """The fabric with its links coloured by utilisation, to a .png, .pdf or .svg file."""
    seed: int = 0
    dtype: str = "float32"
    """float32, float64."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


def run(options: Options) -> int:
    """Returns the exit status."""
    shared.start_jax(options.dtype, options.device)
    from mfabric_jax import report, study
    from mfabric_jax.report.style import check_picture

    given = shared.as_given(options)
    files = {name: given.pop(name) for name in ("out", "links", "flows")}
    picture = given.pop("picture")
    del given["device"]
    config = study.WholeCluster(**given)
    for file in files.values():
        shared.check_outputs(file, None)
    if picture is not None:
        check_picture(picture)
    solved = study.solve_cluster(config)
    rows = study.cluster_rows(solved)
    effective = study.effective_cluster(config)
    tables = {"out": lambda: rows, "links": lambda: study.link_rows(solved), "flows": lambda: study.flow_rows(solved)}
    for name, table in tables.items():
        if files[name] is not None:
            print(report.write_rows(table(), files[name], effective | {"table": name}), file=sys.stderr)
    columns = ["traffic", "flows", report.Column("gigabytes", "GB"), report.Column("end_s", "ends at [s]")]
    print(
        f"{config.model} on {rows[0]['fabric']}: {solved.job.gpus:,} GPUs, {rows[0]['links']:,} links; "
        f"built in {solved.build_s:.1f} s, solved in {solved.solve_s:.1f} s, at most {rows[0]['peak_mb']:,.0f} MB"
    )
    print(report.plain([row | {"gigabytes": units.to_gigabytes(row["bytes"])} for row in rows], columns))
    busiest = sorted(study.link_rows(solved), key=lambda row: -row["utilisation"])[:5]
    link = [report.Column("link"), report.Column("kind"), report.Column("from"), report.Column("to")]
    print("\nbusiest links")
    print(report.plain(busiest, [*link, report.Column("utilisation", percent=True)]))
    if picture is not None:
        _draw_solved(solved, picture)
    return 0


def _draw_solved(solved, picture: str) -> None:
    from mfabric_jax import report

    used, network = solved.transfers.utilisation, solved.network
    if solved.cluster is None:
        drawn = report.draw_graph(network, picture, utilisation=used)
    else:
        drawn = report.draw_fabric(solved.cluster, picture, utilisation=pooled_use(solved))
    print(drawn, file=sys.stderr)


def pooled_use(solved):
    """Utilisation of the links of `cluster.sprayed`; None where flows took single paths, which the picture pools."""
    return solved.transfers.utilisation if solved.network is solved.cluster.sprayed else None
