"""Cases side by side: lists of values are axes, named variants stand beside each other.

What varies in numbers that one compiled program takes (`traced` leaves) is kept in columns, so that a design space of
millions of cases is a few `Block`s.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mfabric_jax.case.paths import Leaf, Statement, build, flat, layered, settings, stated, unknown
from mfabric_jax.case.tree import Alternative, Case
from mfabric_jax.checks import InputError, one_of, whole

AS_SET = "as set"  # the variant of a case that stands in one way
REWIRED = ("mfabric", "mfabric-cpo")  # fabrics whose circuits a policy chooses
OF_ONE_FABRIC = ("network.rail-optimized.", "network.topoopt.", "network.mfabric.")
OWN_NICS = ("fat-tree", "oversub-fat-tree")  # those that read network.nic_use, and rail-optimized without pxn


@dataclasses.dataclass(frozen=True)
class Block:
    """Cases that differ in traced numbers alone: the first, its variant, and columns of equal length by path."""

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
    """Cases to simulate together, in blocks.

    - `varied`: paths that vary, in the order of the axes.   - `stated`: what was said, with its lists.
    - `sources`: which layer said it, by path; `variants`: ways that stand beside each other;
      `random`: what is drawn; for display alone.
    - `rules`: of a sweep: rows_per_file, impossible, draws, draw_seed.
    """

    blocks: tuple[Block, ...]
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


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way in which cases are shown beside others: what it states, lists included."""

    name: str
    stated: Statement


def cases(
    case: Case | Cases | Sequence[Case], axes: Mapping[str, Sequence] | Sequence[Mapping[str, Any]] | None = None
) -> Cases:
    """The cases of a grid.

    - `axes`: values by path, every combination of them, the first axis changing slowest; or a list of changes, each of
      them one case, as `Case.with_` takes them. None: the case as it is.

    `InputError` for a path that is none, and for a value that it cannot have.
    """
    if isinstance(case, Case):
        case = Cases((Block(case),))
    elif not isinstance(case, Cases):
        case = _together([Cases((Block(one),)) for one in case])
    if axes is None:
        return case
    if not isinstance(axes, Mapping):
        return _together([cases(one.with_(dict(changes))) for one in case for changes in axes])
    above = stated(
        {path: list(values) if isinstance(values, tuple | range) else values for path, values in axes.items()}
    )
    found = [_grid(flat(one), above, block.variant) for block in case.blocks for one in block]
    together = _together(found)
    varied = (*case.varied, *(path for path in together.varied if path not in case.varied))
    return dataclasses.replace(together, varied=varied)


def _together(several: Sequence[Cases]) -> Cases:
    blocks = tuple(block for one in several for block in one.blocks)
    return Cases(blocks, varied_in(blocks))


def varied_in(blocks: Sequence[Block]) -> tuple[str, ...]:
    """Paths in which the cases of blocks differ."""
    seen: dict[str, set] = {}
    for block in blocks:
        for path, value in flat(block.case).items():
            seen.setdefault(path, set()).update(map(_hashed, block.columns.get(path, (value,))))
    return tuple(path for path, values in seen.items() if len(values) > 1)


def _hashed(value: Any) -> Any:
    return value if isinstance(value, str | int | float | tuple | None) else repr(value)


def expanded(below: Statement, variants: Sequence[Variant] = ()) -> Cases:
    """The cases of a statement with lists, in each of its variants."""
    if not variants:
        return _grid({}, below)
    return _together([_grid(below, variant.stated, variant.name) for variant in variants])


def _grid(below: Statement, above: Statement, variant: str = AS_SET) -> Cases:
    """Every combination of the lists of both statements; those that read the same settings are one case."""
    given = layered(below, above)
    axes = {path: value for path, value in given.items() if isinstance(value, list) and not _one_list(path, value)}
    fixed = {path: value for path, value in given.items() if path not in axes}
    coded = {path: values for path, values in axes.items() if not settings()[path].traced}
    traced = {path: values for path, values in axes.items() if settings()[path].traced}
    found: dict[Any, Block] = {}
    for chosen in itertools.product(*coded.values()):
        one = fixed | dict(zip(coded, chosen, strict=True))
        own = {path: values for path, values in traced.items() if _reads(path, one)}
        first = {path: values[0] for path, values in traced.items()}
        read = build({path: value for path, value in (one | first).items() if _reads(path, one)})
        columns = dict(zip(own, zip(*itertools.product(*own.values()), strict=True), strict=True))
        found.setdefault((read, variant), Block(build(one | first), variant, columns))
    blocks = tuple(found.values())
    return Cases(blocks, tuple(path for path in axes))


def _one_list(path: str, value: list) -> bool:
    return settings()[path].listed and not any(isinstance(one, list | tuple) for one in value)


def _reads(path: str, one: Statement) -> bool:
    """Whether a case reads a setting: its alternative is chosen, and its fabric has what it is about."""
    setting = settings()[path]
    if isinstance(setting, Leaf) and setting.choice:
        chosen = one.get(setting.choice, settings()[setting.choice].default)
        if (chosen.name if isinstance(chosen, Alternative) else chosen) != setting.of:
            return False
    return fabric_reads(path, one)


def fabric_reads(path: str, one: Statement) -> bool:
    """Whether the fabric of a case reads a setting of NICs or circuits."""
    fabric = one.get("network.fabric", settings()["network.fabric"].default)
    if path.startswith(OF_ONE_FABRIC):
        return path.startswith(f"network.{fabric}.")
    if path.startswith("circuits."):
        return fabric in REWIRED
    if path == "network.nic_use":
        rails = fabric == "rail-optimized" and not one.get("network.rail-optimized.pxn", True)
        return fabric in OWN_NICS or rails
    return True


def unread(case: Cases) -> list[str]:
    """Paths that were stated and that no case reads; `InputError` is for those that a person typed."""
    every = [flat(block.case) for block in case.blocks]
    return [path for path in case.stated if not any(_reads(path, one) for one in every)]


def check_read(case: Cases, typed: Sequence[str]) -> None:
    """`InputError` for a setting that was typed and that no case reads."""
    for path in unread(case):
        if path in typed:
            fabrics = list(dict.fromkeys(block.case.network.fabric for block in case.blocks))
            raise InputError(f"{path} is read by no case here ({', '.join(fabrics)}); leave it out.")


# ------------------------------------------------------------------------------------------------------ drawn at random
RULES = {"draws": 1, "draw_seed": 0, "rows_per_file": None, "impossible": "refuse"}  # of [sweep], and their defaults
REFUSE, LEAVE_OUT = IMPOSSIBLE = "refuse", "leave-out"
SCALES = ("linear", "log")
FORM = "{ of = [...] } or { low = ..., high = ..., scale = 'linear' or 'log', whole = true or false }"


def drawn(below: Cases, random: Mapping[str, Any], given: Mapping[str, Any]) -> Cases:
    """Cases with values drawn at random, `draws` times for every one; the same seed draws the same.

    - `random`: a table, by path: a range (`low`, `high`, `scale`, `whole`) or a choice (`of`).   - `given`: [sweep].
    """
    for key in given:
        one_of("setting of [sweep]", key, RULES)
    rules = RULES | dict(given)
    one_of("sweep.impossible", rules["impossible"], IMPOSSIBLE)
    whole("sweep.draws", rules["draws"])
    whole("sweep.draw_seed", rules["draw_seed"], at_least=0)
    if rules["rows_per_file"] is not None:
        whole("sweep.rows_per_file", rules["rows_per_file"])
    specs = dict(_specs(random, ""))
    if not specs:
        if rules["draws"] > 1:
            raise InputError("sweep.draws is how often the settings of [random] are drawn, but there is none.")
        return dataclasses.replace(below, rules=rules)
    count = len(below) * rules["draws"]
    values = {path: _drawn(path, spec, count, rules["draw_seed"]) for path, spec in specs.items()}
    blocks: dict[Any, list[tuple[Case, int]]] = {}
    rows = ((case, block.variant) for block in below.blocks for case in block for _ in range(rules["draws"]))
    for at, (case, variant) in enumerate(rows):
        one = case.with_({path: column[at] for path, column in values.items()})
        traced = {path for path, setting in settings().items() if setting.traced}
        key = tuple((path, value) for path, value in flat(one).items() if path not in traced), variant
        blocks.setdefault(key, []).append((one, at))
    found = tuple(_as_block([case for case, _ in some], key[1]) for key, some in blocks.items())
    varied = (*below.varied, *(path for path in specs if path not in below.varied))
    return dataclasses.replace(below, blocks=found, varied=varied, rules=rules)


def _as_block(several: Sequence[Case], variant: str) -> Block:
    """Cases that differ in traced numbers alone."""
    each = [flat(case) for case in several]
    differ = [path for path, value in each[0].items() if any(one[path] != value for one in each)]
    return Block(several[0], variant, {path: tuple(one[path] for one in each) for path in differ})


def _specs(given: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What is drawn, by path, from nested tables or dotted paths."""
    for name, value in given.items():
        path = prefix + name
        if path in settings():
            if not isinstance(value, Mapping):
                raise InputError(f"random.{path} must be {FORM}, got {value!r}.")
            yield path, value
        elif isinstance(value, Mapping):
            yield from _specs(value, path + ".")
        else:
            raise unknown(path, "random: ")


def _drawn(path: str, spec: Mapping[str, Any], count: int, seed: int) -> list[Any]:
    """So many values of a setting, checked."""
    import zlib

    import numpy as np

    rng = np.random.default_rng([seed, zlib.crc32(path.encode())])
    keys = set(spec)
    if keys == {"of"} and isinstance(spec["of"], list) and spec["of"]:
        some = stated({path: [*spec["of"], *spec["of"][:0]]})[path]
        some = some if isinstance(some, list) else [some]
        return [some[at] for at in rng.integers(len(some), size=count).tolist()]
    if not {"low", "high"} <= keys <= {"low", "high", "scale", "whole"}:
        raise InputError(f"random.{path} must be {FORM}, got {dict(spec)!r}.")
    low, high = (stated({path: spec[end]})[path] for end in ("low", "high"))
    scale, integral = one_of(f"random.{path}.scale", spec.get("scale", "linear"), SCALES), spec.get("whole", False)
    if low > high or (scale == "log" and low <= 0):
        raise InputError(
            f"random.{path}.low must be {'above 0 and ' * (scale == 'log')}at most high ({high}), got {low}."
        )
    if scale == "linear":
        values = rng.integers(low, high, size=count, endpoint=True) if integral else rng.uniform(low, high, count)
        return values.tolist()
    first, last = (low - 0.5, high + 0.5) if integral else (low, high)
    values = np.exp(rng.uniform(np.log(first), np.log(last), count))
    values = np.clip(np.rint(values), low, high).astype(np.int64) if integral else np.clip(values, low, high)
    return values.tolist()
