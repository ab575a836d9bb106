"""Topology text of ns-3 (HPCC's and its descendants) and SimAI.

The first line is `nodes switches links` (ns-3) or `nodes gpus_per_server nv_switches other_switches links gpu_type`
(SimAI). The second lists the ids of all switches, NVSwitches first. Then every link has a row `source target rate delay
error`; it has its rate in each direction. Nodes that are not switches are hosts (ns-3) or GPUs (SimAI). Source: the
topology generator of SimAI (astra-sim-alibabacloud/inputs/topo).
"""

import re
from collections.abc import Sequence

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.fabric.graphs.data import MOST_LINKS, MOST_NODES, GraphData, whole_in

Lines = list[tuple[int, list[str]]]
RATES = {"": units.bps, "k": units.kbps, "K": units.kbps, "M": units.mbps, "G": units.gbps, "T": units.tbps}
RATE = re.compile(r"(\d+(?:\.\d+)?)([kKMGT]?)(bps|b/s|Bps|B/s)")
DELAYS = {"s": float, "ms": units.ms, "us": units.us, "ns": units.ns, "ps": units.ps}
DELAY = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?)(s|ms|us|ns|ps)")
NS3 = ("nodes", "switches", "links")
SIMAI = ("nodes", "gpus_per_server", "nv_switches", "other_switches", "links")


def graph_data(text: str) -> GraphData:
    """Return the graph of a topology text. Raise `InputError` with the number of the wrong line."""
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    header, endpoint = _header(*lines[0])
    switches = header.get("switches", header.get("nv_switches", 0) + header.get("other_switches", 0))
    ids, rows = _switch_ids(lines[1:], switches, header["nodes"])
    _check_servers(header, switches)
    if len(rows) != header["links"]:
        raise InputError(f"line {lines[0][0]}: links must be the number of rows, {len(rows)}, got {header['links']}.")
    graph, names = GraphData(), {}
    nv = set(ids[: header.get("nv_switches", 0)])
    for node in range(header["nodes"]):
        kind = "nvswitch" if node in nv else "switch" if node in ids else endpoint
        names[node] = graph.node(f"{kind} {node}", kind)
    for number, row in rows:
        _add_link(graph, names, f"line {number}", row, nv)
    return graph


def _header(number: int, words: list[str]) -> tuple[dict[str, int], str]:
    fields = {len(NS3): NS3, len(SIMAI) + 1: SIMAI}.get(len(words))
    if fields is None:
        raise InputError(
            f"line {number} must have 3 words ({' '.join(NS3)}) or 6 ({' '.join(SIMAI)} gpu_type), got {len(words)}."
        )
    least, most = {"nodes": 1, "gpus_per_server": 1}, {"links": MOST_LINKS // 2}
    header = {
        field: whole_in(f"line {number}", field, word, least.get(field, 0), most.get(field, MOST_NODES))
        for field, word in zip(fields, words, strict=False)
    }
    return header, "host" if fields is NS3 else "gpu"


def _switch_ids(lines: Lines, switches: int, nodes: int) -> tuple[list[int], Lines]:
    """The ids of the switches, and the rows after them."""
    if not switches:
        return [], lines
    if not lines:
        raise InputError(f"the second line must list the ids of {switches} switches, but the file ends before it.")
    number, words = lines[0]
    ids = [whole_in(f"line {number}", "id of a switch", word, 0, nodes - 1) for word in words]
    if len(ids) != switches or len(set(ids)) != switches:
        raise InputError(f"line {number} must list the ids of {switches} switches, each once, got {len(set(ids))}.")
    return ids, lines[1:]


def _check_servers(header: dict[str, int], switches: int) -> None:
    each, gpus = header.get("gpus_per_server", 1), header["nodes"] - switches
    if gpus < 1 or gpus % each:
        raise InputError(f"gpus_per_server must divide the {gpus} nodes that are not switches, got {each}.")


def _add_link(graph: GraphData, names: dict[int, str], label: str, row: Sequence[str], nv: set[int]) -> None:
    if len(row) != 5:
        raise InputError(f"{label} must have 5 words (source target rate delay error), got {len(row)}.")
    ends = [whole_in(label, field, row[column], 0, len(names) - 1) for column, field in enumerate(("source", "target"))]
    if ends[0] == ends[1]:
        raise InputError(f"{label}: source and target must differ, got {ends[0]} twice.")
    if not re.fullmatch(r"0+(\.0*)?", row[4]):
        raise InputError(f"{label}: error must be 0, as losses are not simulated, got {row[4]!r:.80}.")
    kind = "nvswitch" if nv & set(ends) else "link"
    graph.both_ways(names[ends[0]], names[ends[1]], _bytes_per_s(label, row[2]), _seconds(label, row[3]), kind)


def _bytes_per_s(label: str, word: str) -> float:
    match = RATE.fullmatch(word)
    if not match:
        raise InputError(f"{label}: rate must be a number and its unit, such as 400Gbps, got {word!r:.80}.")
    value, prefix, unit = match.groups()
    return RATES[prefix](float(value) * (8 if unit[0] == "B" else 1))


def _seconds(label: str, word: str) -> float:
    match = DELAY.fullmatch(word)
    if not match:
        raise InputError(f"{label}: delay must be a number and its unit, such as 0.0005ms, got {word!r:.80}.")
    return DELAYS[match[2]](float(match[1]))
