"""The pictures of recorded routing show what the arrays say; how they look was judged by eye."""

import numpy as np
import pytest

from mfabric_jax.report.figures.trace import build_load, build_pairs


def panels(figure):
    """Title to axes, of the heat maps alone."""
    return {axes.get_title("left"): axes for axes in figure.axes if axes.get_images() and axes.get_xlabel()}


def shown(axes):
    (image,) = axes.get_images()
    return np.asarray(image.get_array())


def test_loads_over_the_mean_of_their_layer_and_iteration():
    load = np.random.default_rng(0).pareto(1.0, (30, 9, 8))  # [iteration layer expert]
    load[3, 5] = 0  # an iteration without tokens
    found = panels(build_load(load, 100 * np.arange(30)))
    assert list(found) == ["layer 0", "layer 3", "layer 5", "layer 8"]
    share = load / np.maximum(load.mean(axis=2, keepdims=True), 1e-300)
    for layer, axes in zip((0, 3, 5, 8), found.values(), strict=True):
        np.testing.assert_allclose(shown(axes), share[:, layer].T, rtol=1e-12)
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("iteration", "expert")
        labels = [text.get_text() for text in axes.get_xticklabels()]
        assert labels == [str(100 * int(place)) for place in axes.get_xticks()]
        assert 2 <= len(labels) <= 12
        assert axes.get_images()[0].get_clim() == (0, pytest.approx(share[:, (0, 3, 5, 8)].max(), rel=1e-12))
    (axes,) = panels(build_load(load[:1], [7], target="destination rank")).values()  # all layers in one panel
    np.testing.assert_allclose(shown(axes), share[0].T, rtol=1e-12)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layer", "destination rank")


def test_pairs_over_the_mean_of_their_layer():
    matrix = np.random.default_rng(0).pareto(1.0, (3, 4, 4))
    found = panels(build_pairs(matrix, "a trace"))
    assert list(found) == ["layer 0", "layer 1", "layer 2"]
    for layer, axes in enumerate(found.values()):
        np.testing.assert_allclose(shown(axes), matrix[layer] / matrix[layer].mean(), rtol=1e-12)
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_aspect()) == ("destination rank", "source rank", 1)
    empty = panels(build_pairs(np.zeros((1, 2, 64)), source="text domain", target="expert"))["layer 0"]
    assert (empty.get_aspect(), empty.get_images()[0].get_clim()) == ("auto", (0, 1))
