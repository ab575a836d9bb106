"""The file of `mfabric jobs`: jobs in phases and the links or the fabric that they share. TOML or JSON."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mfabric_jax import policies
from mfabric_jax.checks import InputError, listed, not_negative, number, one_of, positive, whole
from mfabric_jax.fabric import NAMES as FABRICS
from mfabric_jax.study.fields import check_choices
from mfabric_jax.text_files import read_mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobPhase:
    """Computation, then communication, all of its flows at once.

    - `gigabytes`: of each flow over `links`; on a fabric, what every server of the job sends.
    - `links`: names of those that the flow crosses; a list of such lists: so many flows.
    - `traffic` on a fabric: "ring": all to the next server; "all-to-all": an equal part to each other one.
    """

    compute_s: float = 0.0
    gigabytes: float = 0.0
    links: tuple[tuple[str, ...], ...] = ()
    traffic: Literal["ring", "all-to-all"] = "ring"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A job: its phases make an iteration, `iterations` of them from `arrival_s` on. `servers`: where, on a fabric.

    - `model`: of the catalogue or a file; its iteration of `compare` on NICs of `nic_gbps` is the only phase.
    - `graph`: a file of tasks in the place of phases, on a fabric.
    """

    name: str
    phases: tuple[JobPhase, ...]
    iterations: int
    arrival_s: float = 0.0
    servers: tuple[int, ...] = ()
    model: str | None = None
    nic_gbps: float = 400.0
    graph: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FabricTable:
    """A switch tree over servers of one NIC each, or a graph whose endpoints are the servers.

    - `name`: of a built-in fabric (docs/fabrics.md) instead: its servers have 8 GPUs (or are scale-up domains), and its
      optical regions of `region_servers` (0: all) have circuits that `policy` chooses for the bytes of all jobs.
    - `rack`: servers of a rack; its switch has one link up to a switch of all racks, as fast as all its NICs over
      `oversubscription`. 0: a tree of `tiers` of switches of `radix` ports, oversubscribed `at` one of them
      (docs/fabrics.md).   - `graph`: a .json file instead.
    - `routing`: spray, ecmp, least-loaded (on a graph also weighted).
    """

    servers: int = 0
    nic_gbps: float = 400.0
    name: str | None = None
    policy: str = "greedy"
    region_servers: int = 0
    rack: int = 0
    tiers: Literal[2, 3] | None = None
    radix: int = 64
    oversubscription: float | None = None
    at: Literal["edge", "aggregation"] = "edge"
    graph: str | None = None
    routing: str = "spray"

    def __post_init__(self):
        check_choices(self)
        if self.graph is None:
            whole("servers", self.servers)
        kinds = [kind for kind in UNUSED if getattr(self, kind)] or [""]
        if len(kinds) > 1:
            raise InputError(f"a fabric is either {' or '.join(kinds)}, got all of them.")
        for field in UNUSED.get(kinds[0], OF_CIRCUITS):
            if getattr(self, field) != USUAL[field]:
                raise InputError(f"{field} of a fabric is not used with {kinds[0] or 'a plain tree'}; leave it out.")
        positive("nic_gbps", self.nic_gbps)
        for field in ("rack", "region_servers"):
            whole(field, getattr(self, field), at_least=0)
        if self.oversubscription is not None:
            positive("oversubscription", self.oversubscription)
        if self.name is not None:
            one_of("name of a fabric", self.name, FABRICS)
            policies.suited(self.policy)


OF_CIRCUITS = ("policy", "region_servers")
OF_TREE = ("tiers", "radix", "at")
UNUSED = {  # of what a kind of fabric does not have
    "graph": ("servers", "nic_gbps", "oversubscription", *OF_TREE, *OF_CIRCUITS),
    "rack": (*OF_TREE, *OF_CIRCUITS),
    "name": (),
}
USUAL = {field.name: field.default for field in dataclasses.fields(FabricTable)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedJobs:
    """Jobs and what they share: either `links` by name, with Gbps, or a `fabric`."""

    jobs: tuple[TrainingJob, ...]
    links: Mapping[str, float] = dataclasses.field(default_factory=dict)
    fabric: FabricTable | None = None

    def __post_init__(self):
        if bool(self.links) == (self.fabric is not None):
            raise InputError("jobs share either links or a fabric; give one of the two tables.")
        if not self.jobs:
            raise InputError("jobs must name at least one job, got none.")
        names = [job.name for job in self.jobs]
        if len(set(names)) < len(names):
            raise InputError(f"name of a job must be its own, got {', '.join(names)}.")
        for name, gbps in self.links.items():
            positive(f"{name} of links", gbps)
        for job in self.jobs:
            _check_job(job, self)


OF_FILE = ("iterations", "links", "fabric", "jobs")
OF_PHASE = tuple(field.name for field in dataclasses.fields(JobPhase))
OF_JOB = ("name", "iterations", "arrival_s", "servers", "model", "nic_gbps", "graph", "phases", *OF_PHASE)
BESIDE = {"graph": (*OF_PHASE, "model"), "phases": (*OF_PHASE, "model", "graph"), "model": ("compute_s", "gigabytes")}
OF_FABRIC = tuple(USUAL)
ITERATIONS = 50  # of a job where nothing else is said


def read_jobs(path: str | Path) -> SharedJobs:
    """The jobs of a file. `InputError` with the job and the field for what is unknown, missing or wrong."""
    given, named = read_mapping(path, "jobs and what they share"), repr(str(path))
    try:
        return jobs_of(given)
    except InputError as mistake:
        raise InputError(f"{named}: {mistake}") from None


def jobs_of(given: Mapping[str, Any]) -> SharedJobs:
    """The jobs of what a file says."""
    _known("", given, OF_FILE)
    links, table = given.get("links", {}), given.get("fabric")
    if not isinstance(links, Mapping) or not all(_is_number(value) for value in links.values()):
        raise InputError(f"links must give the Gbps of each link by its name, got {links!r:.80}.")
    if table is not None:
        table = FabricTable(**_known("fabric", table, OF_FABRIC))
    usual = whole("iterations", given.get("iterations", ITERATIONS), at_least=2)
    jobs = listed("jobs", given.get("jobs", ()))
    return SharedJobs(jobs=tuple(_job(n, one, usual) for n, one in enumerate(jobs)), links=dict(links), fabric=table)


def _job(place: int, given: Any, iterations: int) -> TrainingJob:
    named = given.get("name", f"job {place}") if isinstance(given, Mapping) else f"job {place}"
    if not isinstance(named, str) or not named.strip():
        raise InputError(f"name of job {place} must be text, got {named!r:.80}.")
    given = _known(named, given, OF_JOB)
    of_phase = {key: value for key, value in given.items() if key in OF_PHASE}
    for kind, others in BESIDE.items():
        if kind in given and (beside := [other for other in others if other in given]):
            raise InputError(f"{named} must not give {beside[0]} beside {kind}.")
    phases = listed(f"phases of {named}", given.get("phases", [of_phase]))
    servers = listed(f"servers of {named}", given.get("servers", ()))
    return TrainingJob(
        name=named,
        phases=tuple(_phase(f"phase {n} of {named}", one) for n, one in enumerate(phases)),
        iterations=whole(f"iterations of {named}", given.get("iterations", iterations), at_least=2),
        arrival_s=not_negative(f"arrival_s of {named}", number(f"arrival_s of {named}", given.get("arrival_s", 0.0))),
        servers=tuple(whole(f"servers of {named}", server, at_least=0) for server in servers),
        model=_text(f"model of {named}", given.get("model")),
        nic_gbps=positive(f"nic_gbps of {named}", number(f"nic_gbps of {named}", given.get("nic_gbps", 400.0))),
        graph=_text(f"graph of {named}", given.get("graph")),
    )


def _text(named: str, given: Any) -> str | None:
    if given is not None and not (isinstance(given, str) and given):
        raise InputError(f"{named} must be text, got {given!r:.80}.")
    return given


def _phase(named: str, given: Any) -> JobPhase:
    given = _known(named, given, OF_PHASE)
    for field in ("compute_s", "gigabytes"):
        not_negative(f"{field} of {named}", number(f"{field} of {named}", given.get(field, 0.0)))
    links = listed(f"links of {named}", given.get("links", ()))
    flows = links if links and all(isinstance(one, list | tuple) for one in links) else [links] if links else []
    if not all(isinstance(link, str) for flow in flows for link in flow) or not all(flows):
        raise InputError(f"links of {named} must be names of links, or lists of them, got {links!r:.80}.")
    traffic: Any = one_of(f"traffic of {named}", given.get("traffic", "ring"), ("ring", "all-to-all"))
    numbers = {field: float(given.get(field, 0.0)) for field in ("compute_s", "gigabytes")}
    return JobPhase(links=tuple(tuple(flow) for flow in flows), traffic=traffic, **numbers)


def _known(named: str, given: Any, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InputError(f"{named} must be a table, got {given!r:.80}.")
    for field in given:
        one_of(f"field of {named}" if named else "field", field, allowed)
    return dict(given)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_job(job: TrainingJob, shared: SharedJobs) -> None:
    """`InputError` for phases that do not fit what is shared."""
    by_phases = job.model is None and job.graph is None
    if by_phases and not any(phase.compute_s or phase.gigabytes for phase in job.phases):
        raise InputError(f"{job.name} must compute or send something; give compute_s or gigabytes.")
    if shared.fabric is None:
        _check_on_links(job, shared.links)
    else:
        _check_on_fabric(job)


def _check_on_links(job: TrainingJob, links: Mapping[str, float]) -> None:
    if job.servers:
        raise InputError(f"servers of {job.name} need a fabric; jobs that share links give links instead.")
    if job.graph is not None:
        raise InputError(f"graph of {job.name} needs a fabric and servers; jobs that share links give phases.")
    for phase in job.phases:
        if (phase.gigabytes or job.model) and not phase.links:
            raise InputError(f"{job.name} sends something, but no links are given; allowed: {', '.join(links)}.")
        for flow in phase.links:
            for link in flow:
                one_of(f"link of {job.name}", link, links)
            if len(set(flow)) < len(flow):
                raise InputError(f"links of {job.name} must not name one twice in a flow, got {', '.join(flow)}.")


def _check_on_fabric(job: TrainingJob) -> None:
    if any(phase.links for phase in job.phases):
        raise InputError(f"links of {job.name} are not used on a fabric, where servers say who sends to whom.")
    if len(set(job.servers)) < len(job.servers):
        raise InputError(f"servers of {job.name} must not name one twice, got {list(job.servers)}.")
    if len(job.servers) < 2 and (job.model or any(phase.gigabytes for phase in job.phases)):
        raise InputError(f"servers of {job.name} must be two or more to send, got {list(job.servers)}.")
