"""Pictures of a folder within the page."""

import base64
import os
from pathlib import Path

from mfabric_jax.checks import InputError
from mfabric_jax.report.html.markup import tag, words

PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}


def pictures_in(folder: str | Path) -> list[Path]:
    """Return the pictures of a folder; raise InputError if it holds none."""
    folder = Path(folder)
    if not os.path.isdir(folder):
        raise InputError(f"pictures {str(folder)!r} is not a folder; give one that holds .png or .svg files.")
    try:
        pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES and path.is_file())
    except OSError as error:
        raise _unread(folder, error) from error
    if not pictures:
        raise InputError(f"pictures {str(folder)!r} holds no .png or .svg file; give another folder.")
    return pictures


def picture(path: Path) -> str:
    """Return a picture as HTML that holds its bytes."""
    try:
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise _unread(path, error) from error
    source = f"data:{PICTURES[path.suffix.lower()]};base64,{data}"
    return f'<figure><img src="{source}" alt="{words(path.stem)}">{tag("figcaption", words(path.name))}</figure>'


def _unread(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot read {str(path)!r} ({error.strerror or error}); give a folder that can be read.")
