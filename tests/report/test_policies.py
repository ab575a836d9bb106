"""Tables and figures of policies say what their rows say; how they look was judged by eye."""

import itertools

import numpy as np
import pytest

from mfabric_jax import report
from mfabric_jax.checks import InputError

POLICIES, WORKLOADS = ("greedy", "index", "learned"), ("zipf", "dense")


def scored(servers, routing, policy, workload, mean, sigma=0.0):
    proved = 4 if routing == "unsplit" else 0
    row = {"policy": policy, "workload": workload, "servers": servers, "routing": routing, "sigma": sigma}
    row |= {"mean": mean, "median": mean - 0.01, "p90": mean + 0.2, "proved": proved}
    return row | {"of_optimum": mean - 0.05 if proved else None, "decisions_per_s": 1000.0 * mean}


@pytest.fixture
def board():
    axes = itertools.product((8, 16), ("unsplit", "relay"), POLICIES, WORKLOADS)
    return [scored(*place, 1.5 - 0.03 * at) for at, place in enumerate(axes)]


def test_a_block_for_every_place_best_policy_first(board):
    *blocks, legend = report.scoreboard_table(board).split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == [
        f"{servers} servers, routing {routing}, forecast error 0"
        for servers, routing in itertools.product((8, 16), ("unsplit", "relay"))
    ]
    head, line = blocks[0].splitlines()[1], blocks[0].splitlines()[3]
    assert head.split() == ["policy", "mean", "median", "p90", "zipf", "dense", "optimum", "decisions/s"]
    # The last policy has the least means: 1.5 - 0.03 * 4 and - 0.03 * 5; speed is the geometric mean.
    speed = f"{1000 * np.sqrt(1.38 * 1.35):,.0f}"
    assert line.split() == ["learned", "1.365", "1.355", "1.565", "1.380", "1.350", "1.315", "(8)", speed]
    assert "optimum" not in blocks[1].splitlines()[1]
    assert "proved" in legend


def test_the_scoreboard_has_a_dot_for_every_row(board, tmp_path):
    pytest.importorskip("matplotlib")
    from mfabric_jax.report.figures.scoreboard import build_scoreboard

    figure = build_scoreboard(board)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"{servers} servers, {routing}" for servers, routing in itertools.product((8, 16), ("unsplit", "relay"))
    ]
    dots = [line for axes in figure.axes for line in axes.get_lines() if line.get_marker() == "o"]
    assert sorted(x for line in dots for x in line.get_xdata()) == sorted(row["mean"] for row in board)
    assert report.scoreboard(board, tmp_path / "board.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="needs rows, got none"):
        report.scoreboard([], tmp_path / "none.png")


def judged(forecast, policy, over, gain):
    row = {"workload": "drawn", "servers": 8, "routing": "relay", "forecast": forecast, "policy": policy}
    row |= {"over_bound": over, "low": over - 0.01, "high": over + 0.03}
    return row | {"gain": gain, "gain_low": gain - 0.05, "gain_high": gain + 0.05}


@pytest.fixture
def forecasts():
    shown = [("greedy", 1.2, 0.0), ("index", 1.1, 0.1), ("learned", 1.4, -0.2)]
    return [judged(forecast, *one) for forecast in ("0", "0.3", "predicted") for one in shown]


def test_the_best_is_marked_and_what_surely_differs_from_greedy(forecasts):
    head, names, _, *lines = report.forecast_table(forecasts).split("\n\n")[0].splitlines()
    assert head == "drawn, 8 servers, routing relay"
    assert names.split() == ["policy", "0", "0.3", "predicted"]
    cells = {line.split()[0]: line.split(maxsplit=1)[1].split("  ")[0].strip() for line in lines}
    assert cells == {"greedy": "1.200 +-0.020", "index": "1.100 +-0.020*+", "learned": "1.400 +-0.020 -"}


def test_the_figure_of_forecasts_has_a_line_for_every_policy(forecasts, tmp_path):
    pytest.importorskip("matplotlib")
    from mfabric_jax.report.figures.learning import build_forecasts

    (axes,) = build_forecasts(forecasts).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "0.3", "predicted"]
    drawn = {tuple(np.ravel(container.lines[0].get_ydata())) for container in axes.containers}
    assert drawn == {(v,) * n for v in (1.2, 1.1, 1.4) for n in (1, 2)}  # predicted apart
    assert report.forecasts(forecasts, tmp_path / "forecasts.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="needs rows, got none"):
        report.forecasts([], tmp_path / "none.png")


def test_the_figure_of_a_training_shows_its_lines(tmp_path):
    pytest.importorskip("matplotlib")
    from mfabric_jax.report.figures.learning import build_training

    lines = [{"step": 0, "held_out_8": 1.3}, {"step": 50, "time": 1.2}, {"step": 100, "time": 1.1, "held_out_8": 1.05}]
    (axes,) = build_training(lines).axes
    seen, held = axes.get_lines()
    assert (list(seen.get_xdata()), list(seen.get_ydata())) == ([50, 100], [1.2, 1.1])
    assert (list(held.get_xdata()), list(held.get_ydata())) == ([0, 100], [1.3, 1.05])
    assert report.training(lines, tmp_path / "curves.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="lines of metrics with a time, got none"):
        report.training(lines[:1], tmp_path / "none.png")
