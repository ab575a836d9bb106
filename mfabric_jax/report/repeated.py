"""The command that repeats one row of `mfabric serve`, for a terminal and for the page."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from mfabric_jax import units
from mfabric_jax.case.paths import AUTO, settings
from mfabric_jax.case.pools_of_row import POOL_COLUMNS, settings_of_pools
from mfabric_jax.report.numerals import plain_scalar, usable
from mfabric_jax.report.query import RUNS
from mfabric_jax.report.served import LIMIT, has_load, is_replica, is_served

_COMMAND = "serve"
_COLUMNS: dict[str, str] = {  # of rows, by setting; other settings in which rows differ have columns of their paths
    **{"model.name": "model", "gpu.name": "gpu", "network.fabric": "fabric", "network.nic_gbps": "nic_gbps"},
    **{"serving.tp": "tp", "serving.context": "context", "serving.kernels": "kernels"},
    **{"serving.formats.dispatch": "precision", "serving.replica.ep": "ep"},
    **{"serving.prefill.gpu": "prefill_gpu", "serving.prefill.nic_gbps": "prefill_nic_gbps"},
}
_DEFAULTS_OF_SERVE = "model.name", "network.fabric"  # which other commands do not share
_OF_SEARCH = "serving.tpot_ms", "serving.by", "serving.load.keep"  # what only a search reads


def repeat_command(row: Mapping[str, Any], effective: Mapping[str, Any]) -> str | None:
    """Return the command that serves a row again, without a search; None if its settings are not all known.

    `effective`: the configuration of the rows.
    """
    sources = effective.get("sources", {})
    files = [name for name in dict.fromkeys(sources.values()) if name not in ("flag", _COMMAND)]
    if not is_served(row) or "stated" not in effective or row.get("attention_gpus") or (files and RUNS in effective):
        return None
    pools = {} if is_replica(row) else _pools(row)
    if pools is None:
        return None
    own = {**dict(_settings_of(row, effective)), **pools}
    if any(isinstance(value, dict) for value in own.values()):
        return None
    kept = {path: value for path, value in own.items() if path in pools or sources.get(path) not in files}
    kept |= {path: own[path] for path in effective.get("varied", ()) if path in own}
    if not files:
        kept = {path: value for path, value in kept.items() if path in pools or not _is_default(path, value)}
    words = (word for path, value in kept.items() for word in _words(path, value))
    return shlex.join(["mfabric", _COMMAND, *files, *words])


def _is_default(path: str, value: Any) -> bool:
    """Whether a setting has a value that `mfabric serve` takes where nothing is stated."""
    setting = settings().get(path)
    return setting is not None and path not in _DEFAULTS_OF_SERVE and value == setting.default


def _pools(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings of a row that a search chooses; None if the row lacks a column."""
    if any(row.get(column) is None for column in (*POOL_COLUMNS.values(), "by")):
        return None
    own, limit_s = settings_of_pools(row), usable(row.get(LIMIT))
    if has_load(row) and limit_s is not None:
        own["serving.load.tpot_ms"] = units.to_ms(limit_s)
    if has_load(row) or row.get("ttft_limit_s") is not None:
        own["serving.by"] = row["by"]
    return own


def _settings_of(row: Mapping[str, Any], effective: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The stated settings of a row; a setting of a list that no column tells has a dictionary for its value."""
    sources, varied = effective.get("sources", {}), effective.get("varied", ())
    known = {path: value for path, value in row.items() if path in settings()}
    for path, value in {**effective["stated"], **known}.items():
        unread = path.startswith("network.") if is_replica(row) else path in _OF_SEARCH
        if unread or path in POOL_COLUMNS:
            continue
        stored: Any = row.get(path if path in row else str(_COLUMNS.get(path)))
        if stored is None and sources.get(path) == _COMMAND:  # a default that these rows do not read
            continue
        if path in row or (path in varied and isinstance(value, list)):
            value = {} if stored is None and path not in row else stored
        yield path, str(value).partition(", ")[0] if path == "model.name" else value  # a job may follow its model


def _words(path: str, value: Any) -> list[str]:
    setting = settings().get(path)
    if setting is not None and setting.flag and setting.command in ("", _COMMAND):
        return [setting.flag, _text(value)]
    return ["--set", f"{path}={_text(value)}"]


def _text(value: Any) -> str:
    value = plain_scalar(value)
    if isinstance(value, list | tuple):
        return "+".join(map(_text, value))
    if value is None or str(value) in ("True", "False"):
        return AUTO if value is None else str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)
