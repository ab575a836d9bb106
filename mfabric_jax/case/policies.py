"""The names of policies and of schedulers of circuits. `policies/` and `circuit_schedules/` define them.

These names are outside of both packages so that settings and help load without JAX. A name may include settings of its
policy: `greedy(rule=next)`, `FILE.py:FUNCTION(margin=0.3)`.
"""

import functools
import os
import re
from collections.abc import Iterator
from typing import Any

from mfabric_jax.checks import InputError, one_of

HOMES = {  # of policies, MODULE:FUNCTION in `policies`
    "greedy": "greedy:greedy",
    "greedy-released": "greedy:greedy_released",
    "greedy-next": "greedy:greedy_next",
    "uniform": "static:uniform",
    "random": "static:random_circuits",
    "static": "static:static",
    "previous": "static:keep",
    "topoopt": "static:topoopt",
    "matching": "exact:matching",
    "threshold": "local_search:threshold",
    "local-search": "local_search:local_search",
    "relaxed": "relaxed:relaxed",
    "joint": "sample_average:joint",
    "sample-average": "sample_average:sample_average",
    "index": "index_rule:index",
    "learned": "learned:learned",
    "untrained": "learned:untrained",
    "ahead": "ahead:ahead",
    "exact": "exact:exact",
    "topologies": "topologies:topologies",
}
NAMES = tuple(HOMES)
SCHEDULERS = (
    *("bvn", "solstice", "eclipse", "spectra", "whole-pair", "quick", "rotor", "keep-or-reconfigure", "joint", "exact"),
)
ROUTINGS = ("unsplit", "best-path", "split", "relay")  # how demand uses circuits and the tree: `routing/region.py`
NO_SCHEDULE = "none"
BOUND = "bound"  # value of circuits.reconfigure, and policy in its rows
NAMED = {"policy": NAMES, "scheduler": SCHEDULERS}
SUFFIX = ".policy"  # suffix of files that `mfabric train` writes
WITH_SETTINGS = re.compile(r"(.+)\((.*)\)")  # NAME(setting=value, setting=value)
FORM = "NAME(setting=value, ...)"
NO_TEXT = ("mean", "parameters")  # settings that are arrays
COPILOT = (
    "the Copilot of arXiv 2501.03905 is not a policy but a rule for when to reconfigure: write "
    "circuits.reconfigure = predict and circuits.predict.predictor = transition, with the policy that chooses circuits "
    "for the predicted demand"
)


# ------------------------------------------------------------------------------------------------ a name with settings
@functools.lru_cache(maxsize=1024)
def split(name: str) -> tuple[str, dict[str, Any]]:
    """Return the bare name of a policy and the settings in its name; values in brackets become a list.

    Raise InputError if the settings are not written as `FORM`.
    """
    match = WITH_SETTINGS.fullmatch(name.strip())
    if match is None:
        return name.strip(), {}
    settings: dict[str, Any] = {}
    for word in split_words(match[2]):
        setting, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not setting.isidentifier() or not value:
            raise InputError(f"policy {name!r} must be written as {FORM}, but contains {word!r}.")
        if setting in settings or setting in NO_TEXT:
            why = "is stated twice" if setting in settings else "is an array, which no name can hold"
            raise InputError(f"policy {name!r}: its setting {setting!r} {why}.")
        settings[setting] = _value(value)
    return match[1].strip(), settings


def bare(policy: Any) -> Any:
    """Return a name without its settings, and a function unchanged."""
    return split(policy)[0] if isinstance(policy, str) else policy


def join_name(name: str, settings: dict[str, Any]) -> str:
    """Return the name with its settings, as in rows."""
    inside = ", ".join(f"{setting}={_word(value)}" for setting, value in settings.items())
    return f"{name}({inside})" if settings else name


def spread(value: Any) -> Any:
    """Expand names with lists of values: `f(margin=[0.1, 0.3])` becomes a list of two names."""
    if isinstance(value, str):
        every = list(_spread(value))
        return every[0] if len(every) == 1 else every
    if isinstance(value, list):
        return [single for name in value for single in (_spread(name) if isinstance(name, str) else [name])]
    return value


def _spread(name: str) -> Iterator[str]:
    plain, settings = split(name)
    several = next((setting for setting, value in settings.items() if isinstance(value, list)), None)
    if several is None:
        yield join_name(plain, settings)
        return
    for value in settings[several]:
        yield from _spread(join_name(plain, {**settings, several: value}))


def split_words(text: str, by: str = ",") -> list[str]:
    """Split a text at commas outside of brackets."""
    words, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == by and depth <= 0:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words if word.strip()]


def _value(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        return [_value(word) for word in split_words(text[1:-1])]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text.strip("\"'")


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_word, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


# -------------------------------------------------------------------------------------------------------- what it names
def is_function(name: str) -> bool:
    return ".py:" in bare(name)


def is_file(name: str) -> bool:
    name = bare(name)
    return name.endswith(SUFFIX) or (os.sep in name and not is_function(name))


def file_of(name: str) -> str:
    """Return the path of the file that the name of a policy or scheduler may contain."""
    name = bare(name)
    return name.rpartition(":")[0] if is_function(name) else name


def name_of(policy: Any) -> str:
    """Return the name of a policy in rows; `policy`: its name, or a function."""
    if isinstance(policy, functools.partial):
        plain = [value for value in policy.keywords.values() if isinstance(value, bool | int | float | str)]
        settings = policy.keywords if len(plain) == len(policy.keywords) else {}
        return join_name(name_of(policy.func), settings)
    return policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)


def settings_in(policy: Any) -> dict[str, Any]:
    """Return the settings in the name of a policy in rows."""
    return split(name_of(policy))[1]


def check_name(name: str, kind: str = "policy") -> str:
    """Return the bare name of a policy: one of the package, a file, or FILE.py:FUNCTION.

    Another `kind` of `NAMED` has no settings in its names and no .policy files. Raise InputError for other names.
    """
    name = bare(name) if kind == "policy" else name
    if kind == "policy" and name.lower() == "copilot":
        raise InputError(f"policy {name!r}: {COPILOT}.")
    if is_function(name) and not os.path.isfile(path := name.rpartition(":")[0]):
        raise InputError(f"{kind} {name!r} must be FILE.py:FUNCTION, but there is no file {path!r}.")
    if is_function(name) or (kind == "policy" and is_file(name)):
        return name
    if name.endswith(".py") or ":" in name:
        raise InputError(f"{kind} {name!r} must be FILE.py:FUNCTION if it is your own.")
    return one_of(kind, name, NAMED[kind])
