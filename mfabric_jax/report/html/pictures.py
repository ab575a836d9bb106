"""Pictures of a folder inside the page: heat maps, fabrics and timelines that rows cannot hold."""

import base64
from pathlib import Path

from mfabric_jax.checks import InputError
from mfabric_jax.report.html.markup import tag, words

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}


def found_in(folder: str | Path) -> list[Path]:
    """The pictures of a folder by name; none at all is an `InputError`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"pictures {str(folder)!r} is not a folder; give one that holds .png or .svg files.")
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix.lower() in KINDS and path.is_file())
    except OSError as error:
        raise _unread(folder, error) from error
    if not found:
        raise InputError(f"pictures {str(folder)!r} holds no .png or .svg file; give another folder.")
    return found


def pictures(folder: str | Path) -> str:
    """Every picture with its file name below it."""
    return tag("div", *map(_figure, found_in(folder)), class_="pictures")


def _figure(path: Path) -> str:
    try:
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise _unread(path, error) from error
    source = f"data:{KINDS[path.suffix.lower()]};base64,{data}"
    return f'<figure><img src="{source}" alt="{words(path.stem)}">{tag("figcaption", words(path.name))}</figure>'


def _unread(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot read {str(path)!r} ({error.strerror or error}); give a folder that can be read.")
