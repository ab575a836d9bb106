"""Through which modules a command walks: the order in which its functions are first called.

    python benchmarks/walk.py compare --model llama-moe --fabric fat-tree,mfabric --nic-gbps 100,400

Prints how many modules of the package are loaded and how many functions run, how many of these are of the core (not of
apps, reports, commands, or the support of all), how many modules are visited, and how often the walk comes back to one
that it had left; `--list` first prints the walk itself, one module a line with the functions that are new there.
"""

import inspect
import sys
from pathlib import Path

import mfabric_jax
from mfabric_jax import cli

ROOT = Path(mfabric_jax.__file__).parent
BESIDE_CORE = ("apps", "cli", "commands", "report", "support")


def walk_of(words: list[str]) -> list[tuple[str, str]]:
    """(module, function) of every function of the package, by its first call."""
    seen: dict[tuple[str, str], None] = {}

    def called(frame, event, _):
        code = frame.f_code
        function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")  # no body of a class
        if event == "call" and function and code.co_filename.startswith(str(ROOT)):
            seen.setdefault((Path(code.co_filename).relative_to(ROOT).as_posix(), code.co_qualname))

    sys.argv = ["mfabric", *words]
    sys.setprofile(called)
    try:
        cli.main(words)
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    return list(seen)


def main() -> None:
    """Runs the command in `sys.argv`."""
    listed, words = "--list" in sys.argv, [word for word in sys.argv[1:] if word != "--list"]
    stops: list[tuple[str, list[str]]] = []
    for module, function in walk_of(words):
        if not stops or stops[-1][0] != module:
            stops.append((module, []))
        stops[-1][1].append(function)
    modules = {module for module, _ in stops}
    if listed:
        print("\n".join(f"{module}: {', '.join(functions)}" for module, functions in stops))
    loaded = [name.split(".")[1:] for name in sys.modules if name.partition(".")[0] == "mfabric_jax"]
    core = sum(bool(parts) and parts[0] not in BESIDE_CORE for parts in loaded)
    functions = sum(len(new) for _, new in stops)
    of_core = sum(len(new) for module, new in stops if module.split("/")[0].removesuffix(".py") not in BESIDE_CORE)
    print(f"{len(loaded)} modules loaded, {core} of the core; {functions} functions run, {of_core} of the core")
    print(f"{len(modules)} modules visited, {len(stops) - len(modules)} returns to a module already left")


if __name__ == "__main__":
    main()
