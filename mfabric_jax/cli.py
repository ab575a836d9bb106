"""The command line: `mfabric COMMAND` calls `run` of the module in `commands` with its `Options`.

A mistake in the input ends in one sentence on standard error and exit status 2, before any computation.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from mfabric_jax.case.own_code import command_line
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.commands import COMMANDS, OF_CASES, TWO_WORDS, help
from mfabric_jax.commands.words import parse, read
from mfabric_jax.deprecation import in_one_line

LONGEST = 1500  # characters of a sentence on the screen


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = _command(words)
        with in_one_line(), command_line(words[len(command.split()) :]) as rest:
            return _run(command, rest) or 0
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


def _run(command: str, words: list[str]) -> int | None:
    module = importlib.import_module(f"mfabric_jax.commands.{command.replace(' ', '_').replace('-', '_')}")
    if asks := {"-h", "--help"} & set(words):
        behind = words[words.index(asks.pop()) + 1 :]
        topic = behind[0] if behind and not behind[0].startswith("-") else None
        if command in OF_CASES:
            below, reads = getattr(module, "BELOW", ()), getattr(module, "READS", ("",))
            print(help.of_cases(command, module.Options, topic, below=below, reads=reads))
        else:
            print(help.of_options(f"mfabric {command}", module.Options))
        return None
    if command not in OF_CASES:
        return module.run(parse(module.Options, words, command))
    if command == "sweep" and (status := module.run_no_cases(words)) is not None:
        return status
    return module.run(*read(command, words, module.Options, getattr(module, "BELOW", ())))


def _shortened(sentence: str) -> str:
    line = " ".join(sentence.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"


HELP = """usage: mfabric COMMAND [options]

{}

`mfabric COMMAND --help` lists the options; `mfabric --version` the version."""


def _command(words: list[str]) -> str:
    if not words or words[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<10} {what}" for name, what in COMMANDS.items())
        print(HELP.format(listed), file=sys.stdout if words else sys.stderr)
        raise SystemExit(0 if words else 2)
    if words[0] == "--version":
        from mfabric_jax.origin import version_line

        print(version_line())
        raise SystemExit(0)
    both = " ".join(words[:2])
    return both if both in TWO_WORDS else one_of("command", words[0], COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
