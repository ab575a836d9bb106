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
    assert said[0] == "sweep: 7 of 165 done, 1.25 s a case, 4 min left"  # of the later half: 3 s for 2 cases
    assert said[1] == "sweep: 11 of 165 done, 1.88 s a case, 6 min left"  # ten seconds later
    assert said[2:] == ["sweep: 13 of 165 done, 30 s a case, 2.1 h left"]  # at 310 s the next is five seconds off
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


def test_a_command_at_work_names_the_unit_and_the_time_left(clock, capsys):
    alive = progress.Alive("buy")
    with progress.bar("set-ups", "search", 3) as lines:
        shared.advance(lines, "fat-tree", 0)
        for clock[0] in (3.0, 4.0):
            alive.look()
        shared.advance(lines, "torus")
        clock[0] = 14.0
        alive.look()
        clock[0] = 34.0
        shared.advance(lines, "mfabric")
    clock[0] = 44.0
    alive.look()
    assert capsys.readouterr().err.splitlines() == [
        "buy: at work for 3 s; search 1 of 3: fat-tree",
        "set-ups: 1 of 3 done, 4 s a search; now torus",
        "buy: at work for 14 s; search 2 of 3: torus",
        "set-ups: 2 of 3 done, 17 s a search, 30 s left; now mfabric",
        "buy: at work for 44 s",
    ]


@pytest.mark.parametrize("kinds", [None, ["tree"] * 6])
def test_a_unit_that_takes_far_longer_has_no_time_left(clock, capsys, kinds):
    """One size of a search under a load stayed at "7 min left" for ten minutes."""
    alive = progress.Alive("serve")
    with progress.bar("serve", "row", 6, kinds=kinds) as lines:
        for clock[0] in (10.0, 20.0, 30.0):
            lines.update(1)
        lines.set_postfix_str("ep 8, 32 GPUs, simulation 1")
        capsys.readouterr()
        for clock[0] in (45.0, 65.0):
            alive.look()
    assert capsys.readouterr().err.splitlines() == [
        "serve: at work for 45 s; row 4 of 6: ep 8, 32 GPUs, simulation 1, 30 s left",
        "serve: at work for 65 s; row 4 of 6: ep 8, 32 GPUs, simulation 1",
    ]


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
        "regimes: 3 of 8 done, 33.3 s a row",  # the first may compile
        "regimes: 5 of 8 done, 30 s a row, 75 s left",  # 3 x 50 / 2 s
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
        "regimes: 5 of 8 done, 20 s a row",
        "regimes: 8 of 8 done, 20 s a row",
        out,
    ]


def test_time_left_counts_work_of_a_kind_without_its_first_unit(clock, capsys):
    lines = progress.bar("serve", "row", 6, kinds=["tree"] * 4 + ["mesh"] * 2)
    for clock[0], words in ((20.0, "tree 2"), (31.0, "tree 3"), (42.0, "mesh 1"), (53.0, "mesh 2")):
        lines.update(1)
        lines.set_postfix_str(words)
    lines.update(1)
    clock[0] = 75.0
    lines.update(1)
    assert capsys.readouterr().err.splitlines() == [
        "serve: 1 of 6 done",
        "serve: 2 of 6 done; now tree 2",  # no row of the mesh yet
        "serve: 3 of 6 done; now tree 3",
        "serve: 4 of 6 done; now mesh 1",
        "serve: 6 of 6 done; now mesh 2",
    ]


def test_time_left_of_one_kind_leaves_out_what_compiles(clock, capsys):
    lines = progress.bar("serve", "row", 12, kinds=["tree"] * 12)
    for clock[0] in (100.0, 112.0):
        lines.update(1)
    assert capsys.readouterr().err.splitlines() == ["serve: 1 of 12 done", "serve: 2 of 12 done, 2 min left"]


def test_a_line_names_what_begins(clock, capsys):
    lines = progress.bar("serve", "row", 6)
    for clock[0], words in ((0.0, "fat-tree"), (4.0, "mfabric")):
        lines.set_postfix_str(words)
    assert capsys.readouterr().err == "serve: 0 of 6 done; now mfabric\n"
