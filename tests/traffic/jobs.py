"""Small workloads and files for the tests of this folder."""

import collections
import dataclasses
import json
import pickle
import sys
import types
import zipfile
from unittest import mock

import numpy as np

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
    return Workload.of("tiny", model, 1, 1, 1, ep, gpus=ep, gpus_per_server=ep, sequence=16, micro_batch=micro_batch)


def unread(path, workload=None, **options):
    """The sentence with which a recording is refused."""
    given = (open_trace, path) if workload is None else (recorded, workload, path)
    return refused(*given, **options)


def line(step, layer, rank, chosen, **more):
    """A line for tokens that chose these experts."""
    fields = {"step": step, "stage": "pre_dispatch", "block": "decoder", "layer": layer, "rank": rank}
    return fields | {"num_tokens": len(chosen), "topk": len(chosen[0]), "top_indices": chosen} | more


def write_lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@dataclasses.dataclass
class Tensor:
    """An array that `write_torch` writes as a tensor of it, seen from an offset or transposed."""

    array: np.ndarray
    offset: int = 0
    transposed: bool = False


def _rebuild_tensor_v2(*_):
    raise NotImplementedError


_rebuild_tensor_v2.__module__ = "torch._utils"
_STORAGES = {"float32": "FloatStorage", "int32": "IntStorage", "int64": "LongStorage"}


def write_torch(path, content):
    """A file laid out as torch.save does, without torch: a pickle and the bytes of every storage."""
    storages = {name: type(name, (), {"__module__": "torch"}) for name in _STORAGES.values()}
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    vars(torch).update(storages)
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    kept = []

    class Storage:
        def __init__(self, array):
            self.array = array

    class Pickler(pickle.Pickler):
        def persistent_id(self, item):
            if isinstance(item, Storage):
                kept.append(item.array)
                kind = storages[_STORAGES[str(item.array.dtype)]]
                return ("storage", kind, str(len(kept) - 1), "cuda:0", item.array.size)
            return None

        def reducer_override(self, item):
            if not isinstance(item, Tensor):
                return NotImplemented
            flat = np.ascontiguousarray(item.array)
            view = flat.T if item.transposed else flat
            strides = tuple(step // flat.itemsize for step in view.strides)
            hooks = collections.OrderedDict()
            given = (Storage(flat.ravel()), item.offset, view.shape, strides, False, hooks)
            return _rebuild_tensor_v2, given

    with zipfile.ZipFile(path, "w") as archive, mock.patch.dict(sys.modules, {"torch": torch, "torch._utils": utils}):
        with archive.open("archive/data.pkl", "w") as opened:
            Pickler(opened, protocol=2).dump(content)
        for key, array in enumerate(kept):
            archive.writestr(f"archive/data/{key}", array.tobytes())
        archive.writestr("archive/version", "3\n")
    return path
