"""Policies: `policy(demand, region, *, previous=None, key=None) -> Plan`. `REGISTRY` names those of the package."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mfabric_jax.case.own_code import allow_code
from mfabric_jax.case.policies import bare, check_name, is_file, is_function, joined, name_of, split
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.policies.exact import ROUTINGS, exact, exact_circuits, matching
from mfabric_jax.policies.greedy import RULES as RULES
from mfabric_jax.policies.greedy import greedy, greedy_next, greedy_released
from mfabric_jax.policies.index_rule import index
from mfabric_jax.policies.learned import Trained, learned, load, save, untrained
from mfabric_jax.policies.learned import check_unseen as check_unseen
from mfabric_jax.policies.local_search import ROUTINGS as WITHOUT_RELAY
from mfabric_jax.policies.local_search import local_search, threshold
from mfabric_jax.policies.own import check_legal, load_function, try_out
from mfabric_jax.policies.reads import ALONE, BY_NAME, Reads, judged
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
    """The policy of that name with its settings fixed: `get("greedy", rule="next")`, or `get("greedy(rule=next)")`.

    A name of `REGISTRY`, the path of a trained policy, or FILE.py:FUNCTION; settings in the name win. The same name and
    settings return the same object, so that JAX reuses its compiled programs. `InputError` for an unknown name or
    setting.
    """
    name, stated = split(name)
    if several := next((setting for setting, value in stated.items() if isinstance(value, list)), None):
        raise InputError(f"policy {joined(name, stated)!r}: its setting {several!r} is one value here, got several.")
    if is_function(name):
        policy: Policy = load_function(name)
    else:
        policy = load(name) if is_file(name) else REGISTRY[check_name(name)]
    settings |= stated
    check_settings(policy, name, settings)
    try:
        hash(tuple(settings.values()))
    except TypeError:  # arrays, as the mean of "static"
        return _with.__wrapped__(policy, **settings)
    return _with(policy, **settings)


@functools.lru_cache(maxsize=256, typed=True)
def _with(policy: Policy, /, **settings: Any) -> Policy:
    return functools.partial(policy, **settings) if settings else policy


def check_settings(policy: Policy, name: str, settings: Mapping[str, Any]) -> None:
    """`InputError` for a setting that the policy does not take."""
    if any(one.kind is one.VAR_KEYWORD for one in _parameters(policy).values()):
        return
    known = settings_of(policy)
    for setting in settings:
        if setting not in known:
            raise InputError(f"policy {name!r} has no setting {setting!r}; it has {', '.join(known) or 'none'}.")


def settings_of(policy: Policy) -> list[str]:
    """Names of a policy's arguments beyond those that every policy has."""
    named = [name for name, one in _parameters(policy).items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    return [name for name in named if name not in ("demand", "region", "previous", "key")]


def _parameters(policy: Policy) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(policy.model if isinstance(policy, Trained) else policy).parameters


def suited(policy: str | Policy, **settings: Any) -> Policy:
    """`get` with only those settings that the policy has: `suited(name, rule="next", routing="split")`.

    A policy that cannot optimise for `routing` does so for the nearest: unsplit for best-path, split for relay. A
    function is returned unchanged.
    """
    return policy if callable(policy) else get(policy, **suitable(policy, **settings))


def suitable(name: str, **settings: Any) -> dict[str, Any]:
    """The settings that the policy of that name has, as `suited` fixes them; those in its name win."""
    plain, stated = split(name)
    known = settings_of(get(plain))
    taken = {setting: value for setting, value in settings.items() if setting in known}
    routing = taken.get("routing")
    if plain in OPTIMISES and routing is not None and routing not in OPTIMISES[plain]:
        taken["routing"] = NEAREST.get(routing, routing)
    return taken | stated


def knows_place(name: str | Policy) -> bool:
    """Whether a policy of the package may choose by the previous plan, and can do without."""
    return bare(name) in SETTLE_TIES or weighs_turns(name)


@functools.lru_cache(maxsize=64)
def for_demand_alone(policy: Policy) -> Policy:
    """The policy, called without the previous plan and without a key."""
    return functools.partial(_alone, policy)


def _alone(policy: Policy, demand, region, *, previous=None, key=None) -> Plan:
    return policy(demand, region)


def reads_of(policy: Policy, region: Region) -> Reads:
    """What a policy reads beside the demand; users' own and trained policies are traced."""
    plain = policy_of(policy)
    if plain is _alone:
        return ALONE
    name = next((name for name, one in REGISTRY.items() if one is plain), None)
    return judged(policy, region) if name is None else BY_NAME.get(name, ALONE)


def policy_of(policy: Policy) -> Policy:
    """The policy without its settings."""
    while hasattr(policy, "func"):
        policy = policy.func
    return policy


def takes_many(policy: Policy) -> bool:
    """Whether a policy takes several demands [K S S] at once; such a policy has the keyword `weights`."""
    return "weights" in inspect.signature(policy).parameters


def of_package(policy: Policy) -> bool:
    """Whether a policy is one of `REGISTRY` with its settings, or a trained one: its plans hold no schedule."""
    plain = policy_of(policy)
    return plain is _alone or isinstance(plain, Trained) or any(plain is one for one in REGISTRY.values())


def weighs_turns(name: Any) -> bool:
    """Whether a policy weighs its circuits against those in place by what a turn takes: `WEIGH`, or a file."""
    return isinstance(name, str) and (bare(name) in WEIGH or is_file(name))


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
    "allow_code",
    "check_legal",
    "exact_circuits",
    "get",
    "greedy",
    "joint",
    "load",
    "rounded",
    "save",
]
