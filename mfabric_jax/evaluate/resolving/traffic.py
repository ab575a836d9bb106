"""Traffic of a case: recorded or drawn, with experts placed, and how unevenly it loads ranks."""

import dataclasses
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Real

from mfabric_jax import traffic
from mfabric_jax.case import Case
from mfabric_jax.case.paths import files_of_case
from mfabric_jax.checks import InputError, in_file
from mfabric_jax.evaluate.resolving.resolved import knobs_of, room_of
from mfabric_jax.support.text_files import cached_by_files
from mfabric_jax.traffic.dispatch import kept_share
from mfabric_jax.traffic.placement import placement_policy, replicas_at_slots, replicas_by_slot
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Workload
from mfabric_jax.workload.memory import RankLoad

REPEATED = {"micro-batches": "iteration and micro-batch", "everything": "iteration, block and micro-batch"}


def traffic_of(case: Case, workload: Workload, *, past: bool = False) -> tuple[Tokens, ...]:
    """Return the traffic of every replica, with experts placed; a past iteration is drawn first if one is needed."""
    return _read_or_draw(
        TrafficOf.of(case, workload, case.run.iterations, replicas_of(case.run.replicas, workload), past)
    )


@dataclasses.dataclass(frozen=True)
class TrafficOf:
    """Traffic of a case and a job; `key` holds what decides it besides the numbers of iterations and replicas."""

    case: Case = dataclasses.field(compare=False)
    job: Workload = dataclasses.field(compare=False)
    iterations: int
    replicas: int
    past: bool
    key: tuple[Any, ...]

    @staticmethod
    def of(case: Case, job: Workload, iterations: int, replicas: int, past: bool = False) -> "TrafficOf":
        placed = None if case.placement.rule.name == "contiguous" else job.ep_group
        recorded = job.layout if case.traffic.source.name == "trace" else None  # of a router's global ranks
        own = job.architecture, job.ep, job.tokens, placed, recorded
        return TrafficOf(case, job, iterations, replicas, past, (case.traffic, case.placement, case.run.seed, *own))


@cached_by_files(lambda of: files_of_case(of.case, "traffic", "placement"), maxsize=16)
def _read_or_draw(of: TrafficOf) -> tuple[Tokens, ...]:
    case, workload, rule = of.case, of.job, cast(Any, of.case.placement.rule)
    moved = rule.name not in ("contiguous", "file")
    past = of.past or (moved and rule.loads > 0)
    every = _tokens(case, workload, of.iterations + past, of.replicas)
    every = tuple(_alike(case, tokens.after_the_first() if past else tokens) for tokens in every)
    if rule.name == "file":
        placement = traffic.read_placement(rule.value)
        with in_file(rule.value):
            traffic.check_placement_fits(placement, workload)
        return replicas_at_slots(every, placement.slots)
    if not moved:
        return every
    options = {"on": "past" if rule.loads else "now", "window": max(1, rule.loads)}
    return replicas_by_slot(every, room_of(case, workload), placement_policy(rule.name), every=rule.every, **options)


def _alike(case: Case, tokens: Tokens) -> Tokens:
    alike = case.traffic.alike
    if alike == "nothing":
        return tokens
    layers = slice(None) if alike == "micro-batches" else slice(1)
    source = f"{tokens.source}, the same for every {REPEATED[alike]}"
    alike = tokens.map_counts(lambda each: each[:1, layers, :1], source=source)
    return dataclasses.replace(alike, before=alike.count[0])


def _tokens(case: Case, workload: Workload, iterations: int, replicas: int) -> tuple[Tokens, ...]:
    """Traffic of every replica: other iterations of a recording, or other micro-batches of drawn traffic."""
    source: Any = case.traffic.source
    if source.name == "trace":
        every = traffic.recorded_tokens(workload, source.path, source.records, replicas * iterations, source.axes)
        return tuple(
            every.map_counts(lambda count, replica=replica: count[replica::replicas]) for replica in range(replicas)
        )
    every = _draw_tokens(case, workload.ep_group, iterations, replicas * case.traffic.drawn)
    size = every.count.shape[2] // replicas
    parts = [slice(replica * size, (replica + 1) * size) for replica in range(replicas)]
    return tuple(every.map_counts(lambda count, part=part: count[:, :, part]) for part in parts)


def _draw_tokens(case: Case, workload: Workload, iterations: int, micro_batches: int) -> Tokens:
    source: Any = case.traffic.source
    if source.name == "authors":
        return traffic.authors_tokens(workload, iterations)
    if source.name == "knobs":
        return traffic.from_knobs(workload, knobs_of(source), iterations, micro_batches, case.run.seed)
    drawn: dict[str, Any] = {"iterations": iterations, "micro_batches": micro_batches}
    drawn |= {"seed": case.run.seed, "drift": source.drift}
    if source.name == "generated":
        return traffic.generated_tokens(workload, source.skew, **drawn)
    return traffic.measured_tokens(workload, **drawn)


def replicas_of(replicas: int | str, workload: Workload) -> int:
    """Return the number of simulated replicas; "all": every replica of the job."""
    return workload.dp if isinstance(replicas, str) else replicas


def draw_loads(case: Case, job: Workload) -> tuple[RankLoad, ...] | None:
    """Return what the fullest rank of each pipeline stage receives in the first iteration.

    None: experts are balanced, or a recording does not fit the job.
    """
    if case.compute.experts.name == "balanced":
        return None
    received = _of_ranks(TrafficOf.of(case, job, iterations=1, replicas=1), job.ep_group)
    if received is None:
        return None
    loads = []
    for stage in range(job.pp):
        own = received[[layer % len(received) for layer in job.stage_layers(stage)]]  # [L P R]
        loads.append(RankLoad(float(own.mean(axis=(0, 1)).max()), float(own.max())) if len(own) else RankLoad())
    return tuple(loads)


@cached_by_files(lambda of, job: files_of_case(of.case, "traffic", "placement"), maxsize=256)
def _of_ranks(of: TrafficOf, job: Workload) -> Float[np.ndarray, "L P R"] | None:
    """Load of each rank over an even load, by layer and micro-batch."""
    try:
        count = _read_or_draw(of)[0].count[0]
    except InputError:
        return None
    return load_of_ranks(job, count)


def load_of_ranks(job: Workload, count: Real[np.ndarray, "L P R C"]) -> Float[np.ndarray, "L P R"]:
    """Return what each rank receives of counted selections, over an even load."""
    received = (count * kept_share(job, count)).sum(axis=-2)
    return received.reshape(*received.shape[:-1], job.ep, -1).sum(axis=-1) / job.selections
