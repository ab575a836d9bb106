"""The pictures of recorded routing show what the arrays say; how they look was judged by eye."""

import itertools
import os

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report import style, trace_load, trace_pairs
from mfabric_jax.report.figures.trace import build_load, build_pairs, spread

matplotlib = pytest.importorskip("matplotlib")


def some_load(shape=(30, 9, 8)):
    """[iteration layer expert]"""
    return np.random.default_rng(0).pareto(1.0, shape)


def panels(figure):
    """Title to axes, of the heat maps alone."""
    return {axes.get_title("left"): axes for axes in figure.axes if axes.get_images() and axes.get_xlabel()}


def shown(axes):
    (image,) = axes.get_images()
    return np.asarray(image.get_array())


@pytest.mark.parametrize(
    ("layers", "chosen"), [(1, [0]), (2, [0, 1]), (4, [0, 1, 2, 3]), (9, [0, 3, 5, 8]), (24, [0, 8, 15, 23])]
)
def test_layers_are_spread_evenly(layers, chosen):
    assert spread(layers) == chosen


def test_loads_over_the_mean_of_their_layer_and_iteration():
    load = some_load()
    found = panels(build_load(load, 100 * np.arange(30)))
    assert list(found) == ["layer 0", "layer 3", "layer 5", "layer 8"]
    for layer, axes in zip((0, 3, 5, 8), found.values(), strict=True):
        want = load[:, layer] / load[:, layer].mean(axis=1, keepdims=True)
        np.testing.assert_allclose(shown(axes), want.T, rtol=1e-12)
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("iteration", "expert")
        labels = [text.get_text() for text in axes.get_xticklabels()]
        assert labels == [str(100 * int(place)) for place in axes.get_xticks()]
        assert 2 <= len(labels) <= 12


def test_one_iteration_shows_all_layers_in_one_panel():
    load = some_load((1, 5, 8))
    (axes,) = panels(build_load(load, [7], target="destination rank")).values()
    np.testing.assert_allclose(shown(axes), (load[0] / load[0].mean(axis=1, keepdims=True)).T, rtol=1e-12)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layer", "destination rank")


def test_pairs_over_the_mean_of_their_layer():
    matrix = some_load((3, 4, 4))
    found = panels(build_pairs(matrix, "a trace"))
    assert list(found) == ["layer 0", "layer 1", "layer 2"]
    for layer, axes in enumerate(found.values()):
        np.testing.assert_allclose(shown(axes), matrix[layer] / matrix[layer].mean(), rtol=1e-12)
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("destination rank", "source rank")
        assert axes.get_aspect() == 1
    wide = panels(build_pairs(some_load((3, 2, 64)), source="text domain", target="expert"))
    assert {axes.get_aspect() for axes in wide.values()} == {"auto"}


def test_one_scale_of_colours_from_nothing_to_the_hottest():
    load = some_load()
    load[3, 5] = 0  # an iteration without tokens
    figure = build_load(load, np.arange(30))
    limits = {axes.get_images()[0].get_clim() for axes in panels(figure).values()}
    (low, high) = limits.pop()
    assert not limits
    assert low == 0
    np.testing.assert_allclose(high, max(shown(axes).max() for axes in panels(figure).values()), rtol=1e-12)
    np.testing.assert_array_equal(shown(panels(figure)["layer 5"])[:, 3], 0)
    even = panels(build_pairs(np.zeros((1, 2, 2))))["layer 0"]
    assert even.get_images()[0].get_clim() == (0, 1)


@pytest.mark.parametrize("shape", [(1, 3, 64), (2, 1, 4), (500, 24, 128)])
def test_words_do_not_lie_over_words(shape):
    with style.look():
        figure = build_load(some_load(shape), 10000 + np.arange(shape[0]), "SmartMoE gate trace")
        figure.draw_without_rendering()
    artists = [figure._suptitle]
    for axes in figure.axes:
        artists += [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label, axes.yaxis.label, axes.title]
    boxes = [(text.get_text(), text.get_window_extent()) for text in artists if text.get_text()]
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0, f"{one!r} lies over {other!r}"
    for text, box in boxes:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert inside, f"{text!r} is cut off"


def test_written_whole_and_the_same_each_time(tmp_path):
    before = dict(matplotlib.rcParams)
    paths = [trace_load(some_load(), np.arange(30), tmp_path / name) for name in ("a.png", "b.png")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert trace_pairs(some_load((2, 4, 4)), tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")
    assert sorted(os.listdir(tmp_path)) == ["a.png", "b.png", "c.pdf"]
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda: build_load(np.ones((3, 4)), [0, 1, 2]), r"load must have three axes, .* got shape \(3, 4\)\."),
        (lambda: build_load(np.ones((3, 0, 4)), [0, 1, 2]), r"load must have three axes, none empty"),
        (lambda: build_load(np.full((3, 1, 4), np.nan), [0, 1, 2]), "numbers from 0 on"),
        (lambda: build_load(np.ones((3, 1, 4)), [0]), "number must name each of the 3 iterations of load, got 1"),
        (lambda: build_pairs(-np.ones((1, 4, 4))), "matrix must have three axes, none empty, of numbers from 0 on"),
    ],
)
def test_arrays_that_cannot_be_drawn(draw, sentence):
    with pytest.raises(InputError, match=sentence):
        draw()
