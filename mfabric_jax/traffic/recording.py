"""What a recording of routing holds, whatever its file, and how it is fitted to a workload."""

import dataclasses
import enum
from collections.abc import Iterator

import numpy as np

from mfabric_jax import checks
from mfabric_jax.checks import InputError
from mfabric_jax.traffic.tokens import Reached, Tokens
from mfabric_jax.workload import RankLayout, Workload

SPREAD = (
    "sources not recorded: spread equally over source ranks (all rows of a demand are alike, so circuits cannot be "
    "judged by it)"
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
    """Selections as they were counted.

    - `count` [iteration, layer, micro_batch, source, target]; an axis that was not recorded has length 1.
    - `number` [iteration]: what a record is called: its iteration or step, or its index.
    - `path`, `format`: where it stands and what it is, in words; `name`: which of several in one file.
    - `sources`, `targets`: what the last two axes are.
    - `experts`: how many experts the targets stand for, None where the file does not say.
    - `steady`: first and last record to use unless others are asked for.
    - `origin`: what wrote the counts, where the file says so.
    - `layout`: what the global ranks of the job were, where the file names these.
    - `reached`: how many tokens reach groups of neighbouring experts, where the file has the choices of every token.
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
        """Names and lengths of the axes that were recorded."""
        names = ("iteration", "layer", "micro-batch", self.sources.value, self.targets.value)
        return {n: size for n, size in zip(names, self.count.shape, strict=True) if n != Sources.UNKNOWN.value}

    def chosen(self, records: tuple[int, int] | None = None) -> "Recording":
        """Only the records whose number lies in [first, last]. `InputError` where there is none."""
        number = self.number
        asked = records if records is not None else self.steady or (number.min(), number.max())
        if len(tuple(asked)) != 2:
            raise InputError(f"records must be a pair (first, last), got {records!r}.")
        first, last = asked
        if first > last:
            raise InputError(f"records must be first and last, got {first} and {last}, which is before it.")
        index = np.flatnonzero((number >= first) & (number <= last))
        if not index.size:
            raise InputError(
                f"records must overlap what {self.path} holds, {number.min()} to {number.max()}, got {first} to {last}."
            )
        return self.some(index)

    def some(self, index: np.ndarray | slice) -> "Recording":
        """These records."""
        reached = None if self.reached is None else {parts: tokens[index] for parts, tokens in self.reached.items()}
        return dataclasses.replace(self, count=self.count[index], number=self.number[index], reached=reached)

    def tokens(self) -> Tokens:
        """The counts themselves, checked; sources and targets in the places of source ranks and experts."""
        return Tokens(self.count, self.words)

    @property
    def words(self) -> str:
        """What this is, for the configuration that a result carries."""
        where = f"{self.path} {self.name}".rstrip()
        origin = self.origin or (self.layout.words if self.layout is not None else "")
        return f"recorded {where}{f' ({origin})' if origin else ''}, {self._range}"

    @property
    def _range(self) -> str:
        return f"records {self.number[0]} to {self.number[-1]}"

    def fitted(self, workload: Workload, iterations: int | None = None) -> Tokens:
        """Selections for a workload, `iterations` of them (default: one per record), records read cyclically.

        Layer l reads recorded layer l mod L, or its block's where every block of the model has one; neighbouring
        experts and source ranks are added up to the model's number;
        every source rank is scaled to `workload.selections`. Loads without sources are spread equally over source
        ranks; source rank r reads text domain r mod D; what is known of a destination rank only is spread equally over
        its experts. `source` says so, and names what is read several times or not at all, what is empty, and axes that
        look swapped. `InputError` for ranks or experts that do not fit, and for a recording of zeros.
        """
        wanted = len(self.count) if iterations is None else checks.whole("iterations", iterations)
        used = self.some(slice(wanted))
        layer = self._layers(workload)
        experts = workload.architecture.experts
        raw = Tokens(used._columns(used.count, experts), used.words)
        if raw.count.shape[-1] % experts:
            held, model = raw.count.shape[-1], workload.model
            raise InputError(f"trace {self.path} must hold a multiple of the {experts} experts of {model}, got {held}.")
        rows, sources = used._rows(raw.fold_experts(experts).count[:, layer], workload.ep)
        notes = [
            raw.source,
            sources,
            used._merged(raw.count.shape[-1], experts),
            *used._cycles(wanted, layer),
            *used._gaps(np.unique(layer)),
        ]
        cyclic = np.arange(wanted) % len(rows)
        count = rows[cyclic]
        known = {parts: used._rows(x[:, layer], workload.ep)[0][cyclic] for parts, x in (used.reached or {}).items()}
        reached = Reached(count, known) if known else None
        return Tokens(count, ", ".join(filter(None, notes)), reached=reached).scaled_to(workload)

    def _merged(self, held: int, experts: int) -> str:
        """What to say about experts that are not those of the model."""
        if self.targets is Targets.RANKS:
            return "experts not recorded: what a rank receives is spread equally over its own"
        return f"{held // experts} neighbouring experts added up" if held > experts else ""

    def _layers(self, workload: Workload) -> np.ndarray:
        """Which recorded layer every MoE layer reads."""
        recorded, blocks = self.count.shape[1], workload.architecture.moe_blocks
        if recorded == workload.architecture.blocks:
            return np.asarray(blocks)
        return np.arange(len(blocks)) % recorded

    def _cycles(self, iterations: int, layer: np.ndarray) -> Iterator[str]:
        """What to say about records and layers that are read several times, or not at all."""
        recorded, layers = self.count.shape[1], len(layer)
        if iterations > len(self.count):
            yield f"read cyclically for {iterations} iterations"
        if layers > recorded:
            yield f"layer l reads recorded layer l mod {recorded}"
        if layers < recorded:
            which = "the first" if np.array_equal(layer, np.arange(layers)) else "blocks with experts,"
            yield f"{which} {layers} of {recorded} layers"

    def _gaps(self, layers: np.ndarray) -> Iterator[str]:
        """What to say about all-to-alls without tokens, and about axes that look swapped. `InputError` without any."""
        sent, received = (self.count[:, layers].sum(axis=axis, dtype=np.float64) for axis in (-1, -2))
        filled = sent.any(axis=-1)
        if not filled.any():
            raise InputError(f"tokens of trace {self.path} must not all be 0, got no others in {self._range}.")
        if not filled.all():
            yield f"{np.sum(~filled)} of {filled.size} all-to-alls without tokens"
        from_ranks = (self.sources, self.targets) == (Sources.RANKS, Targets.EXPERTS)
        if from_ranks and np.ptp(sent, axis=-1).any() and not np.ptp(received, axis=-1).any():
            yield "experts receive alike and source ranks do not send alike: are these two axes swapped?"

    def _rows(self, count: np.ndarray, ep: int) -> tuple[np.ndarray, str]:
        """A row for each source rank [... ep targets], and what to say about it."""
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
        """Columns as experts: what a rank receives is spread equally over its experts, unknown ones get nothing."""
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


def add_slices(count: np.ndarray) -> np.ndarray:
    """[..., ep, expert] from [..., tp, ep, expert]: what the slices of every expert-parallel rank select together.

    With sequence parallelism, which Megatron asks of MoE models with TP, slices hold different tokens. Slices that are
    all equal are copies: one of them counts.
    """
    copies = bool(np.all(count == count[..., :1, :, :]))
    return count[..., 0, :, :] if copies else count.sum(axis=-3)
