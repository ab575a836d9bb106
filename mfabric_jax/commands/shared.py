"""What commands share: starting JAX, words of options as values, outputs checked before a long run."""

import dataclasses
import os
import pathlib
import re
from typing import Any

from mfabric_jax.checks import InputError, one_of

DEVICES = ("cpu", "gpu", "tpu")


def start_jax(dtype: str, device: str | None) -> None:
    """Device, precision and compilation cache: settings of the process, so they belong to the command line alone."""
    import jax

    if dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    if device is not None:
        one_of("device", device, DEVICES)
        try:
            jax.config.update("jax_default_device", jax.devices(device)[0])
        except RuntimeError:
            found = sorted({d.platform for d in jax.devices()})
            raise InputError(f"device {device!r} is not on this machine; JAX finds {', '.join(found)}.") from None
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "mfabric_jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def check_outputs(out: str | None, figures: str | None) -> None:
    """Say now that a result could not be written."""
    from mfabric_jax.atomic import check_folder
    from mfabric_jax.report.rows import check_destination

    if out is not None:
        check_destination(out)
    if figures is not None:
        check_folder(figures)


def as_given(options: Any) -> dict[str, Any]:
    """Options by their names."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}


def listed_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def listed_numbers(field: str, text: str, kind: type = float) -> tuple[Any, ...]:
    return tuple(_number(field, word, kind) for word in listed_words(text))


def _number(field: str, word: str, kind: type) -> Any:
    try:
        return kind(word)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise InputError(f"{field} must be {what} separated by commas, got {word!r}.") from None


def record_range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)-(\d+)", text.strip())
    if not found:
        raise InputError(f"records must be FIRST-LAST, such as 2011-5001, got {text!r}.")
    return int(found[1]), int(found[2])
