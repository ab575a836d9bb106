"""Which experiment draws which figure, and where the experiments are."""

import ast
import importlib
import importlib.util
import pathlib
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import mfabric_jax
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.extras import extra

FIGURES = {
    "traffic-shares": "traffic_shares",
    "block-timeline": "block_timeline",
    "expert-load": "expert_load",
    "matrices": "matrices_and_locality",
    "testbed": "testbed",
    "cost": "cost_by_cluster_size",
    "iteration-time": "iteration_time",
    "pareto": "pareto",
    "failures": "failures",
    "scale-up": "scale_up_domains",
    "predictor": "predictor_on_traces",
    "scale": "scale_to_32768",
    "optical-degree": "optical_degree",
    "delay": "reconfiguration_delay",
    "batch-size": "batch_size",
}
ALL = "all"
PACKAGE = "mfabric_jax.experiments"
ROOT = pathlib.Path(mfabric_jax.__file__).parent
_SCRIPT = re.compile(r"^SCRIPT\b", re.MULTILINE)


def package() -> ModuleType:
    """The experiments: in a wheel they are inside this package, in a checkout in the folder beside it."""
    if PACKAGE in sys.modules:
        return sys.modules[PACKAGE]
    inside, beside = (place / "experiments" / "__init__.py" for place in (ROOT, ROOT.parent))
    file = inside if inside.is_file() else beside
    spec = importlib.util.spec_from_file_location(PACKAGE, file, submodule_search_locations=[str(file.parent)])
    if not file.is_file() or spec is None or spec.loader is None:
        raise InputError(f"reproduce needs the experiments, which neither {inside.parent} nor {beside.parent} holds.")
    module = sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def questions() -> dict[str, str]:
    """What each script asks, by the name of its module, which defines `SCRIPT` and need not run for that."""
    found = {}
    for file in sorted(pathlib.Path(*package().__path__).glob("*.py")):
        if _SCRIPT.search(text := file.read_text(encoding="utf-8")):
            try:
                found[file.stem] = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
            except SyntaxError as error:
                found[file.stem] = f"(cannot be read: {error})"
    return found


def load(module: str) -> Any:
    """The `Script` of a module of the experiments."""
    if module not in questions():
        raise InputError(f"there is no script {module}.py among the experiments.")
    with extra(ALL, "reproducing figures"):
        return importlib.import_module(f"{PACKAGE}.{module}").SCRIPT


def known() -> dict[str, str]:
    """Modules of scripts by name: the figures of the paper, then what else the experiments ask."""
    others = (module for module in questions() if module not in FIGURES.values())
    return FIGURES | {module.replace("_", "-"): module for module in others}


def chosen(words: Sequence[str]) -> dict[str, str]:
    """Modules of the figures asked for, once each and in their order; no word means all of the paper's."""
    names = known()
    of_module = {module: name for name, module in names.items()}  # a script may be named by its module as well
    asked = [one_of("figure", of_module.get(word, word), [*names, ALL]) for word in words or [ALL]]
    asked += FIGURES if ALL in asked else []
    return {name: module for name, module in names.items() if name in asked}


def listing() -> str:
    """Every figure with what it asks, then the scripts that `all` leaves out."""
    asked, names = questions(), known()
    wide = max(map(len, names))
    lines = {name: f"  {name:<{wide}}  {asked.get(module, '(missing)')}" for name, module in names.items()}
    others = [line for name, line in lines.items() if name not in FIGURES]
    return "\n".join(
        [f"figures of the paper ({ALL}):", *(lines[name] for name in FIGURES), "", "by name only:", *others]
    )
