"""The command line: `mfabric COMMAND` calls `run` of the module in `commands` with its `Options`.

A mistake in the input gives one sentence on standard error and exit status 2, before any computation.
"""

import sys

from mfabric_jax.support import interrupts  # the only import, so that `main` handles interrupts early

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 1500  # most characters of a printed message


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run a command line and return its exit status. None: run this process's command line, then end the process."""
    if arguments is None:
        interrupts.whole_process(lambda: _exit_status(sys.argv[1:], alive=True))
    return _exit_status(list(arguments))


def _exit_status(words: list[str], *, alive: bool = False) -> int:
    """Run a command line, print mistakes, and return the exit status. `alive`: print a line in long silences."""
    try:
        from mfabric_jax.checks import InputError
        from mfabric_jax.support.unread import in_one_line

        with interrupts.listening(), in_one_line():
            status = _run_reporting_mistakes(words, InputError, alive)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except MemoryError:
        interrupts.say("mfabric: out of memory; use a smaller case.")
        return 2
    except KeyboardInterrupt:
        return interrupts.report_interrupt()
    except BrokenPipeError:  # the reader of the output has closed the pipe
        return 1
    except OSError as error:  # a long name, no permission, a full disk
        what = "a file or standard output" if error.filename is None else _shorten(repr(error.filename))
        interrupts.say(f"mfabric: {what} cannot be used ({error.strerror or error}).")
        return 2


def _run_reporting_mistakes(words: list[str], mistakes: type[Exception], alive: bool) -> int:
    import contextlib

    from mfabric_jax.case.own_code import command_line
    from mfabric_jax.support.progress import Alive

    try:
        command = _command(words)
        if command is None:
            return 0
        at_work = Alive(command) if alive else contextlib.nullcontext()
        with at_work, command_line(words[len(command.split()) :]) as arguments:
            return _run(command, arguments) or 0
    except mistakes as mistake:
        interrupts.say(f"mfabric: {_shorten(str(mistake))}")
        return 2
    except SystemExit as left:
        if isinstance(left.code, int) and left.code:
            raise
        interrupts.say("mfabric: code that this command ran, such as your own policy, ended the process (SystemExit).")
        return 2


def _run(command: str, words: list[str]) -> int | None:
    from mfabric_jax.case.grid import in_case_files
    from mfabric_jax.commands import OF_CASES, load_command
    from mfabric_jax.commands.words import parse, read

    module = load_command(command)
    if asks := {"-h", "--help"} & set(words):
        from mfabric_jax.commands import help

        behind = words[words.index(asks.pop()) + 1 :]
        topic = behind[0] if behind and not behind[0].startswith("-") else None
        if topic == help.COLUMNS:
            print(help.of_columns(command))
        elif command in OF_CASES:
            below, reads = getattr(module, "BELOW", ()), getattr(module, "READS", ("",))
            print(help.of_cases(command, module.Options, topic, below=below, reads=reads))
        else:
            print(help.of_options(f"mfabric {command}", module.Options))
        return None
    if command not in OF_CASES:
        return module.run(parse(module.Options, words, command))
    if command == "sweep" and (status := module.run_no_cases(words)) is not None:
        return status
    cases, options = read(command, words, module.Options, getattr(module, "BELOW", ()))
    with in_case_files(cases):
        return module.run(cases, options)


def _shorten(sentence: str) -> str:
    line = " ".join(sentence.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"


HELP = """usage: mfabric COMMAND [options]

{}

`mfabric COMMAND --help` lists its options; `mfabric --version` prints the version."""


def _command(words: list[str]) -> str | None:
    """Return the command of a line. Print help or the version if asked for, and return None."""
    from mfabric_jax.checks import InputError, one_of
    from mfabric_jax.commands import COMMANDS, TWO_WORDS

    if not words:
        raise InputError(f"a command is needed first; allowed: {', '.join(COMMANDS)}.")
    if words[0] in ("-h", "--help"):
        print(HELP.format("\n".join(f"  {name:<10} {what}" for name, what in COMMANDS.items())))
        return None
    if words[0] == "--version":
        from mfabric_jax.support.origin import version_line

        print(version_line())
        return None
    both = " ".join(words[:2])
    return both if both in TWO_WORDS else one_of("command", words[0], COMMANDS)


if __name__ == "__main__":
    main()
