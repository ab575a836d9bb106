"""Cases from layers (defaults, presets, files, flags). Later layers replace values of earlier ones."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from mfabric_jax.case.grid import AS_SET, Cases, Variant, draw_cases, expand_cases, unread
from mfabric_jax.case.own_code import read_settings
from mfabric_jax.case.paths import Case, Statement, file_settings, merge_statements, read_statement
from mfabric_jax.case.policies import file_of, is_function
from mfabric_jax.checks import InputError, in_file, one_of
from mfabric_jax.support.text_files import mapping_in

FABRIC = "network.fabric"
MODEL = "model.name"
NOT_SETTINGS = ("preset", "variants", "random", "sweep")  # keys of a file that are not settings


@dataclasses.dataclass(frozen=True)
class SettingsLayer:
    """A preset, file or command line. `name`: for messages; `typed`: a setting that no case reads is an error."""

    name: str
    stated: Statement
    variants: tuple[Variant, ...] = ()
    random: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sweep: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    typed: bool = False


@functools.cache
def presets() -> dict[str, str]:
    """Return the presets by name, with the first sentence of each file."""
    files = sorted((resources.files("mfabric_jax.case") / "presets").iterdir(), key=lambda file: file.name)
    texts = {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in files if file.name.endswith(".toml")}
    return {name: text.partition("\n")[0].lstrip("# ") for name, text in texts.items()}


def preset_layers(name: str) -> list[SettingsLayer]:
    """Return the layers of a preset: those that it builds on, then its own."""
    one_of("preset", name, presets())
    text = (resources.files("mfabric_jax.case") / "presets" / f"{name}.toml").read_text("utf-8")
    return layers_of(mapping_in(text, f"preset {name}", "settings", ".toml"), f"preset {name}")


def file_layers(path: str | Path) -> list[SettingsLayer]:
    """Return the layers of a `.toml` or `.json` file: its presets, then its own.

    A file that it names is the one beside it, if there is one, else that of the working folder.
    """
    *below, own = layers_of(read_settings(path, "settings of a case"), Path(path).name, typed=True)
    folder = os.path.dirname(path)
    variants = tuple(dataclasses.replace(each, stated=_beside(folder, each.stated)) for each in own.variants)
    return [*below, dataclasses.replace(own, stated=_beside(folder, own.stated), variants=variants)]


def _beside(folder: str, stated: Statement) -> Statement:
    """Return settings whose files that lie in a folder are named with it.

    Own code is named as on the command line, which must allow it; a name without suffix or slash is no file.
    """

    def find(value: Any) -> Any:
        if isinstance(value, list):
            return [find(each) for each in value]
        is_path = isinstance(value, str) and (os.sep in value or Path(value).suffix) and not is_function(value)
        return (
            os.path.join(folder, value) if is_path and os.path.exists(os.path.join(folder, file_of(value))) else value
        )

    return {path: find(value) if path in file_settings() else value for path, value in stated.items()}


def layers_of(content: Mapping[str, Any], name: str, *, typed: bool = False) -> list[SettingsLayer]:
    """Return the layers of a mapping with the content of a file."""
    where = f"{name}: "
    named = content.get("preset", [])
    named = named if isinstance(named, list) else [named]
    with in_file(name):
        below = [layer for entry in named for layer in preset_layers(entry)]
    variants = tuple(_variant(entry, where) for entry in _tables(content.get("variants", []), where))
    settings = {key: value for key, value in content.items() if key not in NOT_SETTINGS}
    random, sweep = ({**_table(content.get(key, {}), key, where)} for key in ("random", "sweep"))
    return [*below, SettingsLayer(name, read_statement(settings, where), variants, random, sweep, typed)]


def read_layers(presets: Sequence[str], files: Sequence[str | Path]) -> list[SettingsLayer]:
    """Return the layers of presets, then the layers of files."""
    below = [layer for name in presets for layer in preset_layers(name)]
    return below + [layer for file in files for layer in file_layers(file)]


def overrides(layers: Sequence[SettingsLayer]) -> Iterator[str]:
    """Yield a sentence for every file that states other values of settings than an earlier file."""
    for earlier, later in itertools.combinations([layer for layer in layers if layer.typed], 2):
        paths = [path for path, value in later.stated.items() if earlier.stated.get(path, value) != value]
        if paths:
            yield f"{later.name} overrides {earlier.name}: {', '.join(paths)}; files are layers of one case."


def _tables(variants: Any, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(variants, list) or not all(isinstance(table, Mapping) for table in variants):
        raise InputError(f"{where}variants must be tables ([[variants]]), got {variants!r:.80}.")
    return variants


def _table(table: Any, key: str, where: str) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise InputError(f"{where}{key} must be a table, got {table!r:.80}.")
    return table


def _variant(table: Mapping[str, Any], where: str) -> Variant:
    name = table.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"{where}every table of variants needs a name, got {name!r}.")
    return Variant(name, read_statement({key: value for key, value in table.items() if key != "name"}, where))


def merge_layers(layers: Sequence[SettingsLayer]) -> Cases:
    """Return the cases of layers; later layers win. Raise InputError for a typed setting that no case reads."""
    below: Statement = {}
    sources: dict[str, str] = {}
    variants: tuple[Variant, ...] = ()
    for layer in layers:
        before, below = below, merge_statements(below, layer.stated, f"{layer.name}: " if layer.name != "flag" else "")
        sources |= {path: layer.name for path in below if path in layer.stated or path not in before}
        variants = layer.variants or _narrow_variants(variants, layer.stated)
    random = {path: spec for layer in layers for path, spec in layer.random.items()}
    rules = {key: value for layer in layers for key, value in layer.sweep.items()}
    of_tables = [layer.name for layer in layers if layer.random or layer.sweep]
    several = expand_cases(below, tuple(_of_these_models(variants, below)))
    with in_file(of_tables[-1] if of_tables else None):
        result = draw_cases(several, random, rules)
    sources = {path: sources.get(path, "default") for path in below}
    result = dataclasses.replace(result, stated=below, sources=sources, variants=variants, random=random)
    typed = {path for layer in layers if layer.typed for path in layer.stated}
    if lost := [path for path in unread(result) if path in typed]:
        fabrics = dict.fromkeys(block.case.network.fabric for block in result.blocks)
        raise InputError(f"{lost[0]} is not read by any case here ({', '.join(fabrics)}); leave it out.")
    return result


def _narrow_variants(variants: Sequence[Variant], later: Statement) -> tuple[Variant, ...]:
    """Keep the variants of earlier layers that agree with a later one. Fabrics of dropped variants stay, unnamed."""
    kept: list[Variant] = []
    alone: list[str] = []
    for variant in _of_all_models(variants, later):
        both = {path: _common(variant.stated[path], later[path]) for path in variant.stated if path in later}
        if all(both.values()):
            own = {path: values[0] if len(values) == 1 else values for path, values in both.items()}
            name = AS_SET if both.keys() - {FABRIC, MODEL} else variant.name
            kept.append(Variant(name, variant.stated | own))
        else:
            alone += both.get(FABRIC, _as_list(variant.stated.get(FABRIC, [])))
    there = [name for kept_variant in kept for name in _as_list(kept_variant.stated.get(FABRIC, []))]
    known = [name for variant in variants for name in _as_list(variant.stated.get(FABRIC, []))]
    alone += [name for name in _as_list(later.get(FABRIC, [])) if variants and name not in known]
    lost = [name for name in dict.fromkeys(alone) if name not in there]
    return (*kept, *_unmet(kept, later), *(Variant(AS_SET, {FABRIC: name}) for name in lost))


def _unmet(kept: Sequence[Variant], later: Statement) -> Iterator[Variant]:
    """Yield a variant for every combination of later values that no kept variant covers on its fabrics."""
    axes = {path: value for path, value in later.items() if isinstance(value, list) and path not in (FABRIC, MODEL)}
    narrowed = [variant for variant in kept if axes.keys() & variant.stated.keys()]
    axes = {path: value for path, value in axes.items() if any(path in variant.stated for variant in narrowed)}
    fabrics = dict.fromkeys(name for variant in narrowed for name in _as_list(variant.stated.get(FABRIC, [])))
    for fabric, *values in itertools.product(fabrics, *axes.values()) if axes else ():
        combination = dict(zip(axes, values, strict=True)) | {FABRIC: fabric}
        if not any(
            all(_common(variant.stated.get(path, combination[path]), combination[path]) for path in combination)
            for variant in kept
        ):
            yield Variant(AS_SET, combination)


def _of_these_models(variants: Sequence[Variant], stated: Statement) -> Iterator[Variant]:
    """Narrow variants to the stated models."""
    for variant in variants:
        if MODEL not in variant.stated or MODEL not in stated:
            yield variant
        elif models := _common(variant.stated[MODEL], stated[MODEL]):
            yield Variant(variant.name, variant.stated | {MODEL: models if len(models) > 1 else models[0]})


def _of_all_models(variants: Sequence[Variant], later: Statement) -> Iterator[Variant]:
    """Yield variants. The first variant of each name also takes the models that no variant names."""
    known = {model for variant in variants for model in _as_list(variant.stated.get(MODEL, []))}
    others = [model for model in _as_list(later.get(MODEL, [])) if model not in known]
    seen: set[str] = set()
    for variant in variants:
        if others and MODEL in variant.stated and variant.name not in seen:
            yield Variant(variant.name, variant.stated | {MODEL: [*_as_list(variant.stated[MODEL]), *others]})
        else:
            yield variant
        seen.add(variant.name)


def _as_list(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def _common(some: Any, others: Any) -> list:
    return [item for item in _as_list(some) if item in _as_list(others)]


def load(
    *paths: str | Path, preset: str | Sequence[str] = (), changes: Mapping[str, Any] | None = None
) -> Case | Cases:
    """Load the case of `.toml` or `.json` files, or several cases if they hold lists or variants. Later files win.

    `preset`: names from `mfabric show --presets`, applied before the files; `changes`: values by path, applied last.
    Raise InputError for an unreadable file, an unknown name or an invalid value.
    """
    named = [preset] if isinstance(preset, str) else list(preset)
    layers = read_layers(named, paths)
    if changes:
        layers.append(SettingsLayer("changes", read_statement(changes), typed=True))
    result = merge_layers(layers)
    return result.blocks[0].case if len(result) == 1 and result.blocks[0].variant == AS_SET else result
