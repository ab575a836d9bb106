"""README and docs run as they stand: the blocks of a page one after the other, in one folder and one namespace.

Python blocks are executed. In sh blocks `mfabric` lines go through the command line in this process; `make`, `pip` and
`python` lines are only looked up. A block whose first line is `# NAME.EXT` is written to that file instead. What
makes a table runs in `test_docs_tables`.
"""

import ast
import dataclasses
import importlib.util
import os
import pathlib
import re
import shlex
import tomllib
import types

import jax
import pytest

import mfabric_jax
from mfabric_jax import cli, commands
from mfabric_jax.case import Case
from mfabric_jax.case.own_code import FLAG
from mfabric_jax.case.paths import SHORT, alternatives, settings
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import ALSO, flags_of_cases, options_in
from mfabric_jax.fabric.parts_list import OCS
from tests.docs_reference import made_again
from tests.docs_tables import BLOCK, NAMED, PAGES, ROOT, TABLE, lines
from tests.small import configured, unchecked

TEXTS = {page.stem: page.read_text(encoding="utf-8") for page in PAGES}
NO_NUMBER = re.compile(r"\b(nan|inf)\b", re.I)
RUN = {"python", "sh"}


@pytest.fixture
def as_a_user(monkeypatch, tmp_path):
    """JAX and a folder as a user has them; the compilation cache stays that of the tests."""

    def start_jax(dtype, device):
        if dtype == "float64":
            jax.config.update("jax_enable_x64", True)

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(shared, "start_jax", start_jax)
    plain = {"jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow", "jax_enable_x64": False}
    kept = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    with configured(**plain, **{name: jax.config.values[name] for name in kept}), unchecked():
        yield


def run_blocks(page, capsys, most_lines=None):
    """All blocks of a page; of its shell lines at most so many."""
    names, ran = {}, 0
    for number, (kind, block) in enumerate(BLOCK.findall(TABLE.sub("", TEXTS[page]))):
        if file := NAMED.match(block):
            pathlib.Path(file[1]).write_text(block, encoding="utf-8")
        elif kind == "python":
            exec(compile(block, f"{page} block {number}", "exec"), names)
            check_output(f"{page} block {number}", capsys)
        elif kind == "sh":
            for words in lines(block):
                if words[0] != "mfabric" or most_lines is None or ran < most_lines:
                    RUNNERS[words[0]](words[1:], capsys)
                    ran += words[0] == "mfabric"


RUNNING = [page for page, text in TEXTS.items() if page != "gallery" and {k for k, _ in BLOCK.findall(text)} & RUN]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNING)  # commands of the gallery take minutes: test_docs_site reads them
def test_blocks_run(page, as_a_user, capsys):
    run_blocks(page, capsys)


def test_python_blocks_use_names_that_exist():
    """Imports, and what a block reads from a module that it imports: a renamed function fails here within a second."""
    for page, text in TEXTS.items():
        for kind, block in BLOCK.findall(text):
            if kind == "python" and not NAMED.match(block):
                check_names(page, ast.parse(block))


def check_names(page, tree):
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "mfabric_jax":
            source = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(source, alias.name), f"{page}: {node.module} has no {alias.name}"
                modules[alias.asname or alias.name] = getattr(source, alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = ast.unparse(node).split(".")
            value = modules.get(names[0])
            for name in names[1:]:
                if not isinstance(value, types.ModuleType):
                    break
                assert hasattr(value, name), f"{page}: {value.__name__} has no {name}"
                value = getattr(value, name)


def check_output(what, capsys):
    """What was printed holds something, and only numbers."""
    printed = capsys.readouterr()
    assert printed.out + printed.err, f"{what} printed nothing"
    assert not NO_NUMBER.search(printed.out), f"{what}: {printed.out}"


def run_mfabric(words, capsys):
    with configured(jax_enable_x64=False):
        try:
            status = cli.main(words)
        except SystemExit as end:
            status = end.code
    assert not status, f"mfabric {shlex.join(words)}: {capsys.readouterr().err}"
    check_output(f"mfabric {shlex.join(words)}", capsys)


def look_up_make(words, capsys):
    for target in words:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M), target


def look_up_pip(words, capsys):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert words[0] == "install"
    for extra in re.findall(r"\[(.*?)\]", " ".join(words)):
        assert set(extra.split(",")) <= set(extras), extra


def look_up_python(words, capsys):
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]), words[1]
    else:
        assert (ROOT / words[0]).is_file(), words[0]


RUNNERS = {"mfabric": run_mfabric, "make": look_up_make, "pip": look_up_pip, "python": look_up_python}


def flags_of(command):
    options = importlib.import_module(f"mfabric_jax.commands.{re.sub('[- ]', '_', command)}").Options
    of_cases = (
        {*flags_of_cases(command), *ALSO, "--preset", "--set"}
        if command in commands.OF_CASES or f"{command} study" in commands.OF_CASES
        else set()
    )
    return {option.flag for option in options_in(options).values()} | of_cases | {"--help", FLAG}


def test_commands_in_sentences_exist():
    wrong = []
    for page, text in TEXTS.items():
        sentences = BLOCK.sub("", text)
        for command, rest in re.findall(r"`mfabric ([a-z]+(?:-[a-z]+)*)([^`]*)`", sentences):
            both = f"{command} {rest.split()[0]}" if rest.strip() else command
            command = both if both in commands.TWO_WORDS else command
            asked = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
            wrong += [f"{page}: mfabric {command}{rest}"] if asked - flags_of(command) else []
        for module in re.findall(r"`python -m (\w+(?:\.[a-z]\w*)*)", sentences):
            assert importlib.util.find_spec(module), f"{page}: {module}"
        for script in re.findall(r"`(?:[^`]* )?python (\w+/[\w/]+\.py)", sentences):
            assert (ROOT / script).is_file(), f"{page}: {script}"
    assert wrong == []


def package(name):
    """That of a group, where one is called alike."""
    return getattr(mfabric_jax, name, None) if importlib.util.find_spec(f"mfabric_jax.{name}") else None


def test_settings_in_sentences_and_commands_exist():
    known = {*settings(), *SHORT, *(path.rpartition(".")[0] for path in settings())}
    wrong = []
    for page, text in TEXTS.items():
        stated = re.findall(r"--set ([^\s=`]+)=", text)
        groups = "|".join(Case.__struct_fields__)
        inline = re.findall(rf"`((?:{groups})\.[a-z_.0-9-]+)(?: = [^`]*)?`", BLOCK.sub("", text))
        for path in {*stated, *inline}:
            group, _, rest = path.partition(".")
            other = path == "PATH" or rest in ("py", "toml", "json") or hasattr(package(group), rest)
            if not (other or path in known or alternatives().get(path)):
                wrong.append(f"{page}: {path} is no setting")
    assert wrong == []


def test_links_lead_somewhere_and_the_index_s_to_every_page():
    others = [os.path.relpath(page, ROOT / "docs") for page in PAGES if page.stem != "index"]
    assert [page for page in others if f"({page})" not in TEXTS["index"]] == []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page.stem]):
            path, _, heading = target.partition("#")
            if "://" not in target:
                file = page.parent / path if path else page
                assert file.exists(), f"{page.stem}: {target}"
                assert not heading or heading in headings(made_again(file.read_text(encoding="utf-8"))), target


def headings(text):
    """Anchors of a page, as GitHub makes them."""
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.M))
    return {title.strip().replace(" ", "-") for title in plain}


def test_pages_name_all_there_is():
    from mfabric_jax import circuit_schedules, fabric, policies, traffic
    from mfabric_jax.case.grid import RULES
    from mfabric_jax.traffic.knobs import WORKLOADS

    every = {
        "index": commands.COMMANDS,
        "fabrics": (*fabric.NAMES, *OCS),
        "policies": policies.REGISTRY,
        "circuit_schedules": circuit_schedules.NAMES,
        "traffic": (*WORKLOADS, *(field.name for field in dataclasses.fields(traffic.Knobs))),
        "sweeps": (*RULES, *(path for path, one in settings().items() if one.traced)),
        "formats": [field.name for field in dataclasses.fields(fabric.Prices)],
    }
    for page, names in every.items():
        for name in names:
            assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", TEXTS[page]), f"{page} does not name {name}"


def test_formats_name_the_columns_of_a_comparison(as_a_user, capsys):
    words = "compare --model llama-moe --gpus 256 --fabric fat-tree,mfabric --nic-gbps 100,400 --out rows.csv"
    run_mfabric(words.split(), capsys)
    formats = made_again(TEXTS["formats"])
    with open("rows.csv", encoding="utf-8") as rows:
        for column in rows.readline().strip().split(","):
            assert f"`{column}`" in formats, column
