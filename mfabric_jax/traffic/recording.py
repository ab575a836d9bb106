"""Recorded routing, its fit to a workload, and the `.npz` files of `save_tokens`; `FORMATS` reads other formats."""

import dataclasses
import enum
import importlib
import json
import pathlib
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mfabric_jax import checks
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.support.atomic import replacing
from mfabric_jax.support.text_files import parse_json
from mfabric_jax.support.unpacking import check_archive
from mfabric_jax.support.unread import name_unread
from mfabric_jax.traffic.tokens import Reached, Tokens
from mfabric_jax.workload import RankLayout, Workload

FORMATS = "mfabric_jax.apps.recordings.formats"  # its `read(path, layout, axes)` reads recordings in other formats
AXES = ("iteration", "layer", "micro-batch", "source", "expert")
DESTINATION = "destination"  # an axis of ranks instead of experts
COUNTS, META = "tokens", "meta"  # keys of our own files
SCHEMA_VERSION = 1
SPREAD = (
    "sources not recorded: spread equally over source ranks (all rows of a demand are equal, so it cannot judge "
    "circuits)"
)


class Sources(enum.Enum):
    """What the rows of a recording are."""

    RANKS = "source rank"
    DOMAINS = "text domain"
    UNKNOWN = "all sources together"


class Targets(enum.Enum):
    """What the columns of a recording are."""

    EXPERTS = "expert"
    RANKS = "destination rank"


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """Recorded selections.

    - `count` [iteration, layer, micro_batch, source, target]; an unrecorded axis has length 1.
    - `number` [iteration]: the recorded iteration or step, or the record's index.
    - `path`, `format`: the file and its format in words. `name`: selects a recording in a file with several.
    - `sources`, `targets`: kinds of the last two axes. `experts`: number of experts, None if not in the file.
    - `steady`: first and last record that are used by default.
    - `origin`: program that wrote the counts. `layout`: layout of the global ranks. Empty or None if not in the file.
    - `reached`: tokens that reach groups of neighbouring experts, if the file has every token's choices.
    """

    count: np.ndarray
    number: np.ndarray
    path: str
    format: str
    name: str = ""
    sources: Sources = Sources.RANKS
    targets: Targets = Targets.EXPERTS
    experts: int | None = None
    steady: tuple[int, int] | None = None
    origin: str = ""
    layout: RankLayout | None = None
    reached: dict[int, np.ndarray] | None = None

    @property
    def axes(self) -> dict[str, int]:
        """Names and lengths of the recorded axes."""
        names = ("iteration", "layer", "micro-batch", self.sources.value, self.targets.value)
        return {n: size for n, size in zip(names, self.count.shape, strict=True) if n != Sources.UNKNOWN.value}

    def select(self, records: tuple[int, int] | None = None) -> "Recording":
        """Return the records whose number lies in [first, last]. Raise `InputError` if there are none."""
        number = self.number
        bounds = records if records is not None else self.steady or (number.min(), number.max())
        if len(tuple(bounds)) != 2 or bounds[0] > bounds[1]:
            raise InputError(f"records must be a pair, the first and the last, got {records!r}.")
        first, last = bounds
        index = np.flatnonzero((number >= first) & (number <= last))
        if not index.size:
            raise InputError(
                f"records must overlap what {self.path} holds, {number.min()} to {number.max()}, got {first} to {last}."
            )
        return self.some(index)

    def some(self, index: np.ndarray | slice) -> "Recording":
        reached = None if self.reached is None else {parts: tokens[index] for parts, tokens in self.reached.items()}
        return dataclasses.replace(self, count=self.count[index], number=self.number[index], reached=reached)

    def tokens(self) -> Tokens:
        """Return the checked counts, with sources as source ranks and targets as experts."""
        with checks.in_file(self.path):
            return Tokens(self.count, self.words)

    @property
    def words(self) -> str:
        """Description for the configuration of a result."""
        where = f"{self.path} {self.name}".rstrip()
        origin = self.origin or (self.layout.words if self.layout is not None else "")
        return f"recorded {where}{f' ({origin})' if origin else ''}, {self._range}"

    @property
    def _range(self) -> str:
        return f"records {self.number[0]} to {self.number[-1]}"

    def fit(self, workload: Workload, iterations: int | None = None) -> Tokens:
        """Return selections for `iterations` of a workload (default: one per record); records repeat cyclically.

        Layer l reads recorded layer l mod L, or its block's layer if every block of the model was recorded.
        Neighbouring experts and source ranks are summed to the model's numbers, and every source rank is scaled to
        `workload.selections`. Loads without sources are spread over source ranks, and loads of destination ranks over
        their experts. Source rank r reads text domain r mod D. The result's `source` describes all this and warns of
        axes that look swapped. Raise `InputError` if ranks or experts do not fit or all counts are 0.
        """
        wanted = len(self.count) if iterations is None else checks.whole("iterations", iterations)
        used = self.some(slice(wanted))
        layer = self._layers(workload)
        experts = workload.architecture.experts
        raw = Tokens(used._columns(used.count, experts), used.words)
        held = raw.count.shape[-1]
        if held % experts:
            raise InputError(
                f"trace {self.path} must hold a multiple of the {experts} experts of {workload.model}, got {held}."
            )
        rows, sources = used._rows(raw.fold_experts(experts).count[:, layer], workload.ep)
        notes = [raw.source, sources, *used._notes(wanted, layer, held // experts)]
        cyclic = np.arange(wanted) % len(rows)
        count = rows[cyclic]
        known = {parts: used._rows(x[:, layer], workload.ep)[0][cyclic] for parts, x in (used.reached or {}).items()}
        reached = Reached(count, known) if known else None
        return Tokens(count, ", ".join(filter(None, notes)), reached=reached).scale_to(workload)

    def _layers(self, workload: Workload) -> np.ndarray:
        recorded, blocks = self.count.shape[1], workload.architecture.moe_blocks
        if recorded == workload.architecture.blocks:
            return np.asarray(blocks)
        return np.arange(len(blocks)) % recorded

    def _notes(self, iterations: int, layer: np.ndarray, together: int) -> Iterator[str]:
        """Yield notes on experts, records and layers that are merged, repeated, unused or empty."""
        recorded, layers = self.count.shape[1], len(layer)
        if self.targets is Targets.RANKS:
            yield "experts not recorded: what a rank receives is spread equally over its own"
        elif together > 1:
            yield f"{together} neighbouring experts added up"
        if iterations > len(self.count):
            yield f"read cyclically for {iterations} iterations"
        if layers > recorded:
            yield f"layer l reads recorded layer l mod {recorded}"
        if layers < recorded:
            which = "the first" if np.array_equal(layer, np.arange(layers)) else "blocks with experts,"
            yield f"{which} {layers} of {recorded} layers"
        used = np.unique(layer)
        sent, received = (self.count[:, used].sum(axis=axis, dtype=np.float64) for axis in (-1, -2))
        filled = sent.any(axis=-1)
        if not filled.any():
            raise InputError(f"tokens of trace {self.path} must not all be 0, got only zeros in {self._range}.")
        if not filled.all():
            yield f"{np.sum(~filled)} of {filled.size} all-to-alls without tokens"
        from_ranks = (self.sources, self.targets) == (Sources.RANKS, Targets.EXPERTS)
        if from_ranks and np.ptp(sent, axis=-1).any() and not np.ptp(received, axis=-1).any():
            yield "experts receive equally but source ranks send unequally: are these two axes swapped?"

    def _rows(self, count: np.ndarray, ep: int) -> tuple[np.ndarray, str]:
        recorded = count.shape[3]
        if self.sources is Sources.UNKNOWN:
            return np.repeat(count, ep, axis=3), SPREAD
        if self.sources is Sources.DOMAINS:
            rows = np.take(count, np.arange(ep) % recorded, axis=3)
            return rows, f"source rank r reads text domain r mod {recorded}"
        if recorded % ep:
            raise InputError(f"ep of the workload must divide the {recorded} source ranks of {self.path}, got {ep}.")
        folded = count.reshape(*count.shape[:3], ep, recorded // ep, -1).sum(axis=4)
        return folded, "" if recorded == ep else f"{recorded // ep} neighbouring source ranks added up"

    def _columns(self, count: np.ndarray, experts: int) -> np.ndarray:
        """Return counts by expert; a destination rank's load is spread evenly over its experts."""
        targets = count.shape[-1]
        if self.targets is Targets.EXPERTS:
            missing = experts - targets if self.experts is None else 0
            return np.pad(count, [(0, 0)] * 4 + [(0, max(missing, 0))])
        known = self.experts or experts
        if known % targets:
            raise InputError(
                f"experts of the workload must be a multiple of the {targets} destination ranks of {self.path}, "
                f"got {experts}."
            )
        return np.repeat(count / (known // targets), known // targets, axis=-1)


def recorded_tokens(
    workload: Workload,
    path: str | pathlib.Path | Recording,
    records: tuple[int, int] | None = None,
    iterations: int | None = None,
    axes: str | None = None,
) -> Tokens:
    """Return recorded selections, fitted to the workload (`Recording.fit`).

    - `path`: as in `open_trace`, or a `Recording`. If it holds several, the one with the model's number of experts is
      used, else one with a multiple of it; PATH/NAME selects one.
    - `records`: first and last record, inclusive. The default is all; for the SmartMoE gate trace, 2011 to 5001.
    - `iterations`: the default is one per record. `axes`: as in `open_trace`.

    Raise `InputError` if the file is unreadable, no record is in range, or ranks or experts do not fit.
    """
    recording = recording_of(workload, path, axes)
    with checks.in_file(recording.path):
        return recording.select(records).fit(workload, iterations)


def recording_of(workload: Workload, path: str | pathlib.Path | Recording, axes: str | None = None) -> Recording:
    """Return the path's recording for the model, not fitted to it; arguments as in `recorded_tokens`."""
    if isinstance(path, Recording):
        if axes is not None:
            raise InputError(f"axes are for a file that is one array; this recording has its own, got {axes!r}.")
        return path
    several, experts = open_trace(path, workload.layout, axes), workload.architecture.experts
    if len(several) == 1:
        return several[0]
    same = [each for each in several if each.experts == experts]
    fitting = same or [each for each in several if each.experts and each.experts % experts == 0]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(f"{pathlib.Path(path) / each.name} ({each.experts} experts)" for each in several)
    raise InputError(f"trace {path} holds several recordings; name one for {experts} experts, got: {names}.")


def open_trace(
    path: str | pathlib.Path, layout: RankLayout | None = None, axes: str | None = None
) -> tuple[Recording, ...]:
    """Return the recordings in a file or folder, not fitted; PATH/NAME selects one of several (OLMoE, LAER-MoE).

    - `layout`: layout of a router trace's global ranks (default: one rank); other formats contain it.
    - `axes`: names of an array's axes in order, separated by commas: iteration, layer, micro-batch, source, expert (or
      destination, a rank). Axes that are not named were not recorded.

    Raise `InputError` if the path is missing or its format is unknown.
    """
    path = pathlib.Path(path)
    with checks.in_file(path):
        return _open(path, layout, axes)


def _open(path: pathlib.Path, layout: RankLayout | None, axes: str | None) -> tuple[Recording, ...]:
    saved = _read_saved(path) if axes is None and path.suffix == ".npz" and path.is_file() else None
    return importlib.import_module(FORMATS).read(path, layout or RankLayout(), axes) if saved is None else (saved,)


def axes_of(words: str | Sequence[str]) -> tuple[str, ...]:
    """Return the axes named in a list or comma-separated text.

    Raise `InputError` if a name is unknown or repeated, or unless exactly one of expert and destination is named.
    """
    listed = words.split(",") if isinstance(words, str) else [str(word) for word in words]
    plain = [word.strip().lower().replace("_", "-").removesuffix("-rank") for word in listed]
    names = tuple(one_of("axis", word, (*AXES, DESTINATION)) for word in plain)
    if len(set(names)) < len(names) or len({"expert", DESTINATION} & set(names)) != 1:
        raise InputError(f"axes must name expert (or destination), and no axis twice, got {', '.join(names)}.")
    return names


def counts_in(path: pathlib.Path, count: np.ndarray) -> np.ndarray:
    """Return the counts of a file, half precision as single so that sums fit. Raise `InputError` for other dtypes."""
    if count.dtype.kind not in "iuf":
        raise InputError(f"tokens of trace {path} must be integers or reals, got dtype {count.dtype}.")
    return count.astype(np.float32) if count.dtype == np.float16 else count


SAID = ("schema_version", "source", "records", "sources", "targets", "experts")  # in `META`


def _read_saved(path: pathlib.Path) -> Recording | None:
    try:
        with zipfile.ZipFile(path) as archive:
            check_archive(path, archive)
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            count, meta, names = np.asarray(arrays[COUNTS]), str(arrays[META][()]), list(arrays)
    except InputError:
        raise
    except Exception:  # the archive cannot be read, so it is not one of our files
        return None
    try:
        facts = parse_json(meta)
        version, number = int(facts["schema_version"]), np.array(facts["records"], dtype=np.int64)
        kinds = Sources(facts["sources"]), Targets(facts["targets"])
        experts, origin = facts["experts"] and int(facts["experts"]), str(facts["source"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{META} of trace {path} must be the JSON that save_tokens wrote, got {meta!s:.80}."
        ) from error
    name_unread(repr(str(path)), "arrays", [name for name in names if name not in (COUNTS, META)])
    name_unread(repr(str(path)), f"entries of {META}", [name for name in facts if name not in SAID])
    if version > SCHEMA_VERSION:
        raise InputError(f"schema_version of trace {path} must be at most {SCHEMA_VERSION}, got {version}.")
    if count.ndim != len(AXES) or 0 in count.shape or number.shape != (len(count),):
        raise InputError(
            f"{COUNTS} of trace {path} must be [{', '.join(AXES)}], and records one number for each iteration, got "
            f"shapes {count.shape} and {number.shape}."
        )
    return Recording(counts_in(path, count), number, str(path), COUNTS, "", *kinds, experts, origin=origin)


def save_tokens(tokens: Tokens | Recording, path: str | pathlib.Path) -> pathlib.Path:
    """Write tokens or a recording as `.npz`, atomically; return the path.

    Keys: `tokens` [iteration, layer, micro_batch, source_rank, expert], and `meta`, a JSON text with `schema_version`,
    `source` (description), `records` (number of each iteration), `sources` and `targets` (kinds of the last two axes)
    and `experts`. Raise `InputError` if the extension is another, counts are negative, not finite or not numeric, or
    the file cannot be written.
    """
    path = pathlib.Path(path)
    if path.suffix != ".npz":
        raise InputError(f"a trace is saved as .npz, got {str(path)!r}.")
    source = tokens.source if isinstance(tokens, Tokens) else f"{tokens.format}: {tokens.words}"
    if isinstance(tokens, Tokens):
        tokens = Recording(tokens.count, np.arange(len(tokens.count)), "", "", experts=tokens.count.shape[-1])
    meta = {
        "schema_version": SCHEMA_VERSION,
        "source": source,
        "records": tokens.number.tolist(),
        "sources": tokens.sources.value,
        "targets": tokens.targets.value,
        "experts": tokens.experts,
    }
    count = tokens.tokens().count
    arrays: dict[str, Any] = {COUNTS: count, META: np.array(json.dumps(meta))}
    with replacing(path) as (part,), part.open("wb") as opened:
        np.savez_compressed(opened, **arrays)
    return path
