"""The network YAML of ASTRA-sim's analytical back end: a ring, full mesh or switch in every dimension.

`topology` (Ring, FullyConnected, Switch), `npus_count`, `bandwidth` (GB/s of a link and direction) and `latency` (ns of
a link) are lists of equal length, innermost dimension first. NPUs that differ in exactly one dimension share its ring,
mesh or switch; NPUs are numbered along the innermost dimension first. Bytes cross two links of a switch, so its latency
counts twice, as in ASTRA-sim. A gigabyte is 1e9 bytes here, 2^30 in ASTRA-sim. Source: astra-network-analytical.
"""

import itertools
import math
import re
from collections.abc import Iterator

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of, positive
from mfabric_jax.fabric.graphs.data import MOST_LINKS, MOST_NODES, GraphData, check_many, whole_in

KEYS = ("topology", "npus_count", "bandwidth", "latency")
KINDS = ("Ring", "FullyConnected", "Switch")
NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")


def graph_data(text: str) -> GraphData:
    """Return the graph of a network YAML. Raise `InputError` with the wrong key and value."""
    lists = _lists(text)
    kinds = [one_of("topology", word, KINDS) for word in lists["topology"]]
    counts = [whole_in("npus_count", "a dimension", word, 1, MOST_NODES) for word in lists["npus_count"]]
    rates = [units.gigabytes_per_s(positive("bandwidth", _number("bandwidth", word))) for word in lists["bandwidth"]]
    delays = [units.ns(_number("latency", word)) for word in lists["latency"]]
    total = math.prod(counts)
    check_many("nodes", total, MOST_NODES)
    graph = GraphData()
    npus = graph.nodes("gpu", total)
    inner = 1
    for dimension, (kind, count, rate, delay_s) in enumerate(zip(kinds, counts, rates, delays, strict=True)):
        links = total * (count - 1 if kind == "FullyConnected" else 2)
        check_many("links", links, MOST_LINKS)
        for group, members in enumerate(_groups(total, count, inner)):
            names = [npus[n] for n in members]
            if kind == "Switch" and count > 1:
                switch = graph.node(f"switch {dimension}.{group}", "switch")
                pairs = [(name, switch) for name in names]
            else:
                pairs = list(_ring(names) if kind == "Ring" else itertools.combinations(names, 2))
            for first, other in pairs:
                graph.both_ways(first, other, rate, delay_s, f"dimension {dimension}")
        inner *= count
    return graph


def _groups(total: int, count: int, inner: int) -> Iterator[range]:
    """The NPUs that differ in exactly one dimension, for every value of the others."""
    for outer in range(0, total, inner * count):
        for first in range(outer, outer + inner):
            yield range(first, first + inner * count, inner)


def _ring(names: list[str]) -> Iterator[tuple[str, str]]:
    yield from itertools.pairwise(names)
    if len(names) > 2:
        yield names[-1], names[0]


def _number(key: str, word: str) -> float:
    if not NUMBER.fullmatch(word):
        hint = ", to be decided: fill it in" if word.lower() == "tbd" else ""
        raise InputError(f"{key} must be a list of numbers, got {word!r:.80}{hint}.")
    return float(word)


def _lists(text: str) -> dict[str, list[str]]:
    """The lists by key; of YAML, only `key: [a, b]` and `- a` below a key are read."""
    lists: dict[str, list[str]] = {}
    key = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line or line in ("---", "..."):
            continue
        if line.startswith("- ") and key:
            lists[key].append(_word(line[2:]))
            continue
        key, colon, value = line.partition(":")
        if not colon:
            raise InputError(f"line {number} must be KEY: [VALUE, ...], got {line!r:.80}.")
        key = one_of(f"line {number}: key", key.strip(), KEYS)
        if key in lists:
            raise InputError(f"line {number}: {key} appears twice.")
        lists[key] = _flow_list(f"line {number}: {key}", value.strip())
    return _check_lengths(lists)


def _flow_list(label: str, value: str) -> list[str]:
    if not value:
        return []
    if not (value.startswith("[") and value.endswith("]")):
        raise InputError(f"{label} must be a list such as [ 8, 4 ], got {value!r:.80}.")
    return [_word(word) for word in value[1:-1].split(",") if word.strip()]


def _word(text: str) -> str:
    return text.strip().strip("\"'")


def _check_lengths(lists: dict[str, list[str]]) -> dict[str, list[str]]:
    for key in KEYS:
        if not lists.get(key):
            raise InputError(f"{key} must be a list with a value for each dimension, but there is none.")
        if len(lists[key]) != len(lists[KEYS[0]]):
            raise InputError(
                f"{key} must have a value for each of the {len(lists[KEYS[0]])} dimensions in topology, got "
                f"{len(lists[key])}."
            )
    return lists
