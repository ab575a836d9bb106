"""Traffic read from a recording: finds out which format a path has, and fits what it holds to a workload."""

import pathlib
from collections.abc import Sequence

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.traffic import arrays, files, published, router_trace, weight_matrix
from mfabric_jax.traffic.recording import Recording
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Layout, Workload

FORMATS = (
    ".npy or .npz of tokens [iteration, layer, micro_batch, source_rank, expert], num_global_tokens_per_expert "
    "[tp, ep, expert], logical_count [iteration, layer, expert] or weight [layer, expert] (.pt too, with torch)",
    ".jsonl of a Megatron router trace, or a folder of them",
    ".txt of an mFabric weight matrix",
    "a folder of the SmartMoE gate trace, of OLMoE expert counts or of a LAER-MoE token analysis",
)


def recorded(
    path: str | pathlib.Path,
    workload: Workload,
    records: tuple[int, int] | None = None,
    iterations: int | None = None,
) -> Tokens:
    """Recorded selections, fitted to the workload.

    - `path`: what `open_trace` reads. Of several recordings in one the one with the model's number of experts is
      taken, else the one with a multiple of it; name it (PATH/NAME) where that leaves a choice.
    - `records`: first and last record to use, both included, by recorded iteration or step where the file has such
      numbers, else by index. Default all; of the SmartMoE gate trace 2011 to 5001 (before, its gate is collapsed).
    - `iterations`: how many to return, default one per record; more than there are records read them cyclically.

    Layer l reads recorded layer l mod L; neighbouring experts and source ranks are added up to the model's number;
    every source rank is scaled to `workload.selections`. Loads without sources are spread equally over source ranks;
    source rank r reads text domain r mod D; what is known of a destination rank only is spread equally over its
    experts. `source` says so, and names what is read several times or not at all, what is empty, and axes that look
    swapped. Raises `InputError` for a file that is missing, unreadable, of other axes or of zeros, for an empty range
    of records, and for source ranks or experts that do not fit the workload.
    """
    found = open_trace(path, workload.layout)
    recording = found[0] if len(found) == 1 else _of_model(found, workload, path)
    return recording.chosen(records).fitted(workload, iterations)


def open_trace(path: str | pathlib.Path, layout: Layout | None = None) -> tuple[Recording, ...]:
    """What a path holds, unfitted: mostly one recording.

    - `layout`: what the global ranks of a router trace are; other formats tell themselves. Default: one rank.

    Formats: see `FORMATS` and the readers `arrays.read`, `router_trace.read`, `weight_matrix.read` and those of
    `published`. Where a path holds several recordings (OLMoE, LAER-MoE), PATH/NAME is the one of that name.
    `InputError` for a path that is missing or none of these.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        return _folder(path, layout or Layout())
    if path.is_file():
        return _file(path, layout or Layout())
    if path.suffix not in _SUFFIXES and path.parent.exists() and _has_names(path.parent):
        several = {one.name: one for one in open_trace(path.parent)}
        return (several[one_of(f"recording of {path.parent}", path.name, several)],)
    raise InputError(f"trace must be an existing file or folder, got {path}; formats: {'; '.join(FORMATS)}.")


_SUFFIXES = (".npy", ".npz", ".pt", ".jsonl", ".txt", ".csv", ".gz", ".xz")


def _has_names(path: pathlib.Path) -> bool:
    """Whether a path may hold several recordings."""
    return path.is_file() or any(next(path.glob(pattern), None) for pattern in (published.OLMOE, published.LAER))


def _folder(folder: pathlib.Path, layout: Layout) -> tuple[Recording, ...]:
    """The recordings of a folder, told by the names of its files."""
    if any((folder / f"{published.GATE_TRACE}{packed}").is_file() for packed in ("", ".xz")):
        return (published.gate_trace(folder),)
    if next(folder.glob("*.jsonl"), None):
        return (router_trace.read(folder, layout),)
    for pattern in (published.OLMOE, published.LAER):
        file = next(iter(sorted(folder.glob(pattern))), None)
        if file is not None:
            return _file(file, layout)
    raise InputError(
        f"trace folder must hold *.jsonl of a Megatron router trace, {published.OLMOE} (OLMoE), {published.LAER} "
        f"(LAER-MoE), or {published.GATE_TRACE}[.xz] and {published.ITERATIONS} (SmartMoE), got {folder}."
    )


def _file(file: pathlib.Path, layout: Layout) -> tuple[Recording, ...]:
    """The recordings of a file, told by its extension and by the keys of its arrays."""
    if file.suffix in (".npy", ".npz", ".pt"):
        found = files.arrays(file, arrays.KEYS)
        return published.olmoe(file, found) if published.is_olmoe(found) else (arrays.read(file, found),)
    if file.suffix == ".jsonl":
        return (router_trace.read(file, layout),)
    if file.suffix == ".txt":
        return (weight_matrix.read(file),)
    if file.match(published.LAER):
        return published.laer(file)
    raise InputError(f"trace {file} has none of the formats that are read: {'; '.join(FORMATS)}.")


def _of_model(found: Sequence[Recording], workload: Workload, path: str | pathlib.Path) -> Recording:
    """The recording whose experts are the model's, or a multiple of them."""
    experts = workload.architecture.experts
    same = [one for one in found if one.experts == experts]
    fitting = same or [one for one in found if one.experts and one.experts % experts == 0]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(f"{pathlib.Path(path) / one.name} ({one.experts} experts)" for one in found)
    raise InputError(f"trace {path} holds several recordings; name one for {experts} experts, got: {names}.")
