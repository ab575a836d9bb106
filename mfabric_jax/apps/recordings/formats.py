"""Read a recording of any format, detected by file names and array keys."""

import pathlib

from mfabric_jax.apps.recordings import arrays, published, tables
from mfabric_jax.apps.recordings.router_trace import router_trace
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.support.text_files import looked_in
from mfabric_jax.traffic.recording import Recording
from mfabric_jax.workload import RankLayout

FORMATS = (
    ".npy, .npz, .json or .pt of counts [layer, expert], [iteration, layer, micro-batch, source, expert] or with "
    "named axes, num_global_tokens_per_expert [tp, ep, expert], logical_count or expert_load_window "
    "[iteration, layer, expert] or weight [layer, expert]; .csv or .parquet with columns iteration, layer, "
    "micro_batch, source, expert, tokens; .jsonl of a Megatron router trace, or a folder of them; .txt of an "
    "mFabric weight matrix; a folder of the SmartMoE gate trace, of OLMoE expert counts, of a LAER-MoE token "
    "analysis or of .pt files of SGLang's ranks"
)
SUFFIXES = (*arrays.SUFFIXES, *tables.SUFFIXES, ".jsonl", ".txt", ".gz")
SEVERAL = (published.OLMOE, published.LAER)  # name patterns of files with several recordings


def read(path: pathlib.Path, layout: RankLayout, axes: str | None) -> tuple[Recording, ...]:
    """Return the recordings of a file or folder: `traffic.open_trace` for all formats except the package's own."""
    if axes is not None and (path.suffix not in arrays.SUFFIXES or not path.is_file()):
        raise InputError(f"axes are for a file that is one array ({', '.join(arrays.SUFFIXES)}), got {path}.")
    if path.is_dir():
        return _of_folder(path, layout)
    if path.is_file():
        return _of_file(path, layout, axes)
    folder = path.parent
    if path.suffix not in SUFFIXES and (folder.is_file() or any(next(folder.glob(name), None) for name in SEVERAL)):
        named = {recording.name: recording for recording in read(folder, layout, None)}
        return (named[one_of(f"recording of {folder}", path.name, named)],)
    raise InputError(f"trace must be an existing file or folder, got {path}{looked_in(path)}; formats: {FORMATS}.")


def _of_folder(folder: pathlib.Path, layout: RankLayout) -> tuple[Recording, ...]:
    if any((folder / f"{published.GATE_TRACE}{packed}").is_file() for packed in ("", ".xz")):
        return (published.gate_trace(folder),)
    if next(folder.glob("*.jsonl"), None):
        return (router_trace(folder, layout),)
    for name in SEVERAL:
        if files := sorted(folder.glob(name)):
            return _of_file(files[0], layout)
    if dumps := sorted(folder.glob("*.pt")):
        return (arrays.array_recording(folder, arrays.load_ranks(folder, dumps)),)
    raise InputError(
        f"trace folder must hold *.jsonl of a Megatron router trace, {published.OLMOE} (OLMoE), {published.LAER} "
        f"(LAER-MoE), *.pt (SGLang), or {published.GATE_TRACE}[.xz] and {published.ITERATIONS} (SmartMoE), "
        f"got {folder}."
    )


def _of_file(file: pathlib.Path, layout: RankLayout, axes: str | None = None) -> tuple[Recording, ...]:
    if file.suffix in arrays.SUFFIXES:
        loaded = arrays.load_arrays(file)
        return published.olmoe(file, loaded) or (arrays.array_recording(file, loaded, axes),)
    if file.suffix == ".jsonl":
        return (router_trace(file, layout),)
    if file.suffix == ".txt":
        return (published.weight_matrix(file),)
    if file.match(published.LAER):
        return published.laer(file)
    if file.name.lower().endswith(tables.SUFFIXES):
        return (tables.load_table(file),)
    raise InputError(f"trace {file} must have a known format; formats: {FORMATS}.")
