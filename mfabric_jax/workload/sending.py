"""How the tokens of a workload are sent: what may be chosen."""

from typing import Any

from mfabric_jax import checks

DISPATCH = ("per-expert", "per-server")


def check_dispatch(workload: Any) -> None:
    """`InputError` for a dispatch, node limit or capacity factor of a `Workload` that cannot be."""
    checks.one_of("dispatch", workload.dispatch, DISPATCH)
    factor, limit, facts = workload.capacity_factor, workload.node_limit, workload.architecture
    if factor is not None and checks.positive("capacity_factor", factor) < 1:
        raise checks.InputError(f"capacity_factor must be at least 1, got {factor!r}.")
    if limit is None:
        return
    if workload.dispatch != "per-server":
        raise checks.InputError(f"node_limit needs dispatch 'per-server', got {workload.dispatch!r}: bytes are alike.")
    if isinstance(limit, str):
        checks.one_of("node_limit (beside a number of servers)", limit, ("model",))
        groups, most, what = facts.expert_groups, facts.top_groups, "expert_groups"
    else:
        groups, most, what = workload.ep // workload.ranks_per_server, checks.whole("node_limit", limit), "servers"
    if facts.experts % groups or most * (facts.experts // groups) < facts.top_k:
        raise checks.InputError(
            f"node_limit {limit!r} must leave a token room for {facts.top_k} of {facts.experts} experts, got {most} of "
            f"{groups} {what}."
        )
