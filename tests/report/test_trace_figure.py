"""The pictures of recorded routing show what the arrays say; how they look was judged by eye."""

import numpy as np
import pytest

from mfabric_jax.report.figures.trace import build_load, build_pairs

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
