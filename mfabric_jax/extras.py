"""Optional dependencies: missing ones are named in a sentence, with the command that installs them."""

from collections.abc import Iterator
from contextlib import contextmanager

from mfabric_jax.checks import InputError

PACKAGES = {  # of each extra, by the names that are installed
    "cli": ("tqdm",),
    "plot": ("matplotlib", "networkx", "scipy"),
    "store": ("pyarrow",),
    "exact": ("scipy",),
    "formats": ("protobuf", "flatbuffers"),
    "cluster": ("ray",),
}
NAMES = {"google": "protobuf"}  # installed under another name than imported


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Around a lazy import: a package that is not installed becomes an `InputError` that names the pip extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = NAMES.get(error.name or "", error.name)
        raise InputError(
            f"{purpose} needs {package}, which is not installed: run pip install 'mfabric-jax[{name}]'."
        ) from error
