"""Destinations of tokens: experts in the slots of GPUs, and copies of a token between GPUs under each sending rule.

An expert in c slots gets 1/c of its selections in each. So if some experts have more copies than others, GPUs have
uneven loads even when all experts are selected equally often. How many GPUs or servers a token reaches follows from how
often each expert is selected and from the slots that hold it. A token's experts are drawn without replacement, from no
more groups than its gate allows (`traffic.dispatch`). Letters: L layers, N GPUs of the group, E experts, P slots, S
domains of g GPUs.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.traffic.dispatch import SURE, GroupLimit, chances
from mfabric_jax.traffic.generator import cap_rows
from mfabric_jax.traffic.placement import SlotLayout, contiguous, hierarchical
from mfabric_jax.workload.models import Architecture


@dataclasses.dataclass(frozen=True, eq=False)
class ExpertLoad:
    """Experts of every layer and how often tokens select them.

    - `selected` [L E]: probability that a token goes to each expert; `expert` [L P]: the expert in each slot.
    - `slots`: of a GPU; `top_k`, `limit`: experts of a token, and the groups that they may come from.
    """

    selected: Float[np.ndarray, "L E"]
    expert: Int[np.ndarray, "L P"]
    slots: int
    top_k: int
    limit: GroupLimit

    @property
    def gpus(self) -> int:
        return self.expert.shape[1] // self.slots

    @functools.cached_property
    def copies(self) -> Int[np.ndarray, "L E"]:
        """Number of slots of each expert."""
        return np.stack([np.bincount(row, minlength=self.selected.shape[1]) for row in self.expert])

    @functools.cached_property
    def slot_chances(self) -> Float[np.ndarray, "L P"]:
        """Probability that a token goes to each slot."""
        return np.take_along_axis(self.selected / self.copies, self.expert, axis=1)

    def per_gpu(self) -> Float[np.ndarray, "L N"]:
        """Return the expected selections of a token for each GPU."""
        return self.slot_chances.reshape(len(self.slot_chances), self.gpus, self.slots).sum(2)


def slots_of(model: Architecture, gpus: int, redundant: int | None) -> int:
    """Return the expert slots of a GPU. `redundant`: copies beyond one per expert; None: the fewest that fill whole
    GPUs."""
    if redundant is None:
        return -(-model.experts // gpus)
    if (model.experts + redundant) % gpus:
        below = -model.experts % gpus
        raise InputError(
            f"serving.redundant_experts must fill the {gpus} GPUs of serving.ep evenly with {model.experts} experts: "
            f"{below}, {below + gpus}, ..., got {redundant}."
        )
    return (model.experts + redundant) // gpus


def place_experts(
    model: Architecture,
    gpus: int,
    slots: int,
    shares: Float[np.ndarray, "L E"] | None,
    *,
    domains: int = 1,
    placed: bool = True,
) -> ExpertLoad:
    """Place experts in slots; return the load.

    - `shares` [L E]: of all selections, by layer; None: all experts are selected equally often, and one layer stands
      for all.
    - `placed`: as EPLB places them, if the order can matter; else in order.
    - `domains` (servers): if they divide the groups from which a gate chooses, copies stay in the domain of their
      group, as under EPLB's hierarchical policy.
    """
    limit = _limit(model)
    each = np.ones((1, model.experts)) if shares is None else np.asarray(shares, float)
    selected = np.stack([_at_most_once(share / share.sum(), model.top_k) for share in each])
    layout = SlotLayout(gpus, gpus // domains, gpus * slots, model.expert_groups)
    alike = layout.slots == model.experts and np.ptp(selected) < SURE
    rule = hierarchical if placed and not alike else contiguous
    expert = np.stack([rule(row[None], layout) for row in selected])
    return ExpertLoad(selected, expert, slots, model.top_k, limit)


def _limit(model: Architecture) -> GroupLimit:
    groups, most = model.expert_groups, model.top_groups
    if model.experts % groups:
        raise Misfit(f"model.expert_groups must divide the {model.experts} experts, got {groups}.")
    if most * model.experts // groups < model.top_k:
        what = f"{model.top_k} of {model.experts} experts in {groups} groups"
        raise Misfit(f"model.top_groups must leave a token room for {what}, got {most}.")
    return GroupLimit(groups, most)


def _at_most_once(share: Float[np.ndarray, "E"], top_k: int) -> Float[np.ndarray, "E"]:
    """Expected selections of a token for each expert, in proportion to shares, but at most 1 per expert."""
    return cap_rows(share, 1 / top_k) * top_k


def busiest_over_mean(load: ExpertLoad) -> float:
    """Return the selections of the busiest GPU over the mean, averaged over layers."""
    each = load.per_gpu()
    return float((each.max(1) / each.mean(1)).mean())


def group_chances(load: ExpertLoad, groups: int) -> Float[np.ndarray, "L groups"]:
    """Return the probability that a token has an expert in each of `groups` equal groups of neighbouring GPUs."""
    layers, experts = load.selected.shape
    group = np.arange(load.expert.shape[1]) * groups // load.expert.shape[1]
    part = np.zeros((layers, groups, experts))  # part of each expert's copies in each group
    np.add.at(part, (np.arange(layers)[:, None], group, load.expert), 1.0)
    part /= load.copies[:, None]
    chance = _chances(load)[:, None]
    every, missed = (_allowed_chance(1 - chance, taken, load) for taken in (chance, chance * (1 - part)))
    return 1 - missed / every


def _chances(load: ExpertLoad) -> Float[np.ndarray, "L E"]:
    """Probability of each expert on its own. If all are selected equally often, equal values give the same result."""
    if np.ptp(load.selected) < SURE:
        return load.selected
    sure = np.where(load.selected > 1 - SURE, 1, load.selected)
    return chances(sure, load.top_k, load.limit)[0]


def _allowed_chance(
    left: Float[np.ndarray, "... E"], taken: Float[np.ndarray, "... E"], load: ExpertLoad
) -> Float[np.ndarray, "..."]:
    """Total probability of all sets of experts that a gate allows, if each expert on its own is `left` or `taken`."""
    groups, most = load.limit
    axes, size = taken.shape[:-1], load.top_k + 1
    ways = np.zeros((most + 1, size, *axes))  # by numbers of groups and experts in the set so far
    ways[0, 0] = 1
    for some in np.split(np.arange(taken.shape[-1]), groups):
        own = np.zeros((size, *axes))
        own[0] = 1
        for e in some:
            more = taken[..., e] * own[:-1]
            own *= left[..., e]
            own[1:] += more
        further = ways * own[0]
        for j in range(1, size):
            further[1:, j:] += own[j] * ways[:-1, : size - j]
        ways = further
    return ways[:, -1].sum(0)


class Copies(NamedTuple):
    """Copies that are sent per token of each GPU, by layer.

    - `between` [L N N]: over the network; `inside` [L S g g]: over the NVLinks of each domain.
    - `rows` [L N]: rows that each GPU computes per token of every GPU.
    """

    between: Float[np.ndarray, "L N N"]
    inside: Float[np.ndarray, "L S g g"]
    rows: Float[np.ndarray, "L N"]


def copies_of(load: ExpertLoad, rule: str, per_domain: int) -> Copies:
    """Return the copies of tokens under a rule of `dispatch_kernels.COPIES`. `per_domain`: GPUs that NVLink joins."""
    layers, gpus = len(load.slot_chances), load.gpus
    domains, rows = gpus // per_domain, load.per_gpu()
    domain, position = np.divmod(np.arange(gpus), per_domain)
    here = domain[:, None] == domain
    to_gpu = rows if rule == "expert" else group_chances(load, gpus)
    direct = np.broadcast_to(to_gpu[:, None], (layers, gpus, gpus)) * (1 - np.eye(gpus))
    if rule != "server":
        inside = np.stack([direct[:, domain == index][:, :, domain == index] for index in range(domains)], axis=1)
        return Copies(np.where(here, 0.0, direct), inside, rows)
    to_domain = group_chances(load, domains)
    same_place = (position[:, None] == position) & ~here
    between = np.where(same_place, to_domain[:, domain][:, None], 0.0)
    # a GPU receives the tokens of the GPUs at its position in all domains, and forwards them with its own
    forwarded = domains * to_gpu.reshape(layers, domains, 1, per_domain) * (1 - np.eye(per_domain))
    return Copies(between, forwarded, rows)
