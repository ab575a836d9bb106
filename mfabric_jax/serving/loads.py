"""Where tokens go: experts in the slots of GPUs, and copies of a token between GPUs under each rule of sending.

An expert in c slots gets 1/c of its selections in each. How many different GPUs or servers a token's experts lie on
follows from how often each slot is taken (`traffic.dispatch`, a token's experts drawn without replacement). Letters: L
layers, N GPUs of the group, E experts, P slots.
"""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mfabric_jax.checks import InputError
from mfabric_jax.traffic.dispatch import SURE, GroupLimit, evenly_reached, reached
from mfabric_jax.traffic.generator import capped
from mfabric_jax.traffic.placement import Room, contiguous, hierarchical, longest_processing_time
from mfabric_jax.workload.models import Architecture


class Load(NamedTuple):
    """Of a token, by layer: `taken` [L P] probability that it goes to each slot, `slots` of a GPU, `top_k` choices."""

    taken: Float[np.ndarray, "L P"]
    slots: int
    top_k: int
    limit: GroupLimit

    @property
    def gpus(self) -> int:
        return self.taken.shape[1] // self.slots

    def per_gpu(self) -> Float[np.ndarray, "L N"]:
        """Selections of a token that are for each GPU."""
        return self.taken.reshape(len(self.taken), self.gpus, self.slots).sum(2)


def slots_of(model: Architecture, gpus: int, redundant: int | None) -> int:
    """Slots of a GPU; `redundant`: copies beyond one for each expert, None: as few as fill whole GPUs."""
    if redundant is None:
        return -(-model.experts // gpus)
    if (model.experts + redundant) % gpus:
        below = -model.experts % gpus
        raise InputError(
            f"serving.redundant_experts must fill the {gpus} GPUs of serving.ep evenly with {model.experts} experts: "
            f"{below}, {below + gpus}, ..., got {redundant}."
        )
    return (model.experts + redundant) // gpus


def loaded(
    model: Architecture,
    gpus: int,
    slots: int,
    shares: Float[np.ndarray, "L E"] | None,
    *,
    domains: int = 1,
    placed: bool = True,
) -> Load:
    """Experts in slots; `shares` [L E] of all selections in every layer, placed as EPLB does or in order; None: all
    experts are taken equally often, one layer stands for all.

    Where `domains` (servers) divide the groups from which a gate chooses, copies stay in the domain of their group, as
    under EPLB's hierarchical policy: a token's experts then lie in as few groups as its gate allows.
    """
    total, groups = gpus * slots, model.expert_groups
    whole = total == model.experts or (groups % domains == 0 and total % groups == 0)
    if shares is None:
        limit = GroupLimit(groups, model.top_groups) if whole else GroupLimit()
        return Load(np.full((1, total), model.top_k / total), slots, model.top_k, limit)
    room = Room(gpus, gpus // domains, total, groups)
    place, taken = (hierarchical if whole and groups > 1 else longest_processing_time) if placed else contiguous, []
    for share in np.asarray(shares, float):
        selected = _at_most_once(share / share.sum(), model.top_k)
        of = place(selected[None], room)
        taken.append((selected / np.bincount(of, minlength=model.experts))[of])
    return Load(np.array(taken), slots, model.top_k, GroupLimit())


def _at_most_once(share: Float[np.ndarray, "E"], top_k: int) -> Float[np.ndarray, "E"]:
    """Selections of a token for each expert: shares of all, none taken more than once by a token."""
    return capped(share, 1 / top_k) * top_k


def busiest_over_mean(load: Load) -> float:
    """Selections of the busiest GPU over the mean, mean over layers."""
    each = load.per_gpu()
    return float((each.max(1) / each.mean(1)).mean())


def reached_groups(load: Load, groups: int) -> Float[np.ndarray, "L groups"]:
    """Probability that a token has an expert in each of so many equal groups of neighbouring GPUs."""
    layers, slots = load.taken.shape
    if load.top_k >= slots:
        return np.ones((layers, groups))
    if np.ptp(load.taken) < SURE:
        even = evenly_reached(slots, load.top_k, groups, load.limit)
        return np.broadcast_to(np.array(even), (layers, groups)).copy()
    return np.stack([_unevenly(tuple(row.tolist()), load.top_k, groups) for row in load.taken])


@functools.lru_cache(maxsize=4096)
def _unevenly(taken: tuple[float, ...], top_k: int, groups: int) -> Float[np.ndarray, "groups"]:
    row = np.array([taken])
    return reached(np.where(row > 1 - SURE, 1, row), top_k, groups, GroupLimit(), np.ones_like(row))[0][0]


class Copies(NamedTuple):
    """Copies of a token of each GPU, by layer: `between` [L N N] over the network, `inside` [L S g g] over the NVLinks
    of each domain; `rows` [L N] that a GPU computes per token of each GPU."""

    between: Float[np.ndarray, "L N N"]
    inside: Float[np.ndarray, "L S g g"]
    rows: Float[np.ndarray, "L N"]


def copies_of(load: Load, rule: str, per_domain: int) -> Copies:
    """Under a rule of `families.COPIES`; `per_domain`: GPUs that NVLink joins."""
    layers, gpus = len(load.taken), load.gpus
    domains, rows = gpus // per_domain, load.per_gpu()
    domain, place = np.divmod(np.arange(gpus), per_domain)
    here = domain[:, None] == domain
    to_gpu = rows if rule == "expert" else reached_groups(load, gpus)
    direct = np.broadcast_to(to_gpu[:, None], (layers, gpus, gpus)) * (1 - np.eye(gpus))
    if rule != "server":
        inside = np.stack([direct[:, domain == one][:, :, domain == one] for one in range(domains)], axis=1)
        return Copies(np.where(here, 0.0, direct), inside, rows)
    to_domain = reached_groups(load, domains)
    same_place = (place[:, None] == place) & ~here
    between = np.where(same_place, to_domain[:, domain][:, None], 0.0)
    # every domain's tokens of a place come to the GPU there, which sends them on: its own, and each other domain's
    forwarded = domains * to_gpu.reshape(layers, domains, 1, per_domain) * (1 - np.eye(per_domain))
    return Copies(between, forwarded, rows)
