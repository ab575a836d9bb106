"""Files that cases name, by what is in them: rows say with which files they were made."""

import functools
import hashlib
from pathlib import Path

from mfabric_jax.case import Cases
from mfabric_jax.case.paths import flat
from mfabric_jax.case.policies import file_of

OF_FILES = (  # settings that may name a file
    *("model.name", "gpu.name", "network.prices", "network.transport", "traffic.trace.path", "traffic.knobs"),
    *("circuits.policy", "circuits.schedule", "placement.given"),
)


def files_of(asked: Cases) -> dict[str, Path]:
    """Files and folders that cases name, by the name in the case."""
    every = [flat(block.case) for block in asked.blocks]
    named = {str(one.get(path)) for one in every for path in OF_FILES}
    paths = {name: Path(file_of(name)) for name in sorted(named)}
    return {name: path for name, path in paths.items() if path.exists()}


def digest(path: Path) -> str:
    """Of the content of a file, or of all files of a folder."""
    files = [file for file in (sorted(path.rglob("*")) if path.is_dir() else [path]) if file.is_file()]
    return _digest(path, tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files))


@functools.lru_cache(maxsize=64)
def _digest(path: Path, files: tuple[tuple[Path, int, int], ...]) -> str:
    held = hashlib.sha256()
    for file, _, _ in files:
        held.update(file.relative_to(path.parent).as_posix().encode())
        with file.open("rb") as opened:
            held.update(hashlib.file_digest(opened, "sha256").digest())
    return held.hexdigest()[:16]
