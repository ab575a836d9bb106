"""Optional dependencies."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.support.lazily import loaded

PACKAGES = {  # of each extra, by the names that are installed
    "cli": ("tqdm",),
    "plot": ("matplotlib", "networkx", "scipy"),
    "store": ("pyarrow",),
    "exact": ("scipy",),
    "formats": ("protobuf", "flatbuffers"),
    "cluster": ("ray",),
    "notebook": ("pandas",),
}
PARQUET = "mfabric_jax.support.parquet"
NAMES = {"google": "protobuf"}  # installed under another name than imported


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Wraps a lazy import: `InputError` with the pip extra to install if a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = NAMES.get(error.name or "", error.name)
        raise InputError(
            f"{purpose} needs {package}, which is not installed: run pip install 'mfabric-jax[{name}]'."
        ) from error


def needed(name: str, purpose: str, module: str) -> Any:
    """The module of that name, loaded now: one of an extra's packages, or a file that imports them at its top.

    `InputError` as of `extra`.
    """
    with extra(name, purpose):
        return loaded(module)
