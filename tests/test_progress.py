"""Lines of a long run where there is no terminal."""

import pytest

from mfabric_jax import progress


@pytest.fixture
def clock(monkeypatch):
    """The seconds that a run reads; a test moves them."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_says_what_is_done_and_what_is_left(clock, capsys):
    lines = progress.bar("sweep", "case", 165, 3)
    for clock[0] in (5.0, 9.0, 12.0, 13.0, 300.0, 310.0):
        lines.update(2)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "sweep: 9 of 165 done, 2 s a case, 5 min left"
    assert said[1:] == ["sweep: 13 of 165 done, 30 s a case, 76 min left"]  # at 310 s the next is five seconds off
    clock[0] = 320.0
    lines.update(150)
    assert capsys.readouterr().err == "sweep: 165 of 165 done, 1.98 s a case\n"


def test_a_pace_is_never_nothing():
    assert progress.pace(165, 960.0, "case") == "5.82 s a case"
    assert progress.pace(165, 11.0, "case") == "15 cases a second"
    assert progress.pace(4000, 1.0, "case") == "4,000 cases a second"
