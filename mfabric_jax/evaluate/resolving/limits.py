"""Limits of a case: values that exclude each other, and values that a command does not model."""

from collections.abc import Callable
from typing import Any, NamedTuple

from mfabric_jax import fabric, traffic
from mfabric_jax.case.network import GRAPH
from mfabric_jax.case.paths import AUTO, Case, flat
from mfabric_jax.case.policies import NAMES, NO_SCHEDULE, ROUTINGS, bare, check_name, is_function, name_of
from mfabric_jax.checks import InputError, Misfit, in_file, one_of
from mfabric_jax.evaluate.resolving.resolved import LONG, Resolved, knobs_of, room_of
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.site import FabricSite
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.workload import Workload
from mfabric_jax.workload.recompute import recomputed_of

# Loaded at first use: policies import JAX, and settings must be readable without it.
policies = LazyModule("mfabric_jax.policies")


class CaseLimit(NamedTuple):
    """A limit: the value at `path` must be in `allowed` if `when` holds for the values by path; `why`: the reason."""

    when: Callable[[dict[str, Any]], bool]
    path: str
    allowed: tuple[Any, ...]
    why: str


def _is(path: str, *values: Any) -> Callable[[dict[str, Any]], bool]:
    return lambda settings: settings.get(path) in values


def _both(*tests: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], bool]:
    return lambda settings: all(test(settings) for test in tests)


def _sends_again(settings: dict[str, Any]) -> bool:
    return recomputed_of(settings["job.recompute"]).exchanges


WITHOUT_SENDING = ("none", "light", "attention", "parts without moe")
MORE_THAN_DEMAND = ("random", "previous", "threshold", "local-search", "relaxed")  # draw, or read circuits in place
PASSES, RANK = _is("job.overlap", "passes"), _is("compute.received.combine", "rank")
CALIBRATED = _is("compute.calibration", "measured")
ECMP, PAYS = _is("network.paths", "ecmp"), _is("circuits.reconfigure", "pays")
PAYS_AGAIN = _both(PAYS, _sends_again)
SHARED = _is("job.sharding", "gradients", "parameters")
SCHEDULED = lambda settings: settings["circuits.schedule"] != NO_SCHEDULE  # noqa: E731
OWN_SCHEDULER = lambda settings: is_function(settings["circuits.schedule"])  # noqa: E731
SCHEDULED_AGAIN = _both(SCHEDULED, _sends_again)
ITS_SWITCHES = (("circuits.switches", 1), ("circuits.all_stop", True), ("circuits.directed", True))
OF_CIRCUITS = (PAYS_AGAIN, SCHEDULED, SCHEDULED_AGAIN)
SEVERAL = lambda settings: settings["run.replicas"] != 1  # noqa: E731
ALIKE = lambda settings: settings["traffic.alike"] != "nothing"  # noqa: E731
PHASED = lambda settings: fabric.get(settings["network.fabric"]).phases  # noqa: E731
PHASES = "circuits that serve one phase at a time"
EQUAL_NICS = ((),)
LIMITS = (
    CaseLimit(PHASED, "job.overlap_gradients", (False,), PHASES),
    CaseLimit(PHASED, "job.sharding", ("none", "optimizer"), PHASES),
    CaseLimit(PASSES, "circuits.partial", (False,), "job.overlap passes"),
    CaseLimit(ECMP, "circuits.routing", ("unsplit",), "single paths"),
    CaseLimit(ECMP, "network.oversubscription", (None, 1.0), "single paths"),
    CaseLimit(ECMP, "circuits.partial", (False,), "single paths, which reconfigure all circuits together"),
    CaseLimit(_is("circuits.reconfigure", "always"), "circuits.partial", (False,), "circuits.reconfigure always"),
    CaseLimit(
        PAYS_AGAIN,
        "job.recompute",
        WITHOUT_SENDING,
        "circuits.reconfigure pays, which models no recomputed all-to-alls",
    ),
    CaseLimit(_both(RANK, _sends_again), "job.recompute", WITHOUT_SENDING, "compute.received.combine rank"),
    CaseLimit(RANK, "job.overlap", ("none", "passes"), "compute.received.combine rank"),
    CaseLimit(RANK, "job.dispatch", ("per-expert",), "compute.received.combine rank, because servers add up answers"),
    CaseLimit(_both(PASSES, RANK), "compute.received.combine", ("barrier",), "job.overlap passes"),
    CaseLimit(_both(PASSES, _sends_again), "job.recompute", WITHOUT_SENDING, "job.overlap passes"),
    CaseLimit(SEVERAL, "traffic.alike", ("nothing",), "several run.replicas, which would all be equal"),
    CaseLimit(ALIKE, "run.sample", (None, 0), "traffic.alike, which leaves one iteration"),
    CaseLimit(SEVERAL, "traffic.source", ("shares", "generated", "knobs", "trace"), "several run.replicas"),
    CaseLimit(_both(SEVERAL, _is("circuits.span.length", "run")), "run.replicas", (1,), "circuits.span.length run"),
    CaseLimit(SCHEDULED, "circuits.reconfigure", ("on-demand",), "circuits.schedule"),
    CaseLimit(SCHEDULED, "circuits.partial", (False,), "circuits.schedule (see circuits.all_stop)"),
    CaseLimit(SCHEDULED, "circuits.each_s", (0.0,), "circuits.schedule"),
    CaseLimit(SCHEDULED, "circuits.packets_wait", (False,), "circuits.schedule, whose packets never wait"),
    CaseLimit(SCHEDULED, "circuits.decision_s", (0.0,), "circuits.schedule"),
    CaseLimit(SCHEDULED, "circuits.routing", ("unsplit",), "circuits.schedule, which decides what circuits carry"),
    CaseLimit(SCHEDULED, "network.paths", ("spray",), "circuits.schedule"),
    CaseLimit(SCHEDULED, "job.overlap", ("none", "parts"), "circuits.schedule"),
    CaseLimit(SCHEDULED, "run.sample", (None,), "circuits.schedule"),
    CaseLimit(SCHEDULED_AGAIN, "job.recompute", WITHOUT_SENDING, "circuits.schedule"),
    CaseLimit(
        _both(SCHEDULED, _is("network.fabric", "acos")),
        "circuits.schedule",
        (NO_SCHEDULE,),
        "acos, whose graphs are fixed",
    ),
    *(
        CaseLimit(OWN_SCHEDULER, path, (usual,), "a scheduler of your own, which sets it")
        for path, usual in ITS_SWITCHES
    ),
    CaseLimit(SHARED, "job.overlap_gradients", (False,), "job.sharding gradients or parameters, which overlap anyway"),
    CaseLimit(CALIBRATED, "compute.rate", ("kernels",), "compute.calibration measured"),
    CaseLimit(_is("compute.rate", "measured"), "network.rails.speeds", EQUAL_NICS, "compute.measured, on equal NICs"),
    CaseLimit(CALIBRATED, "compute.kernels.table", (None,), "compute.calibration measured, which fits the usual table"),
)


def check_limits(case: Case, job: Workload, on: Fabric) -> None:
    """Raise Misfit for values that exclude each other."""
    settings = flat(case)
    if on.reconfigures and PASSES(settings):
        _check_passes(settings)
    for limit in LIMITS:
        if (limit.path.startswith("circuits.") or limit.when in OF_CIRCUITS) and not on.reconfigures:
            continue
        if limit.when(settings) and settings.get(limit.path, limit.allowed[0]) not in limit.allowed:
            refuse(limit.path, limit.allowed, limit.why, settings[limit.path])
    if case.run.sample is not None and case.run.sample >= case.run.iterations:
        raise Misfit(f"run.sample must be below run.iterations ({case.run.iterations}), got {case.run.sample}.")
    check_network(case, on)
    if case.run.replicas != "all" and case.run.replicas > job.dp:
        raise Misfit(f"run.replicas must be at most {job.dp}, the dp of {job.model}, got {case.run.replicas}.")


def check_network(case: Case, on: Fabric) -> None:
    """Raise InputError or Misfit for switches that do not suit a fabric."""
    if case.network.radix < 4 or case.network.radix % 2:
        raise InputError(
            f"network.radix must be even (half of the ports go up) and at least 4, got {case.network.radix}."
        )
    links = on.links(FabricSite(network=case.network))
    on.check_ratio(case.network.oversubscription, links)
    on.check_speeds(case.network.rails.speeds, case.network.nics)
    if case.network.in_network.sharp:
        on.check_sharp(links)


ON_GRAPHS = {"network.paths": ("spray", "ecmp", "weighted")}  # values that replace values of MODELLED on a graph
MODELLED: dict[str, tuple[tuple[str, tuple[Any, ...]], ...]] = {  # values that each command models, by path
    "an iteration of one group": (
        ("network.paths", ("spray", "ecmp")),
        ("network.oversubscribed_at", ("edge",)),
    ),
    "a whole cluster": (
        ("network.in-network.sharp", (False,)),
        ("placement.rule", ("contiguous",)),
        ("traffic.source", ("shares",)),
    ),
    "serving": (
        ("network.rails.speeds", EQUAL_NICS),
        ("network.paths", ("spray",)),
        ("network.in-network.sharp", (False,)),
    ),
    "replay and jobs": (("network.rails.speeds", EQUAL_NICS),),
    "failures": (
        ("network.rails.speeds", EQUAL_NICS),
        ("network.in-network.sharp", (False,)),
        ("run.replicas", (1,)),
        ("run.sample", (None,)),
        ("circuits.schedule", (NO_SCHEDULE,)),
        ("circuits.reconfigure", ("on-demand", "reuse", "predict", "span")),
        ("circuits.predict.predictor", ("random",)),
        ("circuits.predict.both", (False,)),
        ("circuits.partial", (False,)),
        ("network.paths", ("spray",)),
        *((f"placement.{rule}.every", (0,)) for rule in ("longest-processing-time", "hierarchical", "with-circuits")),
    ),
    "an iteration as a graph": (
        ("network.rails.speeds", EQUAL_NICS),
        ("network.in-network.sharp", (False,)),
        ("network.paths", ("spray",)),
        ("job.overlap", ("none", "passes")),
        ("compute.received.combine", ("barrier",)),
        ("circuits.schedule", (NO_SCHEDULE,)),
        ("circuits.partial", (False,)),
    ),
}


def check_modelled(what: str, case: Case) -> None:
    """Raise Misfit for a value that `what` (a key of `MODELLED`) does not model."""
    settings = flat(case)
    for path, allowed in MODELLED[what]:
        allowed = ON_GRAPHS.get(path, allowed) if case.network.fabric == GRAPH else allowed
        if path in settings and settings[path] not in allowed:
            refuse(path, allowed, what, settings[path], link="for")
    if what == "failures" and settings["circuits.policy"] == "static":
        raise Misfit("circuits.policy must not be static for failures: new circuits are chosen after each failure.")


def _check_passes(settings: dict[str, Any]) -> None:
    """Raise Misfit for circuit rules that do not work with overlapping passes."""
    reconfigure, length = settings["circuits.reconfigure"], settings.get("circuits.span.length")
    if reconfigure not in ("on-demand", "always", "span", "bound") or length in ("block", "stage"):
        refuse(
            "circuits.reconfigure",
            ("on-demand", "always", "span (iteration or run)", "bound"),
            "job.overlap passes",
            reconfigure,
        )
    if bare(settings["circuits.policy"]) in MORE_THAN_DEMAND and each_by_demand(settings):
        raise more_than_demand(settings["circuits.policy"])


def each_by_demand(settings: dict[str, Any]) -> bool:
    """Whether a policy must choose circuits by demand alone."""
    return PASSES(settings) and settings["circuits.reconfigure"] not in ("span", "bound")


def more_than_demand(name: str) -> Misfit:
    return Misfit(
        f"circuits.policy must choose by demand alone with job.overlap passes (or circuits.span.length be "
        f"iteration or run), got {name}, which also knows the circuits in place or draws them."
    )


def refuse(path: str, allowed: tuple[Any, ...], why: str, got: Any, link: str = "with") -> None:
    words = " or ".join(map(_word, allowed))
    raise Misfit(f"{path} must be {words} {link} {why}, got {_word(got)}.")


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return str(list(value)) if value else "empty"
    return AUTO if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def check_values(resolved: Resolved) -> None:
    """Raise InputError for mistakes that only the whole case shows, such as a bandwidth without a price."""
    case: Any = resolved.case
    source, rule = case.traffic.source, case.placement.rule
    if source.name == "trace":
        if source.path is None:
            raise InputError("traffic.trace needs a path: a file or folder of recorded routing, got none.")
        if source.axes is not None:
            traffic.axes_of(source.axes)
    if resolved.is_scheduled:
        check_name(case.circuits.schedule, "scheduler")
    if isinstance(case.circuits.policy, str):
        check_name(case.circuits.policy)
    resolved.parts.prices.price_of("nic", case.network.nic_gbps)
    _check_slow_rails(resolved)
    resolved.server.peak(case.job.precision.compute)
    if source.name == "knobs":
        knobs_of(source)
    _check_measured(case)
    room_of(case, resolved.job)
    if rule.name == "file":
        with in_file(rule.value):
            traffic.check_placement_fits(traffic.read_placement(rule.value), resolved.job)
    one_of("circuits.routing", case.circuits.routing, ROUTINGS)


def _check_slow_rails(resolved: Resolved) -> None:
    """Raise Misfit if the NICs of the slowest rail have no price."""
    network, listed = resolved.case.network, resolved.parts.prices.gbps
    slowest = min(network.rails.speeds, default=1)
    if network.nic_gbps * slowest < listed[0]:
        raise Misfit(
            f"network.rails.speeds must leave every NIC at least the {listed[0]:g} Gbps from which prices are listed, "
            f"got {slowest:g} of network.nic_gbps {network.nic_gbps:g}, {network.nic_gbps * slowest:g} Gbps."
        )


def check_groups(resolved: Resolved) -> None:
    """Raise InputError for a group that is too large for the fabric, or a policy that does not work.

    Raise Misfit for a user's or a trained policy that reads more than the demand where it must not.
    """
    case, name, network = resolved.case, resolved.policy, resolved.case.network
    policies.get_suitable(name, routing=resolved.routing)
    group: Any = resolved.fabric.group(resolved.site, network.nic_gbps)
    if group.reconfigures and resolved.is_scheduled:
        resolved.planner(group)
    elif group.reconfigures:
        options = {"routing": resolved.routing, "names": network.acos.topologies}
        policies.get_checked(name, (group.servers,), int(group.optical_degree), remembers=True, **options)
        policy, alone = resolved.circuits_policy(), each_by_demand(flat(case)) and name not in NAMES
        if alone and not policies.reads_of(policy, group).demand_alone:
            raise more_than_demand(name_of(name))
        if isinstance(policy, policies.Remembering) and resolved.circuits_for in LONG:
            raise Misfit(
                "circuits.span.length must be block for a policy that has the keyword "
                f"{' or '.join(policies.KEYWORDS)}, "
                f"got {resolved.circuits_for} for {name_of(name)}."
            )


def _check_measured(case: Case) -> None:
    """Raise InputError for a measurement without seconds or fabric, Misfit if its circuits depend on the rate."""
    rate: Any = case.compute.rate
    if rate.name != "measured":
        return
    one_of("compute.measured.fabric", rate.fabric, fabric.NAMES)
    if rate.iteration_s is None:
        raise InputError("compute.measured needs iteration_s, the seconds of the measured iteration.")
    if fabric.get(rate.fabric).reconfigures and PAYS({"circuits.reconfigure": case.circuits.reconfigure.name}):
        words = f"compute.measured.fabric {rate.fabric}, because pays weighs computation"
        refuse("circuits.reconfigure", ("on-demand", "always", "reuse", "predict", "span", "bound"), words, "pays")
