"""Several cases: grids of lists, random draws, and named variants.

Traced numbers are inputs of one compiled program. They are stored as columns, so a few `CaseBlock`s hold
millions of cases.
"""

import contextlib
import dataclasses
import itertools
import math
import re
import sys
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mfabric_jax.case.network import GRAPH, NAMES
from mfabric_jax.case.paths import (
    Case,
    Leaf,
    Statement,
    build,
    file_values,
    flat,
    in_row,
    is_axis,
    is_chosen,
    merge_statements,
    parts_of,
    read_statement,
    settings,
    unknown,
)
from mfabric_jax.case.policies import BOUND, file_of
from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.support.notebooks import MOST, few, html_table

if TYPE_CHECKING:
    import numpy as np

SCALES = ("linear", "log")
WHOLE_BELOW = 2**31  # whole numbers have 32 bits on devices
FORM = "{ of = [...] } or { low = ..., high = ..., scale = 'linear' or 'log', whole = true or false }"


class Setting(NamedTuple):
    """A setting of a sweep, with values of `type`; `data`: other values run in the same compiled program."""

    default: Any
    type: Any
    data: bool = False


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_form(field: str, axis: Any) -> None:
    """Raise InputError for an axis that is neither a non-empty choice nor a range."""
    keys = set(axis) if isinstance(axis, Mapping) else set()
    if keys == {"of"}:
        if not isinstance(axis["of"], list | tuple) or not axis["of"]:
            raise InputError(f"{field}.of must be a list of at least one value, got {axis['of']!r}.")
    elif not {"low", "high"} <= keys <= {"low", "high", "scale", "whole"}:
        raise InputError(f"{field} must be {FORM}, got {axis!r}.")


def check_range(field: str, low: Any, high: Any, scale: Any = "linear", whole: Any = False) -> None:
    """Raise InputError for a range from which nothing can be drawn."""
    for end, value in (("low", low), ("high", high)):
        if not is_number(value) or not abs(value) <= sys.float_info.max:
            raise InputError(f"{field}.{end} must be a number, got {value!r:.80}.")
    one_of(f"{field}.scale", scale, SCALES)
    if not isinstance(whole, bool):
        raise InputError(f"{field}.whole must be true or false, got {whole!r}.")
    if low > high or (scale == "log" and low <= 0):
        least = "above 0 and " if scale == "log" else ""
        raise InputError(f"{field}.low must be {least}at most high ({high}), got {low}.")
    if not math.isfinite(high - low):
        raise InputError(f"{field} must not be wider than the largest number, got {low} to {high}.")
    if whole and (max(abs(low), abs(high)) >= WHOLE_BELOW or int(low) != low or int(high) != high):
        raise InputError(f"{field} is whole: low and high must be whole numbers below 2^31, got {low} and {high}.")


def draw(path: str, axis: Mapping[str, Any], count: int, seed: int) -> "np.ndarray":
    """Draw [count] values of a range, or indices into a choice. Every path has its own random stream."""
    import numpy as np

    rng = np.random.default_rng([seed, zlib.crc32(path.encode())])
    if "of" in axis:
        return rng.integers(len(axis["of"]), size=count)
    low, high, whole = axis["low"], axis["high"], axis.get("whole", False)
    if axis.get("scale", "linear") == "linear":
        return rng.integers(low, high, size=count, endpoint=True) if whole else rng.uniform(low, high, count)
    first, last = (low - 0.5, high + 0.5) if whole else (low, high)
    values = np.exp(rng.uniform(np.log(first), np.log(last), count))
    return np.clip(np.rint(values), low, high).astype(np.int64) if whole else np.clip(values, low, high)


AS_SET = "as set"  # variant name of a case without variants
OWN_DOMAINS = ("scale-up", "cloudmatrix384")  # fabrics that set size and bandwidth of a domain themselves
OF_DOMAINS = ("gpu.nvlink_gigabytes_per_s", "gpu.scale_up_gpus")
OF_CHOICE = tuple(
    f"circuits.{name}" for name in ("policy", "routing", "schedule", "partial")
)  # not read with circuits.reconfigure = bound
POLICY_FABRICS = ("mfabric", "mfabric-cpo", "acos")  # fabrics whose circuits a policy chooses
OTHER_CIRCUIT_SETTINGS = {
    "photonic-rails": ("circuits.ocs", "circuits.delay_s", "circuits.reactivation_s")
}  # circuit settings that other fabrics read
OF_GRAPHS = ("network.graph", "network.on-graph.relay", "network.on-graph.ranks")
IN_GRAPHS = (  # settings that the file of a graph replaces
    *("network.nics", "network.tiers", "network.radix", "network.oversubscription", "network.oversubscribed_at"),
    *("network.nic_use", "network.gpu_tbps", "network.leaf_servers", "network.rails.speeds"),
)
OF_COMPUTING = ("gpu.bf16_tflops", "gpu.fp8_tflops", "gpu.memory_gigabytes", "gpu.memory_gigabytes_per_s")
OF_BILLS: tuple[str, ...] = (  # settings of costs and failures
    *("gpu.watts", "gpu.usd", "gpu.nvswitches", "network.prices", "job.training_tokens"),
)
# Settings that a command does not read, each with a hint: commands about links, and commands about times and bytes.
UNREAD_BY_LINKS: dict[str, str] = dict.fromkeys((*OF_COMPUTING, *OF_BILLS), "")
UNREAD_BY_LINKS |= {"gpu.nvls": "; times inside servers are those of links"}
UNREAD_BY_LINKS |= {"network.alpha_s": "; the latency of a link is network.link_delay_s"}
UNREAD_BY_TIMES: dict[str, str] = dict.fromkeys(OF_BILLS, "")
MOST_CASES = 2**26  # every column has an entry per case
OWN_NICS = (
    "fat-tree",
    "oversub-fat-tree",
    "multi-plane",
)  # these read network.nic_use, and so does rail-optimized without pxn


@dataclasses.dataclass(frozen=True)
class CaseBlock:
    """Cases that differ only in traced numbers: the first case, its variant, and equally long columns by path."""

    case: Case
    variant: str = AS_SET
    columns: Mapping[str, tuple] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 1

    def __iter__(self) -> Iterator[Case]:
        below = flat(self.case)
        for values in zip(*self.columns.values(), strict=True) if self.columns else [()]:
            yield build(below | dict(zip(self.columns, values, strict=True)))


@dataclasses.dataclass(frozen=True)
class Cases:
    """Several cases, in blocks whose cases share one compiled program.

    - `varied`: paths that vary, in the order of the axes.
    - `rules`: how a sweep runs: rows_per_file, impossible, draws, draw_seed.

    For display only: `stated`, `sources` (layer of each stated path), `variants`, `random` (random axes).
    """

    blocks: tuple[CaseBlock, ...]
    varied: tuple[str, ...] = ()
    stated: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    variants: "tuple[Variant, ...]" = dataclasses.field(default=(), compare=False)
    random: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    rules: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def __iter__(self) -> Iterator[Case]:
        return itertools.chain.from_iterable(self.blocks)

    def __repr__(self) -> str:
        axes = "; ".join(f"{path} {few(values)}" for path, values in self._axes().items())
        return f"<{len(self):,} case{'s' * (len(self) != 1)}{': ' * bool(axes)}{axes}>"

    def differences(self, case: Case, shown: Container[str] = ()) -> dict[str, Any]:
        """Return the values of one case at the paths that vary, except `shown` paths."""
        values = flat(case)
        return {path: in_row(path, values.get(path)) for path in self.varied if path not in shown}

    def _repr_html_(self) -> str:
        first = itertools.islice((flat(case) for case in self), MOST)
        rows = [{path: values.get(path) for path in self.varied} for values in first] if self.varied else []
        return html_table(rows, repr(self)[1:-1])

    def _axes(self) -> dict[str, dict[Any, None]]:
        """Return the distinct values of every path that varies."""
        axes: dict[str, dict[Any, None]] = {path: {} for path in self.varied}
        for block in self.blocks:
            own = flat(block.case)
            for path, values in axes.items():
                values |= dict.fromkeys(block.columns.get(path, (own.get(path),)))
        return axes


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    stated: Statement


def cases(
    case: Case | Cases | Sequence[Case], axes: Mapping[str, Sequence] | Sequence[Mapping[str, Any]] | None = None
) -> Cases:
    """Return the cases of a grid of values, or of a list of changes.

    `axes` holds lists of values by path: every combination is a case, and the first axis changes slowest. It may also
    be a list of changes for `Case.with_`, one per case. None gives the case itself. Raise InputError for unknown paths
    or invalid values.
    """
    if isinstance(case, Case):
        case = Cases((CaseBlock(case),))
    elif not isinstance(case, Cases):
        case = _join_cases([Cases((CaseBlock(single_case),)) for single_case in case])
    if axes is None:
        return case
    if not isinstance(axes, Mapping):
        return _join_cases([cases(single_case.with_(dict(changes))) for single_case in case for changes in axes])
    above = read_statement(
        {path: list(values) if isinstance(values, tuple | range) else values for path, values in axes.items()}
    )
    grids = [_grid(flat(single_case), above, block.variant) for block in case.blocks for single_case in block]
    together = _join_cases(grids)
    varied = (*case.varied, *(path for path in together.varied if path not in case.varied))
    return dataclasses.replace(together, varied=varied)


def _join_cases(several: Sequence[Cases]) -> Cases:
    blocks = tuple(block for group in several for block in group.blocks)
    return Cases(blocks, varied_paths(blocks))


def varied_paths(blocks: Sequence[CaseBlock]) -> tuple[str, ...]:
    """Return the paths at which the cases of blocks differ."""
    seen: dict[str, set] = {}
    for block in blocks:
        for path, value in flat(block.case).items():
            seen.setdefault(path, set()).update(map(_hashable, block.columns.get(path, (value,))))
    return tuple(path for path, values in seen.items() if len(values) > 1)


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | tuple | None) else repr(value)


def expand_cases(below: Statement, variants: Sequence[Variant] = ()) -> Cases:
    """Return the cases of a statement with lists, for each of its variants."""
    if not variants:
        return _grid({}, below)
    return _join_cases([_grid(below, variant.stated, variant.name) for variant in variants])


def _grid(below: Statement, above: Statement, variant: str = AS_SET) -> Cases:
    """Combine the lists of both statements. Combinations that read the same settings are merged."""
    statement = merge_statements(below, above)
    axes = {path: value for path, value in statement.items() if is_axis(path, value)}
    fixed = {path: value for path, value in statement.items() if path not in axes}
    coded = {path: values for path, values in axes.items() if not settings()[path].traced}
    traced = {path: values for path, values in axes.items() if settings()[path].traced}
    _check_count(math.prod(len(values) for values in axes.values()))
    blocks: dict[Any, CaseBlock] = {}
    for chosen in itertools.product(*coded.values()):
        combination = fixed | dict(zip(coded, chosen, strict=True))
        own = {path: values for path, values in traced.items() if reads_setting(path, combination)}
        first = {path: values[0] for path, values in traced.items()}
        read = build({path: value for path, value in (combination | first).items() if reads_setting(path, combination)})
        columns = dict(zip(own, zip(*itertools.product(*own.values()), strict=True), strict=True))
        blocks.setdefault((read, variant), CaseBlock(build(combination | first), variant, columns))
    return Cases(tuple(blocks.values()), tuple(axes))


def _check_count(count: int) -> int:
    if count > MOST_CASES:
        raise InputError(f"there must be at most {MOST_CASES:,} cases in all, got {count:,}.")
    return count


def reads_setting(path: str, statement: Statement) -> bool:
    """Return whether a case with these alternatives and this fabric reads a setting."""
    return is_chosen(path, statement) and fabric_reads(path, statement)


def fabric_reads(path: str, statement: Statement) -> bool:
    """Return whether the fabric of a case reads a setting of NICs or circuits."""
    fabric = statement.get("network.fabric", settings()["network.fabric"].default)
    if path.startswith("network.") and (only := path.split(".")[1]) in NAMES:
        return fabric == only
    if path.startswith("circuits."):
        fixed = fabric == "acos" and path in ("circuits.policy", "circuits.ocs")
        if statement.get("circuits.reconfigure") == BOUND and path in OF_CHOICE:
            return False
        return (fabric in POLICY_FABRICS and not fixed) or path in OTHER_CIRCUIT_SETTINGS.get(fabric, ())
    if path in OF_DOMAINS and fabric in OWN_DOMAINS:
        return False
    if path in OF_GRAPHS or (fabric == GRAPH and path in IN_GRAPHS):
        return fabric == GRAPH and path in OF_GRAPHS
    if path == "network.nic_use":
        rails = fabric == "rail-optimized" and not statement.get("network.rail-optimized.pxn", True)
        return fabric in OWN_NICS or rails
    return True


def unread(case: Cases) -> list[str]:
    """Return the stated paths that no case reads."""
    every = [flat(block.case) for block in case.blocks]
    return [path for path in case.stated if not any(reads_setting(path, statement) for statement in every)]


@contextlib.contextmanager
def in_case_files(cases: Cases) -> Iterator[None]:
    """Prefix an `InputError` raised in the block with the file that states the first setting that it names."""
    try:
        yield
    except InputError as error:
        sentence = str(error)
        source = next((cases.sources[path] for path in _paths_in_sentence(sentence, cases)), "")
        if not source.lower().endswith(FILES) or source in sentence:
            raise
        raise type(error)(f"{source}: {sentence}") from error


FILES = (".toml", ".json")  # suffixes of files of cases


def _paths_in_sentence(sentence: str, cases: Cases) -> Iterator[str]:
    """Yield the settings named at the beginning of a sentence: by their path, then by their last word."""
    first = set(re.findall(r"[\w.-]*\w", sentence[:FIRST]))
    stated = [path for path, source in cases.sources.items() if source != "default"]
    yield from (path for path in stated if path in first)
    yield from (path for path in stated if path.removesuffix(".name").rpartition(".")[2] in first)


FIRST = 80  # first characters of a message, which name its subject


# ------------------------------------------------------------------------------------------------------ drawn at random
RULES = {
    "draws": 1,
    "draw_seed": 0,
    "rows_per_file": None,
    "impossible": "refuse",
}  # settings of [sweep] and their defaults
REFUSE, LEAVE_OUT = IMPOSSIBLE = "refuse", "leave-out"


def draw_cases(below: Cases, random: Mapping[str, Any], sweep: Mapping[str, Any]) -> Cases:
    """Return `draws` cases with random values for each case. `random`, `sweep`: the tables of these names."""
    for key in sweep:
        one_of("setting of [sweep]", key, RULES)
    rules = RULES | dict(sweep)
    one_of("sweep.impossible", rules["impossible"], IMPOSSIBLE)
    whole("sweep.draws", rules["draws"])
    whole("sweep.draw_seed", rules["draw_seed"], at_least=0)
    if rules["rows_per_file"] is not None:
        whole("sweep.rows_per_file", rules["rows_per_file"])
    axes = random_axes(random)
    if not axes:
        if rules["draws"] > 1:
            raise InputError("sweep.draws is the number of draws of [random], but there is no [random].")
        return dataclasses.replace(below, rules=rules)
    count = _check_count(len(below) * rules["draws"])
    values = {path: _draw_values(path, axis, count, rules["draw_seed"]) for path, axis in axes.items()}
    blocks, first = [], 0
    for block in below.blocks:
        rows = range(first, first + len(block) * rules["draws"])
        blocks += _with_draws(block, {path: column[rows.start : rows.stop] for path, column in values.items()})
        first = rows.stop
    varied = (*below.varied, *(path for path in axes if path not in below.varied))
    return dataclasses.replace(below, blocks=tuple(blocks), varied=varied, rules=rules)


def _with_draws(block: CaseBlock, values: Mapping[str, list[Any]]) -> Iterator[CaseBlock]:
    base, rows = flat(block.case), len(next(iter(values.values())))
    before = {
        path: [value for value in column for _ in range(rows // len(block))] for path, column in block.columns.items()
    }
    columns = {path: column for path, column in (before | dict(values)).items() if settings()[path].traced}
    coded = {path: column for path, column in values.items() if path not in columns}
    places: dict[tuple, list[int]] = {}
    for row, chosen in enumerate(zip(*coded.values(), strict=True) if coded else [()] * rows):
        places.setdefault(chosen, []).append(row)
    for chosen, some in places.items():
        above = dict(zip(coded, chosen, strict=True))
        read = {path: column for path, column in columns.items() if _may_be_read(path, above)}
        own = {path: tuple(column[row] for row in some) for path, column in read.items()}
        above = read_statement(above | {path: column[0] for path, column in own.items()})
        yield CaseBlock(build(merge_statements(base, above)), block.variant, own)


def _may_be_read(path: str, drawn: Statement) -> bool:
    """Return whether the alternative to which a setting belongs is, or may be, chosen after a draw."""
    setting = settings()[path]
    return not isinstance(setting, Leaf) or drawn.get(setting.choice, setting.of) in (setting.of, None)


def random_axes(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the axes of a table [random] by path. Raise InputError for an unknown path."""
    axes: dict[str, Any] = {}
    for name, value in table.items():
        path = prefix + name
        if path in settings():
            axes[path] = value
        elif isinstance(value, Mapping):
            axes |= random_axes(value, path + ".")
        else:
            raise unknown(path, "random: ")
    return axes


def _draw_values(path: str, axis: Mapping[str, Any], count: int, seed: int) -> list[Any]:
    field = f"random.{path}"
    check_form(field, axis)
    if "of" in axis:
        several = read_statement({path: list(axis["of"])}, "random: ")[path]
        several = several if isinstance(several, list) else [several]
        return [several[index] for index in draw(path, {"of": several}, count, seed).tolist()]
    axis = {**axis, **{end: read_statement({path: axis[end]}, "random: ")[path] for end in ("low", "high")}}
    check_range(field, **axis)
    if float not in parts_of(settings()[path].kind):  # type: ignore[union-attr]
        axis["whole"] = True
        check_range(field, **axis)
    return draw(path, axis, count, seed).tolist()


def files_of(cases: Cases) -> dict[str, Path]:
    """Return the existing files and folders that cases name, by that name."""
    named = {value for block in cases.blocks for value in file_values(block.case)}
    paths = {name: Path(file_of(name)) for name in sorted(named)}
    return {name: path for name, path in paths.items() if path.exists()}
