"""Pictures show the rows: by hand, panel by panel; how they look was judged by eye."""

import itertools

from experiments.pictures import beside, dots, heat, lines
from mfabric_jax.report.drawing import drawn, paper

ROWS = [
    {"x": x, "y": y, "of": of, "city": city}
    for x, y, of, city in ((4, 2.0, "a", "N"), (1, 1.0, "a", "N"), (1, 3.0, "b", "S"), (2, None, "b", "S"))
]


def test_lines_are_sorted_by_what_tells_them_apart_and_gaps_are_left_out():
    chart = lines(("x", "across"), ("y", "along"), "{of}", panel="{city}")(ROWS)
    curves = [(panel.title, curve.look.label, list(curve.points)) for panel in chart.panels for curve in panel.curves]
    assert curves == [("N", "a", [(1, 1.0), (4, 2.0)]), ("S", "b", [(1, 3.0)])]
    assert [look.label for look in chart.key] == ["a", "b"]
    assert {(panel.x, panel.y) for panel in chart.panels} == {("across", "along")}


def test_dots_stand_in_named_lines_and_charts_stand_beside_each_other():
    draw = dots(("x", "across"), "{city}!", "{of}")
    chart = beside(draw, draw)(ROWS)
    assert len(chart.panels) == 2
    assert len(chart.key) == 2
    assert chart.panels[0].names == ["N!", "S!"]
    assert [list(curve.points) for curve in chart.panels[0].curves] == [[(4, 0), (1, 0)], [(1, 1), (2, 1)]]
    with paper.look():
        assert len(drawn.figure(chart).axes) == 2
    by_city, by_name = (lines(("x", "x"), ("x", y), "{of}", panel="{city}") for y in ("km", "miles"))
    together = beside(by_city, by_name, in_turn=True)(ROWS)
    assert [(panel.title, panel.y) for panel in together.panels] == list(itertools.product("NS", ("km", "miles")))


def test_cells_of_heat_maps():
    cells = [{"x": x, "y": y, "z": z} for x, y, z in ((2, "top", 1.0), (0, "top", 0.0), (0, "below", 0.5))]
    with paper.look():
        figure = heat(("x", "x"), ("y", "y"), ("z", "what"), number="{:.1f}", title="A heading")(cells)
    axes, bar = figure.axes
    (image,) = axes.get_images()
    assert image.get_array().filled(-1).tolist() == [[0, 1], [0.5, -1]]
    numbers = {text.get_text(): text.get_position() for text in axes.texts}
    assert numbers == {"1.0": (1, 0), "0.0": (0, 0), "0.5": (0, 1)}
    assert [text.get_text() for text in axes.get_yticklabels()] == ["top", "below"]
    assert bar.get_ylabel() == "what"
    assert figure.get_suptitle() == "A heading"
