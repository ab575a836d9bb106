"""Names whose files are imported when they are first asked for."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def loaded(module: str) -> Any:
    """The module of that name, which stands in the code that asks for it."""
    return importlib.import_module(module)


def at_first_use(package: str, names: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package; `names`: those of each of its modules, none of which is named like a module.

    A module is one of the package, or stands in full: `mfabric_jax.evaluate.rules`.
    """
    home = {name: module for module, several in names.items() for name in several}

    def found(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = home[name] if home[name].startswith("mfabric_jax.") else f"{package}.{home[name]}"
        return getattr(importlib.import_module(module), name)

    return found


class LazyModule:
    """A module that is imported when one of its names is first used."""

    def __init__(self, module: str):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


class ByName(Mapping[str, Any]):
    """What modules of a package define, by name; a module is imported when one of its names is asked for.

    `homes`: MODULE:ATTRIBUTE of every name.
    """

    def __init__(self, package: str, homes: Mapping[str, str]):
        self._package = package
        self._homes = {name: tuple(home.split(":")) for name, home in homes.items()}

    def __getitem__(self, name: str) -> Any:
        module, attribute = self._homes[name]
        return getattr(importlib.import_module(f"{self._package}.{module}"), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def name_of(self, value: Any) -> str | None:
        """The name of a value; None for one that is not here. Imports nothing."""
        for name, (module, attribute) in self._homes.items():
            if getattr(sys.modules.get(f"{self._package}.{module}"), attribute, self) is value:
                return name
        return None
