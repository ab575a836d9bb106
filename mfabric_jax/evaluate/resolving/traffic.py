"""Traffic of a case: recorded or drawn, with experts placed, and how unevenly it loads ranks."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

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
    rule: Any = case.placement.rule
    moved = rule.name not in ("contiguous", "file")
    past = past or (moved and rule.loads > 0)
    every = _tokens(case, workload, case.run.iterations + past)
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


def _tokens(case: Case, workload: Workload, iterations: int) -> tuple[Tokens, ...]:
    """Traffic of every replica: other iterations of a recording, or other micro-batches of drawn traffic."""
    source: Any = case.traffic.source
    replicas = replicas_of(case.run.replicas, workload)
    if source.name == "trace":
        every = traffic.recorded_tokens(workload, source.path, source.records, replicas * iterations, source.axes)
        return tuple(
            every.map_counts(lambda count, replica=replica: count[replica::replicas]) for replica in range(replicas)
        )
    every = _draw_tokens(case, workload, iterations, replicas * case.traffic.drawn)
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
    received = _of_ranks(_LoadOf.of(case, job))
    if received is None:
        return None
    loads = []
    for stage in range(job.pp):
        own = received[[layer % len(received) for layer in job.stage_layers(stage)]]  # [L P R]
        loads.append(RankLoad(float(own.mean(axis=(0, 1)).max()), float(own.max())) if len(own) else RankLoad())
    return tuple(loads)


@dataclasses.dataclass(frozen=True)
class _LoadOf:
    """A case and a job; `key` identifies how uneven their traffic is."""

    case: Case = dataclasses.field(compare=False)
    job: Workload = dataclasses.field(compare=False)
    key: tuple[Any, ...]

    @staticmethod
    def of(case: Case, job: Workload) -> "_LoadOf":
        shape = "ep", "tp", "gpus_per_server", "sequence_ranks", "sequence", "micro_batch", "capacity_factor"
        own = tuple(getattr(job, name) for name in (*shape, "expert_slots", "architecture"))
        return _LoadOf(case, job, (case.traffic, case.placement, case.run.seed, *own))


@cached_by_files(lambda of: files_of_case(of.case), maxsize=256)
def _of_ranks(of: _LoadOf) -> Float[np.ndarray, "L P R"] | None:
    """Load of each rank over an even load, by layer and micro-batch."""
    case = of.case.with_({"run.iterations": 1, "run.replicas": 1, "run.sample": None})
    try:
        tokens = traffic_of(case, of.job)[0]
    except InputError:
        return None
    job, count = of.job, tokens.count[0]
    received = (count * kept_share(job, count)).sum(axis=-2)
    return received.reshape(*received.shape[:-1], job.ep, -1).sum(axis=-1) / job.selections
