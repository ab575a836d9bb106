"""Policies: callables `policy(demand, region, *, previous=None, key=None) -> Plan`.

Any function of that signature is a policy; the registry only gives names to the ones that ship.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.policies._exact import ROUTINGS as EXACT_ROUTINGS
from mfabric_jax.policies._exact import exact, exact_circuits, matching
from mfabric_jax.policies._greedy import RULES, greedy, greedy_next, greedy_released
from mfabric_jax.policies._index import index
from mfabric_jax.policies._learned import Trained, is_file, learned, load
from mfabric_jax.policies._learned import check_unseen as check_unseen
from mfabric_jax.policies._local_search import local_search
from mfabric_jax.policies._relaxed import ROUTINGS as RELAXED_ROUTINGS
from mfabric_jax.policies._relaxed import relaxed
from mfabric_jax.policies._sample_average import ROUTINGS as SAMPLED_ROUTINGS
from mfabric_jax.policies._sample_average import joint, sample_average
from mfabric_jax.policies._static import keep, random_circuits, static, topoopt, uniform
from mfabric_jax.policies._threshold import threshold
from mfabric_jax.policies.moves import ROUTINGS as HEURISTIC_ROUTINGS
from mfabric_jax.policies.own import check_legal, is_function, load_function, name_of, try_out
from mfabric_jax.routing import Plan

Policy = Callable[..., Plan]

REGISTRY: dict[str, Policy] = {
    "greedy": greedy,
    "greedy-released": greedy_released,
    "greedy-next": greedy_next,
    "uniform": uniform,
    "random": random_circuits,
    "static": static,
    "previous": keep,
    "topoopt": topoopt,
    "matching": matching,
    "threshold": threshold,
    "local-search": local_search,
    "relaxed": relaxed,
    "joint": joint,
    "sample-average": sample_average,
    "index": index,
    "learned": learned,
    "exact": exact,
}
OPTIMISES = {
    "threshold": HEURISTIC_ROUTINGS,
    "local-search": HEURISTIC_ROUTINGS,
    "relaxed": RELAXED_ROUTINGS,
    "exact": EXACT_ROUTINGS,
    "sample-average": SAMPLED_ROUTINGS,
}
SETTLE_TIES = ("joint", "sample-average")  # by the plan in place and a key; else the demand decides alone
NEAREST = {"best-path": "unsplit", "relay": "split"}


def get(name: str, **settings: Any) -> Policy:
    """The policy of that name with its settings fixed: `get("greedy", rule="next")`; of a trained file's path; or a
    function of the user's own, `get("mine.py:spread")`.

    The same name and settings give the same object, so that programs compiled for it are found again.
    """
    if is_function(name):
        function = load_function(name)
        return functools.partial(function, **settings) if settings else function
    trained = load(name) if is_file(name) else None
    try:
        hash(tuple(settings.values()))
    except TypeError:  # arrays, as the mean of "static"
        return _get.__wrapped__(name, trained, **settings)
    return _get(name, trained, **settings)


@functools.lru_cache(maxsize=256)
def _get(name: str, trained: Trained | None, /, **settings: Any) -> Policy:
    if trained is None and (name.endswith(".py") or ":" in name):
        raise InputError(f"policy {name!r} must be FILE.py:FUNCTION where it is one of your own.")
    policy = trained or REGISTRY[one_of("policy", name, REGISTRY)]
    known = settings_of(policy)
    for setting in settings:
        if setting not in known:
            raise InputError(f"policy {name!r} has no setting {setting!r}; it has {', '.join(known) or 'none'}.")
    if "rule" in settings:
        one_of("rule", settings["rule"], RULES)
    if "routing" in settings:
        one_of("routing", settings["routing"], OPTIMISES[name])
    return functools.partial(policy, **settings) if settings else policy


def settings_of(policy: Policy) -> list[str]:
    """What a policy takes beside what every policy does."""
    policy = policy.model if isinstance(policy, Trained) else policy
    return [p for p in inspect.signature(policy).parameters if p not in ("demand", "region", "previous", "key")]


def suited(policy: str | Policy, **settings: Any) -> Policy:
    """The policy with those of the settings that it has: `suited(name, rule="next", routing="split")`.

    Where it cannot optimise for that routing, it does so for the nearest: unsplit for best-path, split for relay. A
    function of the user's own comes back as it is.
    """
    if callable(policy):
        return policy
    known = settings_of(get(policy))
    if is_function(policy):
        return get(policy, **{name: value for name, value in settings.items() if name in known})
    given = {name: value for name, value in settings.items() if name in known}
    if "routing" in given and given["routing"] not in OPTIMISES[policy]:
        given["routing"] = NEAREST.get(given["routing"], given["routing"])
    return get(policy, **given)


@functools.lru_cache(maxsize=64)
def for_demand_alone(policy: Policy) -> Policy:
    """The policy without the plan in place and without a key."""

    def alone(demand, region, *, previous=None, key=None):
        return policy(demand, region)

    return alone


def takes_many(policy: Policy) -> bool:
    """Whether a policy takes many demands [K S S] at once, and their `weights` [K]: whether it has that keyword."""
    return "weights" in inspect.signature(policy).parameters


def is_own(policy: str | Policy) -> bool:
    """Whether a policy is a function of the user's own."""
    return not isinstance(policy, str) or is_function(policy)


def tried(policy: str | Policy, sizes: Sequence[int], degree: int, **settings: Any) -> Policy:
    """`suited`; one of the user's own is first tried out in regions of those sizes: `InputError` if it is not legal."""
    chosen = suited(policy, **settings)
    if is_own(policy):
        for servers in sizes:
            try_out(chosen, name_of(policy), servers, degree)
    return chosen


__all__ = [
    "Plan",
    "Policy",
    "check_legal",
    "exact_circuits",
    "get",
    "greedy",
    "joint",
    "load",
]
