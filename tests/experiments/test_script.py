"""What every experiment is: verdicts, checks and tables by hand, quick settings, what is kept, and every script."""

import dataclasses
import json

import pytest

from experiments.rows import adding, duration, group_rows, listed, picked, pivot, told, where
from experiments.script import Script, Verdict, against, cells, spread, verdict_rows
from mfabric_jax import report
from mfabric_jax.checks import InputError
from mfabric_jax.commands import reproduction as paper
from tests.mistakes import check_refused


def test_a_number_against_a_published_one():
    for found, low, high, allowed, text, published, word in (
        (1.5, 1.2, 1.5, 0.0, "1.50", "1.20 to 1.50", "reproduced"),
        (1.8, 1.2, 1.5, 0.0, "1.80", "1.20 to 1.50", "differs by +20%"),
        (0.9, 1.2, 1.5, 0.0, "0.90", "1.20 to 1.50", "differs by -25%"),
        (1.02, 1.0, None, 0.03, "1.02", "1.00", "reproduced"),
        (1.04, 1.0, None, 0.03, "1.04", "1.00", "differs by +4%"),
        (0.5, None, 1.0, 0.0, "0.50", "up to 1.00", "reproduced"),
        (1.5, None, 1.0, 0.0, "1.50", "up to 1.00", "differs by +50%"),
        ([1.3, 0.6, 1.6], 1.2, 1.5, 0.0, "0.60 to 1.60", "1.20 to 1.50", "differs by -50%"),
    ):
        line = against("claim", found, low, high, allowed=allowed)
        assert (line.claim, line.found, line.published, line.word) == ("claim", text, published, word)
    rows = verdict_rows([spread("times", [3.0, 1.0]), Verdict("most", "hot")])
    assert [row["found"] for row in rows] == ["1.00 to 3.00", "hot"]
    assert {(row["published"], row["verdict"]) for row in rows} == {("no number", "measured")}


def test_rows_by_fields_in_tables():
    rows = [{"a": 1, "b": 2, "c": 0.5}, {"a": 0, "b": 2, "c": 0.25}, {"a": 1, "b": 3, "c": 0.75}]
    assert group_rows(rows, "a") == {(1,): [rows[0], rows[2]], (0,): [rows[1]]}
    assert picked(rows, a=1, b=3) == [rows[2]]
    heading, _, *lines = (line.split() for line in pivot(["a"], "b{b}", "{c:.1f}")(rows).splitlines())
    assert (heading, lines) == (["a", "b2", "b3"], [["1", "0.5", "0.8"], ["0", "0.2", "-"]])
    heading, _, *lines = (line.split() for line in listed("a", ("c", "part", True))(rows).splitlines())
    assert (heading, lines[0]) == (["a", "part"], ["1", "50.0%"])
    more = adding(text="{a} of {b}", same="c", sum=lambda row: row["a"] + row["b"])([{"a": 1, "b": 2, "c": None}])
    assert more == [{"a": 1, "b": 2, "c": None, "text": "1 of 2", "same": None, "sum": 3}]
    assert adding(text="{a} of {c:.2f}")([{"a": 1, "c": None}])[0]["text"] is None
    assert told("head", where(a=5), str)(rows) == f"head\n\n{rows}"
    assert [duration(seconds) for seconds in (1e-5, 0.025, 1.0)] == ["10 us", "25 ms", "1 s"]


@dataclasses.dataclass(frozen=True)
class Config:
    """What to count."""

    sizes: tuple[int, ...] = (1, 2, 3)  # How many of each.
    name: str = "usual"
    """Whose."""

    def __post_init__(self):
        if 0 in self.sizes:
            raise InputError("sizes must be above 0, got 0.")


def counted(config):
    yield from ({"size": size, "name": config.name} for (size,) in cells(config, config.sizes))


def drawn(rows, path):
    path.write_text(str(len(rows)))
    return path


SCRIPT = Script(
    name="made_up",
    question="Count.",
    config=Config,
    run=counted,
    table=report.plain,
    draw=drawn,
    verdicts=lambda rows: [against("sizes", len(rows), 3)],
    quick={"sizes": (1,)},
)


def test_quick_settings_give_way_to_what_is_asked_for(tmp_path):
    assert SCRIPT.chosen(name="other") == Config(name="other")
    assert SCRIPT.chosen(quick=True) == Config(sizes=(1,))
    assert SCRIPT.chosen(quick=True, sizes=(5,), name="usual") == Config(sizes=(5,))
    assert SCRIPT.main(["--quick", "--out", str(tmp_path)]) == 0
    rows, config = report.read_rows(tmp_path / "made_up.csv")
    assert (len(rows), config["sizes"], config["complete"]) == (1, [1], True)


def test_main_prints_table_and_verdicts_or_one_sentence(tmp_path, capsys):
    assert SCRIPT.main(["--out", str(tmp_path), "--sizes", "1,2"]) == 0
    table, verdicts = capsys.readouterr().out.split("\n\n")
    assert table == report.plain([{"size": 1, "name": "usual"}, {"size": 2, "name": "usual"}])
    assert "differs by -33%" in verdicts
    assert SCRIPT.main(["--sizes", "0"]) == 2
    assert capsys.readouterr() == ("", "made_up: sizes must be above 0, got 0.\n")
    with pytest.raises(SystemExit) as end:
        SCRIPT.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(part in text for part in ("Count.", "How many of each.", "Whose.", "--out"))


def test_rows_are_kept_for_the_same_configuration_and_code_alone(tmp_path):
    config = Config()
    assert SCRIPT.kept(config, tmp_path) is None
    rows, _ = SCRIPT.answer(config, tmp_path)
    assert SCRIPT.kept(config, tmp_path) == rows
    assert SCRIPT.kept(Config(name="other"), tmp_path) is None
    stored = tmp_path / "made_up.config.json"
    text = stored.read_text()
    for field in ("version", "commit", "source", "jax"):
        stored.write_text(json.dumps(json.loads(text) | {field: "another"}))
        assert SCRIPT.kept(config, tmp_path) is None, field
    stored.write_text(text)
    (tmp_path / "made_up.png").unlink()
    assert SCRIPT.kept(config, tmp_path) is None


def test_rows_of_a_run_that_was_stopped_stay_but_are_not_kept(tmp_path):
    def stopped(config):
        yield {"size": 1, "name": "first"}
        raise KeyboardInterrupt

    SCRIPT.answer(Config(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        dataclasses.replace(SCRIPT, run=stopped).answer(Config(), tmp_path)
    rows, config = report.read_rows(tmp_path / "made_up.csv")
    assert ([row["name"] for row in rows], config["complete"]) == (["first"], False)
    assert SCRIPT.kept(Config(), tmp_path) is None


def test_a_run_that_was_stopped_goes_on_behind_its_finished_cells(tmp_path):
    """Rows that come before, in and behind cells; each cell is run once, whatever stops the run."""
    seen = []

    def stopping(config, at=None):
        yield {"size": 0, "name": "before"}
        for (size,) in cells(config, config.sizes):
            seen.append(size)
            yield {"size": size, "name": "first"}
            if size == at:
                raise KeyboardInterrupt
            yield {"size": size, "name": "second"}
        yield {"size": 9, "name": "behind"}

    for at in (2, 3):
        with pytest.raises(KeyboardInterrupt):
            dataclasses.replace(SCRIPT, run=lambda config, at=at: stopping(config, at)).answer(Config(), tmp_path)
        stored, config = report.read_rows(tmp_path / "made_up.csv")
        assert ([row["size"] for row in stored], config["complete"]) == ([0, *[1, 1, 2, 2, 3][: 2 * at - 1]], False)
    check_refused("made_up.csv' was begun by another run", SCRIPT.answer, Config(name="other"), tmp_path)
    script = dataclasses.replace(SCRIPT, run=stopping)
    rows, _ = script.answer(Config(), tmp_path)
    assert seen == [1, 2, 2, 3, 3]
    assert rows == list(stopping(Config())) == script.kept(Config(), tmp_path)
    script.answer(Config(name="other"), tmp_path)  # nothing is left of a run that ended


def test_every_script_has_a_question_and_quick_settings_that_are_allowed():
    for module, question in paper.questions().items():
        script = paper.load(module)
        assert (script.name, script.question) == (module, question)
        assert question.endswith((".", "?"))
        assert script.chosen(quick=True) == dataclasses.replace(script.chosen(), **script.quick)
        assert all(callable(part) for part in (script.run, script.table, script.draw, script.verdicts)), module
    assert set(paper.FIGURES.values()) <= set(paper.questions())  # every figure of the paper has its script
    assert list(paper.choose_figures([])) == list(paper.FIGURES)
