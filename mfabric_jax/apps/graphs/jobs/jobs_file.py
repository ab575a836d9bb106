"""Read the file of `mfabric jobs` (TOML or JSON): the phases of each job, and the links or fabric that jobs share."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mfabric_jax.case import Case
from mfabric_jax.case.layers import file_layers, layers_of, merge_layers
from mfabric_jax.case.network import GRAPH
from mfabric_jax.case.own_code import read_settings
from mfabric_jax.case.paths import differences
from mfabric_jax.checks import InputError, check_list, not_negative, number, one_of, positive, whole

DEFAULT = Case()


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobPhase:
    """A phase of a job: computation, then communication, whose flows all start at once.

    - `gigabytes`: the size of each flow over `links`; on a fabric, the amount that each server of the job sends.
    - `links`: the names of the links that the flow crosses; a list of such lists makes several flows.
    - `traffic`, on a fabric only: "ring" sends everything to the next server, "all-to-all" an equal part to every
      other server.
    """

    compute_s: float = 0.0
    gigabytes: float = 0.0
    links: tuple[tuple[str, ...], ...] = ()
    traffic: Literal["ring", "all-to-all"] = "ring"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A job that repeats its phases `iterations` times from `arrival_s` on; on a fabric it runs on `servers`.

    Instead of phases it may have a `case`, whose iteration in `simulate` becomes the only phase, or, on a fabric, a
    `graph`: the file of a task graph.
    """

    name: str
    phases: tuple[JobPhase, ...]
    iterations: int
    arrival_s: float = 0.0
    servers: tuple[int, ...] = ()
    case: Case | None = None
    graph: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FabricTable:
    """The servers that jobs share, and their network.

    - `case`: the case that gives the `servers` servers their GPU and network. Optical regions have `region_servers`
      servers (0: all of them); circuits.policy chooses their circuits for the bytes of all jobs.
    - `rack`: replace the case's fabric with racks of this many servers with one NIC each. One link, as fast as all NICs
      of the rack over network.oversubscription, joins each rack's switch to a core switch.
    - `graph`: replace the case's fabric with the graph in this file, whose endpoints are the servers.
    """

    case: Case = DEFAULT
    servers: int = 0
    region_servers: int = 0
    rack: int = 0
    graph: str | None = None

    def __post_init__(self):
        if self.graph is None:
            whole("servers", self.servers)
        if self.case.network.fabric == GRAPH:
            raise InputError(
                "network.fabric graph is not read by jobs: give graph = FILE in the table of the fabric; the graph's "
                "endpoints are the servers."
            )
        if self.graph is not None and (self.servers or self.rack):
            raise InputError("a fabric must not give both graph and servers or rack: a graph has its own servers.")
        for field in ("rack", "region_servers"):
            whole(field, getattr(self, field), at_least=0)
        if self.region_servers and self.own:
            raise InputError("region_servers of a fabric is not used with racks or a graph; leave it out.")

    @property
    def own(self) -> bool:
        """Whether racks or a graph replace the case's fabric."""
        return bool(self.rack) or self.graph is not None

    @property
    def name(self) -> str:
        return "the graph" if self.graph is not None else "racks" if self.rack else self.case.network.fabric


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedJobs:
    """Jobs and what they share: either `links` (name: Gbps) or a `fabric`."""

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
            raise InputError(f"name of a job must be unique, got {', '.join(names)}.")
        for job in self.jobs:
            _check_job(job, self)


OF_FILE = ("iterations", "links", "fabric", "jobs")
OF_PHASE = tuple(field.name for field in dataclasses.fields(JobPhase))
OF_JOB = ("name", "iterations", "arrival_s", "servers", "case", "graph", "phases", *OF_PHASE)
OF_CASE = ("compute_s", "gigabytes")  # fields that a case sets
EXCLUDED_BY = {  # fields that exclude others
    "graph": (*OF_PHASE, "case"),
    "phases": (*OF_PHASE, "case", "graph"),
    "case": OF_CASE,
}
OF_FABRIC = tuple(field.name for field in dataclasses.fields(FabricTable))
ITERATIONS = 50  # default of a job


def read_jobs(path: str | Path) -> SharedJobs:
    """Return the jobs of a file. Raise an `InputError` that names the job and the unknown, missing or wrong field."""
    table, named = read_settings(path, "jobs and what they share"), repr(str(path))
    try:
        return jobs_of(table)
    except InputError as mistake:
        raise InputError(f"{named}: {mistake}") from None


def jobs_of(table: Mapping[str, Any]) -> SharedJobs:
    _check_table("", table, OF_FILE)
    links = _check_table("links", table.get("links", {}), None)
    fabric = _fabric(table["fabric"]) if "fabric" in table else None
    usual = whole("iterations", table.get("iterations", ITERATIONS), at_least=2)
    jobs = tuple(_job(n, job, usual) for n, job in enumerate(check_list("jobs", table.get("jobs", ()))))
    gbps = {name: positive(f"{name} of links", number(f"{name} of links", value)) for name, value in links.items()}
    return SharedJobs(jobs=jobs, links=gbps, fabric=fabric)


def contents(shared: SharedJobs) -> dict[str, Any]:
    """Return the file's contents as plain values; a case becomes its differences from the defaults."""

    def plain(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: differences(value) if isinstance(value, Case) else value for name, value in fields}

    return dataclasses.asdict(shared, dict_factory=plain)


def _fabric(table: Any) -> FabricTable:
    table = _check_table("fabric", table, OF_FABRIC)
    return FabricTable(**table | {"case": case_of("fabric", table.get("case", {}))})


def case_of(named: str, source: Any) -> Case:
    """Return the case of a file, given by name, or of a table of settings. Raise `InputError` for several cases."""
    if not isinstance(source, str | Mapping):
        raise InputError(f"case of {named} must be the name of a file, or a table of settings, got {source!r:.80}.")
    cases = merge_layers(
        file_layers(source) if isinstance(source, str) else layers_of(source, f"case of {named}", typed=True)
    )
    if len(cases) > 1:
        apart = ", ".join(cases.varied) or "variants"
        raise InputError(f"case of {named} must be one case, got {len(cases)} that differ in {apart}.")
    return cases.blocks[0].case


def _job(index: int, job: Any, iterations: int) -> TrainingJob:
    named = job.get("name", f"job {index}") if isinstance(job, Mapping) else f"job {index}"
    job = _check_table(_text(f"name of job {index}", named), job, OF_JOB)
    for kind, others in EXCLUDED_BY.items():
        if kind in job and (beside := [other for other in others if other in job]):
            raise InputError(f"{named} must not give {beside[0]} with {kind}.")
    one_phase = {key: value for key, value in job.items() if key in OF_PHASE}
    phases = check_list(f"phases of {named}", job.get("phases", [one_phase]))
    servers = check_list(f"servers of {named}", job.get("servers", ()))
    return TrainingJob(
        name=named,
        phases=tuple(_phase(f"phase {n} of {named}", phase) for n, phase in enumerate(phases)),
        iterations=whole(f"iterations of {named}", job.get("iterations", iterations), at_least=2),
        arrival_s=_amount("arrival_s", named, job),
        servers=tuple(whole(f"servers of {named}", server, at_least=0) for server in servers),
        case=case_of(named, job["case"]) if "case" in job else None,
        graph=_text(f"graph of {named}", job["graph"]) if "graph" in job else None,
    )


def _phase(named: str, phase: Any) -> JobPhase:
    phase = _check_table(named, phase, OF_PHASE)
    links = check_list(f"links of {named}", phase.get("links", ()))
    flows = links if links and all(isinstance(entry, list | tuple) for entry in links) else [links] if links else []
    if not all(isinstance(link, str) for flow in flows for link in flow) or not all(flows):
        raise InputError(f"links of {named} must be names of links, or lists of them, got {links!r:.80}.")
    traffic: Any = one_of(f"traffic of {named}", phase.get("traffic", "ring"), ("ring", "all-to-all"))
    numbers = {field: _amount(field, named, phase) for field in ("compute_s", "gigabytes")}
    return JobPhase(links=tuple(tuple(flow) for flow in flows), traffic=traffic, **numbers)


def _amount(field: str, named: str, table: Mapping[str, Any]) -> float:
    value = number(f"{field} of {named}", table.get(field, 0.0))
    return float(not_negative(f"{field} of {named}", value))


def _text(named: str, value: Any) -> str:
    if not (isinstance(value, str) and value.strip()):
        raise InputError(f"{named} must be text, got {value!r:.80}.")
    return value


def _check_table(named: str, table: Any, allowed: tuple[str, ...] | None) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise InputError(f"{named} must be a table, got {table!r:.80}.")
    for field in table:
        if allowed is not None:
            one_of(f"field of {named}" if named else "field", field, allowed)
    return dict(table)


def _check_job(job: TrainingJob, shared: SharedJobs) -> None:
    by_phases = job.case is None and job.graph is None
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
        if (phase.gigabytes or job.case) and not phase.links:
            raise InputError(f"links of {job.name} must be given, since it sends bytes; allowed: {', '.join(links)}.")
        for flow in phase.links:
            for link in flow:
                one_of(f"link of {job.name}", link, links)
            if len(set(flow)) < len(flow):
                raise InputError(f"links of {job.name} must not name one twice in a flow, got {', '.join(flow)}.")


def _check_on_fabric(job: TrainingJob) -> None:
    if any(phase.links for phase in job.phases):
        raise InputError(f"links of {job.name} are not used on a fabric, where servers and traffic set the flows.")
    if len(set(job.servers)) < len(job.servers):
        raise InputError(f"servers of {job.name} must not name one twice, got {list(job.servers)}.")
    if len(job.servers) < 2 and (job.case or any(phase.gigabytes for phase in job.phases)):
        raise InputError(f"servers of {job.name} must be two or more to send, got {list(job.servers)}.")
