"""Small workloads and files for the tests of this folder."""

import json

from mfabric_jax.traffic import open_trace, recorded
from mfabric_jax.workload import GroupedQuery, Workload, models
from tests.mistakes import refused


def job(ep: int, experts: int, layers: int = 2, top_k: int = 1, micro_batch: int = 1) -> Workload:
    """A model of one-byte-wide tokens on one server of `ep` GPUs; 16 tokens per source rank and micro-batch."""
    model = models.Architecture(
        name="tiny",
        blocks=layers,
        hidden=1,
        attention=GroupedQuery(1, 1, 1),
        experts=experts,
        top_k=top_k,
        expert_hidden=1,
        source="made up",
    )
    return Workload("tiny", model, 1, 1, 1, ep, gpus=ep, gpus_per_server=ep, sequence=16, micro_batch=micro_batch)


def unread(path, workload=None, **options):
    """The sentence with which a recording is refused."""
    given = (open_trace, path) if workload is None else (recorded, path, workload)
    return refused(*given, **options)


def line(step, layer, rank, chosen, **more):
    """A line for tokens that chose these experts."""
    fields = {"step": step, "stage": "pre_dispatch", "block": "decoder", "layer": layer, "rank": rank}
    return fields | {"num_tokens": len(chosen), "topk": len(chosen[0]), "top_indices": chosen} | more


def write_lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
