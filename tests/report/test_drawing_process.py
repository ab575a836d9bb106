"""Pictures drawn by another process, and here where it fails."""

import os
import signal
import sys

import pytest

from mfabric_jax.report import drawing_process
from mfabric_jax.report.drawing_process import drawing


def process_of(*_):
    return os.getpid()


def refused(what):
    raise ValueError(f"no picture of {what}")


def test_another_process_draws_and_answers_in_order():
    with drawing() as other:
        for _ in range(2):
            other.draw(process_of)
        other.draw(divmod, 7, 3)
        first, second, last = other.results()
    assert first == second != os.getpid()
    assert last == (2, 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_killed_process_owes_is_drawn_here(when):
    with drawing() as other:
        other.draw(process_of)
        (process,) = other.results()
        if when == "after":
            other.draw(divmod, 7, 3)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        other.draw(process_of)
        assert other.results()[-1] == os.getpid()


def test_without_a_process_everything_is_drawn_here(monkeypatch):
    for program in (None, "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", program)
        with drawing() as other:
            other.draw(process_of)
            assert other.results() == [os.getpid()]


def test_what_a_drawing_raises_is_raised_here():
    with drawing() as other:
        other.draw(refused, "nothing")
        with pytest.raises(ValueError, match="no picture of nothing"):
            other.results()


def test_a_process_that_cannot_start_draws_nothing(monkeypatch):
    monkeypatch.setattr(drawing_process, "SERVE", "raise SystemExit(3)")
    with drawing() as other:
        other.draw(process_of, "x" * 200_000)
        assert other.results() == [os.getpid()]


def test_an_interrupt_ends_the_other_process_at_once():
    with pytest.raises(KeyboardInterrupt), drawing() as other:  # noqa: PT012
        other.draw(process_of)
        (process,) = other.results()
        other.draw(divmod, 7, 3)
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_the_other_process_imports_nothing_from_the_working_folder(tmp_path, monkeypatch):
    for name in ("pickle", "contextlib", "matplotlib"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    with drawing() as other:
        other.draw(process_of)
        assert other.results() != [os.getpid()]
    assert not (tmp_path / "ran").exists()
