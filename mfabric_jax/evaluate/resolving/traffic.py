"""Traffic of a case: recorded or drawn, with experts placed, and how unevenly it loads ranks."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from mfabric_jax import traffic
from mfabric_jax.case import Case
from mfabric_jax.case.paths import named_files
from mfabric_jax.checks import InputError, in_file
from mfabric_jax.evaluate.resolving.resolved import knobs_of, room_of
from mfabric_jax.support.text_files import cached_by_files
from mfabric_jax.traffic.dispatch import kept_part
from mfabric_jax.traffic.placement import placed_alike, placed_at, placement_policy
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Workload
from mfabric_jax.workload.memory import Load

REPEATED = {"micro-batches": "iteration and micro-batch", "everything": "iteration, block and micro-batch"}


def traffic_of(case: Case, workload: Workload, *, past: bool = False) -> tuple[Tokens, ...]:
    """Return the traffic of every replica, with experts placed; a past iteration is drawn first if one is needed."""
    rule: Any = case.placement.rule
    moved = rule.name not in ("contiguous", "given")
    past = past or (moved and rule.loads > 0)
    every = _tokens(case, workload, case.run.iterations + past)
    every = tuple(_alike(case, tokens.after_the_first() if past else tokens) for tokens in every)
    if rule.name == "given":
        placement = traffic.read_placement(rule.value)
        with in_file(rule.value):
            traffic.check_given(placement, workload)
        return placed_at(every, placement.slots)
    if not moved:
        return every
    rest = {"on": "past" if rule.loads else "now", "window": max(1, rule.loads)}
    return placed_alike(every, room_of(case, workload), placement_policy(rule.name), every=rule.every, **rest)


def _alike(case: Case, tokens: Tokens) -> Tokens:
    alike = case.traffic.alike
    if alike == "nothing":
        return tokens
    layers = slice(None) if alike == "micro-batches" else slice(1)
    source = f"{tokens.source}, the same for every {REPEATED[alike]}"
    alike = tokens.changed(lambda each: each[:1, layers, :1], source=source)
    return dataclasses.replace(alike, before=alike.count[0])


def _tokens(case: Case, workload: Workload, iterations: int) -> tuple[Tokens, ...]:
    """Traffic of every replica: other iterations of a recording, or other micro-batches of drawn traffic."""
    source: Any = case.traffic.source
    replicas = replicas_of(case.run.replicas, workload)
    if source.name == "trace":
        every = traffic.recorded(workload, source.path, source.records, replicas * iterations, source.axes)
        return tuple(every.changed(lambda count, at=at: count[at::replicas]) for at in range(replicas))
    every = _drawn(case, workload, iterations, replicas * case.traffic.drawn)
    size = every.count.shape[2] // replicas
    parts = [slice(at * size, (at + 1) * size) for at in range(replicas)]
    return tuple(every.changed(lambda count, part=part: count[:, :, part]) for part in parts)


def _drawn(case: Case, workload: Workload, iterations: int, micro_batches: int) -> Tokens:
    source: Any = case.traffic.source
    if source.name == "authors":
        return traffic.authors(workload, iterations)
    if source.name == "knobs":
        return traffic.from_knobs(workload, knobs_of(source), iterations, micro_batches, case.run.seed)
    drawn: dict[str, Any] = {"iterations": iterations, "micro_batches": micro_batches}
    drawn |= {"seed": case.run.seed, "drift": source.drift}
    if source.name == "generated":
        return traffic.generated(workload, source.skew, **drawn)
    return traffic.measured(workload, **drawn)


def replicas_of(replicas: int | str, workload: Workload) -> int:
    """Return the number of simulated replicas; "all": every replica of the job."""
    return workload.dp if isinstance(replicas, str) else replicas


def drawn_loads(case: Case, job: Workload) -> tuple[Load, ...] | None:
    """Return what the fullest rank of each pipeline stage receives in the first iteration.

    None: experts are balanced, or a recording does not fit the job.
    """
    if case.compute.experts.name == "balanced":
        return None
    received = _of_ranks(_LoadOf.of(case, job))
    if received is None:
        return None
    found = []
    for stage in range(job.pp):
        own = received[[layer % len(received) for layer in job.stage_layers(stage)]]  # [L P R]
        found.append(Load(float(own.mean(axis=(0, 1)).max()), float(own.max())) if len(own) else Load())
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class _LoadOf:
    """A case and a job; `key`: what decides how uneven its traffic is."""

    case: Case = dataclasses.field(compare=False)
    job: Workload = dataclasses.field(compare=False)
    key: tuple

    @staticmethod
    def of(case: Case, job: Workload) -> "_LoadOf":
        shape = "ep", "tp", "gpus_per_server", "sequence_ranks", "sequence", "micro_batch", "capacity_factor"
        own = tuple(getattr(job, name) for name in (*shape, "expert_slots", "architecture"))
        return _LoadOf(case, job, (case.traffic, case.placement, case.run.seed, *own))


@cached_by_files(lambda of: named_files(of.case), maxsize=256)
def _of_ranks(of: _LoadOf) -> Float[np.ndarray, "L P R"] | None:
    """Tokens that each rank receives over those of an even load, by layer and micro-batch."""
    case = of.case.with_({"run.iterations": 1, "run.replicas": 1, "run.sample": None})
    try:
        tokens = traffic_of(case, of.job)[0]
    except InputError:
        return None
    job, count = of.job, tokens.count[0]
    received = (count * kept_part(job, count)).sum(axis=-2)
    return received.reshape(*received.shape[:-1], job.ep, -1).sum(axis=-1) / job.selections
