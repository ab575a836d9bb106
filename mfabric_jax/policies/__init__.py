"""Policies: `policy(demand, region, *, previous=None, key=None) -> Plan`. `REGISTRY` names those of the package."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mfabric_jax.case.policies import check_name, is_file, is_function, name_of
from mfabric_jax.checks import InputError
from mfabric_jax.policies.exact import ROUTINGS, exact, exact_circuits, matching
from mfabric_jax.policies.greedy import RULES as RULES
from mfabric_jax.policies.greedy import greedy, greedy_next, greedy_released
from mfabric_jax.policies.index_rule import index
from mfabric_jax.policies.learned import Trained, learned, load, save, untrained
from mfabric_jax.policies.learned import check_unseen as check_unseen
from mfabric_jax.policies.local_search import ROUTINGS as WITHOUT_RELAY
from mfabric_jax.policies.local_search import local_search, threshold
from mfabric_jax.policies.own import check_legal, load_function, try_out
from mfabric_jax.policies.relaxed import relaxed
from mfabric_jax.policies.rounding import rounded
from mfabric_jax.policies.sample_average import joint, sample_average
from mfabric_jax.policies.static import keep, random_circuits, static, topoopt, uniform
from mfabric_jax.policies.topologies import topologies
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
    "untrained": untrained,
    "exact": exact,
    "topologies": topologies,
}
OPTIMISES = {
    "threshold": WITHOUT_RELAY,
    "local-search": WITHOUT_RELAY,
    "relaxed": ROUTINGS,
    "exact": ROUTINGS,
    "topologies": WITHOUT_RELAY,
    "sample-average": ROUTINGS,
}
SETTLE_TIES = ("joint", "sample-average")  # ties are settled by the previous plan and a key
WEIGH = ("learned", "untrained")  # the previous plan may stay
OF_DEMAND_ALONE = (
    "greedy",
    "greedy-released",
    "greedy-next",
    "uniform",
    "static",
    "topoopt",
    "matching",
    "index",
    "topologies",
)
NEAREST = {"best-path": "unsplit", "relay": "split"}


def get(name: str, **settings: Any) -> Policy:
    """The policy of that name with its settings fixed, such as `get("greedy", rule="next")`.

    A name of `REGISTRY`, the path of a trained policy, or FILE.py:FUNCTION. The same name and settings return the same
    object, so that JAX reuses its compiled programs. `InputError` for an unknown name or setting.
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
    policy = trained or REGISTRY[check_name(name)]
    known = settings_of(policy)
    for setting in settings:
        if setting not in known:
            raise InputError(f"policy {name!r} has no setting {setting!r}; it has {', '.join(known) or 'none'}.")
    return functools.partial(policy, **settings) if settings else policy


def settings_of(policy: Policy) -> list[str]:
    """Names of a policy's arguments beyond those that every policy has."""
    policy = policy.model if isinstance(policy, Trained) else policy
    return [p for p in inspect.signature(policy).parameters if p not in ("demand", "region", "previous", "key")]


def suited(policy: str | Policy, **settings: Any) -> Policy:
    """`get` with only those settings that the policy has: `suited(name, rule="next", routing="split")`.

    A policy that cannot optimise for `routing` does so for the nearest: unsplit for best-path, split for relay. A
    function is returned unchanged.
    """
    return policy if callable(policy) else get(policy, **suitable(policy, **settings))


def suitable(name: str, **settings: Any) -> dict[str, Any]:
    """The settings that the policy of that name has, as `suited` fixes them."""
    known = settings_of(get(name))
    taken = {setting: value for setting, value in settings.items() if setting in known}
    routing = taken.get("routing")
    if name in OPTIMISES and routing is not None and routing not in OPTIMISES[name]:
        taken["routing"] = NEAREST.get(routing, routing)
    return taken


def knows_place(name: str | Policy) -> bool:
    """Whether a policy of the package may choose by the previous plan, and can do without."""
    return name in (*SETTLE_TIES, *WEIGH) or (isinstance(name, str) and is_file(name))


@functools.lru_cache(maxsize=64)
def for_demand_alone(policy: Policy) -> Policy:
    """The policy, called without the previous plan and without a key."""

    def alone(demand, region, *, previous=None, key=None):
        return policy(demand, region)

    return alone


def takes_many(policy: Policy) -> bool:
    """Whether a policy takes several demands [K S S] at once; such a policy has the keyword `weights`."""
    return "weights" in inspect.signature(policy).parameters


def of_package(policy: Policy) -> bool:
    """Whether a policy is one of `REGISTRY` with its settings, or a trained one: its plans hold no schedule."""
    while hasattr(policy, "func"):
        policy = policy.func
    return isinstance(policy, Trained) or any(policy is one for one in REGISTRY.values())


def is_own(policy: str | Policy) -> bool:
    return not isinstance(policy, str) or is_function(policy)


def tried(policy: str | Policy, sizes: Sequence[int], degree: int, **settings: Any) -> Policy:
    """`suited`; the user's own policy is also tried for regions of these sizes, with `InputError` if it is illegal."""
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
    "rounded",
    "save",
]
