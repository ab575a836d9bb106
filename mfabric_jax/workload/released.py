"""Facts of models in released `config.json` files, by `model_type`.

A model of text inside a wrapper (`text_config`) is read; the wrapper's other parts, such as vision, are named.
"""

from collections.abc import Mapping
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.workload.released_config import Config
from mfabric_jax.workload.released_fields import check_unread, lost_fields, unread_in
from mfabric_jax.workload.released_layouts import LAYOUTS, WRAPPERS, Facts

KEY = "model_type"
TEXT = ("text_config", "language_config", "llm_config")  # tables of the model of text in a wrapper
TIED = "tie_word_embeddings"
MOST_LOST = 12
OWN = "write the dimensions of the model in a FILE.toml (mfabric --help models)"


def released_facts(values: Mapping[str, Any], named: str) -> Facts:
    """Return the facts of `Architecture` in a released `config.json`. Raise `InputError` for an unknown layout, and for
    missing, wrong or meaningful but unread fields."""
    kind = values.get(KEY)
    if not isinstance(kind, str):
        raise InputError(f"{KEY} of {named} must be text, got {kind!r:.80}.")
    outer = config = Config(values, named)
    layout = kind
    table = next((name for name in TEXT if values.get(name) is not None), None)
    if kind in WRAPPERS and table is None:
        raise InputError(f"{named} must have the field {TEXT[0]}.")
    if table is not None:
        config = outer.inside(table)
        config.tied = outer.flag(TIED) if outer.has(TIED) else None
        if config.tied is not None and config.has(TIED):  # the wrapper's holds
            config.values = {**config.values, TIED: config.tied}
        layout = config.values.get(KEY) or WRAPPERS.get(kind, kind)
        if not isinstance(layout, str):
            raise InputError(f"{KEY} of {config.named} must be text, got {layout!r:.80}.")
    if layout not in LAYOUTS:
        raise InputError(_unknown(config, layout))
    facts = LAYOUTS[layout](config)
    known = kind if kind in WRAPPERS or kind in LAYOUTS else layout
    check_unread(dict(unread_in(values, config.read)), facts, known, named, table or "")
    return facts


def _unknown(config: Config, kind: str) -> str:
    """The sentence about an unknown layout: the known one that its fields resemble most, and what that would lose."""
    near: tuple[str, list[str]] | None = None
    for name, read in LAYOUTS.items():
        tried = Config(config.values, config.named)
        try:
            facts = read(tried)
        except InputError:
            continue
        lost = lost_fields(dict(unread_in(config.values, tried.read)), facts)
        if near is None or len(lost) < len(near[1]):
            near = name, lost
    known = f"known are {', '.join(LAYOUTS)}"
    if near is None:
        return f"{OWN}: {KEY} of {config.named} is unknown, {kind!r:.80}, and its fields fit none; {known}."
    layout, lost = near
    if not lost:
        return f"{KEY} of {config.named} must be {layout!r}, whose fields it has, got {kind!r:.80}; {known}."
    more = f" and {len(lost) - MOST_LOST} more" if len(lost) > MOST_LOST else ""
    return (
        f"{OWN}, or {KEY} {layout!r}, which would lose {', '.join(lost[:MOST_LOST])}{more}: {KEY} of {config.named} is "
        f"unknown, {kind!r:.80}; {known}."
    )
