"""Colours that can be seen in both themes, and scales that span their values."""

import pytest

from mfabric_jax.report import style
from mfabric_jax.report.html import hues, scales


@pytest.mark.parametrize("look", [*style.FABRICS.values(), *style.PARTS.values()], ids=lambda look: look.label)
def test_colours_can_be_seen_on_a_dark_page(look):
    assert hues.contrast(hues.on_dark(look.colour), hues.PAPER["dark"]) >= hues.SEEN
    if hues.contrast(look.colour, hues.PAPER["dark"]) >= hues.SEEN:
        assert hues.on_dark(look.colour) == look.colour


def test_contrast_is_that_of_the_guidelines():
    assert hues.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert hues.contrast("#767676", "#FFFFFF") == pytest.approx(4.54, abs=0.01)  # the lightest grey that may be text


@pytest.mark.parametrize(
    ("values", "log", "low", "high", "ticks"),
    [
        ([2, 10], False, 0, 10.64, [0, 5, 10]),
        ([90, 100], False, 89.2, 100.8, [90, 95, 100]),
        ([1, 100], True, 0.8, 125, [1, 2, 5, 10, 20, 50, 100]),
        ([0, 0], False, 0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ([-3, -1], False, -3.16, -0.84, [-3, -2.5, -2, -1.5, -1]),
    ],
)
def test_scales_span_their_values(values, log, low, high, ticks):
    scale = scales.spanning(values, 0, 100, log=log)
    assert (scale.low, scale.high) == pytest.approx((low, high))
    assert scale.ticks() == pytest.approx(ticks)
    assert (scale(scale.low), scale(scale.high)) == pytest.approx((0, 100))
