"""Read a graph from a file of any known format; its extension and content tell which."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.graph import graph_of
from mfabric_jax.fabric.graphs import astra_sim, htsim, infragraph, nccl, topology_text
from mfabric_jax.fabric.graphs.data import GraphData
from mfabric_jax.fabric.network import FabricGraph
from mfabric_jax.support.text_files import mapping_in, read_text
from mfabric_jax.support.unread import name_unread
from mfabric_jax.support.yaml_text import parse_yaml

LARGEST = 1 << 30  # largest file [bytes]: millions of links
WHAT = "a graph's nodes and edges"
ALLOWED = (
    ".json (node-link JSON of networkx), .xml (topology dump of NCCL or RCCL), .topo (htsim), .yml (network of "
    "ASTRA-sim, or infragraph) or .txt (topology text of ns-3 or SimAI)"
)
SUFFIXES = ".json, .xml, .topo, .yml or .txt"
DUMP = re.compile(r"(.+\.xml)(?:\*(\d{1,6}))?(?:@([\w.-]+))?", re.IGNORECASE)  # FILE*SERVERS@DOMAIN
MOST_DUMPS = 1 << 14
YAML_KEY = re.compile(r"""^["']?([\w .-]+?)["']?\s*:(?=\s|$)""", re.MULTILINE)  # at the left edge
YAML_KEYS = (*astra_sim.KEYS, *infragraph.KEYS, *infragraph.FIELDS["infrastructure"])


def read_graph(path: str | Path) -> FabricGraph:
    """Read the graph of a file: node-link JSON of networkx, topology text of ns-3 or SimAI, htsim's `.topo`, network
    YAML of ASTRA-sim, YAML or JSON of infragraph, or topology dumps of NCCL or RCCL.

    Dumps of several servers: `a.xml,b.xml`, or `a.xml*16` for 16 equal ones. Those with equal words after `@` share
    their NVSwitches: `a.xml*18@rack`. Raise `InputError` if a file is unreadable or its reader rejects it.
    """
    named = str(path)
    dumps = [] if Path(named).is_file() else _dumps(named)
    if dumps:
        texts = {file: _text(file) for file in dict.fromkeys(file for file, _ in dumps)}
        return graph_of(nccl.graph_data([nccl.NamedDump(repr(file), texts[file], on) for file, on in dumps]).data)
    try:
        return graph_of(_data(named, _text(named)))
    except InputError as error:
        sentence = str(error)
        raise InputError(sentence if repr(named) in sentence else f"{named!r}: {sentence}") from error


def graph_files(path: str | Path) -> tuple[str, ...]:
    """Return the files that `read_graph` reads for a path."""
    named = str(path)
    dumps = [] if Path(named).is_file() else _dumps(named)
    return tuple(dict.fromkeys(file for file, _ in dumps)) or (named,)


def graphs_in(text: str) -> tuple[str, ...]:
    """Return the graphs that a word of a command names: one, or several between commas.

    The name of a file is one graph, and so is a list of dumps such as `a.xml,b.xml`, whose servers are one cluster.
    """
    return (text,) if Path(text).is_file() or _dumps(text) else tuple(word for word in text.split(",") if word)


def _dumps(named: str) -> list[tuple[str, str]]:
    """The files and NVLink domains ("": its own) of a list such as `a.xml,b.xml*3@rack`; empty if it is no list."""
    dumps: list[tuple[str, str]] = []
    for word in named.split(","):
        match = DUMP.fullmatch(word)
        if not match:
            return []
        name, count, domain = match[1], int(match[2] or 1), match[3] or ""
        if not 1 <= count <= MOST_DUMPS:
            raise InputError(f"servers of {name!r} must be from 1 to {MOST_DUMPS}, got {count}.")
        dumps += [(name, domain)] * count
    return dumps


def _text(file: str) -> str:
    return read_text(file, f"give a {SUFFIXES} file of {WHAT}", LARGEST)


def _data(file: str, text: str) -> dict[str, Any]:
    suffix, first = Path(file).suffix.lower(), _first_line(text)
    if suffix == ".json" or first.startswith(("{", "[")):
        data = mapping_in(text, repr(file), WHAT)
        if _of_infragraph(data):
            return infragraph.graph_data(data, repr(file)).data
        attributes = data.get("graph", {})
        if not isinstance(attributes, dict | list):
            raise InputError(f"{file!r}: graph must be a table of attributes, got {attributes!r:.80}.")
        name_unread(repr(file), "attributes of the graph", [str(name) for name in attributes if name != "name"])
        return data
    if suffix == ".xml" or first.startswith("<"):
        return nccl.graph_data([nccl.NamedDump(repr(file), text)]).data
    return _reader(file, suffix, first)(text).data


def _reader(file: str, suffix: str, first: str) -> Callable[[str], GraphData]:
    word = first.split()[0].lower() if first else ""
    if word and (suffix == ".topo" or word in (*htsim.HEADER, "tier")):
        return htsim.graph_data
    if word and (suffix in (".yml", ".yaml") or word.partition(":")[0] in YAML_KEYS):
        return lambda text: _yaml(file, text)
    if word.isdecimal():
        return topology_text.graph_data
    raise InputError(f"{file!r} is not a graph in a known format: give {ALLOWED}.")


def _yaml(file: str, text: str) -> GraphData:
    """The graph of a YAML file of ASTRA-sim or infragraph. Raise `InputError` if it is a file of another tool."""
    keys = YAML_KEY.findall(text)
    if not keys or set(keys) & set(astra_sim.KEYS):
        return astra_sim.graph_data(text)
    if _of_infragraph(keys):
        data = parse_yaml(text)
        if not isinstance(data, dict):
            raise InputError(f"{file!r} must hold {WHAT} by name, got {data!r:.80}.")
        return infragraph.graph_data(data, repr(file))
    raise InputError(
        f"{file!r} is not a graph in a known format: a YAML file must have the keys {', '.join(astra_sim.KEYS)} of "
        f"ASTRA-sim's network, or devices and instances of infragraph, got {', '.join(dict.fromkeys(keys))[:200]}."
    )


def _of_infragraph(keys: Iterable[str]) -> bool:
    return bool(set(keys) & set(infragraph.KEYS)) and not set(keys) & {"nodes", *astra_sim.KEYS}


def _first_line(text: str) -> str:
    """The first line that is neither empty nor a comment."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#") and line != "---"), "")
