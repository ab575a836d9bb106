"""Small spaces of training set-ups, each also written out in full."""

import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

from mfabric_jax import Case, InputError
from mfabric_jax.evaluate.resolving import resolve as resolving
from mfabric_jax.evaluate.resolving.ranking import Row
from mfabric_jax.evaluate.setups import found
from mfabric_jax.evaluate.setups.search import SetUpSearch
from mfabric_jax.workload.schedules import SCHEDULES
from mfabric_jax.workload.space import OpenJob, SetUp, layouts_of

LATER = ("gradients", "parameters")
SMALL = {
    **{"model.name": "mixtral-8x7b", "model.blocks": 4, "gpu.name": "H100-SXM", "network.nic_gbps": 400.0},
    **{"job.search": "each", "job.frameworks": "any", "job.parallel.gpus": 8, "gpu.gpus_per_server": 2},
    **{"job.batch.global_batch": 16},
}
TIGHT = SMALL | {"gpu.memory_gigabytes": 22.0, "job.parallel.cp": 1}  # half do not fit, and a quarter recompute
LONG = SMALL | {  # context parallelism pays
    **{"job.parallel.gpus": 16, "gpu.gpus_per_server": 4, "gpu.memory_gigabytes": 50.0},
    **{"job.batch.sequence": 32768, "job.batch.global_batch": 8, "job.sharding": "optimizer"},
    "job.batch.micro_batch": 1,
}


def asked(settings: dict[str, Any]) -> tuple[Case, OpenJob, str, Any]:
    """What the search of a case is asked for."""
    case, arguments = Case().with_(settings), []

    class Asked(Exception):
        pass

    def ask(*given):
        arguments.extend(given)
        raise Asked

    with mock.patch.object(found, "find", ask):
        try:
            resolving.resolve_without_jax.__wrapped__(case)
        except Asked:
            return tuple(arguments)
    raise AssertionError("the case has no open set-up")


def search_of(settings: dict[str, Any]) -> SetUpSearch:
    return SetUpSearch(*asked(settings)[:2])


def rows_of(search: SetUpSearch) -> list[Row]:
    """Return the estimates of all degrees of a search."""
    return [row for degrees in search.degrees for row in search.ranking.rows(degrees)]


def every(job: OpenJob, most_stages: int = 8) -> Iterator[SetUp]:
    """Yield all set-ups in the even layout, one loop a degree; what a `Workload` refuses is not legal."""
    wide, experts = job.gpu.gpus_per_server, job.architecture.experts
    counts = [range(1, count + 1) for count in (wide, wide, experts, job.gpus, experts, 8)]
    for tp, etp, ep, pp, cp, micro_batch in itertools.product(*counts):
        if pp > most_stages or tp % etp or job.gpus % (etp * ep * pp) or micro_batch & (micro_batch - 1):
            continue
        if cp > 1 and (micro_batch > 1 or job.fields["sequence"] % (2 * cp * tp // etp)):
            continue  # as many tokens without context parallelism are sent once less
        dp = job.gpus // (etp * ep * pp)
        micro_batches = (job.batch or 0) * cp * (tp // etp) / (micro_batch * ep * dp)
        if micro_batches % 1 == 0:
            yield from _kinds(job, SetUp(tp, etp, ep, cp, pp, dp, micro_batch, int(micro_batches)))


def _kinds(job: OpenJob, one: SetUp) -> Iterator[SetUp]:
    names = [name for name in SCHEDULES if name != "gpipe"]
    shardings = job.some("sharding", ("optimizer", "gradients", "parameters"))
    ways = [("nccl", "per-expert"), ("deepep", "per-server"), ("hybridep", "per-server")][: 1 if one.ep == 1 else 3]
    for name, chunks, overlap, (dispatcher, dispatch), sharding in itertools.product(
        names, range(1, 1 + job.architecture.blocks), ("none", "passes"), ways, shardings
    ):
        alike = (one.pp == 1 and name != "1f1b") or (name == "interleaved" and chunks == 1)
        if alike or (overlap != "none" and one.ep == 1) or (one.pp > 2 and sharding in LATER):
            continue
        kind = one._replace(schedule=name, chunks=chunks, overlap=overlap, sharding=sharding)
        kind = kind._replace(dispatcher=dispatcher, dispatch=dispatch)
        if any(getattr(kind, field) != value for field, value in job.stated.items() if field != "recompute"):
            continue
        try:
            job.workload(kind)
        except InputError:
            continue
        yield kind


def laid_out(search: SetUpSearch, kind: SetUp) -> Iterator[SetUp]:
    """Yield a set-up in every layout that is searched."""
    blocks, predicted = search.job.architecture.blocks, search.job.fields["predicted"]
    shape = kind.pp, kind.chunks, kind.schedule, search.ranking._head_blocks or 0.0
    for layout in layouts_of(blocks, predicted, *shape, runs=search.job.frameworks != "any"):
        yield kind._replace(layout=layout)
