"""Chakra execution traces, `PREFIX.{rank}.et`, and the JSON form of their feeder: a whole set, or a file alone.

What nodes mean is what ASTRA-sim makes of them: both kinds of dependencies count, a duration is in microseconds, of an
all-gather `comm_size` is a rank's own part, and of what is ready on an NPU one CPU operation, one GPU computation, one
send or collective and one memory access run at a time, and receives at any time. Differences: a duration of 0 takes no
time (1 ns there), a broadcast is sent (there it takes its recorded time), and a node that waits for itself, for a node
that is not there, or in a cycle does not (there it never runs). Sources: Workload.cc, HardwareResource.cc, feeder_v3 of
github.com/astra-sim/astra-sim; src/feeder/JSONNode.cpp of github.com/mlcommons/chakra.
"""

import re
from pathlib import Path

from mfabric_jax.checks import COUNTS, InputError
from mfabric_jax.tasks.formats import files
from mfabric_jax.tasks.formats.chakra_graph import put_together
from mfabric_jax.tasks.formats.chakra_groups import Communicators, Groups, groups_in, read_groups
from mfabric_jax.tasks.formats.chakra_messages import read_stream, value_of
from mfabric_jax.tasks.formats.chakra_nodes import Node, NodeType, of_json, of_message
from mfabric_jax.tasks.formats.files import LeftOut, Reading, Spot
from mfabric_jax.text_files import mapping_in

ONE = re.compile(r"(?P<prefix>.*)\.(?P<rank>\d{1,8})\.(?P<kind>et|json)(\.(gz|xz))?")
BY_ID = "mfabric_ids_over_all_ranks"  # attribute of the GlobalMetadata: ids order the tasks of all ranks
EMPTY = "mfabric_empty"  # attribute of a node that is there because ASTRA-sim stops at a rank without any


def tells(head: bytes) -> bool:
    """Whether JSON begins as the feeder's does."""
    return b'"workload_graph"' in head


def is_set(path: Path) -> bool:
    """Whether a path that is no file is PREFIX, PREFIX.et or the folder of a set."""
    return bool(_set_of(path))


def read(path: Path, given: LeftOut) -> Reading:
    """The tasks of all ranks of the set that `path` is one file, the prefix, or the folder of.

    Communicators are those of `given.communicators`, of PREFIX.json beside the set, or of its METADATA nodes. A file
    that stands alone is copied to `given.ranks` ranks, or to as many as its communicators name; of a set of several
    `given.ranks` says that there are so many, and that some have no file.
    """
    found = _set_of(path)
    if not found:
        raise InputError(f"{str(path)!r} must be a Chakra trace PREFIX.RANK.et, its PREFIX, or a folder of one set.")
    ordered = [found[rank] for rank in sorted(found)]
    traces, by_id = zip(*map(_nodes, ordered), strict=True)
    one = ONE.fullmatch(ordered[0].name)
    prefix = one["prefix"] if one else files.plain_name(ordered[0]).removesuffix(".et")
    beside = Path(given.communicators) if given.communicators else ordered[0].with_name(f"{prefix}.json")
    shared = read_groups(beside) if given.communicators or beside.is_file() else {}
    if len(traces) == 1:
        return _alone(ordered[0], traces[0], shared | groups_in(traces[0]), given)
    pattern, by_rank = ordered[0].with_name(f"{prefix}.RANK.et"), dict(zip(sorted(found), traces, strict=True))
    return _some(pattern, by_rank, shared, given, all(by_id))


def _set_of(path: Path) -> dict[int, Path]:
    """The files of a set by rank: of the one that has this file, this prefix, or is alone in this folder."""
    whole = ONE.fullmatch(path.name) if path.is_file() else None
    folder = path if path.is_dir() else path.parent
    prefix = whole["prefix"] if whole else path.name.removesuffix(".et")
    if path.is_file() and not whole:
        return {0: path}
    sets: dict[tuple[str, str], dict[int, Path]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if one := ONE.fullmatch(file.name):
            sets.setdefault((one["prefix"], one["kind"]), {}).setdefault(int(one["rank"]), file)
    if path.is_dir():
        sets = {key: ranks for key, ranks in sets.items() if key[1] == "et"}
        return next(iter(sets.values())) if len(sets) == 1 else {}
    return sets.get((prefix, whole["kind"] if whole else "et"), {})


def _nodes(path: Path) -> tuple[list[Node], bool]:
    """A rank's nodes, and whether their ids order the tasks of all ranks."""
    if ".json" in path.suffixes:
        said = mapping_in(files.unpacked(path), repr(str(path)), "tasks").get("workload_graph")
        if not isinstance(said, list):
            raise InputError(f"{str(path)!r} must hold a list workload_graph of Chakra nodes.")
        return [of_json(one, order, str(path)) for order, one in enumerate(said)], False
    metadata, messages = read_stream(path)
    nodes = [of_message(one, str(path)) for one in messages]
    if not any(node.attributes for node in nodes) and any(node.kind >= NodeType.COMM_SEND for node in nodes):
        raise InputError(f"{str(path)!r} must have attributes, none of its nodes has: it is of an old schema.")
    told = {one.name: value_of(one) for one in metadata.attr}
    return [node for node in nodes if EMPTY not in node.attributes], bool(told.get(BY_ID))


def _some(name: Path, traces: dict[int, list[Node]], shared: Groups, given: LeftOut, by_id: bool) -> Reading:
    """A file for every rank, or for some of `given.ranks`."""
    place, ranks = Spot(repr(str(name))), given.ranks or len(traces)
    place.whole("ranks", ranks, 1, COUNTS["gpus"])
    of_rank = {rank: groups_in(nodes) for rank, nodes in traces.items()}
    beyond = max([*traces, *(max(named, default=0) for one in (shared, *of_rank.values()) for named in one.values())])
    absent = [rank for rank in range(ranks) if rank not in traces]
    if beyond >= ranks or (absent and not given.ranks):
        lost = absent[0] if absent else beyond
        place.refuse(
            f"must have a file for every rank, got {len(traces)} without rank {lost}; without the others it is read "
            f"when ranks says how many there are, {beyond + 1} or more"
        )
    nodes = [traces.get(rank, []) for rank in range(ranks)]
    graph, remarks = put_together(nodes, Communicators(shared, of_rank, ranks), given, by_id, absent)
    some = f"files of {len(traces)} of {ranks} ranks: the others are left out, for absent='assume'."
    return Reading(graph, "Chakra", (some, *remarks) if absent else remarks)


def _alone(path: Path, nodes: list[Node], groups: dict, given: LeftOut) -> Reading:
    """One file for all ranks: each does the same."""
    place = Spot(repr(str(path)))
    named = 1 + max((rank for ranks in groups.values() for rank in ranks), default=0)
    ranks = place.whole("ranks", given.ranks or named, 1, COUNTS["gpus"])
    files.few_enough(path, ranks * len(nodes))
    known = Communicators(groups, {}, ranks)
    for node in nodes:
        if node.kind in (NodeType.COMM_SEND, NodeType.COMM_RECV):
            node.place.refuse("must name its other end, in a set with a file for every rank, PREFIX.RANK.et")
        if node.kind == NodeType.COMM_COLL and groups and "comm_type" in node.attributes:
            members = len(known.groups[known.of(node, 0)])
            if members != ranks:
                said = f"is a collective of {members} ranks, not of all {ranks} that its file is copied to"
                node.place.refuse(f"{said}: its set needs a file for every rank")
    graph, remarks = put_together([nodes] * ranks, known, given)
    said = "ranks copies it to more" if ranks == 1 else "each does the same"
    return Reading(graph, "Chakra", (f"one file for {files.so_many(ranks, 'rank')}: {said}.", *remarks))
