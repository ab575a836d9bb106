"""Limits of a case: values that exclude each other, and values that a command does not model."""

from collections.abc import Callable
from typing import Any, NamedTuple

from mfabric_jax import fabric
from mfabric_jax.case.fabrics import GRAPH
from mfabric_jax.case.paths import AUTO, Case, flat
from mfabric_jax.case.policies import NO_SCHEDULE, bare, is_function
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.site import Site
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.workload import Workload
from mfabric_jax.workload.recompute import again_of


class Beside(NamedTuple):
    """A limit: if `when` is true of the values by path, the value at `path` must be in `allowed`; `why`: the reason."""

    when: Callable[[dict[str, Any]], bool]
    path: str
    allowed: tuple
    why: str


def _is(path: str, *values: Any) -> Callable[[dict[str, Any]], bool]:
    return lambda at: at.get(path) in values


def _both(*tests: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], bool]:
    return lambda at: all(test(at) for test in tests)


def _sends_again(at: dict[str, Any]) -> bool:
    return again_of(at["job.recompute"]).exchanges


WITHOUT_SENDING = ("none", "light", "attention", "parts without moe")
MORE_THAN_DEMAND = ("random", "previous", "threshold", "local-search", "relaxed")  # draw, or read circuits in place
PASSES, RANK = _is("job.overlap", "passes"), _is("compute.received.combine", "rank")
ECMP, PAYS = _is("network.paths", "ecmp"), _is("circuits.turn", "pays")
PAYS_AGAIN = _both(PAYS, _sends_again)
SHARED = _is("job.sharding", "gradients", "parameters")
SCHEDULED = lambda at: at["circuits.schedule"] != NO_SCHEDULE  # noqa: E731
OWN_SCHEDULER = lambda at: is_function(at["circuits.schedule"])  # noqa: E731
SCHEDULED_AGAIN = _both(SCHEDULED, _sends_again)
ITS_SWITCHES = (("circuits.switches", 1), ("circuits.all_stop", True), ("circuits.directed", True))
OF_CIRCUITS = (PAYS_AGAIN, SCHEDULED, SCHEDULED_AGAIN)
SEVERAL = lambda at: at["run.replicas"] != 1  # noqa: E731
ALIKE = lambda at: at["traffic.alike"] != "nothing"  # noqa: E731
PHASED = lambda at: fabric.get(at["network.fabric"]).phases  # noqa: E731
PHASES = "circuits that serve one phase at a time"
LIMITS = (
    Beside(PHASED, "job.overlap_gradients", (False,), PHASES),
    Beside(PHASED, "job.sharding", ("none", "optimizer"), PHASES),
    Beside(PASSES, "circuits.partial", (False,), "job.overlap passes"),
    Beside(ECMP, "circuits.routing", ("unsplit",), "single paths"),
    Beside(ECMP, "network.oversubscription", (None, 1.0), "single paths"),
    Beside(ECMP, "circuits.partial", (False,), "single paths, which reconfigure all circuits together"),
    Beside(_is("circuits.turn", "always"), "circuits.partial", (False,), "circuits.turn always"),
    Beside(PAYS_AGAIN, "job.recompute", WITHOUT_SENDING, "circuits.turn pays, which models no recomputed all-to-alls"),
    Beside(_both(RANK, _sends_again), "job.recompute", WITHOUT_SENDING, "compute.received.combine rank"),
    Beside(RANK, "job.overlap", ("none", "passes"), "compute.received.combine rank"),
    Beside(RANK, "job.dispatch", ("per-expert",), "compute.received.combine rank, because servers add up answers"),
    Beside(_both(PASSES, RANK), "compute.received.combine", ("barrier",), "job.overlap passes"),
    Beside(_both(PASSES, _sends_again), "job.recompute", WITHOUT_SENDING, "job.overlap passes"),
    Beside(SEVERAL, "traffic.alike", ("nothing",), "several run.replicas, which would all be alike"),
    Beside(ALIKE, "run.sample", (None, 0), "traffic.alike, which leaves one iteration"),
    Beside(SEVERAL, "traffic.source", ("shares", "generated", "knobs", "trace"), "several run.replicas"),
    Beside(_both(SEVERAL, _is("circuits.span.length", "run")), "run.replicas", (1,), "circuits.span.length run"),
    Beside(SCHEDULED, "circuits.turn", ("on-demand",), "circuits.schedule"),
    Beside(SCHEDULED, "circuits.partial", (False,), "circuits.schedule (see circuits.all_stop)"),
    Beside(SCHEDULED, "circuits.each_s", (0.0,), "circuits.schedule"),
    Beside(SCHEDULED, "circuits.packets_wait", (False,), "circuits.schedule, whose packets never wait"),
    Beside(SCHEDULED, "circuits.decision_s", (0.0,), "circuits.schedule"),
    Beside(SCHEDULED, "circuits.routing", ("unsplit",), "circuits.schedule, which decides what circuits carry"),
    Beside(SCHEDULED, "network.paths", ("spray",), "circuits.schedule"),
    Beside(SCHEDULED, "job.overlap", ("none", "parts"), "circuits.schedule"),
    Beside(SCHEDULED, "run.sample", (None,), "circuits.schedule"),
    Beside(SCHEDULED_AGAIN, "job.recompute", WITHOUT_SENDING, "circuits.schedule"),
    Beside(
        _both(SCHEDULED, _is("network.fabric", "acos")),
        "circuits.schedule",
        (NO_SCHEDULE,),
        "acos, whose graphs are fixed",
    ),
    *(Beside(OWN_SCHEDULER, path, (usual,), "a scheduler of your own, which sets it") for path, usual in ITS_SWITCHES),
    Beside(SHARED, "job.overlap_gradients", (False,), "job.sharding gradients or parameters, which overlap anyway"),
)


def check_limits(case: Case, job: Workload, on: Fabric, tree_nics: int) -> None:
    """Raise Misfit for values that exclude each other; `tree_nics`: NICs of the cluster on switch trees."""
    at = flat(case)
    if on.reconfigures and PASSES(at):
        _check_passes(at)
    for limit in LIMITS:
        if (limit.path.startswith("circuits.") or limit.when in OF_CIRCUITS) and not on.reconfigures:
            continue
        if limit.when(at) and at.get(limit.path, limit.allowed[0]) not in limit.allowed:
            refuse(limit.path, limit.allowed, limit.why, at[limit.path])
    if case.run.sample is not None and case.run.sample >= case.run.iterations:
        raise Misfit(f"run.sample must be below run.iterations ({case.run.iterations}), got {case.run.sample}.")
    check_network(case, on, tree_nics)
    if case.run.replicas != "all" and case.run.replicas > job.dp:
        raise Misfit(f"run.replicas must be at most the {job.dp} of {job.model} (dp), got {case.run.replicas}.")


def check_network(case: Case, on: Fabric, tree_nics: int) -> None:
    """Raise InputError or Misfit for switches that do not suit a fabric; `tree_nics`: as in `check_limits`."""
    if case.network.radix < 4 or case.network.radix % 2:
        raise InputError(
            f"network.radix must be even (half of the ports go up) and at least 4, got {case.network.radix}."
        )
    on.check_ratio(case.network.oversubscription, on.links(Site(network=case.network)))
    two = Tree(1, case.network.radix, tiers=2)
    if case.network.tiers == 2 and tree_nics > two.most_hosts and on.domain_gpus is None:
        raise Misfit(
            f"network.tiers 2 has room for {two.most_hosts:,} NICs on switches of {two.radix} ports, got {tree_nics:,}."
        )


ON_GRAPHS = {"network.paths": ("spray", "ecmp", "weighted")}  # values of a graph that replace those of BESIDE
BESIDE: dict[str, tuple[tuple[str, tuple], ...]] = {  # values that each command models, by path
    "an iteration of one group": (
        ("network.paths", ("spray", "ecmp")),
        ("network.oversubscribed_at", ("edge",)),
    ),
    "a whole cluster": (
        ("placement.rule", ("contiguous",)),
        ("traffic.source", ("shares",)),
    ),
    "serving": (("network.paths", ("spray",)),),
    "failures": (
        ("run.replicas", (1,)),
        ("run.sample", (None,)),
        ("circuits.schedule", (NO_SCHEDULE,)),
        ("circuits.turn", ("on-demand", "reuse", "predict")),
        ("circuits.predict.predictor", ("random",)),
        ("circuits.predict.both", (False,)),
        ("circuits.partial", (False,)),
        ("network.paths", ("spray",)),
        *((f"placement.{rule}.every", (0,)) for rule in ("longest-processing-time", "hierarchical", "with-circuits")),
    ),
    "an iteration as a graph": (
        ("network.paths", ("spray",)),
        ("job.overlap", ("none", "passes")),
        ("compute.received.combine", ("barrier",)),
        ("circuits.schedule", (NO_SCHEDULE,)),
        ("circuits.partial", (False,)),
    ),
}


def check_beside(what: str, case: Case) -> None:
    """Raise Misfit for a value that `what` (a key of `BESIDE`) does not model."""
    at = flat(case)
    for path, allowed in BESIDE[what]:
        allowed = ON_GRAPHS.get(path, allowed) if case.network.fabric == GRAPH else allowed
        if path in at and at[path] not in allowed:
            refuse(path, allowed, what, at[path])
    if what == "failures" and at["circuits.policy"] == "static":
        raise Misfit("circuits.policy must not be static beside failures: each failure chooses circuits anew.")


def _check_passes(at: dict[str, Any]) -> None:
    """Raise Misfit for circuit rules that do not work with overlapping passes."""
    turn, length = at["circuits.turn"], at.get("circuits.span.length")
    if turn not in ("on-demand", "always", "span", "bound") or length in ("block", "stage"):
        refuse("circuits.turn", ("on-demand", "span (iteration or run)"), "job.overlap passes", turn)
    if bare(at["circuits.policy"]) in MORE_THAN_DEMAND and each_by_demand(at):
        raise more_than_demand(at["circuits.policy"])


def each_by_demand(at: dict[str, Any]) -> bool:
    """Whether a policy must choose by demand alone."""
    return PASSES(at) and at["circuits.turn"] not in ("span", "bound")


def more_than_demand(name: str) -> Misfit:
    return Misfit(
        f"circuits.policy must choose by demand alone beside job.overlap passes (or circuits.span.length be "
        f"iteration or run), got {name}, which also knows the circuits in place or draws them."
    )


def refuse(path: str, allowed: tuple, why: str, got: Any) -> None:
    words = " or ".join(map(_word, allowed))
    raise Misfit(f"{path} must be {words} beside {why}, got {_word(got)}.")


def _word(value: Any) -> str:
    return AUTO if value is None else str(value).lower() if isinstance(value, bool) else str(value)
