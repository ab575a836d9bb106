"""What a recording of routing says about a job: its all-to-alls on packet switches and on circuits, and predictors."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.case import Case
from mfabric_jax.case.layers import preset_layers
from mfabric_jax.checks import InputError, whole
from mfabric_jax.resolving.resolve import resolve
from mfabric_jax.simulation.rows import rows_of
from mfabric_jax.simulation.solving import scenario_at, simulate_scenario
from mfabric_jax.traffic.foresight import foresight_rows, ranked
from mfabric_jax.traffic.recording import Recording, Sources
from mfabric_jax.workload import Workload

WORKERS = 2  # designs compiled and solved at once
TREE = "fat-tree"
PUBLISHED, BEST, STATIC, UNIFORM = (
    "mFabric, as published",
    "mFabric, at its best",
    "mFabric, static",
    "mFabric, uniform",
)
MEANING = {
    PUBLISHED: "greedy circuits for every all-to-all, bytes unsplit",
    BEST: "circuits and routes chosen together, switched only when it pays",
    STATIC: "one set of circuits for the mean of these records, bytes relayed",
    UNIFORM: "the same circuits between all servers, bytes relayed, never switched",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceStudy:
    """What to study a recording for.

    - `case`: model, GPU, bandwidth and all else; `run.iterations`: records that are simulated, evenly spread, each an
      iteration; all are used for statistics and predictors.
    - `ranks_per_server`: EP ranks of a group in a server, for statistics; None: those of the job.
    """

    case: Case
    ranks_per_server: int | None = None

    def __post_init__(self) -> None:
        if self.ranks_per_server is not None and self.job.ep % whole("ranks_per_server", self.ranks_per_server):
            raise InputError(f"ranks_per_server must divide the {self.job.ep} ranks, got {self.ranks_per_server}.")

    @property
    def job(self) -> Workload:
        """The job on servers of the usual size."""
        return resolve(self.case.with_({"network.fabric": TREE})).job

    @property
    def designs(self) -> dict[str, Case]:
        """The networks that are compared, by name: those of preset `designs`."""
        return {one.name: self.case.with_(dict(one.stated)) for one in preset_layers("designs")[-1].variants}


class Studied(NamedTuple):
    """What was found.

    - `recording`: the records used.   - `rows`: those of `compare`, with `design` and `over_tree` (iteration over that
      on the best fat-tree).
    - `foresight`, `ranking`: those of `traffic.foresight_rows`.   - `left_out`: designs that cannot be, and why.
    - `simulated`: numbers of the records that rows are of.   - `ranks_per_server`: as in `TraceStudy`.
    """

    recording: Recording
    job: Workload
    rows: list[dict[str, Any]]
    foresight: list[dict[str, Any]]
    ranking: list[dict[str, Any]]
    left_out: dict[str, str]
    simulated: list[int]
    ranks_per_server: int | None = None

    @property
    def ranks(self) -> int | None:
        """EP ranks of the job; None where those recorded cannot be added up to as many."""
        sources, targets = self.recording.count.shape[-2:]
        known = self.recording.sources is Sources.RANKS
        return None if targets % self.job.ep or (known and sources % self.job.ep) else self.job.ep

    @property
    def ranks_in_server(self) -> int:
        """EP ranks of a group that share a server."""
        return self.ranks_per_server or self.job.ranks_per_server


def trace_study(recording: Recording, config: TraceStudy, progress: Callable[[str], None] | None = None) -> Studied:
    """Simulate some records on every design and rank the predictors; `progress` is told what is done.

    `InputError` where the recording does not fit the model.
    """
    tell, case = progress or (lambda what: None), config.case
    some = _spread(recording, case.run.iterations)
    tokens = some.fitted(config.job, case.run.iterations)
    names, scenarios, left_out = [], [], {}
    for name, design in config.designs.items():
        try:
            scenarios.append(scenario_at(resolve(design), (design.network.nic_gbps,), traffic=(tokens,)))
            names.append(name)
        except InputError as why:
            left_out[name] = str(why)
    if not scenarios:
        raise InputError(next(iter(left_out.values())))
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(WORKERS) as pool:
        for name, simulated in zip(names, pool.map(simulate_scenario, scenarios), strict=True):
            rows += [{"design": name} | row for row in rows_of(simulated)]
            tell(name)
    seen = foresight_rows(recording)
    tell("predictors")
    numbers = some.number.tolist()
    return Studied(
        recording, config.job, _relative(rows), seen, ranked(seen), left_out, numbers, config.ranks_per_server
    )


def _spread(recording: Recording, iterations: int) -> Recording:
    """So many records from the middles of equal parts: the first ones may be a warm-up."""
    parts = min(iterations, len(recording.count))
    index = ((np.arange(parts) + 0.5) * len(recording.count) / parts).astype(int)
    return recording.some(index)


def _relative(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tree = min((row["iteration_s"] for row in rows if row["fabric"] == TREE), default=None)
    return [row | {"over_tree": None if tree is None else row["iteration_s"] / tree} for row in rows]
