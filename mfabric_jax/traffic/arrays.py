"""Recordings that are one array: our own tokens, Megatron's tokens per expert, SGLang's and EPLB's counts."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mfabric_jax.atomic import replacing
from mfabric_jax.checks import InputError
from mfabric_jax.traffic import files
from mfabric_jax.traffic.recording import Recording, Sources, Targets, add_slices
from mfabric_jax.traffic.tokens import AXES, Tokens

OWN = "tokens"
PER_EXPERT = "num_global_tokens_per_expert"
LOGICAL = "logical_count"
WEIGHT = "weight"
KEYS = (PER_EXPERT, LOGICAL, WEIGHT, OWN)  # a bare array is of the first whose name is in the file's; else tokens
META = "meta"
SCHEMA_VERSION = 1

_FORMATS = {
    OWN: "tokens",
    PER_EXPERT: "Megatron tokens per expert",
    LOGICAL: "SGLang expert counts",
    WEIGHT: "EPLB expert weights",
}
_WANTED = {
    OWN: (AXES,),
    PER_EXPERT: (("tp", "ep", "expert"), ("layer", "tp", "ep", "expert"), ("iteration", "layer", "tp", "ep", "expert")),
    LOGICAL: (("iteration", "layer", "expert"),),
    WEIGHT: (("layer", "expert"),),
}


def read(path: pathlib.Path, found: Mapping[str, np.ndarray]) -> Recording:
    """The recording in the arrays of a file.

    - `tokens` [iteration, layer, micro_batch, source_rank, expert], with `meta` beside it if `save` wrote it.
    - `num_global_tokens_per_expert` [tp, ep, expert], or [layer, ...] or [iteration, layer, ...]: tokens that each
      rank of Megatron's token dispatcher routes; TP slices are added up (`add_slices`).
    - `logical_count` [iteration, layer, expert], `weight` [layer, expert]: expert loads without sources.

    `InputError` for other keys or axes.
    """
    key = next((key for key in (OWN, PER_EXPERT, LOGICAL, WEIGHT) if key in found), None)
    if key is None:
        others = ", ".join(key for key in KEYS if key != OWN)
        raise InputError(
            f"trace {path} must have the key {OWN!r}, got {', '.join(found) or 'none'}; also read: {others}."
        )
    array = found[key]
    if array.ndim not in map(len, _WANTED[key]) or 0 in array.shape:
        axes = " or ".join(f"[{', '.join(axes)}]" for axes in _WANTED[key])
        raise InputError(f"trace {path} must have the axes {axes}, none empty, got shape {array.shape}.")
    if key == OWN:
        return _own(path, array, found.get(META))
    sources = Sources.RANKS if key == PER_EXPERT else Sources.UNKNOWN
    if key == PER_EXPERT:
        array = add_slices(array)
        count = array.reshape((1,) * (4 - array.ndim) + array.shape)[:, :, None]
    else:
        count = (array[None] if key == WEIGHT else array)[:, :, None, None]
    return Recording(count, np.arange(len(count)), str(path), _FORMATS[key], sources=sources, experts=count.shape[-1])


def save(tokens: Tokens | Recording, path: str | pathlib.Path) -> pathlib.Path:
    """Write tokens or a recording as `.npz`, whole or not at all; returns the path.

    Keys: `tokens` [iteration, layer, micro_batch, source_rank, expert], and `meta`, a JSON text: `schema_version`,
    `source` (what this is), `records` (number of each iteration), `sources` and `targets` (what the last two axes
    are), `experts`. `InputError` for another extension, and for what the operating system refuses.
    """
    path = pathlib.Path(path)
    if path.suffix != ".npz":
        raise InputError(f"a trace is saved as .npz, got {str(path)!r}.")
    meta = _meta(tokens)
    with replacing(path) as (part,), part.open("wb") as opened:
        np.savez_compressed(opened, allow_pickle=False, **{OWN: tokens.count, META: np.array(json.dumps(meta))})
    return path


def load(path: str | pathlib.Path) -> Tokens:
    """The tokens that `save` wrote, with their `source`. `InputError` for any other file."""
    path = pathlib.Path(path)
    recording = read(path, files.arrays(path, KEYS))
    return Tokens(np.asarray(recording.count), recording.origin or recording.words)


def _meta(tokens: Tokens | Recording) -> dict[str, Any]:
    if isinstance(tokens, Tokens):
        number, source = range(len(tokens.count)), tokens.source
        sources, targets, experts = Sources.RANKS, Targets.EXPERTS, tokens.count.shape[-1]
    else:
        number, source = tokens.number, f"{tokens.format}: {tokens.words}"
        sources, targets, experts = tokens.sources, tokens.targets, tokens.experts
    return {
        "schema_version": SCHEMA_VERSION,
        "source": source,
        "records": [int(n) for n in number],
        "sources": sources.value,
        "targets": targets.value,
        "experts": experts,
    }


def _own(path: pathlib.Path, count: np.ndarray, packed: np.ndarray | None) -> Recording:
    if packed is None:
        return Recording(count, np.arange(len(count)), str(path), _FORMATS[OWN], experts=count.shape[-1])
    try:
        meta = json.loads(str(packed[()]))
        version = int(meta["schema_version"])
        known: dict[str, Any] = {
            "sources": Sources(meta["sources"]),
            "targets": Targets(meta["targets"]),
            "experts": None if meta["experts"] is None else int(meta["experts"]),
            "origin": str(meta["source"]),
        }
        number = np.array(meta["records"], dtype=np.int64)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{META} of trace {path} must be the JSON that save wrote, got {packed!s:.80}.") from error
    if version > SCHEMA_VERSION:
        raise InputError(f"schema_version of trace {path} must be at most {SCHEMA_VERSION}, got {version}.")
    if number.shape != (len(count),):
        raise InputError(f"records of trace {path} must be one number for each of {len(count)} iterations.")
    return Recording(count, number, str(path), _FORMATS[OWN], **known)
