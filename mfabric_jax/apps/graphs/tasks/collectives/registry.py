"""The algorithms of collectives by name, and the choice of an algorithm for each collective.

To add an algorithm, write a function that builds a `Pattern` and register it in `ALGORITHMS`.
"""

import math
from typing import NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.tasks.collectives.pattern import (
    Build,
    Builds,
    Pattern,
    backwards,
    in_turn,
    of_messages,
    on_each,
    rounds,
)
from mfabric_jax.apps.graphs.tasks.graph import Op
from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.support.rings import onward, ring_steps

# Direct: every member sends to every other member at once; with a root, the root sends to all, or all to the root.


def _exchange(server) -> Pattern:
    n = len(server)
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    return of_messages(src, dst, 1 / n)


def _all_reduce(server) -> Pattern:
    return in_turn(len(server), _exchange(server), _exchange(server))


def _scatter(server) -> Pattern:
    n = len(server)
    return of_messages(0, np.arange(1, n), 1 / n)


def _broadcast(server) -> Pattern:
    return of_messages(0, np.arange(1, len(server)), 1)


DIRECT: Builds = {
    Op.ALL_REDUCE: _all_reduce,
    Op.ALL_GATHER: _exchange,
    Op.REDUCE_SCATTER: _exchange,
    Op.ALL_TO_ALL: _exchange,
    Op.SCATTER: _scatter,
    Op.GATHER: lambda server: backwards(_scatter(server)),
    Op.BROADCAST: _broadcast,
    Op.REDUCE: lambda server: backwards(_broadcast(server)),
}


# A ring in the order of the group: n - 1 steps for a reduce-scatter or an all-gather, 2 (n - 1) for an all-reduce,
# which is both (Patarasu & Yuan, JPDC 2009): every member sends 2 (n - 1) / n of the bytes. The all-to-all sends one
# block at a time. The block for the k-th next member crosses k links of the ring: n (n - 1) / 2 steps.


def _steps(count) -> Build:
    def build(server):
        n = len(server)
        return rounds(np.tile(onward(np.arange(n)), (count(n), 1)), 1 / n)

    return build


RING: Builds = {
    Op.ALL_REDUCE: _steps(ring_steps),
    Op.ALL_GATHER: _steps(lambda n: n - 1),
    Op.REDUCE_SCATTER: _steps(lambda n: n - 1),
    Op.ALL_TO_ALL: _steps(lambda n: n * (n - 1) // 2),
}


# Parallel rings, one for each member of the largest server, so that all NICs work (channels of NCCL); each carries an
# equal part of the bytes. Every ring visits the servers in order. Ring k enters each server at its k-th member (modulo
# the number of members) and leaves at the previous member. Members of a single server need one ring.


def _parallel_rings(op: Op) -> Build:
    def build(server):
        there = [np.flatnonzero(np.equal(server, number)) for number in sorted(set(server))]
        rings = max(map(len, there)) if len(there) > 1 else 1
        orders = [np.concatenate([np.roll(members, -k) for members in there]) for k in range(rings)]
        return on_each(RING[op](server), np.stack(orders), 1 / rings)

    return build


RINGS: Builds = {op: _parallel_rings(op) for op in (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER)}


# Hierarchical: direct inside servers, whose GPUs share a switch; by ring or direct between servers, rail by rail. A
# rail consists of the i-th members of all servers. All-reduce: reduce-scatter inside servers, ring all-reduce on rails,
# all-gather inside. All-to-all: member i of a server collects what its server sends to the i-th members of other
# servers, and sends it along the rail. A group in one server, or with one member per server, needs only one part.


def _rows(server: tuple[int, ...]) -> np.ndarray:
    _, row, count = np.unique(server, return_inverse=True, return_counts=True)
    if len(set(count)) > 1:
        raise InputError(
            f"a hierarchical collective needs equally many members on each server, got {count.min()} to {count.max()}."
        )
    return np.argsort(row, kind="stable").reshape(len(count), -1)


def _hierarchical_built(*phases) -> Build:
    """Join `phases`: (whether inside servers, builds, op, part of the bytes as a function of a server's members)."""

    def build(server) -> Pattern:
        rows = _rows(server)
        members = len(rows[0])
        parts = [
            on_each(builds[op](rows[0] if inside else rows[:, 0]), rows if inside else rows.T, part(members))
            for inside, builds, op, part in phases
        ]
        return in_turn(len(server), *parts)

    return build


def _all(members: int) -> float:
    return 1


def _rail(members: int) -> float:
    return 1 / members


HIERARCHICAL: Builds = {
    Op.ALL_REDUCE: _hierarchical_built(
        (True, DIRECT, Op.REDUCE_SCATTER, _all),
        (False, RING, Op.ALL_REDUCE, _rail),
        (True, DIRECT, Op.ALL_GATHER, _all),
    ),
    Op.REDUCE_SCATTER: _hierarchical_built(
        (True, DIRECT, Op.REDUCE_SCATTER, _all), (False, RING, Op.REDUCE_SCATTER, _rail)
    ),
    Op.ALL_GATHER: _hierarchical_built((False, RING, Op.ALL_GATHER, _rail), (True, DIRECT, Op.ALL_GATHER, _all)),
    Op.ALL_TO_ALL: _hierarchical_built((True, DIRECT, Op.ALL_TO_ALL, _all), (False, DIRECT, Op.ALL_TO_ALL, _all)),
}


# An all-reduce by switches (SHARP): every member sends all bytes up a tree of switches and receives their sum. Messages
# join members only, so a message of all bytes to the next member stands for its way up and that member's way down. In
# the order of servers, every NIC, and every switch that members are below and beyond, then carries all bytes once up
# and once down, as on the tree: the narrowest link decides. Nothing is sent before all members have begun, and no
# member ends before all bytes have arrived, since a switch adds up what all send. Between servers rail by rail, as
# "hierarchical".


def _by_switches(server) -> Pattern:
    n = len(server)
    if n == 1:
        return of_messages([], [], [])
    member = np.arange(n)
    ready, together, sent, over, leave = 0, n, n + 1, 2 * n + 1, 2 * n + 2  # first of each kind
    src = np.concatenate([member, [0], member, [0], member])
    dst = np.full(len(src), -1)
    dst[sent:over] = onward(member)
    part = (dst >= 0).astype(float)
    pairs = [
        (ready + member, np.full(n, together)),
        (ready + member, sent + member),
        (np.full(n, together), sent + member),
        (sent + member, np.full(n, over)),
        (sent + member, leave + member),
        (sent + member, leave + onward(member)),
        (np.full(n, over), leave + member),
    ]
    return of_messages(src, dst, part, np.concatenate([np.stack(pair, axis=1) for pair in pairs]))


BY_SWITCHES: Builds = {Op.ALL_REDUCE: _by_switches}
IN_NETWORK: Builds = {
    Op.ALL_REDUCE: _hierarchical_built(
        (True, DIRECT, Op.REDUCE_SCATTER, _all),
        (False, BY_SWITCHES, Op.ALL_REDUCE, _rail),
        (True, DIRECT, Op.ALL_GATHER, _all),
    )
}


# All-to-all with one partner at a time, in n - 1 steps: in step k, every member sends to the k-th next member.


def _all_to_all(server) -> Pattern:
    n = len(server)
    return rounds((np.arange(n) + np.arange(1, n)[:, None]) % n, 1 / n)


PAIRWISE: Builds = {Op.ALL_TO_ALL: _all_to_all}


# A binomial tree: in step k, each of the first 2^k members sends to the member 2^k positions further. A scatter sends
# the bytes of the whole subtree. A member sends its messages one after another. Reductions and gathers run the tree
# backwards.


def _tree(server, scatter: bool) -> Pattern:
    n = len(server)
    dst = np.arange(1, n)
    hop = 2 ** np.floor(np.log2(dst)).astype(np.int64)
    src = dst - hop
    part = (1 + (n - 1 - dst) // (2 * hop)) / n if scatter else 1
    earlier = src + hop // 2  # the message of the same sender before this one
    forwards, follows = src > 0, hop // 2 > src
    pairs = [(src[forwards], dst[forwards]), (earlier[follows], dst[follows])]
    after = np.concatenate([np.stack(pair, axis=1) for pair in pairs]) - 1
    return of_messages(src, dst, part, after)


BINOMIAL_TREE: Builds = {
    Op.BROADCAST: lambda server: _tree(server, scatter=False),
    Op.SCATTER: lambda server: _tree(server, scatter=True),
    Op.REDUCE: lambda server: backwards(_tree(server, scatter=False)),
    Op.GATHER: lambda server: backwards(_tree(server, scatter=True)),
}


# A chain from the root along the order of the group, or back to the root: every member forwards all bytes. Meant for
# many chunks.


def _chain_broadcast(server) -> Pattern:
    member = np.arange(len(server) - 1)
    return of_messages(member, member + 1, 1, np.stack([member[:-1], member[1:]], axis=1))


CHAIN: Builds = {Op.BROADCAST: _chain_broadcast, Op.REDUCE: lambda server: backwards(_chain_broadcast(server))}


# A barrier: in step k, every member sends a message without bytes to the member 2^k positions further. Source: Hensgen,
# Finkel, Manber, Two algorithms for barrier synchronization (1988).


def _barrier(server) -> Pattern:
    n = len(server)
    hops = 2 ** np.arange((n - 1).bit_length())
    return rounds((np.arange(n) + hops[:, None]) % n, 0)


DISSEMINATION: Builds = {Op.BARRIER: _barrier}


# All-reduce on two binary trees: each reduces one half of the bytes to its root and broadcasts it. Meant for chunks. A
# member that forwards in one tree is a leaf of the other (except one member of each), so every member sends about all
# bytes once up and once down. Source: Sanders, Speck, Träff, Two-tree algorithms for full bandwidth broadcast,
# reduction and scan (2009); numbered as in NCCL: the second tree is the first one mirrored, or shifted if n is odd.


def _double_tree_all_reduce(server) -> Pattern:
    n = len(server)
    first = np.arange(n)
    other = n - 1 - first if n % 2 == 0 else (first + 1) % n
    return on_each(_up_and_down(n), np.stack([first, other]), part=0.5)


def _up_and_down(n: int) -> Pattern:
    member = np.arange(1, n)
    parent = _parents(n)
    inner = parent > 0
    up, down = member - 1, n + member - 2
    above = parent[inner] - 1
    top = up[~inner]
    turn = np.stack(np.meshgrid(top, down[~inner], indexing="ij"), axis=-1).reshape(-1, 2)
    after = [np.stack([up[inner], up[above]], axis=1), turn, np.stack([down[above], down[inner]], axis=1)]
    return of_messages(
        np.concatenate([member, parent]), np.concatenate([parent, member]), 1, np.concatenate(after).astype(np.int64)
    )


def _parents(n: int) -> np.ndarray:
    """Parents [n - 1] of positions 1, 2, ... in an in-order tree, whose leaves are the odd positions."""
    position = np.arange(1, n)
    low = position & -position
    parent = (position ^ low) | (2 * low)
    return np.where(parent < n, parent, position ^ low)


DOUBLE_TREE: Builds = {Op.ALL_REDUCE: _double_tree_all_reduce}


# Recursive halving and doubling: log2 n steps with partners at distances n/2, ..., 1 (halving) or 1, ..., n/2
# (doubling). Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH (2005).
# The core consists of the first 2^k members, where 2^k is the largest power of two up to n. Each other member first
# sends its data to a member of the core, and gets the result back at the end.


def _core(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def _halving(blocks: np.ndarray) -> Pattern:
    return _halving_doubling_steps(blocks, 2 ** np.arange(_log2(blocks))[::-1], of_partner=True)


def _doubling(blocks: np.ndarray) -> Pattern:
    return _halving_doubling_steps(blocks, 2 ** np.arange(_log2(blocks)), of_partner=False)


def _log2(blocks: np.ndarray) -> int:
    return len(blocks).bit_length() - 1


def _halving_doubling_steps(blocks: np.ndarray, distance: np.ndarray, of_partner: bool) -> Pattern:
    distance = distance[:, None]
    partner = np.arange(len(blocks)) ^ distance
    first = (partner if of_partner else np.arange(len(blocks))) // distance * distance
    below = np.concatenate([[0], np.cumsum(blocks)])
    return rounds(partner, below[first + distance] - below[first])


def _with_extras(n: int, core: list[Pattern], before: float, behind: float) -> Pattern:
    p = _core(n)
    extra = np.arange(p, n)
    if not extra.size:
        return in_turn(n, *core)
    return in_turn(n, of_messages(extra, extra - p, before), *core, of_messages(extra - p, extra, behind))


def _blocks(n: int) -> np.ndarray:
    p = _core(n)
    return (1 + (np.arange(p) < n - p)) / n


def _halving_doubling_all_reduce(server) -> Pattern:
    p = _core(len(server))
    even = np.full(p, 1 / p)
    return _with_extras(len(server), [_halving(even), _doubling(even)], 1, 1)


def _all_gather(server) -> Pattern:
    n = len(server)
    return _with_extras(n, [_doubling(_blocks(n))], 1 / n, (n - 1) / n)


def _reduce_scatter(server) -> Pattern:
    n = len(server)
    return _with_extras(n, [_halving(_blocks(n))], (n - 1) / n, 1 / n)


HALVING_DOUBLING: Builds = {
    Op.ALL_REDUCE: _halving_doubling_all_reduce,
    Op.ALL_GATHER: _all_gather,
    Op.REDUCE_SCATTER: _reduce_scatter,
}


REDUCED_BY_SWITCHES = "in-network"
ALGORITHMS: dict[str, Builds] = {
    "ring": RING,
    "rings": RINGS,
    "halving-doubling": HALVING_DOUBLING,
    "double-tree": DOUBLE_TREE,
    "hierarchical": HIERARCHICAL,
    REDUCED_BY_SWITCHES: IN_NETWORK,
    "direct": DIRECT,
    "pairwise": PAIRWISE,
    "tree": BINOMIAL_TREE,
    "chain": CHAIN,
    "dissemination": DISSEMINATION,
}
BY_SERVER = ("rings", "hierarchical", REDUCED_BY_SWITCHES)  # their patterns depend on which members share a server
OWN_BYTES = (("direct", Op.ALL_TO_ALL), ("pairwise", Op.ALL_TO_ALL))  # forward nothing, so members' bytes may differ
ROOTED = (Op.REDUCE, Op.GATHER, Op.SCATTER, Op.BROADCAST)
USUAL_ALGORITHM = {
    Op.ALL_REDUCE: "ring",
    Op.ALL_GATHER: "ring",
    Op.REDUCE_SCATTER: "ring",
    Op.ALL_TO_ALL: "direct",
    Op.BROADCAST: "tree",
    Op.REDUCE: "tree",
    Op.GATHER: "direct",
    Op.SCATTER: "direct",
    Op.BARRIER: "dissemination",
}


# Choices as text: `all-reduce=ring*4,all-reduce:<65536=double-tree`. An item is OP=ALGORITHM. `:<BYTES` after OP limits
# it to collectives of fewer bytes; `*CHUNKS` after ALGORITHM sets the number of chunks. Other collectives keep their
# usual algorithm.

BY_WORD = {op.name.lower().replace("_", "-"): op for op in Op}


class AlgorithmChoice(NamedTuple):
    """An algorithm and its number of chunks, for collectives of fewer than `below` bytes."""

    below: float
    algorithm: str
    chunks: int


def choices_of(algorithms: str = "", chunks: int = 1) -> dict[Op, tuple[AlgorithmChoice, ...]]:
    """Return the choices for each kind of collective by ascending `below`.

    `chunks` applies if an item gives no number of chunks.
    """
    choices: dict[Op, dict[float, AlgorithmChoice]] = {op: {} for op in Op}
    whole("chunks", chunks)
    for item in filter(None, (part.strip() for part in algorithms.split(","))):
        op, choice = _item(item, chunks)
        if choice.below in choices[op]:
            raise InputError(f"algorithms must name each collective and size once, but {item!r} repeats both.")
        choices[op][choice.below] = choice
    for op, usual in USUAL_ALGORITHM.items():
        choices[op].setdefault(math.inf, AlgorithmChoice(math.inf, usual, chunks))
    return {op: tuple(of[below] for below in sorted(of)) for op, of in choices.items()}


def uses_switches(algorithms: str) -> bool:
    """Whether `algorithms` lets switches reduce (SHARP)."""
    return any(choice.algorithm == REDUCED_BY_SWITCHES for each in choices_of(algorithms).values() for choice in each)


def which_choice(choices: tuple[AlgorithmChoice, ...], bytes: np.ndarray) -> np.ndarray:
    """Return the index [C] of the choice for collectives of `bytes` [C]."""
    return np.searchsorted([choice.below for choice in choices], bytes, side="right")


def _item(item: str, chunks: int) -> tuple[Op, AlgorithmChoice]:
    what, equals, how = item.rpartition("=")
    word, colon, limit = what.partition(":")
    algorithm, star, pieces = how.partition("*")
    if not equals or (colon and not limit.startswith("<")):
        raise InputError(f"algorithms must be a list of OP=ALGORITHM or OP:<BYTES=ALGORITHM, got {item!r}.")
    op = BY_WORD[one_of("collective", word.strip(), BY_WORD)]
    able = [name for name, builds in ALGORITHMS.items() if op in builds]
    one_of(f"algorithm of {word.strip()}", algorithm.strip(), able)
    below = _whole(limit[1:], item) if colon else math.inf
    return op, AlgorithmChoice(below, algorithm.strip(), whole("chunks", _whole(pieces, item)) if star else chunks)


def _whole(text: str, item: str) -> int:
    if not text.strip().isdecimal():
        raise InputError(f"{text!r} in {item!r} must be a whole number.")
    return int(text)
