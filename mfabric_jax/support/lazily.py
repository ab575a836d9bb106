"""Names whose modules are imported at first use."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def load_module(module: str) -> Any:
    """Import and return a module; callers pass its name as a literal."""
    return importlib.import_module(module)


def at_first_use(package: str, names: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package, which imports a module when one of its names is first used.

    `names`: names by module, none of them equal to a module's name. A module belongs to the package, or is named in
    full: `mfabric_jax.evaluate.rules`.
    """
    home = {name: module for module, several in names.items() for name in several}

    def load_attribute(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = home[name] if home[name].startswith("mfabric_jax.") else f"{package}.{home[name]}"
        return getattr(importlib.import_module(module), name)

    return load_attribute


class LazyModule:
    """A module that is imported when one of its names is first used."""

    def __init__(self, module: str):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)


class ByName(Mapping[str, Any]):
    """A mapping of names to objects in modules of a package; a module is imported when one of its names is looked up.

    `homes`: MODULE:ATTRIBUTE by name.
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
        """Return the name of a value, or None if it has none. Import nothing."""
        for name, (module, attribute) in self._homes.items():
            if getattr(sys.modules.get(f"{self._package}.{module}"), attribute, self) is value:
                return name
        return None
