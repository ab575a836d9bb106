"""Reader of recordings in one array (`.npy`, `.npz`, `.npy.xz`, `.json`, or `.pt`, read without torch).

The array has named axes, Megatron's tokens per expert, or expert loads of a serving engine.
"""

import collections
import difflib
import io
import math
import pathlib
import pickle
import pickletools
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.support.text_files import value_in
from mfabric_jax.support.unpacking import check_archive, check_size, unpack
from mfabric_jax.support.unread import name_unread
from mfabric_jax.traffic.recording import AXES, COUNTS, DESTINATION, Recording, Sources, Targets, axes_of, counts_in
from mfabric_jax.traffic.tokens import summable

SUFFIXES = (".npy", ".npz", ".pt", ".json", ".xz")
NAMES = "axes"  # entry of a file that names the axes of its array
MOST_EXPERTS = 2**16


def arrange_axes(path: object, count: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return counts with all five axes: iteration, layer, micro-batch, source, expert (or destination)."""
    if len(names) != count.ndim or 0 in count.shape:
        raise InputError(
            f"trace {path} must have the axes [{', '.join(names)}], none empty, got shape {list(count.shape)}."
        )
    last = (*AXES[:-1], DESTINATION if DESTINATION in names else "expert")
    ordered = np.transpose(count, [list(names).index(name) for name in last if name in names])
    return ordered.reshape([count.shape[list(names).index(name)] if name in names else 1 for name in last])


def kinds(names: Sequence[str]) -> dict[str, Any]:
    return {
        "sources": Sources.RANKS if "source" in names else Sources.UNKNOWN,
        "targets": Targets.RANKS if DESTINATION in names else Targets.EXPERTS,
    }


def add_slices(count: np.ndarray) -> np.ndarray:
    """Return counts [..., ep, expert] from [..., tp, ep, expert].

    TP slices are summed, since they hold different tokens under sequence parallelism. If all slices are equal, they
    are copies and only one counts.
    """
    copies = bool(np.all(count == count[..., :1, :, :]))
    return count[..., 0, :, :] if copies else count.sum(axis=-3)


# ------------------------------------------------------------------------------------------- dumps of serving engines
# SGLang (srt/eplb/expert_distribution.py of github.com/sgl-project/sglang) has two modes. Mode stat writes
# `logical_count` [pass, layer, expert]. Mode per_pass writes a file per rank: `records`, each with `forward_pass_id`,
# `rank` and `global_physical_count` [layer, physical expert], and `last_physical_to_logical_map` [layer, physical
# expert]. vLLM (distributed/eplb/eplb_state.py of github.com/vllm-project/vllm) keeps `expert_load_window` [pass,
# layer, physical expert] and `physical_to_logical_map`. Both keep passes in a ring buffer of fixed length that starts
# with zeros. Layers without experts are zeros, too.

RECORDS, PASS, COUNT = "records", "forward_pass_id", "global_physical_count"
MAPS = ("physical_to_logical_map", "last_physical_to_logical_map")


def _of_passes(path: pathlib.Path, dumps: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """`physical_count` [pass, layer, physical expert], summed over the files of all ranks, and the last file's map."""
    added: dict[int, np.ndarray] = {}
    try:
        for record in (record for dump in dumps for record in dump[RECORDS]):
            count = summable(f"{COUNT} of trace {path}", counts_in(path, np.asarray(record[COUNT])))
            added[int(record[PASS])] = added.get(int(record[PASS]), 0) + count
        passes = {"physical_count": np.stack([added[number] for number in sorted(added)])}
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        what = f"every record of trace {path} must have {PASS} and {COUNT} [layer, physical expert], of the same shape"
        raise InputError(f"{what} (recorder mode per_pass or stat).") from error
    return passes | {key: dumps[-1][key] for key in MAPS if key in dumps[-1]}


def _logical(path: pathlib.Path, count: np.ndarray, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Counts [..., layer, expert], summed over the copies of an expert if the file maps copies to experts."""
    of = next((np.asarray(arrays[key]) for key in MAPS if key in arrays), None)
    if of is None or "logical_count" in arrays:
        return count
    if of.dtype.kind not in "iu" or of.shape != count.shape[-2:] or of.min() < 0 or of.max() >= MOST_EXPERTS:
        raise InputError(
            f"{MAPS[0]} of trace {path} must be [layer, physical expert] numbers of experts for the {count.shape[-2]} "
            f"layers and {count.shape[-1]} physical experts, got {of.dtype} of shape {of.shape}."
        )
    count = summable(f"tokens of trace {path}", count)
    shape = (*count.shape[:-1], int(of.max()) + 1)
    check_size(path, math.prod(shape) * count.itemsize)
    added = np.zeros(shape, count.dtype)
    for layer, experts in enumerate(of):
        for expert, load in zip(experts, np.moveaxis(count[..., layer, :], -1, 0), strict=True):
            added[..., layer, expert] += load
    return added


def _drop_empty(path: pathlib.Path, count: np.ndarray) -> tuple[np.ndarray, str]:
    """Counts [pass, layer, expert] without empty passes and layers, and a note on what was removed."""
    count = count.reshape((-1, *count.shape[-2:]))
    passes, layers = (count != 0).any(axis=(1, 2)), (count != 0).any(axis=(0, 2))
    if not passes.any():
        raise InputError(f"tokens of trace {path} must not all be 0.")
    empty = [
        f"{np.sum(~some)} empty {what}" for some, what in ((passes, "passes"), (layers, "layers")) if not all(some)
    ]
    return count[passes][:, layers], f"{' and '.join(empty)} left out" if empty else ""


# --------------------------------------------------------------------------------------------------------- torch files
# No code of a `torch.save` file is run, and everything that is not a tensor is left out. The file is a zip archive:
# `NAME/data.pkl` is a pickle in which every storage is a persistent id ("storage", type, key, device, elements), and
# `NAME/data/KEY` holds the bytes of a storage. Source: torch/serialization.py of github.com/pytorch/pytorch.

_TYPES = {"Float": "<f4", "Double": "<f8", "Half": "<f2", "Long": "<i8", "Int": "<i4", "Short": "<i2"}
_TYPES |= {"Char": "i1", "Byte": "u1", "Bool": "?", "BFloat16": "<u2"}
_HALF = "BFloat16"  # the upper half of a float32


_MEMO = ("PUT", "LONG_BINPUT")  # operations that address the pickle's memo


class _LeftOut:
    def __new__(cls, *args: Any, **named: Any) -> "_LeftOut":
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        return


class _Reader(pickle.Unpickler):
    """Unpickles arrays, dictionaries, lists, numbers and texts; instantiates no other class."""

    def __init__(self, archive: zipfile.ZipFile, pickled: str) -> None:
        data = archive.read(pickled)
        places = (int(number or 0) for code, number, _ in pickletools.genops(data) if code.name in _MEMO)
        if max(places, default=0) > len(data):  # the unpickler would allocate a list of that length
            raise ValueError("an index of its memo that it cannot fill")
        super().__init__(io.BytesIO(data))
        self._archive, self._folder = archive, pickled.removesuffix("data.pkl")
        self._storages: dict[str, np.ndarray] = {}
        self._made = 0  # bytes of all tensors, if each were stored contiguously

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._rebuild_tensor
        if module == "torch" and name.endswith("Storage"):
            return name.removesuffix("Storage")
        return _LeftOut

    def persistent_load(self, pid: Any) -> np.ndarray:
        _, kind, key, *_ = pid
        if key not in self._storages:
            values = np.frombuffer(self._archive.read(f"{self._folder}data/{key}"), _TYPES[kind])
            self._storages[key] = (values.astype("<u4") << 16).view("<f4") if kind == _HALF else values
        return self._storages[key]

    def _rebuild_tensor(self, storage: np.ndarray, offset: int, size: tuple, stride: tuple, *unused: Any) -> np.ndarray:
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if min(size, default=1) < 0 or min(stride, default=1) < 0 or offset < 0:
            raise ValueError("sizes")
        if math.prod(size) and last >= len(storage):
            raise ValueError("outside of its storage")
        self._made += math.prod(size) * storage.itemsize
        check_size(str(self._archive.filename), self._made)
        steps = [step * storage.itemsize for step in stride]
        return np.lib.stride_tricks.as_strided(storage[offset:], size, steps, writeable=False)


def _read_torch(path: pathlib.Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        check_archive(path, archive)
        (pickled,) = [name for name in archive.namelist() if name.split("/")[1:] == ["data.pkl"]]
        return _Reader(archive, pickled).load()


# ------------------------------------------------------------------------------------------------ arrays and their keys


class _Format(NamedTuple):
    """Format of a key: description, possible axes (empty: named or guessed), and whether it is a ring buffer of a
    serving engine."""

    words: str
    axes: tuple[tuple[str, ...], ...] = ()
    buffered: bool = False


SLICE = "tensor-parallel rank"  # axis whose parts are added up
_SLICES = (SLICE, "source", "expert")
_LOADS = (("layer", "expert"), ("iteration", "layer", "expert"))
_FORMATS: dict[str, _Format] = {
    "num_global_tokens_per_expert": _Format(
        "Megatron tokens per expert", (_SLICES, ("layer", *_SLICES), ("iteration", "layer", *_SLICES))
    ),
    "logical_count": _Format("SGLang expert counts", _LOADS, buffered=True),
    "physical_count": _Format("SGLang expert counts", _LOADS, buffered=True),
    "expert_load_window": _Format("vLLM expert load", _LOADS, buffered=True),
    "expert_load_pass": _Format("vLLM expert load", _LOADS, buffered=True),
    "weight": _Format("EPLB expert weights", (("layer", "expert"),)),
    "counts": _Format("counts"),
    COUNTS: _Format("tokens"),
}


_KNOWN = (*_FORMATS, NAMES, *MAPS)
HARMLESS = (  # other entries in dumps of serving engines, which change no count
    *(RECORDS, "rank", "average_utilization_rate_over_window", "utilization_rate"),
)


class Arrays(dict[str, np.ndarray]):
    """Arrays of a file by key; `others`: keys of entries that are not arrays."""

    others: Sequence[str] = ()


def load_arrays(path: pathlib.Path) -> Mapping[str, np.ndarray]:
    """Return all arrays of a file by key; a bare array gets the key in its file name, else `tokens`.

    A plain `.npy` is memory-mapped, so that only the used records are read. Raise `InputError` for an unreadable file
    or content that is not an array.
    """
    loaded = _load(path)
    if isinstance(loaded, np.ndarray):
        return {next((key for key in _FORMATS if key in path.name), COUNTS): loaded}
    if not isinstance(loaded, dict):
        raise InputError(f"trace {path} must hold an array or arrays by name, got {type(loaded).__name__}.")
    if RECORDS in loaded:
        loaded = loaded | _of_passes(path, [loaded])
    arrays = Arrays({str(key): value for key, value in loaded.items() if isinstance(value, np.ndarray)})
    arrays.others = [str(key) for key in loaded if str(key) not in arrays]
    if wrong := [key for key in loaded if key in _FORMATS and key not in arrays]:
        raise InputError(
            f"{wrong[0]} of trace {path} must be an array of numbers, got {type(loaded[wrong[0]]).__name__}."
        )
    return arrays


def load_ranks(folder: pathlib.Path, files: Sequence[pathlib.Path]) -> Mapping[str, np.ndarray]:
    """Return the counts of a serving engine, summed over the files of its ranks."""
    dumps = [_load(file) for file in files]
    if not all(isinstance(dump, dict) and RECORDS in dump for dump in dumps):
        raise InputError(f"trace folder {folder} must hold one recording; name one of its .pt files.")
    return _of_passes(folder, dumps)


def _load(path: pathlib.Path) -> Any:
    what = {".pt": "file of torch.save (since torch 1.6)", ".json": "JSON file of lists of equal lengths"}
    try:
        if path.suffix == ".pt":
            return _read_torch(path)
        if path.suffix == ".json":
            return _of_json(path, value_in(path.read_bytes(), repr(str(path)), "counts"))
        if path.suffix == ".xz":
            loaded = np.load(io.BytesIO(unpack(path, path.read_bytes())), allow_pickle=False)
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                check_archive(path, archive)
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as held:
                return {key: held[key] for key in held}
        else:
            with path.open("rb") as opened:  # np.load of a name leaves a damaged file open
                np.lib.format.read_magic(opened)
            loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        return loaded
    except InputError:
        raise
    except Exception as error:  # any error of an array reader
        allowed = what.get(path.suffix, "NumPy file of numbers")
        raise InputError(f"trace {path} must be a readable {allowed}, got {type(error).__name__}.") from error


def _of_json(path: pathlib.Path, value: Any) -> Any:
    if not isinstance(value, dict):
        return np.array(value) if isinstance(value, list) else {}
    return {key: np.array(each) if isinstance(each, list | str) else each for key, each in value.items()}


def array_recording(path: pathlib.Path, arrays: Mapping[str, np.ndarray], axes: str | None = None) -> Recording:
    """Return the recording in the arrays of a file.

    - `tokens` or `counts`, or the only array: [layer, expert], or [iteration, layer, micro-batch, source, expert], or
      the axes in the entry `axes`.
    - `num_global_tokens_per_expert` [tp, ep, expert], with optional leading axes layer, or iteration and layer: tokens
      that each rank of Megatron's token dispatcher routes, summed over TP slices (`add_slices`).
    - `logical_count`, `physical_count`, `expert_load_window` [iteration, layer, expert], `weight` [layer, expert]:
      loads without sources, summed over copies of an expert.

    `axes` overrides the axes of any key. Raise `InputError` for other keys or axes, and for values that are not
    numbers.
    """
    key = _key(path, arrays)
    beside = [name for name in (*arrays, *getattr(arrays, "others", ())) if name not in (key, NAMES, *MAPS, *HARMLESS)]
    known, count, origin = _FORMATS.get(key, _FORMATS["counts"]), counts_in(path, np.asarray(arrays[key])), ""
    named = arrays.get(NAMES) if axes is None else axes
    if NAMES in getattr(arrays, "others", ()):
        raise InputError(f"{NAMES} of trace {path} must be a list of names such as layer, expert.")
    if named is not None:
        names = axes_of(named if isinstance(named, str) else list(map(str, np.ravel(named)[: len(AXES) + 1].tolist())))
    else:
        names = _usual_axes(path, count.shape, known)
        if known.buffered:
            count, origin = _drop_empty(path, _logical(path, count, arrays))
            names = _LOADS[-1]
    if SLICE in names:
        names = tuple(name for name in names if name != SLICE)
        count = add_slices(summable(f"tokens of trace {path}", count))
    facts = kinds(names)
    count = arrange_axes(path, count, names)
    experts = count.shape[-1] if facts["targets"] is Targets.EXPERTS else None
    name_unread(repr(str(path)), f"entries beside {key}", beside)
    return Recording(count, np.arange(len(count)), str(path), known.words, experts=experts, origin=origin, **facts)


def _key(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> str:
    """The key of the counts. Raise `InputError` if there is none, or only a misspelt one."""
    key = next((key for key in (COUNTS, *_FORMATS) if key in arrays), None)
    if key is None and len(arrays) == 1 and not difflib.get_close_matches((only := next(iter(arrays))).lower(), _KNOWN):
        return only
    if key is None:
        others = ", ".join(key for key in _FORMATS if key != COUNTS)
        raise InputError(
            f"trace {path} must have the key {COUNTS!r}, got {', '.join(arrays) or 'none'}; also read: {others}."
        )
    return key


def _usual_axes(path: object, shape: tuple[int, ...], known: _Format) -> tuple[str, ...]:
    readings = known.axes or (("layer", "expert"), AXES)
    for names in readings:
        if len(names) == len(shape) and 0 not in shape:
            return names
    allowed = " or ".join(f"[{', '.join(names)}]" for names in readings)
    how = "" if known.axes else "; name other axes by --axes iteration,layer,expert or by an entry 'axes' in the file"
    raise InputError(f"trace {path} must have the axes {allowed}, none empty, got shape {shape}{how}.")
