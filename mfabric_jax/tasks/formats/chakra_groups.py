"""Communicators of a Chakra set: the JSON beside it, or the METADATA nodes that PyTorch's recorder writes."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from mfabric_jax.tasks.formats import files
from mfabric_jax.tasks.formats.chakra_nodes import Node, NodeType
from mfabric_jax.tasks.formats.files import Spot
from mfabric_jax.text_files import mapping_in

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
