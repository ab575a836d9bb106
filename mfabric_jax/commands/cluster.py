"""`mfabric cluster`: one iteration on a whole cluster, on fabrics and graphs beside each other."""

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from mfabric_jax import units
from mfabric_jax.case import Cases
from mfabric_jax.case.grid import UNREAD_BY_LINKS
from mfabric_jax.commands import shared

if TYPE_CHECKING:
    from mfabric_jax.evaluate.whole_cluster import ClusterSolution

READS = ("model.", "gpu.", "job.", "network.", "circuits.policy", "circuits.delay_s", "run.seed", "run.dtype")
SHOWN = ("network.fabric", "network.graph", "network.nic_gbps")  # settings with their own columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowOptions, shared.OnDevice):
    """Send all expert, data and pipeline parallel bytes of one iteration over the whole cluster at the same time.

    Optical regions choose circuits for the total traffic of the iteration. Files of links and flows have bytes,
    utilisation, and what holds each flow back.
    """

    graph: str | None = None
    """File of a graph that replaces the fabric (docs/formats.md); its gpu (or host) nodes are the GPUs. Several files,
    as a.json,b.json, stand in one table."""
    out: str | None = None
    """Write a row per kind of traffic of each case and graph to this .csv or .parquet file."""
    links: str | None = None
    """Write a row per link of the first case or graph to this .csv or .parquet file."""
    flows: str | None = None
    """Write a row per flow of the first case or graph to this .csv or .parquet file."""
    picture: str | None = None
    """Draw the first case or graph, with links coloured by utilisation, to this .png, .pdf or .svg file."""


def run(cases: Cases, options: Options) -> None:
    shared.check_flags(cases, "cluster", READS, options.graph, UNREAD_BY_LINKS)
    shared.start_jax(shared.dtype_of(cases), options.device)
    from mfabric_jax import report
    from mfabric_jax.evaluate.rows.results import record_of_cases
    from mfabric_jax.evaluate.whole_cluster import flow_rows, link_rows
    from mfabric_jax.report.replay_text import links_text

    files = {name: getattr(options, name) for name in ("out", "links", "flows")}
    picture = options.picture
    shared.check_outputs(*files.values(), picture=picture)
    first, rows, lines = _solutions(cases, options.graph)
    config = record_of_cases(cases) | {"graph": options.graph}
    tables = {"out": lambda: rows, "links": lambda: link_rows(first), "flows": lambda: flow_rows(first)}
    kinds = {"out": "cluster", "links": "cluster --links", "flows": "cluster --flows"}
    columns_of = {name: options.columns(kind) for name, kind in kinds.items()}
    shared.write_tables(tables, files, config, columns_of)
    print("\n".join(lines["built"]))
    several = len(lines["built"]) > 1
    settings = [name for name in rows[0] if "." in name]
    cases_apart = ["fabric", report.TableColumn("nic_gbps", "Gbps"), *settings] if several else []
    columns = [*cases_apart, "traffic", "flows"]
    columns += [report.TableColumn("gigabytes", "GB"), report.TableColumn("end_s", "ends at [s]")]
    shown = [row | {"gigabytes": units.to_gigabytes(row["bytes"]), "fabric": _where(row)} for row in rows]
    print(report.plain(shown, columns))
    shared.print_lines(shared.case_notes(cases))
    shared.print_lines(lines["relays"])
    print(f"\nbusiest links{f' on {_where(rows[0])}' if several else ''}\n{links_text(link_rows(first))}")
    if picture is not None:
        _draw_solved(first, picture)


def _solutions(cases: Cases, graph: str | None) -> "tuple[ClusterSolution, list[dict[str, Any]], dict[str, list[str]]]":
    """Solve every case on its fabric, or on each graph that --graph names.

    Return the first solution, rows of all, and lines to print: how each was built, and whether GPUs of graphs forward.
    """
    from mfabric_jax.evaluate import cluster_rows, solve_cluster
    from mfabric_jax.fabric.graphs.files import graphs_in
    from mfabric_jax.fabric.relays import relays_of
    from mfabric_jax.report.numerals import count_phrase

    solutions: list[ClusterSolution] = []
    rows, lines = [], {"built": [], "relays": []}
    for file, case in itertools.product((None,) if graph is None else graphs_in(graph), cases):
        solved = solve_cluster(case, graph=file)
        own = [cases.differences(case, SHOWN) | row for row in cluster_rows(solved)]
        rows += own
        solutions = solutions or [solved]
        lines["built"].append(
            f"{solved.job.model} on {_where(own[0])}: {count_phrase(solved.job.gpus, 'GPU')}, "
            f"{count_phrase(own[0]['links'], 'link')}; "
            f"built in {solved.build_s:.1f} s, solved in {solved.solve_s:.1f} s, at most {own[0]['peak_mb']:,.0f} MB"
        )
        if file is not None:
            lines["relays"].append(f"{file}: {relays_of(solved.network, case.network.on_graph.relay).words}.")
    return solutions[0], rows, lines


def _where(row) -> str:
    """The file of a graph, or the name of a fabric."""
    return row.get("graph") or row["fabric"]


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
