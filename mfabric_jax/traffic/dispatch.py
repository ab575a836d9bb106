"""Dispatch of tokens: dropped selections, copies per server, and bytes between ranks and between servers.

"per-expert" sends a token once per selected expert. "per-server" sends one copy to every other server with selected
experts. The copy goes to the rank at the sender's place in that server; the NVSwitch forwards it. Combine reverses
this and returns partial sums. Source: DeepEP, github.com/deepseek-ai/DeepEP; arXiv 2412.19437, section 3.2.2.

Neighbouring ranks share a server. N rows, R ranks, E experts, S servers, g ranks per server, C columns of
`sent_tokens`.
"""

import functools
import math
import threading
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Num

from mfabric_jax.checks import InputError, of_type, whole
from mfabric_jax.support.array_module import Array, array_module
from mfabric_jax.support.host_arrays import NOT_NEGATIVE, floats_alike
from mfabric_jax.support.loops import at_first_call
from mfabric_jax.traffic.generator import cap_rows
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Workload

PER_SERVER = "per-server"
SURE = 1e-13  # distance from 1 that counts as rounding
MIXES = 30  # bisections of the part of even shares
INSIDE = 0.05  # of the way to even shares, from the limit of what a gate can give
AT_ONCE = 256  # rows whose shares are cut together: they fit into a cache
_ONE = threading.Lock()  # threads that solve scenarios share the same tokens
_chances = at_first_call("mfabric_jax.traffic.reached_loops:chances_of_all")
_reached = at_first_call("mfabric_jax.traffic.reached_loops:reached_of_all")


# ------------------------------------------------------------------------------------------------------ demand matrices
def rank_bytes(tokens: Num[Array, "... R E"], bytes_per_selection: float | Num[Array, ""]) -> Float[Array, "... R R"]:
    """Return the bytes [... R R] that each rank dispatches to each rank; the diagonal is what a rank keeps.

    `tokens` [... R E] are selections in one all-to-all; expert e lives on rank e // (E / R). NumPy arrays give NumPy
    arrays. Raise `InputError` unless R divides E.
    """
    bytes_per_selection = floats_alike("bytes_per_selection", bytes_per_selection, NOT_NEGATIVE)
    return between_ranks(floats_alike("tokens", tokens, NOT_NEGATIVE), bytes_per_selection)


def between_ranks(tokens: Num[Array, "... R E"], bytes_per_selection: Any) -> Float[Array, "... R R"]:
    """Return `rank_bytes` of tokens that have been checked."""
    xp = array_module(tokens, bytes_per_selection)
    tokens = xp.asarray(tokens)
    if tokens.ndim < 2 or tokens.shape[-1] % tokens.shape[-2]:
        raise InputError(f"tokens must be [ranks, experts], experts a multiple of ranks, got shape {tokens.shape}.")
    if not xp.issubdtype(tokens.dtype, np.floating):
        tokens = tokens.astype(xp.result_type(float))  # bytes overflow 32-bit integers
    *more, ranks, experts = tokens.shape
    received = tokens.reshape(*more, ranks, ranks, experts // ranks).sum(axis=-1)
    return received * xp.asarray(bytes_per_selection, received.dtype)


def server_bytes(demand: Float[Array, "... R R"], ranks_per_server: int) -> Float[Array, "... S S"]:
    """Return the bytes from each server to each server; the diagonal stays inside a server."""
    return summed_by_server(floats_alike("demand", demand, NOT_NEGATIVE), ranks_per_server)


def summed_by_server(demand: Float[Array, "... R R"], ranks_per_server: int) -> Float[Array, "... S S"]:
    """Return `server_bytes` of demand that has been checked."""
    return by_server(demand, ranks_per_server).sum(axis=(-3, -1))


def inside_bytes(demand: Float[Array, "... R R"], ranks_per_server: int) -> Float[Array, "... S g g"]:
    """Return the bytes between the ranks of each server; the diagonal stays on its rank."""
    blocks = by_server(demand, ranks_per_server)
    server = np.arange(blocks.shape[-2])
    return array_module(blocks).moveaxis(blocks, -2, -3)[..., server, server, :, :]


def by_server(demand: Float[Array, "... R R"], ranks_per_server: int) -> Float[Array, "... S g S g"]:
    """Return the bytes between ranks, by server and place in it. Raise `InputError` unless ranks fill whole servers."""
    if demand.ndim < 2 or demand.shape[-1] != demand.shape[-2]:
        raise InputError(f"demand must be square, got shape {demand.shape}.")
    *more, ranks, _ = demand.shape
    if ranks % whole("ranks_per_server", ranks_per_server):
        raise InputError(f"ranks_per_server must divide the {ranks} ranks of the demand, got {ranks_per_server}.")
    servers = ranks // ranks_per_server
    return demand.reshape(*more, servers, ranks_per_server, servers, ranks_per_server)


def dispatched_bytes(workload: Workload, sent: Num[Array, "... R C"]) -> Float[Array, "... R R"]:
    """Return the bytes from rank to rank of one dispatch; transposed, they are the bytes of its combine.

    The diagonal is what a rank keeps. `sent` [... R C] is `sent_tokens` of one all-to-all. Raise `InputError` if
    "per-server" copies are missing.
    """
    return dispatch_of(of_type("workload", workload, Workload), floats_alike("sent", sent, NOT_NEGATIVE))


def dispatch_of(workload: Workload, sent: Num[Array, "... R C"]) -> Float[Array, "... R R"]:
    """Return `dispatched_bytes` of tokens that have been checked."""
    size = workload.dispatch_bytes_per_selection
    if workload.dispatch != PER_SERVER:
        return between_ranks(sent, size)
    if sent.shape[-1] != workload.expert_slots + _servers(workload):
        raise InputError("tokens of dispatch 'per-server' must have copies for every server: see traffic.sent_tokens.")
    selected = between_ranks(selections_of(workload, sent), size)
    return forward_copies(workload, selected, copies_of(workload, sent).astype(selected.dtype) * size)


def even_bytes(workload: Workload, dtype) -> np.ndarray:
    """Return the bytes [R R] of a dispatch whose tokens select all experts equally often."""
    ranks, row = workload.ep, workload.selections * workload.dispatch_bytes_per_selection
    even = np.full((ranks, ranks), row / ranks, dtype)
    if workload.dispatch != PER_SERVER:
        return even
    part = _even_probabilities(workload)
    copies = np.asarray(part, dtype) * workload.tokens * workload.dispatch_bytes_per_selection
    return forward_copies(workload, even, np.broadcast_to(copies, (ranks, len(part))))


def even_copies(workload: Workload) -> float:
    """Return the copies per selection of dispatch "per-server" if experts are evenly loaded."""
    return sum(_even_probabilities(workload)) / workload.architecture.top_k


def forward_copies(workload: Workload, selected: Any, copies: Any) -> Any:
    """Return the traffic between ranks [... R R] of `selected` [... R R] and `copies` [... R S].

    Copies travel between equal places of two servers and are forwarded inside the receiving one.
    """
    xp = array_module(selected, copies)
    places, servers, axes = workload.ranks_per_server, _servers(workload), selected.shape[:-2]
    same, same_rank = (xp.eye(size, dtype=copies.dtype) for size in (servers, places))
    copies = copies.reshape(*axes, servers, places, servers)
    inside = selected.reshape(*axes, servers, places, servers, places).sum(axis=-4)  # at place g, from any server
    if xp is np:
        both = np.zeros((*axes, servers, places, servers, places), selected.dtype)
        np.einsum("...sgtg->...sgt", both)[...] = copies
        np.einsum("...sgsh->...sgh", both)[...] = inside.swapaxes(-3, -2)
        return both.reshape(selected.shape)
    both = xp.einsum("...sgt,st,gh->...sgth", copies, 1 - same, same_rank) + xp.einsum(
        "...gth,st->...sgth", inside, same
    )
    return both.reshape(selected.shape)


# ------------------------------------------------------------------------------------------- what source ranks send
def sent_tokens(workload: Workload, tokens: Tokens) -> np.ndarray:
    """Return what source ranks send [iteration layer M R C]: kept selections, and copies under "per-server".

    C is E, or E + S with copies. An expert takes at most `capacity_factor` times the all-to-all's mean selections per
    expert; all sources lose the same fraction of the excess. Copies for a server count the tokens with an expert there.
    They are exact if the traffic knows them (`Tokens.reached`), else expected values
    (`reach_probabilities`). A rank's own server gets no copies.
    """
    if not _changes(workload):
        return tokens.count
    with _ONE:
        return _compute_sent(tokens, workload.ep_group)


@functools.lru_cache(maxsize=4)
def _compute_sent(tokens: Tokens, workload: Workload) -> np.ndarray:
    known = tokens.tokens_by_server(_servers(workload)) if workload.dispatch == PER_SERVER else None
    if known is None or workload.capacity_factor is not None:
        return send_selections(workload, tokens.count)
    return np.concatenate([tokens.count, known], axis=-1)


def send_selections(workload: Workload, count: np.ndarray) -> np.ndarray:
    """Return `sent_tokens` for selections [... R E] alone."""
    if not _changes(workload):
        return count
    count = np.asarray(count, np.float64)
    kept = kept_share(workload, count)
    every = [count * kept]
    if workload.dispatch == PER_SERVER:
        every.append(_copies(workload, count, np.broadcast_to(kept, count.shape)))
    return np.concatenate(every, axis=-1)


def kept_share(workload: Workload, count: np.ndarray) -> np.ndarray:
    """Return the fraction of every expert's selections that fits its capacity [... 1 E]."""
    received = count.sum(axis=-2, keepdims=True, dtype=np.float64)
    if workload.capacity_factor is None:
        return np.ones_like(received)
    most = workload.capacity_factor * received.mean(axis=-1, keepdims=True)
    return np.divide(most, received, out=np.ones_like(received), where=received > most)


def dropped_share(workload: Workload, tokens: Tokens) -> float:
    """Return the fraction of all selections that is dropped."""
    if workload.capacity_factor is None:
        return 0.0
    total = tokens.count.sum(dtype=np.float64)
    return float(1 - (tokens.count * kept_share(workload, tokens.count)).sum() / total) if total else 0.0


def selections_of(workload: Workload, sent: Any) -> Any:
    return sent[..., : -_servers(workload)] if workload.dispatch == PER_SERVER else sent


def copies_of(workload: Workload, sent: Any) -> Any:
    return sent[..., -_servers(workload) :]


def _changes(workload: Workload) -> bool:
    return workload.dispatch == PER_SERVER or workload.capacity_factor is not None


def _servers(workload: Workload) -> int:
    return workload.ep // workload.ranks_per_server


def _copies(workload: Workload, count: np.ndarray, kept: np.ndarray) -> np.ndarray:
    *axes, experts = count.shape
    top_k, servers = workload.architecture.top_k, _servers(workload)
    count, kept = count.reshape(-1, experts), kept.reshape(-1, experts)
    selected = (count * kept).reshape(len(count), servers, -1).sum(axis=-1)
    total = count.sum(axis=-1, keepdims=True)
    open_still = (count > 0).sum(axis=-1) > top_k  # otherwise every token takes all experts that occur
    share = np.divide(count, total, out=np.full_like(count, 1 / experts), where=open_still[:, None])
    parts = np.split(share, range(AT_ONCE, len(share), AT_ONCE))
    taken = np.concatenate([cap_rows(part, 1 / top_k) for part in parts]) * top_k
    part = reach_probabilities(np.where(taken > 1 - SURE, 1, taken), top_k, servers, _limit(workload), kept)[0]
    every = np.where(open_still[:, None], np.maximum(part, 0) * total / top_k, np.inf)
    return np.minimum(np.minimum(every, total / top_k), selected).reshape(*axes, servers)


# ------------------------------------------------------ servers that a token with k different experts reaches
# Counts tell how often tokens took each expert, but not which experts they took together. We assume that tokens choose
# as randomly as the counts allow. A set of k experts then has a probability in proportion to the product of its
# experts' weights; a set from more groups than a gate may use has probability 0. The weights make every expert as
# frequent as its count. This is conditional Poisson sampling, the distribution of largest entropy. With even counts
# every allowed set is equally likely, so a token misses a server of E / S experts with probability
# C(E - E/S, k) / C(E, k).
# Source: Chen, Dempster and Liu, Weighted finite population sampling to maximize entropy, Biometrika 81(3), 1994. The
# groups are our addition. Experts of a group, and of a server, are neighbours.


class GroupLimit(NamedTuple):
    """A token takes its experts from at most `most` of `groups` groups of neighbours."""

    groups: int = 1
    most: int = 1


def _limit(workload: Workload) -> GroupLimit:
    facts, servers, limit = workload.architecture, _servers(workload), workload.node_limit
    if isinstance(limit, str):
        return GroupLimit(facts.expert_groups, facts.top_groups)
    return GroupLimit() if limit is None or limit >= servers else GroupLimit(servers, limit)


def _even_probabilities(workload: Workload) -> tuple[float, ...]:
    facts = workload.architecture
    return even_reach_probabilities(facts.experts, facts.top_k, _servers(workload), _limit(workload))


def reach_probabilities(
    taken: np.ndarray, top_k: int, servers: int, limit: GroupLimit, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability [N S] that a token reaches a server, and the largest error of the fit [N].

    `taken` [N E] is the probability that a token takes an expert, with sum `top_k`. `kept` [N E] is the fraction of its
    tokens that are not dropped.
    """
    many = len(taken)
    alike = bool(np.all(taken == taken[:1]) and np.all(kept == kept[:1]))
    rows = slice(1 if alike else None)
    chance, off = chances(taken[rows], top_k, limit)
    part = _reached(chance, np.ascontiguousarray(kept[rows], float), top_k, servers, *limit)
    return (np.repeat(part, many, axis=0), np.repeat(off, many)) if alike else (part, off)


def chances(
    taken: Float[np.ndarray, "N E"], top_k: int, limit: GroupLimit
) -> tuple[Float[np.ndarray, "N E"], Float[np.ndarray, "N"]]:
    """Return independent chances of each expert [N E] that reproduce `taken`, and the largest error of the fit [N].

    An allowed set's probability is in proportion to its experts' chances times the others' chances not to be taken. A
    row that no gate with this limit gives is mixed with just enough even shares.
    """
    wanted = np.ascontiguousarray(taken, float)
    possible = _possible(wanted, top_k, limit)
    fitted, off = _chances(possible, top_k, *limit)
    return fitted, off + np.abs(possible - wanted).max(axis=-1)


def _possible(taken: np.ndarray, top_k: int, limit: GroupLimit) -> np.ndarray:
    """Return the rows [N E], each mixed with even shares until its experts fit into the groups that a token may use."""
    even = np.full((1, taken.shape[1]), top_k / taken.shape[1])
    above = np.flatnonzero(_groups_needed(taken, top_k, limit) > limit.most + SURE * top_k)
    if not len(above):
        return taken
    least = _groups_needed(even, top_k, limit)
    most = least + (limit.most - least) * (1 - INSIDE)
    few, many, rows = np.zeros(len(above)), np.ones(len(above)), taken[above]
    for _ in range(MIXES):
        part = (few + many) / 2
        fits = _groups_needed(rows + part[:, None] * (even - rows), top_k, limit) <= most + SURE * top_k
        few, many = np.where(fits, few, part), np.where(fits, part, many)
    taken = taken.copy()
    taken[above] = rows + many[:, None] * (even - rows)
    return taken


def _groups_needed(taken: np.ndarray, top_k: int, limit: GroupLimit) -> np.ndarray:
    """Return how many groups a token must use on average [N]: as often as their hottest expert, and for their sum."""
    grouped = taken.reshape(len(taken), limit.groups, -1)
    at_once = min(top_k, grouped.shape[-1])
    return np.maximum(grouped.max(axis=-1), grouped.sum(axis=-1) / at_once).sum(axis=-1)


@functools.lru_cache(maxsize=64)
def even_reach_probabilities(experts: int, top_k: int, servers: int, limit: GroupLimit) -> tuple[float, ...]:
    """Return the exact probability of reaching each server if all allowed sets of experts are equally likely."""
    expert = np.arange(experts)
    group, server = (expert // (experts // parts) for parts in (limit.groups, servers))
    every = _sets(np.bincount(group, minlength=limit.groups), top_k, limit.most)
    others = (np.bincount(group[server != number], minlength=limit.groups) for number in range(servers))
    return tuple(1 - _sets(left, top_k, limit.most) / every for left in others)


def _sets(sizes: np.ndarray, k: int, most: int) -> int:
    counts = {(0, 0): 1}  # number of sets, by (experts, groups) so far
    for size in sizes.tolist():
        following: dict[tuple[int, int], int] = {}
        for (taken, used), many in counts.items():
            for more in range(min(size, k - taken) + 1):
                key = taken + more, used + (more > 0)
                if key[1] <= most:
                    following[key] = following.get(key, 0) + many * math.comb(size, more)
        counts = following
    return sum(many for (taken, _), many in counts.items() if taken == k)
