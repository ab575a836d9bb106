"""Files that cases name, and digests of their content, which rows record."""

import hashlib
from pathlib import Path

from mfabric_jax.case import Cases
from mfabric_jax.case.paths import file_settings, flat
from mfabric_jax.case.policies import file_of
from mfabric_jax.support.text_files import cached_by_files


def files_of(cases: Cases) -> dict[str, Path]:
    """Return the existing files and folders that cases name, by that name."""
    every = [flat(block.case) for block in cases.blocks]
    named = {value for values in every for path in file_settings() if isinstance(value := values.get(path), str)}
    paths = {name: Path(file_of(name)) for name in sorted(named)}
    return {name: path for name, path in paths.items() if path.exists()}


@cached_by_files(lambda path: (path,), maxsize=64)
def digest(path: Path) -> str:
    """Return the digest of a file, or of all files of a folder."""
    held = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            held.update(file.relative_to(path.parent).as_posix().encode())
            with file.open("rb") as opened:
                held.update(hashlib.file_digest(opened, "sha256").digest())
    return held.hexdigest()[:16]
