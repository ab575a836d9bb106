"""Pictures described by data show the rows: by hand, panel by panel; how they look was judged by eye."""

import pytest

from experiments.pictures import PALETTE, Axis, Bars, Boxes, Dots, Heat, Lines, Picture, Pictures
from mfabric_jax.checks import InputError
from mfabric_jax.report import style

X, Y = Axis("x", "across", log=True, ticks="{:g}".format), Axis("y", "along", low=0)


def built(picture, rows):
    with style.look():
        figure = picture.build(rows)
        figure.canvas.draw()
    return figure


def rows_of(**columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_lines():
    rows = rows_of(
        **{"x": [4, 1, 1, 4, 1], "y": [2.0, 1.0, 3.0, 5.0, None], "by": [*"aabb", "c"]},
        **{"old": [0, 0, 0, 1, 0], "seen": [None, 9, None, None, 7]},
    )
    line = Lines(X, Y, "by", under="a", dashed=("old", "older"), published=("seen", "as published"), title="{by}!")
    figure = built(Picture((line,)), rows)
    (axes,) = figure.axes
    first, solid, dashed, crosses = axes.get_lines()
    assert [list(first.get_xdata()), list(first.get_ydata())] == [[1, 4], [1, 2]]
    assert (solid.get_color(), dashed.get_color(), dashed.get_linestyle()) == (PALETTE[1], PALETTE[1], "--")
    assert (list(dashed.get_xdata()), list(crosses.get_ydata())) == ([4], [9])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]
    assert (axes.get_ylim(), axes.get_xscale()) == ((0, pytest.approx(1.08 * 9)), "log")
    assert axes.get_title(loc="left") == "a!"
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["a", "b", "c", "older", "as published"]


def test_panels_by_columns_share_what_they_are_told_to():
    rows = rows_of(x=[1, 2, 1, 2], y=[1.0, 2.0, 10.0, 20.0], by=[*"aaaa"], city=[*"NNSS"], year=[1, 1, 1, 2])
    for share, tops in ((False, {10.8, 21.6, 2.16}), (True, {21.6})):
        figure = built(Picture((Lines(X, Y, "by", title="{city}{year}"),), "year", "city", share_y=share), rows)
        shown = [axes for axes in figure.axes if axes.axison]
        assert [axes.get_title(loc="left") for axes in shown] == ["N1", "S1", "S2"]
        assert {round(axes.get_ylim()[1], 6) for axes in shown} == tops
    empty = built(Picture((Lines(X, Axis("none"), "by", empty="nothing"),)), [row | {"none": None} for row in rows])
    assert [text.get_text() for text in empty.axes[0].texts] == ["nothing"]
    with pytest.raises(InputError, match="the figure needs cities, but there are none"):
        Picture((Lines(X, Y, "by"),), needs="cities").build([])


def test_round_numbers_on_logarithmic_axes_and_lines_across():
    lines = Lines(Axis("x", log=True, lines=(7.0,)), Axis("y", percent=True), "by")
    (axes,) = built(Picture((lines,)), rows_of(x=[3, 30], y=[0.1, 0.9], by="aa")).axes
    low, high = axes.get_xlim()
    assert [at for at in axes.get_xticks() if low <= at <= high] == [5, 10, 20]
    assert axes.get_lines()[-1].get_xdata()[0] == 7
    assert "50%" in [label.get_text() for label in axes.get_yticklabels()]


def test_dots_in_groups_and_blocks():
    rows = rows_of(v=[1.0, 2.0, 3.0, 4.0], g=[*"pqpq"], by=[*"aabb"], b=[*"uuvv"], text=["", "two", "", ""])
    (axes,) = built(Picture((Dots(Axis("v"), Axis("g"), "by", dodge=True, note="text", base="p"),)), rows).axes
    marks = [line for line in axes.get_lines() if line.get_linestyle() == "None"]
    places = [(line.get_xdata()[0], round(line.get_ydata()[0], 2)) for line in marks]
    assert places == [(1, -0.18), (2, 0.82), (3, 0.18), (4, 1.18)]
    assert [line.get_xdata()[0] for line in axes.get_lines() if line not in marks] == [1, 3]  # the base goes on
    assert [note.get_text() for note in axes.texts] == ["", "two", "", ""]
    (axes,) = built(Picture((Dots(Axis("v"), Axis("g"), "by", block="b"),)), rows).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["p", "q"] * 2
    marks = [line for line in axes.get_lines() if line.get_marker() != "None"]
    assert [line.get_ydata()[0] for line in marks] == [0, 1, 2, 3]
    assert [line.get_ydata()[0] for line in axes.get_lines() if line not in marks] == [1.5]  # between the blocks


def test_boxes_show_the_spread_and_the_mean():
    rows = rows_of(v=[1.0, 2.0, 6.0], g=[*"ppp"], by=[*"aaa"])
    (axes,) = built(Picture((Boxes(Axis("v"), Axis("g"), "by", beside="{:g}"),)), rows).axes
    reach, mean = axes.get_lines()
    assert (axes.patches[0].get_x(), axes.patches[0].get_width()) == (1.5, 2.5)
    assert list(reach.get_xdata()) == pytest.approx([1.2, 5.2])
    assert (mean.get_xdata()[0], [note.get_text() for note in axes.texts]) == (3, ["3"])


def test_bars_stacked_and_side_by_side():
    rows = rows_of(v=[1.0, 2.0, 3.0], g=[*"ppq"], by=[*"aba"], text=["one", "two", "three"], open=[0, 1, 0])
    (axes,) = built(
        Picture((Bars(Axis("v"), Axis("g"), "by", stacked=True, inside="text", hatched="open"),)), rows
    ).axes
    bars = [(bar.get_x(), bar.get_width(), bool(bar.get_hatch())) for bar in axes.patches]
    assert bars == [(0, 1, False), (1, 2, True), (0, 3, False)]
    assert {note.get_text() for note in axes.texts} == {"one", "two", "three"}
    (axes,) = built(Picture((Bars(Axis("v"), Axis("g"), "by"),)), rows).axes
    middles = [bar.get_y() + bar.get_height() / 2 for bar in axes.patches]
    assert middles == pytest.approx([-0.18, 0.18, 0.82])


def test_heat_maps():
    from matplotlib.colors import Normalize

    rows = rows_of(x=[0, 2, 0], y=[1, 1, 2], z=[0.0, 1.0, 0.5])
    shared = {"norm": lambda values: Normalize(min(values), max(values)), "number": "{:.1f}"}
    heat = Heat(Axis("x"), Axis("y"), "z", frames=lambda here: {"--": here[1]}, **shared)
    figure = built(Picture((heat,), scale="z"), rows)
    (image,) = figure.axes[0].get_images()
    assert image.get_array().filled(-1).tolist() == [[0, -1, 1], [0.5, -1, -1]]
    assert image.get_extent() == [-0.5, 2.5, 0.5, 2.5]
    numbers = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    assert numbers == {"0.0": (0, 1), "1.0": (2, 1), "0.5": (0, 2)}
    (frame,) = figure.axes[0].get_lines()
    assert (min(frame.get_xdata()), max(frame.get_xdata()), set(frame.get_ydata())) == (1.5, 2.5, {0.5, 1.5})
    assert figure.axes[1].get_ylabel() == "z"
    (axes,) = built(Picture((Heat(Axis("x"), Axis("y"), "z", down=True, **shared),)), rows).axes
    assert axes.get_ylim() == (2.5, 0.5)


def test_pictures_side_by_side_leave_out_what_shows_nothing():
    rows = rows_of(x=[1, 2], y=[1.0, 2.0], by=[*"ab"])
    whole, none = Picture((Lines(X, Y, "by"),)), Picture((Lines(X, Y, "by"),), shown=lambda rows: [])
    for over in (False, True):
        figure = built(Pictures((whole, none, whole), over, heading=lambda rows: f"{len(rows)} rows"), rows)
        assert (len(figure.axes), figure.get_suptitle()) == (2, "2 rows")
        width, height = figure.get_size_inches()
        assert (width > height) != over
