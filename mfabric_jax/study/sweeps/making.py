"""One part of a sweep: its rows computed and written, with a footer that says what they are of."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mfabric_jax
from mfabric_jax.extras import extra
from mfabric_jax.parts import CONFIG, SweepFolder
from mfabric_jax.policies import is_function
from mfabric_jax.study.batch import Estimate
from mfabric_jax.study.provenance import provenance
from mfabric_jax.study.sweeps.design_space import Part, Sweep

INDEX = "configuration"
LISTED = 1000  # values of a list in a footer
OF_FILES = ("policy", "trace", "prices", "traffic")  # settings that may name a file


def sweep_folder(config: Sweep, path: Path) -> SweepFolder:
    """The folder for a sweep: other settings, another version, or another content of a file make another sweep."""
    resolved = {"rows_per_shard": config.rows_per_shard or config.kind.ROWS_PER_SHARD}
    made_of = {"version": mfabric_jax.__version__, "files": _fingerprints(config)}
    counts = {"configurations": config.count, "parts": len(config.parts)}
    return SweepFolder(path, json.loads(json.dumps(dataclasses.asdict(config) | resolved | made_of | counts)))


def _fingerprints(config: Sweep) -> dict[str, str]:
    """Digests of the files, or folders of files, that settings name."""
    named = {str(group.code.get(name)) for group in config.groups for name in OF_FILES}
    paths = {name: Path(name.rpartition(":")[0] if is_function(name) else name) for name in named}
    return {name: _fingerprint(path) for name, path in sorted(paths.items()) if path.exists()}


def _fingerprint(path: Path) -> str:
    held = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            held.update(file.relative_to(path.parent).as_posix().encode())
            with file.open("rb") as opened:
                held.update(hashlib.file_digest(opened, "sha256").digest())
    return held.hexdigest()[:16]


class Maker:
    """Makes parts; the program of one group is kept for the next part of it."""

    def __init__(self, config: Sweep, folder: SweepFolder):
        self.config, self.folder = config, folder
        self.made: tuple[Any, Any] = None, None
        lists = {
            name: values if len(values) <= LISTED else f"{len(values)} values in {CONFIG}"
            for name, values in folder.sweep["list"].items()
        }
        self.footer = {"command": "sweep", "sweep": folder.sweep | {"list": lists}} | provenance(config.dtype)

    def make(self, part: Part, before: Callable[[Estimate], None] | None = None) -> None:
        """Compute and write one."""
        if self.made[0] is not part.group.code:
            self.made = part.group.code, self.config.program(part.group)
        program = self.made[1]
        results = program.rows(self.config.data(part.rows), self.config.full_part(part.group), before)
        settings = {name: values[part.rows] for name, values in self.config.columns.items()}
        same = {name: np.full(len(part.rows), value, object) for name, value in program.shown().items()}
        columns = {INDEX: part.rows} | same | settings | results
        varied = {name: "varies" for name in self.config.columns if program.SETTINGS[name].data}
        footer = self.footer | {"group": program.effective() | varied, "part": part.number}
        self.folder.write(part.number, {name: _array(values) for name, values in columns.items()}, footer)


def _array(values: np.ndarray) -> Any:
    """For a file: not-a-number is no value, and what is no number, text or truth value is its text."""
    with extra("store", "writing .parquet"):
        import pyarrow
    if values.dtype != object:
        return pyarrow.array(values, from_pandas=True)
    plain = [value if isinstance(value, str | int | float | bool | None) else str(value) for value in values.tolist()]
    return pyarrow.array(plain)  # of nothing but None: of the kind "null", which fits any other
