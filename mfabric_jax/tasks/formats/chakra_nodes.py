"""One node of a Chakra trace, from protobuf or from the JSON of its feeder, and what it waits for."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.flows.dependencies import cycle_of
from mfabric_jax.tasks.formats import files
from mfabric_jax.tasks.formats.chakra_messages import value_of
from mfabric_jax.tasks.formats.files import Spot
from mfabric_jax.text_files import mapping_in


class NodeType(IntEnum):
    """Of the schema."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class Node(NamedTuple):
    """`data`, `control`: ids waited for. `micros`: its duration. `inputs`: text, with PyTorch's communicators."""

    place: Spot
    number: int
    name: str
    kind: NodeType
    data: tuple[int, ...]
    control: tuple[int, ...]
    micros: int
    attributes: dict[str, Any]
    inputs: str = ""

    def whole(self, name: str) -> int | None:
        """An attribute that is a whole number of any kind; None if it is not there."""
        value = self.attributes.get(name)
        return None if value is None else self.place.whole(name, int(value) if isinstance(value, bool) else value)

    def number_of(self, name: str) -> float | None:
        """An attribute that is a number of any kind; None if it is not there."""
        value = self.attributes.get(name)
        return None if value is None else self.place.number(name, value)

    @property
    def on_cpu(self) -> bool:
        """Whether it is an operation of the CPU; where nothing is said, it is not."""
        return bool(self.attributes.get("is_cpu_op"))


def of_message(message: Any, path: str) -> Node:
    """A node of the protobuf schema."""
    place = Spot(f"node {message.id} of {path!r}")
    if not 0 <= message.type < len(NodeType):
        place.refuse(f"must have a type from 0 to {max(NodeType)}, got {message.type}")
    attributes = {one.name: value_of(one) for one in message.attr}
    waits = (tuple(message.data_deps), tuple(message.ctrl_deps))
    kind, micros = NodeType(message.type), message.duration_micros
    return Node(place, message.id, message.name, kind, *waits, micros, attributes, message.inputs.values)


def of_json(said: Any, order: int, path: str) -> Node:
    """A node of the feeder's JSON: Id, Name, NodeType, runtime (us), data_deps, ctrlDeps, attributes by name."""
    place = Spot(f"node {order} (counted from 0) of {path!r}")
    if not isinstance(said, dict):
        place.refuse("must be an object")
    number, kind = (place.whole(field, said.get(field, "")) for field in ("Id", "NodeType"))
    place = Spot(f"node {number} of {path!r}")
    if kind > max(NodeType):
        place.refuse(f"must have a NodeType from 0 to {max(NodeType)}, got {kind}")
    waits: dict[str, tuple[int, ...]] = {}
    for field in ("data_deps", "ctrlDeps"):
        listed = said.get(field) or []
        if not isinstance(listed, list):
            place.refuse(f"must have a list for {field}, got {str(listed)[:40]!r}")
        waits[field] = tuple(place.whole(field, one) for one in listed)
    micros = place.whole("runtime", said.get("runtime", 0))
    return Node(
        place, number, str(said.get("Name", "")), NodeType(kind), waits["data_deps"], waits["ctrlDeps"], micros, said
    )


def waits_of(nodes: list[Node], dropped: Counter) -> list[tuple[int, int]]:
    """(id waited for, id that waits) of one rank's nodes, without what could never be: counted in `dropped`.

    Left out: a node's wait for itself, and for nodes that are not there; in a cycle the control waits, which PyTorch's
    recorder takes from who called whom; and where there still is one, every wait in it for a node of a higher id.
    """
    there = {node.number: order for order, node in enumerate(sorted(nodes, key=lambda node: node.number))}
    data = {(first, node.number) for node in nodes for first in node.data}
    control = {(first, node.number) for node in nodes for first in node.control} - data
    dropped["self"] += sum(first == then for first, then in data | control)
    dropped["missing"] += sum(first not in there for first, _ in data | control)
    pairs = sorted((first, then) for first, then in data | control if first != then and first in there)
    for leaves in (lambda pair: pair in control, lambda pair: pair[0] > pair[1]):
        after = np.array([(there[first], there[then]) for first, then in pairs], np.int64).reshape(-1, 2)
        if not cycle_of(after, len(there)):
            break
        circle = _components(after, len(there))
        inside = [circle[first] == circle[then] for first, then in after.tolist()]
        kept = [pair for pair, both in zip(pairs, inside, strict=True) if not (both and leaves(pair))]
        dropped["cycle"] += len(pairs) - len(kept)
        pairs = kept
    return pairs


def _components(after: np.ndarray, count: int) -> np.ndarray:
    """[count] the strongly connected component of each node: nodes of one wait for each other."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    waits = csr_array((np.ones(len(after), np.int8), after.T), (count, count))
    return connected_components(waits, connection="strong")[1]


# Communicators of a Chakra set: the JSON beside it, or the METADATA nodes that PyTorch's recorder writes.

ALL = ("", "0")  # names of the communicator of all ranks, where nothing else is said of them
LISTED = re.compile(r"\[\s*\{.*\}\s*\]", re.S)

Groups = dict[str, tuple[int, ...]]


def read_groups(path: Path) -> Groups:
    """`{"id": [ranks], ...}`."""
    said = mapping_in(files.unpacked(path), repr(str(path)), "communicators")
    return {name: ranks_of(Spot(f"communicator {name!r} of {str(path)!r}"), ranks) for name, ranks in said.items()}


def ranks_of(place: Spot, ranks: object) -> tuple[int, ...]:
    """A list of ranks, each once."""
    if not isinstance(ranks, list) or len({str(rank) for rank in ranks}) < len(ranks):
        place.refuse(f"must be a list of ranks, each once, got {str(ranks)[:40]!r}")
    return tuple(place.rank("ranks", rank if isinstance(rank, int) else str(rank)) for rank in ranks)


def groups_in(nodes: list[Node]) -> Groups:
    """Those that METADATA nodes say, `[{"pg_name": ..., "ranks": [...]}, ...]` as text; no ranks: all of them."""
    found: Groups = {}
    for node in nodes:
        text = LISTED.search(node.inputs.replace('\\"', '"')) if node.kind == NodeType.METADATA else None
        if text and '"pg_name"' in text[0]:
            try:
                said = json.loads(text[0])
                found |= {str(one["pg_name"]): ranks_of(node.place, one["ranks"]) for one in said}
            except (ValueError, KeyError, TypeError, RecursionError):
                node.place.refuse("must list communicators as JSON, each with pg_name and ranks")
    return found


class Communicators:
    """Which ranks a rank's communicator has, by name, and its number among all of them, `groups`."""

    def __init__(self, shared: Groups, of_rank: Mapping[int, Groups], ranks: int):
        self._shared, self._of_rank = shared, of_rank
        self.everyone = tuple(range(ranks))
        self.groups: list[tuple[int, ...]] = []
        self._number: dict[tuple[str, tuple[int, ...]], int] = {}
        self._found: dict[tuple[int, str], int] = {}
        for name, members in shared.items():
            self._number_of(name, members or self.everyone)

    def _number_of(self, name: str, members: tuple[int, ...]) -> int:
        number = self._number.setdefault((name, members), len(self.groups))
        if number == len(self.groups):
            self.groups.append(members)
        return number

    def of(self, node: Node, rank: int) -> int:
        """The number of a node's communicator; refused if its name is unknown or the rank is none of its members."""
        name = str(node.attributes.get("pg_name") or "")
        if (rank, name) not in self._found:
            self._found[rank, name] = self._find(node, rank, name)
        return self._found[rank, name]

    def _find(self, node: Node, rank: int, name: str) -> int:
        said = self._of_rank.get(rank, {}).get(name, self._shared.get(name))
        if said is None and name not in ALL:
            node.place.refuse(f"is of communicator {name!r}, which neither a JSON file nor a METADATA node says")
        members = said or self.everyone
        if rank not in members:
            node.place.refuse(
                f"is of communicator {name!r} of the ranks {list(members)[:8]}, which do not have rank {rank}"
            )
        return self._number_of("" if said is None else name, members)
