"""The command line: `mfabric COMMAND` ends in `run` of that module of `commands`, with its `Options`.

Every mistake in what was asked ends in one sentence on standard error and exit status 2, before any compute.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Sequence

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.commands import NAMES, OF_CASES, help
from mfabric_jax.commands.words import parse, read

LONGEST = 1500  # characters of a sentence on the screen


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = _command(words)
        return _run(command, words[len(command.split()) :]) or 0
    except InputError as mistake:
        print(f"mfabric: {_shortened(str(mistake))}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as missing:
        if missing.name != "tqdm":
            raise
        print("mfabric: the command line needs its extra: pip install 'mfabric-jax[cli]'.", file=sys.stderr)
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


def _run(command: str, words: list[str]) -> int | None:
    """Run a command with the options, and the cases, that words say; returns its exit status, None for 0."""
    module = importlib.import_module(f"mfabric_jax.commands.{command.replace(' ', '_')}")
    if asks := {"-h", "--help"} & set(words):
        behind = words[words.index(asks.pop()) + 1 :]
        topic = behind[0] if behind and not behind[0].startswith("-") else None
        said = help.of_cases(command, module.Options, topic) if command in OF_CASES else None
        print(said or help.of_options(f"mfabric {command}", module.Options))
        return None
    if command not in OF_CASES:
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


if __name__ == "__main__":
    sys.exit(main())
