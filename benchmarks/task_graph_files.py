"""Tables of the files of task graphs in a folder: what each holds, or why it is refused; when it ends on fabrics.

Usage: python benchmarks/task_graph_files.py FOLDER [--replay [SECONDS]]

With --replay every file that is read runs on a fat-tree, a rail-optimised fabric and mFabric at 400 Gbps (preset paper,
1 us a link), each with SECONDS for a file (default 600). A file of one rank is copied to 8.
"""

import pathlib
import sys
import time

from mfabric_jax.apps.graphs.tasks import read_with_remarks
from mfabric_jax.checks import InputError
from tests.apps.graphs.tasks.formats.contents import bytes_by_kind, depth, tasks_by_kind

FABRICS = ("fat-tree", "rail-optimized", "mfabric")
LINK_DELAY_S = 1e-6
ALONE = 8  # ranks that a file of one is copied to


def files_of(folder: str) -> list[pathlib.Path]:
    """Every file below the folders in it; of a Chakra set its first one."""
    found: dict[tuple, pathlib.Path] = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        prefix, _, rank = path.name.removesuffix(".et").rpartition(".")
        key = (path.parent, prefix) if path.suffix == ".et" and rank.isdigit() else (path,)
        if path.is_file() and path.parent != pathlib.Path(folder):
            found.setdefault(key, path)
    return [*found.values()]


def held(path: pathlib.Path) -> str:
    """Ranks, tasks by kind, bytes by kind, longest chain, seconds to read, remarks; or the refusal."""
    began = time.perf_counter()
    try:
        graph, name, remarks = read_with_remarks(path)
    except InputError as error:
        return f"| {path.name} | refused: {error} | | | | | | |"
    seconds = time.perf_counter() - began
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in tasks_by_kind(graph).items())
    sizes = ", ".join(f"{kind} {size:,.0f}" for kind, size in bytes_by_kind(graph).items()) or "0"
    said = " ".join(remarks)
    return f"| {path.name} | {name} | {graph.ranks:,} | {kinds} | {sizes} | {depth(graph):,} | {seconds:.2f} | {said} |"


def replayed(path: pathlib.Path, most_s: float) -> str:
    """Ranks, flows, and of each fabric the makespan and the seconds that it took; or what is in the way."""
    from mfabric_jax.apps.graphs.replay import replay
    from mfabric_jax.case import cases, load

    try:
        graph, name, _ = read_with_remarks(path)
        if graph.ranks == 1 and name in ("Chakra", "SimAI workload"):
            graph = read_with_remarks(path, ranks=ALONE).graph
    except InputError:
        return ""
    axes = {"network.fabric": FABRICS, "network.link_delay_s": [LINK_DELAY_S]}
    cells, flows, began = [], "", time.perf_counter()
    try:
        for done in replay(graph, cases(load(preset="paper"), axes)):
            flows = f"{done.prepared.flows.flows:,}"
            cells.append(f"{done.makespan_s:.6g} ({done.build_s + done.solve_s:.1f})")
            if time.perf_counter() - began > most_s:
                break
    except InputError as error:
        return f"| {path.name} | {graph.ranks:,} | {graph.tasks:,} | | refused: {error} | | |"
    cells += ["not run"] * (len(FABRICS) - len(cells))
    return f"| {path.name} | {graph.ranks:,} | {graph.tasks:,} | {flows} | {' | '.join(cells)} |"


def main(folder: str, replay: str = "", most_s: str = "600") -> None:
    """Both tables, row by row."""
    print("| file | format | ranks | tasks | bytes | longest chain | s | remarks |\n|---|---|---|---|---|---|---|---|")
    for path in files_of(folder):
        print(held(path), flush=True)
    if replay:
        import jax

        jax.config.update("jax_enable_x64", True)
        print("\n| file | ranks | tasks | flows |", " | ".join(f"{fabric} s (took)" for fabric in FABRICS), "|")
        print("|---|---|---|---|---|---|---|")
        for path in files_of(folder):
            if row := replayed(path, float(most_s)):
                print(row, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
