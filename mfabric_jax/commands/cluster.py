"""`mfabric cluster`: one iteration on a whole cluster."""

import dataclasses

from mfabric_jax import units
from mfabric_jax.case import Cases
from mfabric_jax.case.grid import UNREAD_BY_LINKS
from mfabric_jax.commands import shared

READS = ("model.", "gpu.", "job.", "network.", "circuits.policy", "circuits.delay_s", "run.seed", "run.dtype")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowOptions, shared.OnDevice):
    """Send all expert, data and pipeline parallel bytes of one iteration over the whole cluster at the same time.

    Optical regions choose circuits for the total traffic of the iteration. Files of links and flows have bytes,
    utilisation, and what holds each flow back.
    """

    graph: str | None = None
    """File of a graph that replaces the fabric (docs/formats.md); its gpu (or host) nodes are the GPUs."""
    out: str | None = None
    """Write a row per kind of traffic to this .csv or .parquet file."""
    links: str | None = None
    """Write a row per link to this .csv or .parquet file."""
    flows: str | None = None
    """Write a row per flow to this .csv or .parquet file."""
    picture: str | None = None
    """Draw the fabric, with links coloured by utilisation, to this .png, .pdf or .svg file."""


def run(cases: Cases, options: Options) -> None:
    case = shared.one_case(cases, "cluster")
    shared.check_flags(cases, "cluster", READS, options.graph, UNREAD_BY_LINKS)
    shared.start_jax(case.run.dtype, options.device)
    from mfabric_jax import report
    from mfabric_jax.evaluate import cluster_rows, solve_cluster
    from mfabric_jax.evaluate.rows.results import record_of_cases
    from mfabric_jax.evaluate.whole_cluster import flow_rows, link_rows
    from mfabric_jax.fabric.relays import relays_of
    from mfabric_jax.report.numerals import count_phrase
    from mfabric_jax.report.replay_text import links_text

    files = {name: getattr(options, name) for name in ("out", "links", "flows")}
    picture = options.picture
    shared.check_outputs(*files.values(), picture=picture)
    solved = solve_cluster(case, graph=options.graph)
    rows, config = cluster_rows(solved), record_of_cases(cases) | {"graph": options.graph}
    tables = {"out": lambda: rows, "links": lambda: link_rows(solved), "flows": lambda: flow_rows(solved)}
    kinds = {"out": "cluster", "links": "cluster --links", "flows": "cluster --flows"}
    columns_of = {name: options.columns(kind) for name, kind in kinds.items()}
    shared.write_tables(tables, files, config, columns_of)
    columns = ["traffic", "flows", report.TableColumn("gigabytes", "GB"), report.TableColumn("end_s", "ends at [s]")]
    print(
        f"{solved.job.model} on {rows[0]['fabric']}: {count_phrase(solved.job.gpus, 'GPU')}, "
        f"{count_phrase(rows[0]['links'], 'link')}; "
        f"built in {solved.build_s:.1f} s, solved in {solved.solve_s:.1f} s, at most {rows[0]['peak_mb']:,.0f} MB"
    )
    print(report.plain([row | {"gigabytes": units.to_gigabytes(row["bytes"])} for row in rows], columns))
    shared.print_lines(shared.case_notes(cases))
    if options.graph is not None:
        print(f"{options.graph}: {relays_of(solved.network, case.network.on_graph.relay).words}.")
    print(f"\nbusiest links\n{links_text(link_rows(solved))}")
    if picture is not None:
        _draw_solved(solved, picture)


def _draw_solved(solved, picture: str) -> None:
    from mfabric_jax import report

    used, network = solved.transfers.utilisation, solved.network
    if solved.cluster is None:
        drawn = report.draw_graph(network, picture, utilisation=used)
    else:
        drawn = report.draw_fabric(solved.cluster, picture, utilisation=pooled_use(solved))
    shared.tell(drawn)


def pooled_use(solved):
    """Return the utilisation of `pooled_network`, which the picture shows; None if flows took single paths."""
    return solved.transfers.utilisation if solved.network is solved.cluster.pooled_network else None
