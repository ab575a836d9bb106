"""Placements of experts in the JSON forms of serving engines; all forms are read and written.

- `map`: SGLang (`--init-expert-location`), vLLM: `{"physical_to_logical_map": [[0, 1, 2, 0]]}` [layer, slot].
- `eplb`: DeepSeek's EPLB: `phy2log` [layer, slot], `log2phy` [layer, expert, copy] padded with -1, `logcnt` [layer,
  expert].
- `ascend`: vLLM-Ascend (`expert_map_path`): the experts of every device, for each layer.

Slot p lives on rank p // (slots / ranks). Only `ascend` tells the number of ranks.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.support.atomic import check_file, replacing
from mfabric_jax.support.text_files import cached_by_files, read_mapping
from mfabric_jax.support.unread import name_unread
from mfabric_jax.workload import Workload

MAP, SLOTS, LAYERS = "physical_to_logical_map", "phy2log", "layer_list"  # keys that identify the forms
FURTHER_KEYS = ("log2phy", "logcnt", "moe_layer_count")  # further keys that are read
LOADS = ("logical_count", "expert_load_window", "records", "global_physical_count")
MOST = 2**24  # slots of all layers


class ExpertPlacement(NamedTuple):
    """The expert in each physical slot [layer, slot]; `ranks` is None if not known."""

    slots: Int[np.ndarray, "L P"]
    ranks: int | None = None

    @property
    def experts(self) -> int:
        return int(self.slots.max()) + 1


def check_placement_fits(placement: ExpertPlacement, workload: Workload) -> None:
    """Raise `InputError` unless the placement fits the workload's experts, blocks and ranks."""
    layers, blocks, experts = len(placement.slots), workload.moe_layers, workload.architecture.experts
    if placement.experts != experts:
        raise InputError(f"placement.file must place the {experts} experts of the model, got {placement.experts}.")
    if layers not in (1, blocks):
        raise InputError(f"placement.file must have one layer or the model's {blocks} with experts, got {layers}.")
    if placement.ranks not in (None, workload.ep):
        raise InputError(f"placement.file must be for {workload.ep} ranks (ep), got {placement.ranks}.")
    if placement.slots.shape[1] % workload.ep:
        slots = placement.slots.shape[1]
        raise InputError(f"placement.file must have a multiple of {workload.ep} slots (ep ranks), got {slots}.")


def is_placement(content: Mapping[str, Any]) -> bool:
    """Return whether JSON holds a placement and no loads of experts."""
    return any(key in content for key in (MAP, SLOTS, LAYERS)) and not any(key in content for key in LOADS)


@cached_by_files(lambda path: (path,), maxsize=8)
def read_placement(path: str | Path) -> ExpertPlacement:
    """Return the placement in a .json file of any form. Raise `InputError` for other files or missing experts."""
    placement = placement_in(read_mapping(path, "placements of experts", ".json"), str(path))
    placement.slots.setflags(write=False)
    return placement


def placement_in(content: Mapping[str, Any], file: str) -> ExpertPlacement:
    """Return `read_placement` of a file's content."""
    if LAYERS in content:
        placement = _of_devices(content[LAYERS], file)
        _check_count(content, "moe_layer_count", len(placement.slots), file)
    elif key := next((key for key in (MAP, SLOTS) if key in content), None):
        placement = ExpertPlacement(_matrix(content[key], f"{file}: {key}"))
    else:
        hint = "; mfabric traces place makes a placement of its loads" if any(key in content for key in LOADS) else ""
        raise InputError(f"{file} must hold {MAP}, {SLOTS} or {LAYERS}{hint}.")
    _check_complete(placement, file)
    if SLOTS in content:
        _check_same(placement, content, file)
    name_unread(
        repr(file), "fields", [name for name in content if name not in (MAP, SLOTS, LAYERS, *FURTHER_KEYS, *LOADS)]
    )
    return placement


def _matrix(value: Any, where: str) -> Int[np.ndarray, "L P"]:
    """Return checked whole numbers of at least 0, in rows of equal length."""
    try:
        array = np.array(value)
    except (ValueError, OverflowError):  # lists of unequal lengths
        array = np.array(None)
    if array.ndim != 2 or array.dtype.kind not in "iu" or not 0 < array.size <= MOST or array.min() < 0:
        raise InputError(f"{where} must be numbers of experts, [[...]] by layer and slot, got {value!r:.80}.")
    return array.astype(np.int64)


def _check_complete(placement: ExpertPlacement, file: str) -> None:
    experts = whole(f"{file}: experts", placement.experts)
    if experts > placement.slots.shape[1]:
        raise InputError(
            f"{file}: numbers of experts must be below the {placement.slots.shape[1]} slots, got {experts - 1}."
        )
    for layer, row in enumerate(placement.slots):
        held = np.bincount(row, minlength=experts)
        if not held.all():
            raise InputError(f"{file}, layer {layer}: expert {int(held.argmin())} of {experts} has no slot.")


def _check_same(placement: ExpertPlacement, content: Mapping[str, Any], file: str) -> None:
    """Raise `InputError` if `logcnt` or `log2phy` contradicts the slots."""
    counted = copies_of(placement.slots)
    if "logcnt" in content and not np.array_equal(_matrix(content["logcnt"], f"{file}: logcnt"), counted):
        raise InputError(f"{file}: logcnt must be the number of slots of phy2log that hold each expert; it is not.")
    if "log2phy" in content and not _lists_slots(content["log2phy"], placement.slots):
        raise InputError(f"{file}: log2phy must list the slots of phy2log that hold each expert; it does not.")


def _lists_slots(value: Any, slots: np.ndarray) -> bool:
    try:
        return [[sorted(p for p in some if p >= 0) for some in layer] for layer in value] == _slots_of(slots)
    except TypeError:
        return False


def _of_devices(layers: Any, file: str) -> ExpertPlacement:
    """Return the slots of vLLM-Ascend's layers, in the order of `layer_id` and `device_id`."""
    rows, devices, beside = [], 0, []
    for layer in _in_order(layers, "layer_id", f"{file}: {LAYERS}"):
        where = f"{file}, layer {layer['layer_id']}"
        devices_of = _in_order(layer.get("device_list"), "device_id", where)
        every: list[Any] = [device.get("device_expert") for device in devices_of]
        beside += [name for name in layer if name not in ("layer_id", "device_count", "device_list")]
        beside += [name for device in devices_of for name in device if name not in ("device_id", "device_expert")]
        if not all(isinstance(some, list) and len(some) == len(every[0]) > 0 for some in every):
            raise InputError(f"{where}: device_expert must be a list, equally long on every device.")
        rows.append([expert for some in every for expert in some])
        _check_count(layer, "device_count", len(every), where)
        if devices not in (0, len(every)):
            raise InputError(f"{where}: device_list must have {devices} devices, as before, got {len(every)}.")
        devices = len(every)
    name_unread(repr(file), f"fields of {LAYERS}", beside)
    return ExpertPlacement(_matrix(rows, f"{file}: device_expert"), devices)


def _check_count(content: Mapping[str, Any], field: str, count: int, where: str) -> None:
    """Raise `InputError` if the file states a count that differs from its list."""
    if field in content and (type(content[field]) is not int or content[field] != count):
        raise InputError(f"{where}: {field} must be {count}, the number listed, got {content[field]!r:.80}.")


def _in_order(value: Any, key: str, where: str) -> list[dict[str, Any]]:
    """Return the mappings that `key` numbers 0, 1, ..., in that order."""
    numbered = isinstance(value, list) and all(
        isinstance(mapping, dict) and type(mapping.get(key)) is int for mapping in value
    )
    ordered = sorted(value, key=lambda mapping: mapping[key]) if numbered else []
    if not ordered or [mapping[key] for mapping in ordered] != [*range(len(ordered))]:
        raise InputError(f"{where} must be a list of mappings whose {key} counts from 0, got {value!r:.80}.")
    return ordered


# -------------------------------------------------------------------------------------------------------------- writing
def copies_of(slots: Int[np.ndarray, "L P"]) -> Int[np.ndarray, "L E"]:
    """Return the number of slots of every expert in every layer."""
    return (slots[:, :, None] == np.arange(slots.max() + 1)).sum(axis=1)


def _slots_of(slots: Int[np.ndarray, "L P"]) -> list[list[list[int]]]:
    return [[np.flatnonzero(row == expert).tolist() for expert in range(int(slots.max()) + 1)] for row in slots]


def _as_map(slots: np.ndarray, ranks: int | None) -> dict[str, Any]:
    return {MAP: slots.tolist()}


def _as_eplb(slots: np.ndarray, ranks: int | None) -> dict[str, Any]:
    counted = copies_of(slots)
    most = int(counted.max())
    listed = [[some + [-1] * (most - len(some)) for some in layer] for layer in _slots_of(slots)]
    return {SLOTS: slots.tolist(), "log2phy": listed, "logcnt": counted.tolist()}


def _as_ascend(slots: np.ndarray, ranks: int | None) -> dict[str, Any]:
    if ranks is None:
        raise InputError("form ascend lists experts by device; give --ranks.")
    layers = []
    for number, row in enumerate(slots.reshape(len(slots), ranks, -1).tolist()):
        devices = [{"device_id": rank, "device_expert": some} for rank, some in enumerate(row)]
        layers.append({"layer_id": number, "device_count": ranks, "device_list": devices})
    return {"moe_layer_count": len(layers), LAYERS: layers}


FORMS: dict[str, Callable[[np.ndarray, int | None], dict[str, Any]]] = {
    "map": _as_map,
    "eplb": _as_eplb,
    "ascend": _as_ascend,
}


def check_placement(path: str | Path, form: str) -> None:
    """Raise `InputError` if a placement cannot be written in this form."""
    one_of("form", form, FORMS)
    check_file("placement", path, (".json",))


def write_placement(placement: ExpertPlacement, path: str | Path, form: str = "map") -> Path:
    """Write a placement as JSON in one of `FORMS`; return the path. Raise `InputError` if ranks do not divide slots."""
    check_placement(path, form)
    slots, ranks = placement
    if ranks is not None and slots.shape[1] % whole("ranks", ranks):
        raise InputError(f"ranks must divide the {slots.shape[1]} slots of a layer, got {ranks}.")
    with replacing(path := Path(path)) as (part,):
        part.write_text(json.dumps(FORMS[form](slots, ranks)) + "\n", encoding="utf-8")
    return path
