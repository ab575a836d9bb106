"""Lines of a long run where there is no terminal."""

import pytest

from mfabric_jax.support import progress


@pytest.fixture
def clock(monkeypatch):
    """The seconds that a run reads; a test moves them."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_says_what_is_done_and_what_is_left(clock, capsys):
    lines = progress.bar("sweep", "case", 165, 3)
    for clock[0] in (2.0, 5.0, 12.0, 15.0, 300.0, 310.0):
        lines.update(2)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "sweep: 7 of 165 done, 1.25 s a case, 3 min left"  # after three seconds
    assert said[1] == "sweep: 11 of 165 done, 1.88 s a case, 5 min left"  # ten seconds later
    assert said[2:] == ["sweep: 13 of 165 done, 30 s a case, 76 min left"]  # at 310 s the next is five seconds off
    clock[0] = 320.0
    lines.update(150)
    assert capsys.readouterr().err == "sweep: 165 of 165 done, 1.98 s a case\n"


def test_a_command_says_that_it_is_at_work_where_nothing_else_does(clock, capsys):
    alive, lines = progress.Alive("cluster"), progress.bar("cluster", "flow", 10)
    for clock[0] in (2.0, 3.0, 12.0, 13.0):
        alive.look()
    assert capsys.readouterr().err == "cluster: at work for 3 s\ncluster: at work for 13 s\n"
    clock[0] = 25.0
    lines.update(1)
    assert capsys.readouterr().err.startswith("cluster: 1 of 10 done")
    for clock[0] in (30.0, 34.9, 35.0, 6000.0, 6200.0):  # later a line is due after a twentieth of the time
        alive.look()
    assert capsys.readouterr().err.splitlines() == ["cluster: at work for 35 s", "cluster: at work for 1.7 h"]


def test_a_pace_is_never_nothing():
    assert progress.pace(165, 960.0, "case") == "5.82 s a case"
    assert progress.pace(165, 11.0, "case") == "15 cases a second"
    assert progress.pace(4000, 1.0, "case") == "4,000 cases a second"
