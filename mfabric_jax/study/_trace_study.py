"""What a recording of routing says about a job: its all-to-alls on packet switches and on circuits, and predictors."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, positive, whole
from mfabric_jax.study._compare import rows_of
from mfabric_jax.study._measured import achieved_in
from mfabric_jax.study._scenario import Scenario, scenarios_on
from mfabric_jax.study._simulate import simulate_scenario
from mfabric_jax.study.config import Case
from mfabric_jax.study.settings import SetUp
from mfabric_jax.traffic.foresight import foresight_rows, ranked
from mfabric_jax.traffic.recording import Recording, Sources
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Workload

ITERATIONS = 2  # records that are simulated
WORKERS = 2  # designs compiled and solved at once


class Design(NamedTuple):
    """A network and how it is used: its name here, the fabric, and the settings that differ from the defaults."""

    name: str
    fabric: str
    settings: dict[str, Any]


TREE = "fat-tree"
PUBLISHED, BEST, STATIC, UNIFORM = (
    "mFabric, as published",
    "mFabric, at its best",
    "mFabric, static",
    "mFabric, uniform",
)
DESIGNS = (
    Design(f"{TREE}, own NICs", TREE, {"nic_use": "own"}),
    Design(f"{TREE}, pooled NICs", TREE, {"nic_use": "pooled"}),
    Design(PUBLISHED, "mfabric", {"policy": "greedy", "routing": "unsplit"}),
    Design(BEST, "mfabric", {"policy": "joint", "routing": "relay", "first": "pays"}),
    Design(STATIC, "mfabric", {"policy": "static", "routing": "relay"}),
    Design(UNIFORM, "mfabric", {"policy": "uniform", "routing": "relay"}),
)
MEANING = {
    PUBLISHED: "greedy circuits for every all-to-all, bytes unsplit",
    BEST: "circuits and routes chosen together, switched only when it pays",
    STATIC: "one set of circuits for the mean of these records, bytes relayed",
    UNIFORM: "the same circuits between all servers, bytes relayed, never switched",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceStudy(SetUp):
    """What to study a recording for.

    - `efficiency`: achieved over peak FLOP/s (None: as in a comparison, calibrated or half).
    - `measured_iteration_s`: instead, what the job takes on a fat-tree whose GPUs use their own NICs.
    - `expert_load`: how long experts compute, balanced or for what is received.
    - `iterations`: records that are simulated, evenly spread, each an iteration; all are used for statistics and
      predictors.
    - `ranks_per_server`: EP ranks of a group in a server, for statistics; None: those of the job.
    """

    model: str = "mixtral-8x7b"
    gpu: str | None = None
    nic_gbps: float = 400.0
    efficiency: float | None = None
    measured_iteration_s: float | None = None
    expert_load: Literal["balanced", "received"] = "balanced"
    iterations: int = ITERATIONS
    seed: int = 0
    ranks_per_server: int | None = None

    def __post_init__(self) -> None:
        whole("iterations", self.iterations)
        positive("nic_gbps", self.nic_gbps)
        for name in ("efficiency", "measured_iteration_s"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if None not in (self.efficiency, self.measured_iteration_s):
            raise InputError("efficiency is not used beside measured_iteration_s; leave out one.")
        if self.ranks_per_server is not None and self.job.ep % whole("ranks_per_server", self.ranks_per_server):
            raise InputError(f"ranks_per_server must divide the {self.job.ep} ranks, got {self.ranks_per_server}.")

    @property
    def job(self) -> Workload:
        """The job on servers of the usual size."""
        return self.workload(self.model)

    def case(self, design: Design) -> Case:
        """The settings of one design, checked."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(SetUp)}
        own = ("model", "gpu", "nic_gbps", "seed", "iterations", "expert_load")
        given |= {name: getattr(self, name) for name in own} | {"fabric": design.fabric} | design.settings
        if self.efficiency is not None:
            given |= {"efficiency": self.efficiency, "compute": "achieved"}
        return Case(**given)


class Studied(NamedTuple):
    """What was found.

    - `recording`: the records used.   - `rows`: those of `compare`, with `design`, `over_tree` (iteration over that on
      the best fat-tree) and `ep_share_without_bubble`.
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
    tell = progress or (lambda what: None)
    some = _spread(recording, config.iterations)
    tokens = some.fitted(config.job, config.iterations)
    if config.measured_iteration_s is not None:
        (one,) = _scenarios(config.case(DESIGNS[0]), tokens)
        found = achieved_in(one, config.measured_iteration_s)
        config = dataclasses.replace(config, measured_iteration_s=None, efficiency=found)
    names, cases, left_out = [], [], {}
    for design in DESIGNS:
        try:
            cases += _scenarios(config.case(design), tokens)
            names.append(design.name)
        except InputError as why:
            left_out[design.name] = str(why)
    if not cases:
        raise InputError(next(iter(left_out.values())))
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(WORKERS) as pool:
        for name, simulated in zip(names, pool.map(simulate_scenario, cases), strict=True):
            rows += [{"design": name} | row for row in rows_of(simulated)]
            tell(name)
    seen = foresight_rows(recording)
    tell("predictors")
    numbers = some.number.tolist()
    return Studied(
        recording, config.job, _relative(rows), seen, ranked(seen), left_out, numbers, config.ranks_per_server
    )


def _scenarios(case: Case, tokens: Tokens) -> list[Scenario]:
    return scenarios_on(case, case.model, case.fabric, (case.nic_gbps,), (case.nic_use,), tokens)


def _spread(recording: Recording, iterations: int) -> Recording:
    """So many records from the middles of equal parts: the first ones may be a warm-up."""
    parts = min(iterations, len(recording.count))
    index = ((np.arange(parts) + 0.5) * len(recording.count) / parts).astype(int)
    return recording.some(index)


def _relative(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tree = min((row["iteration_s"] for row in rows if row["fabric"] == TREE), default=None)
    return [
        row
        | {
            "ep_share_without_bubble": row["ep_comm_s"] / (row["iteration_s"] - row["bubble_s"]),
            "over_tree": None if tree is None else row["iteration_s"] / tree,
        }
        for row in rows
    ]
