"""Short flags mean the same in every command, and are spelled alike."""

import pytest

from mfabric_jax import report
from mfabric_jax.cli import main
from mfabric_jax.commands import OF_CASES as COMMANDS_OF_CASES
from mfabric_jax.commands import compare, query, sweep
from mfabric_jax.commands.words import ALSO, flags_of_cases, parse, read
from mfabric_jax.report.kinds import KINDS


def test_a_flag_of_one_command_is_a_flag_of_all_unless_its_settings_are_the_command_s_own():
    shared = flags_of_cases()
    own = dict(flags_of_cases("serve").items() - shared.items())
    assert own["--ep"] == "serving.ep"
    assert own["--ttft-ms"] == "serving.load.ttft_ms"
    assert all(path.startswith("serving.") for path in own.values())
    for command in COMMANDS_OF_CASES:
        assert flags_of_cases(command).keys() >= shared.keys()
        assert command == "serve" or flags_of_cases(command) == shared


@pytest.mark.parametrize("options", [compare.Options, sweep.Options])
def test_a_precision_in_one_word_is_a_flag(options):
    command = options.__module__.rpartition(".")[2]
    words = ["--precision", "fp8", "--tokens", "6e12"] + (["--out", "x"] if command == "sweep" else [])
    cases, _ = read(command, words, options)
    job = cases.blocks[0].case.job
    assert (job.precision.compute, job.precision.dispatch, job.precision.combine) == ("fp8", "fp8", "bf16")
    assert job.training_tokens == 6e12


def test_help_explains_flags_that_stand_for_several_settings(capsys):
    assert main(["compare", "--help", "precision"]) == 0
    assert "job.precision.dispatch" in capsys.readouterr().out


def test_other_spellings_are_the_same_option():
    assert parse(query.Options, ["a.csv", "--picture", "b.png"], "query").figure == "b.png"
    assert parse(query.Options, ["a.csv", "--figure", "b.png"], "query").figure == "b.png"
    assert ALSO["--figure"] == "--picture"


def test_a_limit_says_how_many_rows_are_shown(capsys, tmp_path):
    path = report.write_rows([{"number": n, "iteration_s": 1.0 + n / 7} for n in range(90)], tmp_path / "rows.csv", {})

    def shown(*words):
        assert main(["query", str(path), *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line.strip()[:1].isdigit() and len(line.split()) == 2], lines

    assert len(shown("--limit", "70")[0]) == 70
    assert len(shown("--limit", "3")[0]) == 3
    rows, lines = shown()
    assert len(rows) == query.SHOWN
    assert "... 70 more rows; --limit 90 shows all, --out writes them" in lines


@pytest.mark.parametrize(
    ("command", "kinds"),
    [("serve", ["serve", "serve --clients"]), ("compare", ["cases"]), ("replay", None), ("traces study", None)],
)
def test_help_has_every_column_with_its_unit(command, kinds, capsys):
    main([*command.split(), "--help", "columns"])
    said = capsys.readouterr().out
    kinds = kinds or [kind for kind in KINDS if kind.startswith(command)]
    shown = [line.split()[0] for line in said.splitlines() if line.startswith("  ") and line[2] != " "]
    assert shown == [name for kind in kinds for name in KINDS[kind]]
    assert all(f"\n{kind}:\n" in said for kind in kinds)
    unit = next(column.unit for column in KINDS[kinds[0]].values() if column.is_number and column.unit)
    assert f" [{unit}]" in said


def test_help_of_a_setting_has_the_default_of_the_command(capsys):
    assert main(["serve", "--help", "model.name"]) == 0
    assert "default    mixtral-8x7b; serve: deepseek-v3\n" in capsys.readouterr().out
    assert main(["compare", "--help", "model.name"]) == 0
    assert "default    mixtral-8x7b\n" in capsys.readouterr().out


def test_help_explains_a_column(capsys):
    assert main(["serve", "--help", "usd_per_million_tokens"]) == 0
    text = "usd_per_million_tokens [USD], a column of rows: Cost of a million tokens.\n"
    assert capsys.readouterr().out == text
    assert main(["serve", "--help", "usd_per_million_token"]) == 2
    assert "usd_per_million_token" in capsys.readouterr().err


def test_a_command_without_rows_has_no_columns(capsys):
    assert main(["draw", "--help", "columns"]) == 2
    assert capsys.readouterr().err == "mfabric: draw writes no rows; mfabric draw --help lists what it takes.\n"
