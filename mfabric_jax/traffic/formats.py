"""Traffic read from a recording: finds out which format a path has, and fits what it holds to a workload."""

import pathlib
from collections.abc import Sequence

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.traffic import array_files, published, tables
from mfabric_jax.traffic._router_trace import router_trace
from mfabric_jax.traffic.recording import Recording
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import RankLayout, Workload

FORMATS = (
    ".npy, .npz, .json or .pt of counts [layer, expert], [iteration, layer, micro-batch, source, expert] or with "
    "axes that are named, num_global_tokens_per_expert [tp, ep, expert], logical_count or expert_load_window "
    "[iteration, layer, expert] or weight [layer, expert]; .csv or .parquet with columns iteration, layer, "
    "micro_batch, source, expert, tokens; .jsonl of a Megatron router trace, or a folder of them; .txt of an "
    "mFabric weight matrix; a folder of the SmartMoE gate trace, of OLMoE expert counts, of a LAER-MoE token "
    "analysis or of .pt files of SGLang's ranks"
)
_SUFFIXES = (*array_files.SUFFIXES, ".jsonl", ".txt", ".csv", ".gz", ".parquet")
_SEVERAL = (published.OLMOE, published.LAER)  # names of files with several recordings


def recorded(
    workload: Workload,
    path: str | pathlib.Path | Recording,
    records: tuple[int, int] | None = None,
    iterations: int | None = None,
    axes: str | None = None,
) -> Tokens:
    """Recorded selections, fitted to the workload (`Recording.fitted`).

    - `path`: what `open_trace` reads. Of several recordings in one the one with the model's number of experts is
      taken, else the one with a multiple of it; name it (PATH/NAME) where that leaves a choice. Or a `Recording`.
    - `records`: first and last record to use, both included, by recorded iteration or step where the file has such
      numbers, else by index. Default all; of the SmartMoE gate trace 2011 to 5001 (before, its gate is collapsed).
    - `iterations`: how many to return, default one per record; more than there are records read them cyclically.
    - `axes`: as in `open_trace`.

    `InputError` for a file that is missing, unreadable, of other axes or of zeros, for an empty range of records, and
    for source ranks or experts that do not fit the workload.
    """
    return recording_of(workload, path, axes).chosen(records).fitted(workload, iterations)


def recording_of(workload: Workload, path: str | pathlib.Path | Recording, axes: str | None = None) -> Recording:
    """The recording of a path that is the model's, unfitted (`recorded`); `axes` as in `open_trace`."""
    if isinstance(path, Recording):
        if axes is not None:
            raise InputError(f"axes are for a file that is one array; this recording has its own, got {axes!r}.")
        return path
    several = open_trace(path, workload.layout, axes)
    return several[0] if len(several) == 1 else _of_model(several, workload, path)


def open_trace(
    path: str | pathlib.Path, layout: RankLayout | None = None, axes: str | None = None
) -> tuple[Recording, ...]:
    """What a path holds, unfitted: mostly one recording.

    - `layout`: what the global ranks of a router trace are; default: one rank. Other formats tell themselves.
    - `axes`: the axes of an array in their order, with commas between them: iteration, layer, micro-batch, source,
      expert (or destination, a rank); what is not named was not recorded.

    Where a path holds several recordings (OLMoE, LAER-MoE), PATH/NAME is the one of that name. `InputError` for a
    path that is missing or of none of the `FORMATS`.
    """
    path, layout = pathlib.Path(path), layout or RankLayout()
    if axes is not None and (path.suffix not in array_files.SUFFIXES or not path.is_file()):
        raise InputError(f"axes are for a file that is one array ({', '.join(array_files.SUFFIXES)}), got {path}.")
    if path.is_dir():
        return _of_folder(path, layout)
    if path.is_file():
        return _of_file(path, layout, axes)
    folder = path.parent
    if path.suffix not in _SUFFIXES and (folder.is_file() or any(next(folder.glob(name), None) for name in _SEVERAL)):
        named = {recording.name: recording for recording in open_trace(folder)}
        return (named[one_of(f"recording of {folder}", path.name, named)],)
    raise InputError(f"trace must be an existing file or folder, got {path}; formats: {FORMATS}.")


def _of_folder(folder: pathlib.Path, layout: RankLayout) -> tuple[Recording, ...]:
    """The recordings of a folder, told by the names of its files."""
    if any((folder / f"{published.GATE_TRACE}{packed}").is_file() for packed in ("", ".xz")):
        return (published.read_gate_trace(folder),)
    if next(folder.glob("*.jsonl"), None):
        return (router_trace(folder, layout),)
    for name in _SEVERAL:
        if files := sorted(folder.glob(name)):
            return _of_file(files[0], layout)
    if dumps := sorted(folder.glob("*.pt")):
        return (array_files.array_recording(folder, array_files.load_ranks(folder, dumps)),)
    raise InputError(
        f"trace folder must hold *.jsonl of a Megatron router trace, {published.OLMOE} (OLMoE), {published.LAER} "
        f"(LAER-MoE), *.pt (SGLang), or {published.GATE_TRACE}[.xz] and {published.ITERATIONS} (SmartMoE), "
        f"got {folder}."
    )


def _of_file(file: pathlib.Path, layout: RankLayout, axes: str | None = None) -> tuple[Recording, ...]:
    """The recordings of a file, told by its extension and by the keys of its arrays."""
    if file.suffix in array_files.SUFFIXES:
        arrays = array_files.load_arrays(file)
        return published.olmoe(file, arrays) or (array_files.array_recording(file, arrays, axes),)
    if file.suffix == ".jsonl":
        return (router_trace(file, layout),)
    if file.suffix == ".txt":
        return (published.weight_matrix(file),)
    if file.match(published.LAER):
        return published.laer(file)
    if tables.is_table(file):
        return (tables.load_table(file),)
    raise InputError(f"trace {file} has none of the formats that are read: {FORMATS}.")


def _of_model(several: Sequence[Recording], workload: Workload, path: str | pathlib.Path) -> Recording:
    """The recording whose experts are the model's, or a multiple of them."""
    experts = workload.architecture.experts
    same = [each for each in several if each.experts == experts]
    fitting = same or [each for each in several if each.experts and each.experts % experts == 0]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(f"{pathlib.Path(path) / each.name} ({each.experts} experts)" for each in several)
    raise InputError(f"trace {path} holds several recordings; name one for {experts} experts, got: {names}.")
