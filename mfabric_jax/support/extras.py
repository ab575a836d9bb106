"""Optional dependencies: pip extras and their packages."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.support.lazily import load_module

PACKAGES = {  # packages of each extra, by the names that pip installs
    "cli": ("tqdm",),
    "plot": ("matplotlib", "networkx", "scipy"),
    "store": ("pyarrow",),
    "exact": ("scipy",),
    "formats": ("protobuf", "flatbuffers"),
    "cluster": ("ray",),
    "notebook": ("pandas",),
}
PARQUET = "mfabric_jax.support.parquet"
NAMES = {"google": "protobuf"}  # installed names by imported names


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Wrap a lazy import; if a package is missing, raise InputError with the pip extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = NAMES.get(error.name or "", error.name)
        raise InputError(
            f"{purpose} needs {package}, which is not installed: run pip install 'mfabric-jax[{name}]'."
        ) from error


def load_extra(name: str, purpose: str, module: str) -> Any:
    """Load and return a module: a package of the extra `name`, or a module of ours that imports one.

    Raise InputError if the package is missing (see `extra`).
    """
    with extra(name, purpose):
        return load_module(module)
