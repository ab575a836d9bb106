"""The command line: `mfabric COMMAND` ends in `run` of that module of `commands`, with its `Options`.

Every mistake in what was asked ends in one sentence on standard error and exit status 2, before any compute.
"""

import contextlib
import dataclasses
import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.commands import NAMES, OF_CASES, PLAIN, help
from mfabric_jax.commands.options import checked, flags, plain_words, unchecked
from mfabric_jax.commands.words import parse, read

LONGEST = 1500  # characters of a sentence on the screen


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = _command(words)
        behind = words[len(command.split()) :]
        if command not in (*PLAIN, *OF_CASES):
            return _module(command).run(_parse(command, behind))
        return _run(command, behind)
    except InputError as mistake:
        print(f"mfabric: {_shortened(str(mistake))}", file=sys.stderr)
        return 2
    except MemoryError:
        print("mfabric: this takes more memory than there is; ask for less.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mfabric: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a name too long, no permission, a disk that is full
        if error.filename is None:
            raise
        print(f"mfabric: {_shortened(repr(error.filename))} cannot be used ({error.strerror}).", file=sys.stderr)
        return 2


def _run(command: str, words: list[str]) -> int:
    """A command with the options, and the cases, that words say."""
    module = importlib.import_module(f"mfabric_jax.commands.{command.replace(' ', '_')}")
    if asks := {"-h", "--help"} & set(words):
        behind = words[words.index(asks.pop()) + 1 :]
        topic = behind[0] if behind and not behind[0].startswith("-") else None
        said = help.of_cases(command, module.Options, topic) if command in OF_CASES else None
        print(said or help.of_options(f"mfabric {command}", module.Options))
        return 0
    if command in PLAIN:
        return module.run(parse(module.Options, words, command))
    if command == "sweep" and (status := module.run_no_cases(words)) is not None:
        return status
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        cases, options = read(command, words, module.Options, getattr(module, "BELOW", ()))
    for one in heard:
        print(f"mfabric: {one.message}", file=sys.stderr)
    return module.run(cases, options)


def _shortened(sentence: str) -> str:
    """On one line, without the middle of what is too long to be read."""
    line = " ".join(sentence.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"


MUST = {  # options that some commands do not run without
    "sweep": ("--out", "a folder for the rows"),
}
SHORT = {"--seq": "--sequence", "--fabric": "--fabrics"}
HELP = """usage: mfabric COMMAND [options]

  compare   iteration time, cost and performance per dollar of fabrics for MoE training
  calibrate the computation rate of models that published fat-tree times imply
  failures  what a broken NIC, link, switch, GPU or server costs a fabric
  cluster   one iteration's flows on a whole cluster at once: who waits for which link
  jobs      several jobs on shared links: fair sharing, CASSINI's time shifts, MLTCP's weights, the best shifts
  replay    a graph of tasks on fabrics: when it ends, what holds it, what more bandwidth would bring
  timeline  what every stage does when in one iteration, as a table, a picture or a trace for Perfetto
  export    one iteration as a graph of tasks: computations, messages, what waits for what
  draw      a picture of a fabric
  traffic   bytes of each kind of parallelism in one iteration of a model, memory of a GPU
  traces    what recorded routing holds, and what it means for a job: all-to-all, circuits, predictors
  validate  predictions against recorded packet-level runs
  policies  every policy on every kind of demand: how late, how fast
  train     a policy that chooses circuits: a network, or an index rule of five numbers
  evaluate  policies on demand they were not trained on, known exactly, with errors or predicted
  sweep     every configuration of a design space, from a file; goes on where it was stopped
  query     filter, group and sort the rows of a sweep; its Pareto front
  report    one HTML page of the rows of another command: summary, charts, a table to sort and filter
  reproduce figures of the paper, and every published number beside what comes out
  tune      measures kernels on this device once; what is fastest is used from then on
  show      what a case becomes, as TOML, each value with where it comes from
  doctor    what decides the speed here: devices, versions, caches, kernels, and what is slow

`mfabric COMMAND --help` lists the options; `mfabric --version` the version."""


def _module(command: str) -> Any:
    """Where its `Options` and `run` are."""
    try:
        import tyro  # noqa: F401
    except ImportError:
        raise InputError("the command line needs its extra: pip install 'mfabric-jax[cli]'.") from None
    return importlib.import_module(f"mfabric_jax.commands.{command}")


def _command(words: list[str]) -> str:
    if not words or words[0] in ("-h", "--help"):
        print(HELP, file=sys.stdout if words else sys.stderr)
        raise SystemExit(0 if words else 2)
    if words[0] == "--version":
        import mfabric_jax

        print(f"mfabric {mfabric_jax.__version__}")
        raise SystemExit(0)
    both = " ".join(words[:2])
    return both if both in OF_CASES else one_of("command", words[0], NAMES)


def _parse(command: str, words: list[str]) -> Any:
    """Options from words, by tyro; what it refuses becomes one sentence."""
    options = _module(command).Options
    import tyro

    known, asks = flags(options), bool({"-h", "--help"} & set(words))
    words = [_spelt_out(word, known) for word in words]
    for word in words:
        name = word.split("=")[0]
        if name.startswith("--") and name != "--help" and name.replace("--no-", "--") not in known:
            one_of("option", name, sorted(known))
    if not asks:
        _check_words(command, words)
        words = plain_words(words, options, _preset(words, options) if {"--preset", "--bubble"} & {*known} else None)
    said, width = io.StringIO(), os.environ.get("COLUMNS")
    try:
        with contextlib.redirect_stderr(said), warnings.catch_warnings(action="ignore"):
            if not asks:
                os.environ["COLUMNS"] = "1000"  # tyro's message on one line, to be read below
            flat = (tyro.conf.OmitArgPrefixes,)
            parsed = tyro.cli(unchecked(options), args=words, prog=f"mfabric {command}", config=flat)
    except SystemExit as end:
        if not end.code:
            raise
        raise InputError(_one_sentence(said.getvalue(), command)) from None
    finally:
        os.environ.pop("COLUMNS", None)
        if width is not None:
            os.environ["COLUMNS"] = width
    return checked(options, parsed)


def _spelt_out(word: str, known: dict[str, Any]) -> str:
    """The word with the whole name of an option that has a short one."""
    name, equals, value = word.partition("=")
    whole = SHORT.get(name, name)
    return whole + equals + value if whole in known else word


def _check_words(command: str, words: list[str]) -> None:
    """The words and options without which a command does not run, in a sentence of their own."""
    first = words[0] if words and not words[0].startswith("--") else None
    if first is None and (needed := _first_word(command)):
        raise InputError(f"{command} needs {needed}.")
    option, what = MUST.get(command.split()[0], (None, None))
    if option and not any(word.split("=")[0] == option for word in words):
        raise InputError(f"{command} needs {option}, {what}.")


def _first_word(command: str) -> str | None:
    """What has to come first, if anything."""
    if command == "traffic":
        from mfabric_jax.workload import NAMES

        return f"the name of a model first; allowed: {', '.join(NAMES)}, or a .toml or .json file"
    paths = {
        "jobs": "a .toml or .json file of jobs and what they share first",
        "replay": "a graph of tasks first, a file, or the common beginning of a file for every rank",
        "sweep": "the file of the design space first, .toml or .json",
    }
    return paths.get(command)


def _preset(words: list[str], options: type) -> dict[str, Any]:
    """Defaults of the preset asked for, or of a command line without one; what else is asked for replaces them."""
    from mfabric_jax.study.presets import PRESETS, without_preset

    pairs = zip(words, [*words[1:], ""], strict=False)  # no words at all: no pair
    named = [word.partition("=")[2] or after for word, after in pairs if word.split("=")[0] == "--preset"]
    usual = {field.name: field.default for field in dataclasses.fields(options)}.get("preset")
    preset = named[0] if named else usual
    if not isinstance(preset, str):
        return without_preset([word.split("=")[0].removeprefix("--").replace("-", "_") for word in words])
    return PRESETS[one_of("preset", preset, PRESETS)]


def _one_sentence(box: str, command: str) -> str:
    """The message inside tyro's frame, which has a title line and comes in Unicode or in ASCII."""
    lines = [re.sub(r"[│╭╮╰╯+]|─+|-{3,}", " ", line).strip(" |") for line in box.splitlines()]
    text = re.sub(r"\s+", " ", " ".join([line for line in lines if line][1:])).split(" For full helptext")[0]
    value = re.search(r"Error parsing (--[\w-]+): .*?(\S+) Argument helptext: --\S+ (\S+)", text)
    missing = re.search(r"Missing value for argument '(\S+)'", text)
    unknown = re.search(r"Unrecognized options: (.+?)\.?$", text)
    if value:
        kinds = {"INT": "a whole number", "FLOAT": "a number"}
        kind = next((words for name, words in kinds.items() if name in value[3]), value[3])
        return f"option {value[1]} takes {kind}, got {value[2]}."
    if missing:
        return f"option {missing[1]} needs a value behind it; mfabric {command} --help says which."
    if unknown:
        return f"{command} does not take {unknown[1]!r}; mfabric {command} --help lists what it takes."
    return text if text.endswith(".") else (text or "the options could not be read") + "."


if __name__ == "__main__":
    sys.exit(main())
