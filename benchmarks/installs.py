"""Installs the wheel and the sdist where nothing else is, and says what runs there and how large it is.

    python benchmarks/installs.py                     # this Python: core, every extra, all, sdist, lowest versions
    python benchmarks/installs.py --pythons python3.12,python3.13 --installs core,all,sdist
    python benchmarks/installs.py --dist dist         # what lies there, in the place of a build

In each: `import mfabric_jax`, README's first example, and `mfabric compare` of one model, away from the checkout. An
environment of an extra is that of the core with the extra installed into it. Lowest: every dependency at the lowest
version that pyproject.toml allows, all extras. A line of Markdown for each, as they are ready. Exit status 1 where
something does not run. Sizes are of files on disk without bytecode; seconds are the least of three.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name not in ("all", "dev", "docs")]
INSTALLS = ["core", *EXTRAS, "all", "sdist", "lowest"]
COLUMNS = ("Python", "installed", "runs", "MiB", "beside the core", "import [s]", "with `simulate` [s]", "MiB then")
COMPARE = "compare --model llama-moe --gpus 64 --fabric fat-tree"
MEASURED = """
import json, resource, time
began = time.perf_counter()
import mfabric_jax
lazily = time.perf_counter() - began
mfabric_jax.simulate
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([mfabric_jax.__file__, lazily, time.perf_counter() - began, usage.ru_maxrss / 1024]))
"""
LONGEST_S = 1200
MIB = 1 << 20


def main() -> int:
    """Prints the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", default=sys.executable, help="interpreters, separated by commas")
    parser.add_argument("--installs", default=",".join(INSTALLS), help="of " + ", ".join(INSTALLS))
    parser.add_argument("--dist", help="a folder with a wheel and an sdist (default: they are built)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="installs-") as folder:
        dist = Path(asked.dist).resolve() if asked.dist else built(Path(folder) / "dist")
        for file in sorted(dist.iterdir()):
            print(f"{file.name}: {file.stat().st_size / MIB:.2f} MiB")
        print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        failed = False
        for python in asked.pythons.split(","):
            failed |= each(python, asked.installs.split(","), dist, Path(folder))
    return int(failed)


def built(dist: Path) -> Path:
    """The folder of an sdist and of a wheel that is made of it."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT)
    return dist


class Environment(NamedTuple):
    """A virtual environment in a folder; `core`: the one that it is a copy of, with more in it."""

    folder: Path
    mib: float = 0.0
    core: "Environment | None" = None

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def with_(self, what: str, pins: list[str]) -> "Environment":
        """With packages installed by its own pip, and their size on disk."""
        words = ("install", "--quiet", "--disable-pip-version-check", "--no-compile", what, *pins)
        run(self.python, "-m", "pip", *words, cwd=self.folder)
        files = (path for path in (self.folder / "lib").rglob("*") if path.is_file() and path.suffix != ".pyc")
        return self._replace(mib=sum(file.stat().st_size for file in files) / MIB)


def each(python: str, installs: list[str], dist: Path, folder: Path) -> bool:
    """A line for every install under one interpreter; whether one of them failed."""
    version = run(python, "-c", "import platform; print(platform.python_version())").strip()
    wheel, sdist = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    core, failed = None, False
    for name in sorted(installs, key=lambda name: name != "core"):
        place = folder / f"{version}-{name}"
        what = {"sdist": str(sdist), "core": str(wheel)}.get(name, f"{wheel}[{name.replace('lowest', 'all')}]")
        try:
            of_core = core if name in (*EXTRAS, "all") else None
            if of_core is None:
                run(python, "-m", "venv", place)
            else:
                shutil.copytree(of_core.folder, place, symlinks=True)
            env = Environment(place, core=of_core).with_(what, lowest() if name == "lowest" else [])
            core = env if name == "core" else core
            told = line(env)
        except subprocess.CalledProcessError as error:
            said = [*f"{error.stdout}\n{error.stderr}".strip().splitlines()[-3:]]
            told, failed = f"fails: {' / '.join(said)[:400]} | | | | |", True
        print(f"| {version} | {name} | {told}", flush=True)
        if name != "core":
            shutil.rmtree(place, ignore_errors=True)
    return failed


def lowest() -> list[str]:
    """The lowest version of every dependency that states one, those of extras too."""
    stated = [*PROJECT["dependencies"], *(one for name in EXTRAS for one in PROJECT["optional-dependencies"][name])]
    found = (re.match(r"([\w-]+)>=([\d.]+)", one) for one in stated if not one.startswith("ray"))
    return sorted({f"{one[1]}=={one[2]}" for one in found if one})


def line(env: Environment) -> str:
    """What runs, and what it takes: cells of a table."""
    with tempfile.TemporaryDirectory() as folder:
        away = Path(folder)
        timed = [json.loads(run(env.python, "-c", MEASURED, cwd=away)) for _ in range(3)]
        assert all(str(env.folder) in one[0] for one in timed), f"{timed[0][0]} is not what was installed"
        lazily, whole, memory = (min(one[at] for one in timed) for at in (1, 2, 3))
        (away / "first.py").write_text(first_example(), encoding="utf-8")
        run(env.python, "first.py", cwd=away)
        began = time.perf_counter()
        run(env.python, "-m", "mfabric_jax.cli", *COMPARE.split(), cwd=away)
        took = time.perf_counter() - began
    further = f"{env.mib - env.core.mib:.0f}" if env.core else ""
    runs = f"import, example, compare ({took:.0f} s)"
    return f"{runs} | {env.mib:.0f} | {further} | {lazily:.2f} | {whole:.2f} | {memory:.0f} |"


def first_example() -> str:
    """README's first example in Python."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.split("```python\n")[1].split("```")[0]


def run(*words: Any, cwd: Path | None = None) -> str:
    """The output of a command outside of the checkout's settings. `CalledProcessError` where it fails."""
    ours = ("PYTHON", "XLA_", "JAX_", "MFABRIC_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, env=env, cwd=cwd, timeout=LONGEST_S, check=True
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
