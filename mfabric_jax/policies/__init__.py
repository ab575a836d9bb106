"""Policies: `policy(demand, region, *, previous=None, key=None) -> Plan`. `REGISTRY` holds the package's policies."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mfabric_jax.case.own_code import allow_code
from mfabric_jax.case.policies import HOMES, bare, check_name, is_file, is_function, join_name, name_of, split, spread
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.policies.arguments import ROUTINGS, WITHOUT_RELAY
from mfabric_jax.policies.greedy import RULES as RULES
from mfabric_jax.policies.greedy import greedy
from mfabric_jax.policies.greedy import greedy_next as greedy_next
from mfabric_jax.policies.greedy import greedy_released as greedy_released
from mfabric_jax.policies.reads import (
    ALONE,
    BY_NAME,
    EVERYTHING,
    KEYWORDS,
    SEEN,
    Reads,
    Remembering,
    Trained,
    remembering,
    traced_reads,
)
from mfabric_jax.policies.static import keep as keep
from mfabric_jax.policies.static import random_circuits as random_circuits
from mfabric_jax.policies.static import static as static
from mfabric_jax.policies.static import static_for as static_for
from mfabric_jax.policies.static import topoopt as topoopt
from mfabric_jax.policies.static import uniform as uniform
from mfabric_jax.routing import Plan
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.lazily import ByName, at_first_use

if TYPE_CHECKING:
    from mfabric_jax.policies.exact import exact_circuits
    from mfabric_jax.policies.layer_plans import LayerPlans as LayerPlans
    from mfabric_jax.policies.learned import check_unseen as check_unseen
    from mfabric_jax.policies.learned import load, save
    from mfabric_jax.policies.own import check_legal
    from mfabric_jax.policies.own import try_out as try_out
    from mfabric_jax.policies.own import wrap_errors as wrap_errors
    from mfabric_jax.policies.rounding import round_scores
    from mfabric_jax.policies.sample_average import Search as Search
    from mfabric_jax.policies.sample_average import first_of_each as first_of_each
    from mfabric_jax.policies.sample_average import further_of_each as further_of_each
    from mfabric_jax.policies.sample_average import joint
    from mfabric_jax.policies.wirings import bytes_sent as bytes_sent
    from mfabric_jax.policies.wirings import wire_group as wire_group

Policy = Callable[..., Plan]

REGISTRY: ByName = ByName(__name__, HOMES)
__getattr__ = at_first_use(
    __name__,
    {
        "exact": ("exact_circuits",),
        "layer_plans": ("LayerPlans",),
        "learned": ("check_unseen", "load", "save"),
        "own": ("check_legal", "load_function", "try_out", "wrap_errors"),
        "rounding": ("round_scores",),
        "sample_average": ("Search", "first_of_each", "further_of_each", "joint"),
        "wirings": ("bytes_sent", "wire_group"),
    },
)
OPTIMISES = {
    "threshold": WITHOUT_RELAY,
    "local-search": WITHOUT_RELAY,
    "relaxed": ROUTINGS,
    "exact": ROUTINGS,
    "topologies": WITHOUT_RELAY,
    "sample-average": ROUTINGS,
    "ahead": WITHOUT_RELAY,
}
SETTLE_TIES = ("joint", "sample-average")  # policies that settle ties by the previous plan and a key
WEIGH = ("learned", "untrained")  # policies that may keep the previous plan
NEAREST = {"best-path": "unsplit", "relay": "split"}


def get(name: str, **settings: Any) -> Policy:
    """Return the named policy with fixed settings: `get("greedy", rule="next")` or `get("greedy(rule=next)")`.

    `name` is a key of `REGISTRY`, the path of a trained policy, or FILE.py:FUNCTION. Settings in the name win. Commands
    fill `routing` where a policy has it; here you pass it: `get("threshold", routing="split")`. Equal arguments return
    the same object, so JAX reuses its compiled programs. Raise `InputError` for an unknown name or
    setting.
    """
    name, stated = split(name)
    if several := next((setting for setting, value in stated.items() if isinstance(value, list)), None):
        whole = join_name(name, stated)
        raise InputError(
            f"policy {whole!r}: its setting {several!r} must be one value here, got several; name the policy "
            f"once for each value: {','.join(spread(whole))}."
        )
    if is_function(name):
        policy: Policy = __getattr__("load_function")(name)
    else:
        policy = __getattr__("load")(name) if is_file(name) else REGISTRY[check_name(name)]
    settings |= stated
    known = settings_of(policy)
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in _parameters(policy).values()):
        for setting in settings:
            if setting not in known:
                raise InputError(f"policy {name!r} has no setting {setting!r}; it has {', '.join(known) or 'none'}.")
    try:
        hash(tuple(settings.values()))
    except TypeError:  # arrays, such as the mean of "static"
        return _with.__wrapped__(policy, **settings)
    return _with(policy, **settings)


@functools.lru_cache(maxsize=256, typed=True)
def _with(policy: Policy, /, **settings: Any) -> Policy:
    return functools.partial(policy, **settings) if settings else policy


def settings_of(policy: Policy) -> list[str]:
    """Return the names of a policy's own arguments, beyond those that every policy has."""
    named = [
        name
        for name, parameter in _parameters(policy).items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    return [name for name in named if name not in ("demand", "region", "previous", "key")]


def _parameters(policy: Policy) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(policy.model if isinstance(policy, Trained) else policy).parameters


def get_suitable(policy: str | Policy, **settings: Any) -> Policy:
    """Return `get` with only the settings that the policy has: `get_suitable(name, rule="next", routing="split")`.

    A policy that cannot optimise for `routing` takes the nearest one: unsplit for best-path, split for relay. A
    function is returned unchanged.
    """
    if callable(policy):
        return policy
    plain, stated = split(policy)
    unset = get(plain)
    known = settings_of(unset)
    taken = {setting: value for setting, value in settings.items() if setting in known}
    routing = taken.get("routing")
    kind = unset.kind if isinstance(unset, Trained) else plain
    if kind in OPTIMISES and routing is not None and routing not in OPTIMISES[kind]:
        taken["routing"] = NEAREST.get(routing, routing)
    return get(policy, **taken | stated)


def may_use_previous(name: str | Policy) -> bool:
    """Return whether a policy of the package can use the previous plan but does not need it."""
    return bare(name) in SETTLE_TIES or weighs_changes(name)


@functools.lru_cache(maxsize=64)
def for_demand_alone(policy: Policy) -> Policy:
    """Return the policy, called without the previous plan and without a key."""
    return functools.partial(_alone, policy)


def _alone(
    policy: Policy, demand: Array, region: Any, *, previous: Plan | None = None, key: Array | None = None
) -> Plan:
    return policy(demand, region)


def reads_of(policy: Policy, region: Region) -> Reads:
    """Return what a policy reads besides the demand. User and trained policies are traced to find out."""
    plain = policy_of(policy)
    if plain is _alone:
        return ALONE
    if isinstance(plain, Remembering):
        return EVERYTHING._replace(memory=True)
    name = REGISTRY.name_of(plain)
    return traced_reads(policy, region) if name is None else BY_NAME.get(name, ALONE)


def policy_of(policy: Policy) -> Policy:
    """Return the policy without its settings."""
    plain: Any = policy
    while hasattr(plain, "func"):
        plain = plain.func
    return plain


def takes_many(policy: Policy) -> bool:
    """Return whether a policy takes several demands [K S S] at once; such a policy has the keyword `weights`."""
    return "weights" in inspect.signature(policy).parameters


def of_package(policy: Policy) -> bool:
    """Return whether a policy is from `REGISTRY` or trained; plans of such policies have no schedule."""
    plain = policy_of(policy)
    return plain is _alone or isinstance(plain, Trained) or REGISTRY.name_of(plain) is not None


def weighs_changes(name: Any) -> bool:
    """Return whether a policy weighs new circuits against the delay of changing to them: one of `WEIGH`, or a file."""
    return isinstance(name, str) and (bare(name) in WEIGH or is_file(name))


def is_own(policy: str | Policy) -> bool:
    return not isinstance(policy, str) or is_function(policy)


def with_memory(policy: Policy) -> Policy:
    """Return a user's policy with one of `KEYWORDS` as `Remembering`, and any other unchanged."""
    if of_package(policy) or not set(KEYWORDS) & set(settings_of(policy)):
        return policy
    return remembering(policy)


def get_checked(
    policy: str | Policy, sizes: Sequence[int], degree: int, *, remembers: bool = False, **settings: Any
) -> Policy:
    """Return `get_suitable`; first try the user's own policy on regions of these sizes.

    `remembers`: the caller fills `history` and keeps the state. Raise `InputError` if its plans are not legal.
    """
    chosen = get_suitable(policy, **settings)
    if is_own(policy):
        for servers in sizes:
            __getattr__("try_out")(chosen, name_of(policy), servers, degree, SEEN if remembers else 0)
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
    "round_scores",
    "save",
]
