"""Jobs with an open set-up, and models to choose set-ups for."""

import sys

from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.impossible import refusal
from mfabric_jax.evaluate.resolving.quick import choose, evenly, near
from mfabric_jax.workload import GroupedQuery, get_gpu, models
from mfabric_jax.workload.schedules import SCHEDULES
from mfabric_jax.workload.space import OpenJob

H100 = get_gpu("H100-SXM")
# Mixtral 8x22B cut into 64 experts of an eighth of the width (arXiv 2504.14960).
FINE = models.Architecture(*("fine", 56, 6144, GroupedQuery(48, 8, 128), 64, 8, 2048, "arXiv 2504.14960"), vocab=32000)
EIGHT = models.Architecture(
    *("tiny", 8, 1024, GroupedQuery(16, 16, 64), 8, 2, 2048, "made up"), vocab=32000
)  # 8 blocks, 8 experts
FIELDS = {"model": "own", "known_as": "", "sequence": 4096, "predicted": 0, "tp_reduces": "all", "node_limit": None}
FIELDS |= {"weight_bytes": 2, "accumulated_bytes": 4}
USUAL = {"cp": 1, "micro_batch": 1, "layout": "even", "dispatcher": "nccl", "dispatch": "per-expert"}
USUAL |= {"sharding": "optimizer", "overlap": "none", "schedule": "1f1b"}


def open_job(architecture, gpu=H100, *, gpus=1024, global_batch=None, micro_batches=None, fields=None, **stated):
    """A job with nothing stated but `stated`, as in a search."""
    count = None if micro_batches is None else lambda *_: micro_batches
    per_server = lambda *_: gpu.gpus_per_server  # noqa: E731
    batch = 4096 if global_batch is None and count is None else global_batch
    own = FIELDS | (fields or {})
    return OpenJob(architecture, gpu, gpus, batch, own, stated, per_server, count, most_passes=sys.maxsize)


def quick_job(architecture, gpu=H100, *, gpus=None, **stated):
    """A job whose degrees alone are open, as in a choice without a search."""
    usual = USUAL | {"chunks": SCHEDULES[stated.get("schedule", "1f1b")].chunks or 2}
    job = open_job(architecture, gpu, gpus=gpus or 1024, **usual | stated)
    return job if gpus else near(job)


def choose_quickly(architecture, gpu=H100, *, gpus=None, loads_of=evenly, **stated):
    """The choice; raise the refusal if there is none."""
    job = quick_job(architecture, gpu, gpus=gpus, **stated)
    chosen = choose(job, loads_of)
    if chosen is None:
        raise refusal(job, sized=gpus is not None)
    return chosen


def refused(**stated):
    """The sentence that refuses a set-up of EIGHT; None: it has one."""
    try:
        choose_quickly(EIGHT, **stated)
    except InputError as mistake:
        return str(mistake)
    return None
