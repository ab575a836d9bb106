"""Packages whose slow names are imported when they are first asked for."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def at_first_use(package: str, names: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package; `names`: those of each of its modules, none of which is named like a module."""
    home = {name: module for module, several in names.items() for name in several}

    def found(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home[name]}"), name)

    return found
