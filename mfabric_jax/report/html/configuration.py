"""The effective configuration, folded: a line for each value, a fold for each part of it."""

import json
from collections.abc import Mapping
from typing import Any

from mfabric_jax.report.html.markup import tag, words


def configuration(effective: Mapping[str, Any]) -> str:
    """Everything that was stored beside the rows."""
    if not effective:
        return tag("p", "No configuration is stored beside these rows.", class_="note")
    return _fold("Effective configuration", effective)


def _fold(name: str, part: Mapping[str, Any]) -> str:
    values = {key: value for key, value in part.items() if not (isinstance(value, Mapping) and value)}
    lines = [tag("tr", tag("th", words(key), scope="row"), tag("td", words(_said(v)))) for key, v in values.items()]
    folds = [_fold(str(key), value) for key, value in part.items() if isinstance(value, Mapping) and value]
    held = (tag("table", tag("tbody", *lines)) if lines else "") + "".join(folds)
    return tag("details", tag("summary", words(name)), held, class_="configuration")


def _said(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "none" if value is None else json.dumps(value, default=_jsonable)


def _jsonable(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
