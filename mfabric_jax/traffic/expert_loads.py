"""Expert loads as serving engines dump them: physical experts, buffers that are not full, a file for every rank.

SGLang (srt/eplb/expert_distribution.py of github.com/sgl-project/sglang) writes `logical_count` [pass, layer, expert]
in mode stat, and in mode per_pass a file for every rank: `records`, each with `forward_pass_id`, `rank` and
`global_physical_count` [layer, physical expert], and `last_physical_to_logical_map` [layer, physical expert]. vLLM
(distributed/eplb/eplb_state.py of github.com/vllm-project/vllm) keeps `expert_load_window` [pass, layer, physical
expert] and `physical_to_logical_map`. Both keep passes in a ring of fixed length that starts with zeros, and layers
without experts are zeros, too.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mfabric_jax.checks import InputError

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
