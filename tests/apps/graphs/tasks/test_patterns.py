"""Every algorithm moves the right data: who holds which block, followed in any order of messages that may happen."""

import itertools
import random

import numpy as np
import pytest

from mfabric_jax.apps.graphs.tasks.collectives.pattern import ends
from mfabric_jax.apps.graphs.tasks.collectives.registry import ALGORITHMS, USUAL_ALGORITHM
from mfabric_jax.apps.graphs.tasks.graph import Op

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 13, 16)
OF_SERVERS = ((0,), (0, 0, 0), (0, 1, 2), (0, 1, 0, 1), (0, 0, 1, 1, 2, 2), (0, 1, 1, 0, 2, 2, 0, 1, 2))


def phases(pattern):
    """Messages by phase, as lists of (src, dst, part, number): rows of markers are between phases."""
    found = [[]]
    for number, (src, dst, part) in enumerate(zip(*map(np.ndarray.tolist, pattern[:3]), strict=True)):
        if dst >= 0:
            found[-1].append((src, dst, part, number))
        elif found[-1]:
            found.append([])
    return found


# What message `step` (its number in the phase, over n) from src to dst carries, phase by phase; written from the
# textbook and not from the code.


def ring_reduce(n):
    return lambda step, src, dst: {(src - 1 - step) % n}


def ring_gather(n):
    return lambda step, src, dst: {(src - step) % n}


def ring_both(n):
    return lambda step, src, dst: (ring_gather(n) if step >= n - 1 else ring_reduce(n))(step % max(n - 1, 1), src, dst)


def ring_all_to_all(n):
    turns = [(far, hop) for far in range(1, n) for hop in range(far)]

    def carried(step, src, dst):
        far, hop = turns[step]
        return {((src - hop) % n, (src - hop + far) % n)}

    return carried


def core(n):
    return 2 ** (len(bin(n)) - 3)


def folded(n, *inner, before, behind):
    return [before, *inner, behind] if n > core(n) else list(inner)


def units(n, numbers):
    return {block for unit in numbers for block in (unit, unit + core(n)) if block < n}


def halving(n, blocks=units):
    def carried(step, src, dst):
        distance = core(n) >> (step + 1)
        return blocks(n, {unit for unit in range(core(n)) if unit // distance == dst // distance})

    return carried


def doubling(n, blocks=units):
    def carried(step, src, dst):
        return blocks(n, {unit for unit in range(core(n)) if unit // 2**step == src // 2**step})

    return carried


def plain(n, numbers):
    return numbers


def subtree(n, place):
    return {other for other in range(n) if other % (2 ** len(bin(place)[2:])) == place}


def to(step, src, dst):
    return {dst}


def own(step, src, dst):
    return {src}


def pair(step, src, dst):
    return {(src, dst)}


def buffer(step, src, dst):
    return {0}


CARRIED = {
    ("ring", Op.ALL_REDUCE): lambda n: [ring_both(n)],
    ("ring", Op.ALL_GATHER): lambda n: [ring_gather(n)],
    ("ring", Op.REDUCE_SCATTER): lambda n: [ring_reduce(n)],
    ("ring", Op.ALL_TO_ALL): lambda n: [ring_all_to_all(n)],
    ("direct", Op.ALL_REDUCE): lambda n: [to, own],
    ("direct", Op.ALL_GATHER): lambda n: [own],
    ("direct", Op.REDUCE_SCATTER): lambda n: [to],
    ("direct", Op.ALL_TO_ALL): lambda n: [pair],
    ("direct", Op.SCATTER): lambda n: [to],
    ("direct", Op.GATHER): lambda n: [own],
    ("direct", Op.BROADCAST): lambda n: [buffer],
    ("direct", Op.REDUCE): lambda n: [buffer],
    ("pairwise", Op.ALL_TO_ALL): lambda n: [pair],
    ("tree", Op.BROADCAST): lambda n: [buffer],
    ("tree", Op.REDUCE): lambda n: [buffer],
    ("tree", Op.SCATTER): lambda n: [lambda step, src, dst: subtree(n, dst)],
    ("tree", Op.GATHER): lambda n: [lambda step, src, dst: subtree(n, src)],
    ("chain", Op.BROADCAST): lambda n: [buffer],
    ("chain", Op.REDUCE): lambda n: [buffer],
    ("double-tree", Op.ALL_REDUCE): lambda n: [lambda step, src, dst: {int(step >= 2 * (n - 1) / n)}],
    ("halving-doubling", Op.ALL_REDUCE): lambda n: folded(
        n,
        *(halving(n, plain), doubling(n, plain)),
        before=lambda *_: set(range(core(n))),
        behind=lambda *_: set(range(core(n))),
    ),
    ("halving-doubling", Op.ALL_GATHER): lambda n: folded(
        n, doubling(n), before=own, behind=lambda step, src, dst: set(range(n)) - {dst}
    ),
    ("halving-doubling", Op.REDUCE_SCATTER): lambda n: folded(
        n, halving(n), before=lambda step, src, dst: set(range(n)) - {src}, behind=to
    ),
}


def before_and_behind(op, n, blocks):
    """What each member has at first, and must have at the end: {block: whose contributions}."""
    every = frozenset(range(n))
    mine = [{block: frozenset({i}) for block in blocks} for i in range(n)]
    nothing = [{} for _ in range(n)]
    gathered = {j: frozenset({j}) for j in range(n)}
    pairs = [{(i, j): frozenset({i}) for j in range(n)} for i in range(n)]
    return {
        Op.ALL_REDUCE: (mine, [dict.fromkeys(blocks, every)] * n),
        Op.REDUCE_SCATTER: (mine, [{i: every} for i in range(n)]),
        Op.ALL_GATHER: ([{i: frozenset({i})} for i in range(n)], [gathered] * n),
        Op.ALL_TO_ALL: (pairs, [{(i, j): frozenset({i}) for i in range(n)} for j in range(n)]),
        Op.BROADCAST: ([{0: frozenset({0})}, *nothing[1:]], [{0: frozenset({0})}] * n),
        Op.REDUCE: ([{0: frozenset({i})} for i in range(n)], [{0: every}, *nothing[1:]]),
        Op.SCATTER: ([{j: frozenset({0}) for j in range(n)}, *nothing[1:]], [{j: frozenset({0})} for j in range(n)]),
        Op.GATHER: ([{i: frozenset({i})} for i in range(n)], [gathered, *nothing[1:]]),
    }[op]


def run(pattern, carried, held, seed):
    """Messages begin and end in an order drawn from all that `after` allows; what everyone holds at the end."""
    rng = random.Random(seed)
    waits, then = [0] * len(pattern.src), [[] for _ in pattern.src]
    for first, later in pattern.after.tolist():
        waits[later] += 1
        then[first].append(later)
    possible, sent = [number for number, others in enumerate(waits) if not others], {}
    held = [dict(has) for has in held]
    while possible:
        place = rng.randrange(len(possible))
        possible[place], possible[-1] = possible[-1], possible[place]
        number = possible[-1]
        src, dst = int(pattern.src[number]), int(pattern.dst[number])
        if dst >= 0 and number not in sent:
            sent[number] = {block: held[src][block] for block in carried[number]}
            continue
        possible.pop()
        for block, parts in sent.get(number, {}).items():
            mine = held[dst].get(block, frozenset())
            assert not mine & parts or mine < parts, "counted twice"
            held[dst][block] = mine | parts
        for later in then[number]:
            waits[later] -= 1
            possible += [later] if not waits[later] else []
    assert not any(waits)
    return held


def check_data(op, pattern, carried, n, blocks):
    first, last = before_and_behind(op, n, blocks)
    for seed in range(3):
        held = run(pattern, carried, first, seed)
        for has, wanted in zip(held, last, strict=True):
            assert {block: has.get(block) for block in wanted} == wanted


def blocks_of(algorithm, op, n):
    if op in (Op.BROADCAST, Op.REDUCE):
        return [0]
    if (algorithm, op) == ("halving-doubling", Op.ALL_REDUCE):
        return list(range(core(n)))
    return list(range(2 if algorithm == "double-tree" else n))


@pytest.mark.parametrize(("algorithm", "op"), CARRIED)
def test_everyone_ends_with_the_right_data(algorithm, op):
    for n in SIZES:
        pattern = ALGORITHMS[algorithm][op]((0,) * n)
        blocks, carried = blocks_of(algorithm, op, n), {}
        for phase, content in zip(phases(pattern), CARRIED[algorithm, op](n), strict=False):
            width = core(n) if algorithm == "halving-doubling" else n
            for place, (src, dst, part, number) in enumerate(phase):
                carried[number] = content(place / n if algorithm == "double-tree" else place // width, src, dst)
                assert part == pytest.approx(len(carried[number]) / len(blocks))
        assert len(carried) == np.sum(pattern.dst >= 0)
        check_data(op, pattern, carried, n, blocks)


@pytest.mark.parametrize("server", OF_SERVERS)
@pytest.mark.parametrize("op", ALGORITHMS["hierarchical"])
def test_hierarchies_move_the_right_data(op, server):
    n, servers = len(server), len(set(server))
    local = [server[:place].count(server[place]) for place in range(n)]
    at = {(server[place], local[place]): place for place in range(n)}

    def rail(i):
        return {place for place in range(n) if local[place] == i}

    def ring(shift):
        def carried(step, src, dst):
            return {at[(server[src] - shift - step) % servers, local[src]]}

        return carried

    def both(step, src, dst):
        gathers = step >= servers - 1
        return ring(0 if gathers else 1)(step - (servers - 1) * gathers, src, dst)

    def collected(step, src, dst):
        return {(src, place) for place in rail(local[dst])}

    def passed_on(step, src, dst):
        return {(place, dst) for place in range(n) if server[place] == server[src]}

    def scattered(step, src, dst):
        return rail(local[dst])

    def gathered(step, src, dst):
        return rail(local[src])

    contents = {
        Op.ALL_REDUCE: [(scattered, 0), (both, 2 * (servers - 1)), (gathered, 0)],
        Op.REDUCE_SCATTER: [(scattered, 0), (ring(1), servers - 1)],
        Op.ALL_GATHER: [(ring(0), servers - 1), (gathered, 0)],
        Op.ALL_TO_ALL: [(collected, 0), (passed_on, 0)],
    }[op]
    pattern = ALGORITHMS["hierarchical"][op](server)
    carried = {}
    for number in np.flatnonzero(pattern.dst >= 0).tolist():
        src, dst = int(pattern.src[number]), int(pattern.dst[number])
        inside = server[src] == server[dst]
        phase = int(np.sum(pattern.dst[:number] < 0)) // n
        content, steps = contents[phase]
        assert inside == (content in (scattered, gathered, collected))
        messages = [i for i in range(number) if pattern.src[i] == src and pattern.dst[i] == dst]
        step = sum(int(np.sum(pattern.dst[:i] < 0)) // n == phase for i in messages)
        assert not steps or step < steps
        carried[number] = content(step, src, dst)
        assert pattern.part[number] == pytest.approx(len(carried[number]) / n)
    check_data(op, pattern, carried, n, list(range(n)))


@pytest.mark.parametrize("server", [(0, 0, 0), (0, 1, 2), (0, 1, 0, 1), (0, 0, 0, 1, 1)])
@pytest.mark.parametrize("op", ALGORITHMS["rings"])
def test_rings_use_every_member_between_servers(op, server):
    n, servers = len(server), sorted(set(server))
    inside = [[place for place in range(n) if server[place] == one] for one in servers]
    rings = max(map(len, inside)) if len(servers) > 1 else 1
    orders = [[there[(k + i) % len(there)] for there in inside for i in range(len(there))] for k in range(rings)]
    pattern = ALGORITHMS["rings"][op](server)
    content = CARRIED["ring", op](n)[0]
    steps, carried, between = len(pattern.src) // (n * rings), {}, set()
    for number, (src, dst) in enumerate(zip(pattern.src.tolist(), pattern.dst.tolist(), strict=True)):
        ring, step = number // (n * steps), number // n % steps
        place = orders[ring].index(src)
        assert dst == orders[ring][(place + 1) % n]
        blocks = content(step, place, (place + 1) % n)
        carried[number] = {(ring, orders[ring][block] if op != Op.ALL_REDUCE else block) for block in blocks}
        between |= {src} if server[src] != server[dst] else set()
    assert between == (set(range(n)) if len(servers) > 1 else set())
    np.testing.assert_allclose(pattern.part, 1 / n / rings)
    first, last = before_and_behind(op, n, list(range(n)))
    first, last = (
        [{(k, block): of for block, of in held.items() for k in range(rings)} for held in side]
        for side in (first, last)
    )
    for seed in range(3):
        for has, wanted in zip(run(pattern, carried, first, seed), last, strict=True):
            assert {block: has.get(block) for block in wanted} == wanted


@pytest.mark.parametrize("n", SIZES)
def test_nobody_leaves_a_barrier_before_all_have_come(n):
    pattern = ALGORITHMS["dissemination"][Op.BARRIER]((0,) * n)
    know = [{place} for place in range(n)]
    for _, messages in itertools.groupby(range(len(pattern.src)), key=lambda number: number // n):
        told = [(pattern.dst[number], set(know[pattern.src[number]])) for number in messages]
        for dst, known in told:
            know[dst] |= known
    assert all(len(known) == n for known in know)
    assert pattern.part.sum() == 0
    assert len(pattern.src) == n * int(np.ceil(np.log2(n)))


@pytest.mark.parametrize("n", range(2, 70))
def test_members_that_forward_in_one_tree_are_leaves_of_the_other(n):
    pattern = ALGORITHMS["double-tree"][Op.ALL_REDUCE]((0,) * n)
    forwards = []
    for tree in range(2):
        up = slice(2 * (n - 1) * tree, 2 * (n - 1) * tree + n - 1)
        parent = dict(zip(pattern.src[up].tolist(), pattern.dst[up].tolist(), strict=True))
        (root,) = set(range(n)) - parent.keys()
        for place in parent:
            depth = 0
            while place != root:
                place, depth = parent[place], depth + 1
            assert depth <= np.ceil(np.log2(n)) + 1
        children = list(parent.values())
        assert max(map(children.count, range(n))) <= 2
        forwards.append(set(children) - {root})
    assert not forwards[0] & forwards[1]


def before(pattern, flows):
    """The messages and markers that end before these begin, and these."""
    earlier = {}
    for first, then in pattern.after.tolist():
        earlier.setdefault(then, []).append(first)
    found, left = set(), list(flows)
    while left:
        if (flow := left.pop()) not in found:
            found.add(flow)
            left += earlier.get(flow, [])
    return found


@pytest.mark.parametrize("server", OF_SERVERS)
def test_switches_add_up_what_all_send(server):
    n, members = len(server), server.count(0)
    pattern = ALGORITHMS["in-network"][Op.ALL_REDUCE](server)
    between = [i for i, dst in enumerate(pattern.dst) if dst >= 0 and server[pattern.src[i]] != server[dst]]
    for end in (pattern.src, pattern.dst):  # all bytes of a server, in equal parts, once each way
        moved = np.bincount(end[between], pattern.part[between], n)
        np.testing.assert_allclose(moved, np.full(n, 1 / members if len(set(server)) > 1 else 0))
    flows, member = ends(pattern)
    for place in range(n if n > 1 else 0):
        needed = before(pattern, flows[member == place])
        assert {int(pattern.src[i]) for i in needed if pattern.dst[i] >= 0} == set(range(n))
    for message in between:  # a switch adds up once all of the rail have begun
        rail = {i for i in range(n) if server[: i + 1].count(server[i]) == _rank(server, int(pattern.src[message]))}
        assert rail <= {int(pattern.src[i]) for i in before(pattern, [message])}


def _rank(server, place):
    return server[: place + 1].count(server[place])


def test_all_algorithms_are_checked():
    by_server = {(name, op) for name in ("hierarchical", "in-network", "rings") for op in ALGORITHMS[name]}
    checked = {*CARRIED, ("dissemination", Op.BARRIER), *by_server}
    assert {(name, op) for name, builds in ALGORITHMS.items() for op in builds} == checked
    assert all(op in ALGORITHMS[name] for op, name in USUAL_ALGORITHM.items())
    assert set(USUAL_ALGORITHM) == set(Op)
