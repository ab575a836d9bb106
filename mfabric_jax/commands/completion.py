"""`mfabric completion SHELL`: completion of commands, flags, settings and their values, from the schema of settings."""

import dataclasses
import os
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from mfabric_jax.case import policies
from mfabric_jax.case.layers import presets
from mfabric_jax.case.paths import Leaf, SettingChoice, parts_of, settings
from mfabric_jax.commands import COMMANDS, OF_CASES, TWO_WORDS, load_command
from mfabric_jax.commands.help import ALL, groups
from mfabric_jax.commands.words import Option, Positional, flags_of_cases, options_in

LINE = "MFABRIC_LINE"  # environment variable: the command line up to the cursor, set by the shell's script
NAMED = {"circuits.policy": policies.NAMES, "circuits.schedule": policies.SCHEDULERS}  # settings of any text
SCRIPTS = {
    "bash": """_mfabric() {
    local IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}"
    local word="${line##* }" shown="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=($(MFABRIC_LINE="$line" mfabric completion bash | cut -f 1))
    [[ $shown == "=" ]] && shown=""
    COMPREPLY=("${COMPREPLY[@]#"${word%"$shown"}"}")
    [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *= ]] && compopt -o nospace
}
complete -o default -F _mfabric mfabric""",
    "zsh": """#compdef mfabric
_mfabric() {
    local entry suffix=" "; local -a values shown
    for entry in ${(f)"$(MFABRIC_LINE="${LBUFFER}" mfabric completion zsh)"}; do
        values+=("${entry%%$'\\t'*}"); shown+=("${entry/$'\\t'/  }")
    done
    [[ $values[1] == *= ]] && suffix=""
    if (( ${#values} )); then compadd -l -S "$suffix" -d shown -- "${values[@]}"; else _files; fi
}
compdef _mfabric mfabric""",
    "fish": """function __mfabric_complete
    set -l found (MFABRIC_LINE=(commandline -cp) mfabric completion fish)
    if set -q found[1]; printf '%s\\n' $found; else; __fish_complete_path (commandline -ct); end
end
complete -c mfabric -f -a '(__mfabric_complete)'""",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Print a script that completes `mfabric` command lines in a shell.

    bash: add `eval "$(mfabric completion bash)"` to ~/.bashrc. zsh: add `eval "$(mfabric completion zsh)"` to ~/.zshrc,
    after compinit. fish: `mfabric completion fish > ~/.config/fish/completions/mfabric.fish`.
    """

    shell: Annotated[
        Literal["bash", "zsh", "fish"], Positional("bash|zsh|fish", "a shell next; allowed: bash, zsh, fish")
    ]
    """The shell that reads the script."""


def run(options: Options) -> None:
    if (line := os.environ.get(LINE)) is None:
        print(SCRIPTS[options.shell])
        return
    for word, text in completions(line).items():
        print(f"{word}\t{text}" if text else word)


def completions(line: str) -> Mapping[str, str]:
    """Return the words that may end a command line, with their texts; none where a file may stand."""
    *before, word = line.split(" ")
    before = [earlier for earlier in before if earlier][1:]
    command = next(
        (both for both in (" ".join(before[:2]), *before[:1]) if both in TWO_WORDS or both in COMMANDS), None
    )
    if command is None:
        return {} if before else _beginning(word, COMMANDS)
    behind = before[len(command.split()) :]
    module = load_command(command)
    options = {option.flag: option for option in options_in(module.Options).values() if not option.positional}
    short = flags_of_cases(command) if command in OF_CASES else {}
    flag, equals, _ = word.partition("=")
    if word.startswith("--") and not equals:
        return _beginning(word, _flags(options, short, command))
    if word.startswith("--"):
        values = _value(flag, word[len(flag) + 1 :], options, short)
        return {f"{flag}={value}": text for value, text in values.items()}
    if behind and behind[-1].startswith("-") and "=" not in behind[-1] and not _is_switch(options.get(behind[-1])):
        return _value(behind[-1], word, options, short)
    if not behind:
        return _beginning(word, _first_words(module.Options, command))
    return {}


def _beginning(word: str, known: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in known.items() if name.startswith(word)}


def _flags(options: Mapping[str, Option], short: Mapping[str, str], command: str) -> dict[str, str]:
    flags = {flag: _first_sentence(option.text) for flag, option in options.items()}
    flags |= {flag: _first_sentence(settings()[path].doc) for flag, path in short.items() if path in settings()}
    flags |= {flag: "" for flag in short if flag not in flags}
    if command in OF_CASES:
        flags |= {"--set": "PATH=VALUE: any setting", "--preset": ", ".join(presets())}
    return flags | {"--help": "Help; of a group of settings or a setting if its name follows." if short else "Help."}


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def _is_switch(option: Option | None) -> bool:
    return option is not None and option.kind is bool


def _first_words(options: type, command: str) -> dict[str, str]:
    """Return the words after the command: subcommands, or values of the setting that its first word states."""
    first = next((option for option in options_in(options).values() if option.positional), None)
    inner = {name.partition(" ")[2]: "" for name in TWO_WORDS if name.startswith(f"{command} ")}
    if first is None or first.positional is None:
        return inner
    return _of_path(first.positional.states) if first.positional.states else _of_kind(first.kind) | inner


def _value(flag: str, word: str, options: Mapping[str, Option], short: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a flag that the word may become; the last of a list that commas separate."""
    if flag in ("-h", "--help"):
        return _beginning(word, dict.fromkeys([*groups(), ALL, *settings()], ""))
    path, equals, value = word.partition("=")
    if flag == "--set":
        if not equals:
            return {f"{name}=": text for name, text in _settings(word).items()}
        return {f"{path}={inner}": text for inner, text in _last(value, _of_path(path)).items()}
    if flag == "--preset":
        return _last(word, presets())
    if flag in short:
        return _last(word, _of_path(short[flag]))
    return _last(word, _of_kind(options[flag].kind)) if flag in options else {}


def _settings(word: str) -> dict[str, str]:
    return {path: _first_sentence(setting.doc) for path, setting in settings().items() if path.startswith(word)}


def _last(word: str, known: Mapping[str, str]) -> dict[str, str]:
    earlier, comma, last = word.rpartition(",")
    return {earlier + comma + name: text for name, text in _beginning(last, known).items()}


def _of_path(path: str) -> dict[str, str]:
    """Return the values of a setting by name; none if any text or number may stand there."""
    setting = settings().get(path)
    if path == "model.name":
        from mfabric_jax.workload.catalog import NAMES

        return dict.fromkeys(NAMES, "")
    if path == "gpu.name":
        from mfabric_jax.workload.gpus import GPUS

        return dict.fromkeys(GPUS, "")
    if path in NAMED:
        return dict.fromkeys(NAMED[path], "")
    if isinstance(setting, SettingChoice):
        return {
            name: _first_sentence(" ".join((kind.__doc__ or "").split())) for name, kind in setting.alternatives.items()
        }
    return _of_kind(setting.kind) if isinstance(setting, Leaf) else {}


def _of_kind(kind: Any) -> dict[str, str]:
    words: Iterable[str] = ()
    for part in parts_of(kind):
        if typing.get_origin(part) is Literal:
            words = (*words, *map(str, typing.get_args(part)))
        elif part is bool:
            words = (*words, "true", "false")
        elif typing.get_origin(part) is tuple:
            words = (*words, *_of_kind(typing.get_args(part)[0]))
    return dict.fromkeys(words, "")
