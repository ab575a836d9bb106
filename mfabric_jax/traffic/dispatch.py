"""How dispatch sends tokens: which selections are dropped, how many copies leave for which server, and what that makes
of bytes between ranks.

- "per-expert": a token travels once for every expert that it selects.
- "per-server": one copy for every other server with experts of it, from the rank at place g of its server to the rank
  at place g there, whose NVSwitch carries it on, once for every selection. Combine is the reverse: partial sums come
  back.
  Source: DeepEP's dispatch between nodes, github.com/deepseek-ai/DeepEP; arXiv 2412.19437, section 3.2.2.

What crosses a server's own NVSwitch stands in the same matrix as what leaves it. Letters: R ranks, E experts,
S servers.
"""

import functools
import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from mfabric_jax.checks import InputError
from mfabric_jax.traffic.demand import rank_bytes
from mfabric_jax.traffic.distinct import NO_LIMIT, GroupLimit, evenly_reached, reached
from mfabric_jax.traffic.popularity import capped
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Workload

PER_SERVER = "per-server"
SURE = 1e-13  # off 1, by rounding
_ONE = threading.Lock()  # scenarios are solved side by side, of the same tokens


def sent_tokens(workload: Workload, tokens: Tokens) -> np.ndarray:
    """What source ranks send [iteration layer M R C]: selections for every expert that are not dropped and, where
    dispatch is "per-server", copies for every server behind them (C = E + S; else C = E).

    - Dropped: an expert takes at most `capacity_factor` times the selections of the group's all-to-all over E; all
      sources lose the same part of theirs.
    - Copies for a server: tokens with an expert there, exactly where the traffic knows (`Tokens.reached`), else as
      `distinct.reached` expects of the counts. The copies of a rank for its own server are not sent.
    """
    if not _changes(workload):
        return tokens.count
    with _ONE:
        return _sent(tokens, workload)


def sent_as(workload: Workload, count: np.ndarray) -> np.ndarray:
    """`sent_tokens` for selections [... R E] alone."""
    if not _changes(workload):
        return count
    count = np.asarray(count, np.float64)
    kept = kept_part(workload, count)
    every = [count * kept]
    if workload.dispatch == PER_SERVER:
        every.append(_copies(workload, count, np.broadcast_to(kept, count.shape)))
    return np.concatenate(every, axis=-1)


def kept_part(workload: Workload, count: np.ndarray) -> np.ndarray:
    """Part of the selections of every expert that fits its capacity [... 1 E]."""
    received = count.sum(axis=-2, keepdims=True, dtype=np.float64)
    if workload.capacity_factor is None:
        return np.ones_like(received)
    most = workload.capacity_factor * received.mean(axis=-1, keepdims=True)
    return np.divide(most, received, out=np.ones_like(received), where=received > most)


def dropped_part(workload: Workload, tokens: Tokens) -> float:
    """Part of all selections that is dropped."""
    if workload.capacity_factor is None:
        return 0.0
    total = tokens.count.sum(dtype=np.float64)
    return float(1 - (tokens.count * kept_part(workload, tokens.count)).sum() / total) if total else 0.0


def selections_of(workload: Workload, sent: Any) -> Any:
    """The selections [... E] in what `sent_tokens` gives [... C]."""
    return sent[..., : -_servers(workload)] if workload.dispatch == PER_SERVER else sent


def copies_of(workload: Workload, sent: Any) -> Any:
    """The copies [... S] in what `sent_tokens` gives [... C] where dispatch is "per-server"."""
    return sent[..., -_servers(workload) :]


def dispatched_bytes(workload: Workload, sent: Num[Array, "R C"]) -> Float[Array, "R R"]:
    """Bytes of one dispatch from rank to rank: between servers, and on the NVSwitches inside them.

    - `sent`: a source rank's row is what `sent_tokens` says of one all-to-all.   Transposed: of its combine.

    The diagonal is what a rank keeps. `InputError` where copies lack.
    """
    size = workload.dispatch_bytes_per_selection
    if workload.dispatch != PER_SERVER:
        return rank_bytes(sent, size)
    if sent.shape[-1] != workload.expert_slots + _servers(workload):
        raise InputError("tokens of dispatch 'per-server' must have copies for every server: see traffic.sent_tokens.")
    selected = rank_bytes(selections_of(workload, sent), size)
    return forwarded(workload, selected, copies_of(workload, sent).astype(selected.dtype) * size)


def even_bytes(workload: Workload, dtype) -> Float[Array, "R R"]:
    """The dispatch if every token went to every expert equally often."""
    ranks, row = workload.ep, workload.selections * workload.dispatch_bytes_per_selection
    even = jnp.full((ranks, ranks), row / ranks, dtype)
    if workload.dispatch != PER_SERVER:
        return even
    facts = workload.architecture
    part = evenly_reached(facts.experts, facts.top_k, _servers(workload), _limit(workload))
    copies = jnp.asarray(part, dtype) * workload.tokens * workload.dispatch_bytes_per_selection
    return forwarded(workload, even, jnp.broadcast_to(copies, (ranks, len(part))))


def even_copies(workload: Workload) -> float:
    """Copies of a token over its selections, if it travels once to every server and experts are even."""
    facts = workload.architecture
    return sum(evenly_reached(facts.experts, facts.top_k, _servers(workload), _limit(workload))) / facts.top_k


def forwarded(workload: Workload, selected: Any, copies: Any, xp: Any = jnp) -> Any:
    """What travels from rank to rank [... R R], of `selected` [... R R] and `copies` [... R S].

    Copies between equal places of different servers; inside a server what its own ranks select, and what arrives at
    them for others. `xp`: jax.numpy or numpy.
    """
    places, servers, axes = workload.ranks_per_server, _servers(workload), selected.shape[:-2]
    own, place = (xp.eye(size, dtype=copies.dtype) for size in (servers, places))
    copies = copies.reshape(*axes, servers, places, servers)
    inside = selected.reshape(*axes, servers, places, servers, places).sum(axis=-4)  # at place g, from any server
    both = xp.einsum("...sgt,st,gh->...sgth", copies, 1 - own, place) + xp.einsum("...gth,st->...sgth", inside, own)
    return both.reshape(selected.shape)


def _changes(workload: Workload) -> bool:
    return workload.dispatch == PER_SERVER or workload.capacity_factor is not None


def _servers(workload: Workload) -> int:
    """Servers that the ranks of a group sit on."""
    return workload.ep // workload.ranks_per_server


def _limit(workload: Workload) -> GroupLimit:
    """How many groups a token may reach."""
    facts, servers, limit = workload.architecture, _servers(workload), workload.node_limit
    if isinstance(limit, str):
        return GroupLimit(facts.expert_groups, facts.top_groups)
    return NO_LIMIT if limit is None or limit >= servers else GroupLimit(servers, limit)


@functools.lru_cache(maxsize=4)
def _sent(tokens: Tokens, workload: Workload) -> np.ndarray:
    known = tokens.reached_servers(_servers(workload)) if workload.dispatch == PER_SERVER else None
    if known is None or workload.capacity_factor is not None:
        return sent_as(workload, tokens.count)
    return np.concatenate([tokens.count, known], axis=-1)


def _copies(workload: Workload, count: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Copies for every server [... R S] that are expected of selections [... R E]."""
    *axes, experts = count.shape
    top_k, servers = workload.architecture.top_k, _servers(workload)
    count, kept = count.reshape(-1, experts), kept.reshape(-1, experts)
    selected = (count * kept).reshape(len(count), servers, -1).sum(axis=-1)
    total = count.sum(axis=-1, keepdims=True)
    open_still = (count > 0).sum(axis=-1) > top_k  # else every token takes all that occur
    share = np.divide(count, total, out=np.full_like(count, 1 / experts), where=open_still[:, None])
    taken = capped(share, 1 / top_k) * top_k
    part = reached(np.where(taken > 1 - SURE, 1, taken), top_k, servers, _limit(workload), kept)[0]
    every = np.where(open_still[:, None], part * total / top_k, np.inf)
    return np.minimum(np.minimum(every, total / top_k), selected).reshape(*axes, servers)
