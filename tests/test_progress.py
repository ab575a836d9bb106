"""Lines of a long run where there is no terminal."""

import pytest

from mfabric_jax.commands import shared
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


def test_rows_that_are_finished_together_count_together(clock, capsys, tmp_path):
    def rows_of(progress, start):
        every = [{"at": at, "seconds": seconds} for at, seconds in enumerate([100.0] * 3 + [150.0] * 2 + [240.0] * 3)]
        for row in every[start:]:
            clock[0] = row["seconds"]
            yield row

    out = tmp_path / "rows.csv"
    assert len(shared.collect_rows("regimes", str(out), {}, rows_of, 8, blocks=[3, 2, 3])) == 8
    assert capsys.readouterr().err.splitlines() == [
        "regimes: 3 of 8 done, 33.3 s a row, 3 min left",  # 5 x 100 / 3 s
        "regimes: 5 of 8 done, 30 s a row, 90 s left",
        "regimes: 8 of 8 done, 30 s a row",
        str(out),
    ]


def test_rows_left_of_a_block_count_together_after_an_interrupt(clock, capsys, tmp_path):
    def interrupted(progress, start):
        yield from ({"at": at} for at in range(start, 4))
        raise KeyboardInterrupt

    def goes_on(progress, start):
        for at in range(start, 8):
            clock[0] = 20.0 if at < 5 else 80.0
            yield {"at": at}

    out = str(tmp_path / "rows.csv")
    with pytest.raises(KeyboardInterrupt):
        shared.collect_rows("regimes", out, {}, interrupted, 8, blocks=[3, 2, 3])
    capsys.readouterr()
    assert [row["at"] for row in shared.collect_rows("regimes", out, {}, goes_on, 8, blocks=[3, 2, 3])] == list(
        range(8)
    )
    assert capsys.readouterr().err.splitlines() == [
        "regimes: 5 of 8 done, 20 s a row, 60 s left",  # a row since the start
        "regimes: 8 of 8 done, 20 s a row",
        out,
    ]
