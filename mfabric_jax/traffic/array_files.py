"""Recordings that are one array: our own tokens, arrays of any named axes, Megatron's tokens per expert, expert loads.

Files: `.npy`, `.npz`, `.npy.xz`, `.json`, and `.pt`, which is read without torch.
"""

import collections
import io
import json
import lzma
import math
import pathlib
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.atomic import replacing
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.text_files import parsed_json, value_in
from mfabric_jax.traffic.recording import Recording, Sources, Targets, add_slices
from mfabric_jax.traffic.tokens import Tokens

# Arrays of counts whose axes have names, in any order.

AXES = ("iteration", "layer", "micro-batch", "source", "expert")
DESTINATION = "destination"  # ranks in the place of experts
_READ_AS = {2: (("layer", "expert"),), 5: (AXES,)}
_READ_AS |= {3: (("iteration", "layer", "expert"), ("layer", "source", "expert"))}
_READ_AS |= {4: (("iteration", "layer", "source", "expert"), ("layer", "micro-batch", "source", "expert"))}


def axes_of(words: str | Sequence[str]) -> tuple[str, ...]:
    """Names of axes from words with commas between them, or a list; `_` is `-`, and `source-rank` is `source`.

    `InputError` for a name that is unknown or there twice, and where neither experts nor destinations are named.
    """
    listed = words.split(",") if isinstance(words, str) else [str(word) for word in words]
    plain = [word.strip().lower().replace("_", "-").removesuffix("-rank") for word in listed]
    found = tuple(one_of("axis", word, (*AXES, DESTINATION)) for word in plain)
    if len(set(found)) < len(found) or len({"expert", DESTINATION} & set(found)) != 1:
        raise InputError(f"axes must name expert (or destination), and none twice, got {', '.join(found)}.")
    return found


def guessed(path: object, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The names of axes that nobody named: [layer, expert], or all five. `InputError` where there is a choice."""
    readings = _READ_AS.get(len(shape), ())
    if len(readings) == 1:
        return readings[0]
    how = "such as --axes iteration,layer,expert, or by an entry 'axes' beside the array"
    choice = " or ".join(f"[{', '.join(names)}]" for names in readings) or f"2 to {len(AXES)} of {', '.join(AXES)}"
    raise InputError(f"trace {path} has shape {shape}, which may be {choice}; name its axes, {how}.")


def arranged(path: object, count: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """[iteration, layer, micro-batch, source, expert or destination]; an axis that is not named has length 1."""
    if len(names) != count.ndim or 0 in count.shape:
        raise InputError(
            f"trace {path} must have the axes [{', '.join(names)}], none empty, got shape {list(count.shape)}."
        )
    last = (*AXES[:-1], DESTINATION if DESTINATION in names else "expert")
    ordered = np.transpose(count, [list(names).index(name) for name in last if name in names])
    return ordered.reshape([count.shape[list(names).index(name)] if name in names else 1 for name in last])


def kinds(names: Sequence[str]) -> dict[str, Sources | Targets]:
    """What the last two axes of a recording with these axes are."""
    return {
        "sources": Sources.RANKS if "source" in names else Sources.UNKNOWN,
        "targets": Targets.RANKS if DESTINATION in names else Targets.EXPERTS,
    }


# Expert loads as serving engines dump them: physical experts, buffers that are not full, a file for every rank.
# SGLang (srt/eplb/expert_distribution.py of github.com/sgl-project/sglang) writes `logical_count` [pass, layer, expert]
# in mode stat, and in mode per_pass a file for every rank: `records`, each with `forward_pass_id`, `rank` and
# `global_physical_count` [layer, physical expert], and `last_physical_to_logical_map` [layer, physical expert]. vLLM
# (distributed/eplb/eplb_state.py of github.com/vllm-project/vllm) keeps `expert_load_window` [pass, layer, physical
# expert] and `physical_to_logical_map`. Both keep passes in a ring of fixed length that starts with zeros, and layers
# without experts are zeros, too.

RECORDS, PASS, COUNT = "records", "forward_pass_id", "global_physical_count"
MAPS = ("physical_to_logical_map", "last_physical_to_logical_map")
_MOST_EXPERTS = 2**16


def of_passes(path: pathlib.Path, dumps: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """`physical_count` [pass, layer, physical expert] of the files of all ranks, added up, and the map of the last."""
    added: dict[int, np.ndarray] = {}
    try:
        for record in (record for dump in dumps for record in dump[RECORDS]):
            count = np.asarray(record[COUNT])
            added[int(record[PASS])] = added.get(int(record[PASS]), 0) + count
        found = {"physical_count": np.stack([added[number] for number in sorted(added)])}
    except (ValueError, TypeError, KeyError) as error:
        what = f"records of trace {path} must each have {PASS} and {COUNT} [layer, physical expert], all of one shape"
        raise InputError(f"{what} (recorder mode per_pass or stat).") from error
    return found | {key: dumps[-1][key] for key in MAPS if key in dumps[-1]}


def logical(path: pathlib.Path, count: np.ndarray, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """[..., layer, expert] with the loads of the copies of an expert added up, where a map says which these are."""
    of = next((np.asarray(arrays[key]) for key in MAPS if key in arrays), None)
    if of is None or "logical_count" in arrays:
        return count
    if of.dtype.kind not in "iu" or of.shape != count.shape[-2:] or of.min() < 0 or of.max() >= _MOST_EXPERTS:
        raise InputError(
            f"{MAPS[0]} of trace {path} must be [layer, physical expert] numbers of experts for the {count.shape[-2]} "
            f"layers and {count.shape[-1]} physical experts, got {of.dtype} of shape {of.shape}."
        )
    added = np.zeros((*count.shape[:-1], int(of.max()) + 1), count.dtype)
    for layer, experts in enumerate(of):
        for expert, load in zip(experts, np.moveaxis(count[..., layer, :], -1, 0), strict=True):
            added[..., layer, expert] += load
    return added


def filled(path: pathlib.Path, count: np.ndarray) -> tuple[np.ndarray, str]:
    """Counts [pass, layer, expert] without the passes and layers that hold nothing, and what to say about it."""
    count = count.reshape((-1, *count.shape[-2:]))
    passes, layers = (count != 0).any(axis=(1, 2)), (count != 0).any(axis=(0, 2))
    if not passes.any():
        raise InputError(f"tokens of trace {path} must not all be 0.")
    left = [
        (f"{np.sum(~some)} empty {what}", not some.all()) for some, what in ((passes, "passes"), (layers, "layers"))
    ]
    said = " and ".join(words for words, any_left in left if any_left)
    return count[passes][:, layers], f"{said} left out" if said else ""


# Tensors of a `torch.save` file without torch: nothing of the file is run, and what is no tensor is left out.
# Layout: a zip archive with `NAME/data.pkl`, a pickle in which every storage is a persistent id ("storage", type, key,
# device, elements), and `NAME/data/KEY`, its bytes. Source: torch/serialization.py of github.com/pytorch/pytorch.

_TYPES = {"Float": "<f4", "Double": "<f8", "Half": "<f2", "Long": "<i8", "Int": "<i4", "Short": "<i2"}
_TYPES |= {"Char": "i1", "Byte": "u1", "Bool": "?", "BFloat16": "<u2"}
_MOST = 2**33  # elements of a tensor
_HALF = "BFloat16"  # the upper half of a float32


class _LeftOut:
    """Stands where an object of any other class was."""

    def __new__(cls, *given: Any, **named: Any) -> "_LeftOut":
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        return


class _Reader(pickle.Unpickler):
    """Builds arrays, dictionaries, lists, numbers and texts; of other classes nothing is made."""

    def __init__(self, archive: zipfile.ZipFile, pickled: str) -> None:
        super().__init__(archive.open(pickled))
        self._archive, self._folder = archive, pickled.removesuffix("data.pkl")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuilt
        if module == "torch" and name.endswith("Storage"):
            return name.removesuffix("Storage")
        return _LeftOut

    def persistent_load(self, pid: Any) -> np.ndarray:
        _, kind, key, *_ = pid
        values = np.frombuffer(self._archive.read(f"{self._folder}data/{key}"), _TYPES[kind])
        return (values.astype("<u4") << 16).view("<f4") if kind == _HALF else values


def _rebuilt(storage: np.ndarray, offset: int, size: tuple, stride: tuple, *rest: Any) -> np.ndarray:
    """The view of a storage that a tensor is; `ValueError` for one that reaches outside."""
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if min(size, default=1) < 0 or min(stride, default=1) < 0 or offset < 0 or math.prod(size) > _MOST:
        raise ValueError("sizes")
    if math.prod(size) and last >= len(storage):
        raise ValueError("outside of its storage")
    steps = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], size, steps, writeable=False)


def read_torch(path: pathlib.Path) -> Any:
    """What the file holds: an array, or a dictionary or list of anything. `InputError` for a file of another kind."""
    try:
        with zipfile.ZipFile(path) as archive:
            (pickled,) = [name for name in archive.namelist() if name.split("/")[1:] == ["data.pkl"]]
            return _Reader(archive, pickled).load()
    except Exception as error:  # whatever the bytes make of a pickle
        raise InputError(
            f"trace {path} must be a file of torch.save (since torch 1.6), got {type(error).__name__}; or save its "
            f"arrays with numpy.savez."
        ) from error


OWN, META, NAMES = "tokens", "meta", "axes"
SUFFIXES = (".npy", ".npz", ".pt", ".json", ".xz")
SCHEMA_VERSION = 1
LARGEST_JSON = 1 << 30  # bytes

_SLICES = ("tp", "ep", "expert")
_LOADS = (("layer", "expert"), ("iteration", "layer", "expert"))


class _Format(NamedTuple):
    """One key: words, the axes that are read (none: named, or guessed), and whether a serving engine fills a buffer."""

    words: str
    axes: tuple[tuple[str, ...], ...] = ()
    buffered: bool = False


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
    OWN: _Format("tokens"),
}


def load_arrays(path: pathlib.Path) -> Mapping[str, np.ndarray]:
    """Every array of a file by its key; a bare array has the key that is in the file's name, else `tokens`.

    A plain `.npy` is mapped, so that only the records used are read. `InputError` for a file that cannot be read, and
    for what is no array.
    """
    loaded: Any = read_torch(path) if path.suffix == ".pt" else _loaded(path)
    if isinstance(loaded, np.ndarray):
        return {next((key for key in _FORMATS if key in path.name), OWN): loaded}
    if not isinstance(loaded, dict):
        raise InputError(f"trace {path} must hold an array or arrays by name, got {type(loaded).__name__}.")
    if RECORDS in loaded:
        loaded = loaded | of_passes(path, [loaded])
    arrays = {str(key): value for key, value in loaded.items() if isinstance(value, np.ndarray)}
    if wrong := [key for key in loaded if key in _FORMATS and key not in arrays]:
        raise InputError(
            f"{wrong[0]} of trace {path} must be an array of numbers, got {type(loaded[wrong[0]]).__name__}."
        )
    return arrays


def load_ranks(folder: pathlib.Path, files: Sequence[pathlib.Path]) -> Mapping[str, np.ndarray]:
    """The counts of the files that every rank of a serving engine wrote, added up."""
    dumps = [read_torch(file) for file in files]
    if not all(isinstance(dump, dict) and RECORDS in dump for dump in dumps):
        raise InputError(f"trace folder {folder} must hold one recording; name one of its .pt files.")
    return of_passes(folder, dumps)


def _loaded(path: pathlib.Path) -> Any:
    """An array, or what a file holds by name."""
    try:
        if path.suffix == ".json":
            return _of_json(path)
        if path.suffix == ".xz":
            with lzma.open(path) as opened:
                loaded = np.load(io.BytesIO(opened.read()), allow_pickle=False)
        else:
            loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                return {key: loaded[key] for key in loaded}
        return loaded
    except InputError:
        raise
    except Exception as error:  # whatever the bytes make of an array
        why = "but it is cut off or of another kind"
        if isinstance(error, MemoryError):
            why = "but it says to be larger than memory"
        elif isinstance(error, OSError) and error.strerror:
            why = f"but it cannot be opened ({error.strerror})"
        elif "pickle" in str(error) or "Python objects" in str(error):
            why = "but it holds Python objects; save an array of numbers"
        raise InputError(f"trace {path} must be a readable NumPy file, {why}.") from error


def _of_json(path: pathlib.Path) -> Any:
    """A nested list as an array, or one by name."""
    if path.stat().st_size > LARGEST_JSON:
        raise InputError(f"trace {path} must be at most {LARGEST_JSON:,} bytes of JSON; save its arrays as .npz.")
    value = value_in(path.read_bytes(), repr(str(path)), "counts")
    named = value if isinstance(value, dict) else {OWN: value}
    try:
        arrays = {key: np.array(each) for key, each in named.items() if isinstance(each, list | str)}
    except ValueError as error:
        raise InputError(f"trace {path} must hold lists of equal lengths, got others.") from error
    return arrays if isinstance(value, dict) else arrays.get(OWN, {})


def array_recording(path: pathlib.Path, arrays: Mapping[str, np.ndarray], axes: str | None = None) -> Recording:
    """The recording in the arrays of a file.

    - `tokens` or `counts`, or the only array: [layer, expert], or [iteration, layer, micro-batch, source, expert], or
      the axes that the entry `axes` names; with `meta` beside it if `save_tokens` wrote it.
    - `num_global_tokens_per_expert` [tp, ep, expert], or [layer, ...] or [iteration, layer, ...]: tokens that each
      rank of Megatron's token dispatcher routes; TP slices are added up (`add_slices`).
    - `logical_count`, `physical_count`, `expert_load_window` [iteration, layer, expert], `weight` [layer, expert]:
      loads without sources; of physical experts those of one logical expert are added up (`expert_loads`).
    - `axes`: names of the axes, whatever the key.

    `InputError` for other keys or axes, and for what is no whole number or real.
    """
    key = next((key for key in (OWN, *_FORMATS) if key in arrays), None)
    if key is None and len(arrays) == 1:
        (key,) = arrays
    if key is None:
        others = ", ".join(key for key in _FORMATS if key != OWN)
        raise InputError(
            f"trace {path} must have the key {OWN!r}, got {', '.join(arrays) or 'none'}; also read: {others}."
        )
    known, count = _FORMATS.get(key, _FORMATS["counts"]), np.asarray(arrays[key])
    if count.dtype.kind not in "iuf":
        raise InputError(f"tokens of trace {path} must be integers or reals, got dtype {count.dtype}.")
    if count.dtype == np.float16:
        count = count.astype(np.float32)  # sums are larger than it can hold
    if key == OWN and META in arrays and axes is None:
        return _own(path, count, arrays[META])
    if axes is not None or NAMES in arrays or not known.axes:
        return _named(path, count, known.words, axes if axes is not None else arrays.get(NAMES))
    if count.ndim not in map(len, known.axes) or 0 in count.shape:
        allowed = " or ".join(f"[{', '.join(names)}]" for names in known.axes)
        raise InputError(f"trace {path} must have the axes {allowed}, none empty, got shape {count.shape}.")
    with_sources, origin = known.axes[0] == _SLICES, ""
    if known.buffered:
        count, origin = filled(path, logical(path, count, arrays))
    count = add_slices(count)[..., None, :, :] if with_sources else count[..., None, None, :]
    count = count.reshape((1,) * (5 - count.ndim) + count.shape)
    sources = Sources.RANKS if with_sources else Sources.UNKNOWN
    about: dict[str, Any] = {"sources": sources, "experts": count.shape[-1], "origin": origin}
    return Recording(count, np.arange(len(count)), str(path), known.words, **about)


def _named(path: pathlib.Path, count: np.ndarray, words: str, axes: Any) -> Recording:
    """An array whose axes are named, or plain to see."""
    if axes is None:
        names = guessed(path, count.shape)
    else:
        names = axes_of(axes if isinstance(axes, str) else ",".join(map(str, np.ravel(axes).tolist())))
    count, known = arranged(path, count, names), kinds(names)
    experts = count.shape[-1] if known["targets"] is Targets.EXPERTS else None
    about: dict[str, Any] = {**known, "experts": experts}
    return Recording(count, np.arange(len(count)), str(path), words, **about)


def _own(path: pathlib.Path, count: np.ndarray, packed: np.ndarray) -> Recording:
    count = arranged(path, count, AXES)
    try:
        meta = parsed_json(str(packed[()]))
        version = int(meta["schema_version"])
        known: dict[str, Any] = {
            "sources": Sources(meta["sources"]),
            "targets": Targets(meta["targets"]),
            "experts": None if meta["experts"] is None else int(meta["experts"]),
            "origin": str(meta["source"]),
        }
        number = np.array(meta["records"], dtype=np.int64)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{META} of trace {path} must be the JSON that save_tokens wrote, got {packed!s:.80}."
        ) from error
    if version > SCHEMA_VERSION:
        raise InputError(f"schema_version of trace {path} must be at most {SCHEMA_VERSION}, got {version}.")
    if number.shape != (len(count),):
        raise InputError(f"records of trace {path} must be one number for each of {len(count)} iterations.")
    return Recording(count, number, str(path), _FORMATS[OWN].words, **known)


def save_tokens(tokens: Tokens | Recording, path: str | pathlib.Path) -> pathlib.Path:
    """Write tokens or a recording as `.npz`, whole or not at all; returns the path.

    Keys: `tokens` [iteration, layer, micro_batch, source_rank, expert], and `meta`, a JSON text: `schema_version`,
    `source` (what this is), `records` (number of each iteration), `sources` and `targets` (what the last two axes
    are), `experts`. `InputError` for another extension, for counts that are negative, not finite or no numbers, and
    for what the operating system refuses.
    """
    path = pathlib.Path(path)
    if path.suffix != ".npz":
        raise InputError(f"a trace is saved as .npz, got {str(path)!r}.")
    source = tokens.source if isinstance(tokens, Tokens) else f"{tokens.format}: {tokens.words}"
    if isinstance(tokens, Tokens):
        tokens = Recording(tokens.count, np.arange(len(tokens.count)), "", "", experts=tokens.count.shape[-1])
    tokens.tokens()
    meta = {
        "schema_version": SCHEMA_VERSION,
        "source": source,
        "records": tokens.number.tolist(),
        "sources": tokens.sources.value,
        "targets": tokens.targets.value,
        "experts": tokens.experts,
    }
    with replacing(path) as (part,), part.open("wb") as opened:
        np.savez_compressed(opened, allow_pickle=False, **{OWN: tokens.count, META: np.array(json.dumps(meta))})
    return path
