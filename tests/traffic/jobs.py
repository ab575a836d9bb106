"""Small workloads and files for the tests of traffic and of recordings."""

import collections
import dataclasses
import gzip
import json
import pathlib
import pickle
import sys
import tempfile
import types
import zipfile
from unittest import mock

import numpy as np

from mfabric_jax.traffic import open_trace, recorded_tokens
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
    given = (open_trace, path) if workload is None else (recorded_tokens, workload, path)
    return refused(*given, **options)


def opened(name, content, workload=None, **options):
    """What is read of a file of that name with this content: text, bytes, lines of JSON, an array, arrays by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        if isinstance(content, dict):
            np.savez(path, **content)
        elif isinstance(content, np.ndarray):
            np.save(path, content)
        elif isinstance(content, list):
            write_lines(path, *content)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return open_trace(path, **options) if workload is None else recorded_tokens(workload, path, **options)


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


LAER_HEAD = "rank,method,model_name,layer,iter,token_num\n"


def laer_rows(model="m-e8k2", methods=("FSDP", "LAER"), ranks=8):
    """Rows whose tokens tell where they belong."""
    return [
        f"{rank},{method},{model},{layer},{iteration},{1000 * (method == 'LAER') + 100 * iteration + 10 * layer + rank}"
        for method in methods
        for rank in range(ranks)
        for layer in range(2)
        for iteration in range(3)
    ]


def write_laer(path, rows, head=LAER_HEAD):
    text = (head + "\n".join(rows) + "\n").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
