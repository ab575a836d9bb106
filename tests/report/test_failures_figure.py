"""The picture of failures shows what the rows say; how it looks was judged by eye."""

import itertools
import os

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report import failures, style
from mfabric_jax.report.figures.failures import build

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex  # noqa: E402

KINDS = ("electrical-nic", "electrical-nics", "optical-nic", "link", "gpu", "server")
MODELS = ("mixtral-8x22b", "deepseek-r1", "llama-moe")


def row(model, kind, slow_down, published=None):
    return {"model": model, "failure": kind, "slow_down": slow_down, "published": published}


def rows(models=MODELS, kinds=KINDS):
    """Slow-downs that all differ, one of them below 0; some published."""
    return [
        row(model, kind, 0.01 * (7 * m + k) - 0.02, 0.09 + 0.02 * k if m % 2 and not k % 3 else None)
        for (m, model), (k, kind) in itertools.product(enumerate(models), enumerate(kinds))
    ]


def drawn(figure):
    (axes,) = figure.axes
    return axes


def diamonds(axes):
    return [tuple(line.get_xydata()[0]) for line in axes.get_lines() if line.get_marker() == "D"]


def legend(figure):
    (one,) = figure.legends
    return [text.get_text() for text in one.get_texts()]


def centre(bar):
    return bar.get_x() + bar.get_width() / 2


def test_a_bar_for_every_row_from_zero():
    axes = drawn(build(rows()))
    assert len(axes.patches) == len(rows())
    for bar, one in zip(axes.patches, rows(), strict=True):
        assert bar.get_y() == 0
        np.testing.assert_allclose(bar.get_height(), one["slow_down"], rtol=1e-12)
        assert round(centre(bar)) == KINDS.index(one["failure"])
    colours = [to_hex(bar.get_facecolor()) for bar in axes.patches]
    by_model = [set(colours[m * len(KINDS) : (m + 1) * len(KINDS)]) for m in range(len(MODELS))]
    assert [len(each) for each in by_model] == [1, 1, 1]
    assert len(set.union(*by_model)) == 3


@pytest.mark.parametrize("models", [1, 2, 3, 7])
def test_bars_do_not_overlap(models):
    made = rows([f"model {m}" for m in range(models)])
    bars = sorted(drawn(build(made)).patches, key=centre)
    for a, b in itertools.pairwise(bars):
        assert a.get_x() + a.get_width() <= b.get_x()
    for place, group in enumerate(np.reshape([centre(bar) for bar in bars], (len(KINDS), models))):
        np.testing.assert_allclose(group.mean(), place, atol=1e-12)


def test_the_number_at_every_bar():
    axes = drawn(build([row("a", "gpu", 0.0514), row("a", "link", -0.002), row("a", "server", 0.0)]))
    assert [text.get_text() for text in axes.texts] == ["+5.1%", "-0.2%", "+0.0%"]
    up, down, nothing = axes.texts
    assert up.get_position()[1] > 0.0514
    assert down.get_position()[1] < -0.002
    assert nothing.get_position()[1] > 0
    assert [text.get_va() for text in axes.texts] == ["bottom", "top", "bottom"]
    for bar, text in zip(axes.patches, axes.texts, strict=True):
        np.testing.assert_allclose(centre(bar), text.get_position()[0], atol=1e-12)


def test_a_diamond_where_a_figure_is_published():
    figure = build(rows())
    axes = drawn(figure)
    want = [(centre(bar), one["published"]) for bar, one in zip(axes.patches, rows(), strict=True) if one["published"]]
    assert len(want) == 2
    np.testing.assert_allclose(diamonds(axes), want, rtol=1e-12)
    assert legend(figure) == [*MODELS, "published (arXiv 2501.03905)"]


def test_a_published_nothing_is_a_figure_too():
    assert len(diamonds(drawn(build([row("a", "gpu", 0.1, 0.0)])))) == 1


def test_without_published_figures_the_key_names_models_alone():
    made = [one | {"published": None} for one in rows()]
    assert legend(build(made)) == list(MODELS)
    assert not diamonds(drawn(build(made)))
    bare = [{name: one[name] for name in ("model", "failure", "slow_down")} for one in made]
    assert legend(build(bare)) == list(MODELS)


def test_kinds_and_models_keep_the_order_of_the_rows():
    axes = drawn(build(rows(kinds=KINDS[::-1])))
    assert [text.get_text() for text in axes.get_xticklabels()] == [
        "server",
        "gpu",
        "link",
        "optical\nnic",
        "electrical\nnics",
        "electrical\nnic",
    ]
    assert axes.get_xticks().tolist() == list(range(6))


def test_a_model_without_a_kind_leaves_a_gap():
    made = [row("a", "gpu", 0.1), row("b", "gpu", 0.2), row("b", "link", 0.3)]
    left, right, alone = drawn(build(made)).patches
    np.testing.assert_allclose(centre(alone) - centre(right), 1, rtol=1e-12)
    np.testing.assert_allclose(centre(left) + centre(right), 0, atol=1e-12)


def test_the_colour_of_a_model_does_not_depend_on_its_kinds():
    first, second = (drawn(build(made)).patches for made in (rows(), rows(kinds=KINDS[2:])))
    assert first[len(KINDS)].get_facecolor() == second[len(KINDS) - 2].get_facecolor()


@pytest.mark.parametrize("kinds", [1, 3, 6])
def test_words_do_not_lie_over_words(kinds):
    with style.look():
        figure = build(rows(MODELS[:2], KINDS[:kinds]))
        figure.draw_without_rendering()
    axes = drawn(figure)
    artists = [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes.yaxis.label]
    artists += figure.legends[0].get_texts()
    boxes = [(text.get_text(), text.get_window_extent()) for text in artists if text.get_text()]
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0, f"{one!r} lies over {other!r}"
    for text, box in boxes:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert inside, f"{text!r} is cut off"


def test_slow_downs_of_nothing_are_still_a_figure(tmp_path):
    assert failures([row("a", kind, 0.0) for kind in KINDS], tmp_path / "none.png").stat().st_size > 1000


def test_written_whole_and_the_same_each_time(tmp_path):
    before = dict(matplotlib.rcParams)
    paths = [failures(rows(), tmp_path / name) for name in ("a.png", "b.png")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert failures(rows(), tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")
    assert sorted(os.listdir(tmp_path)) == ["a.png", "b.png", "c.pdf"]
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ([], r"^the figure of failures needs slow-downs, but there are no rows\.$"),
        ([row("a", "gpu", None)], r"but rows lack slow_down\.$"),
        ([row("a", "gpu", 0.1), {"model": "a", "slow_down": 0.1}], r"but rows lack failure\.$"),
        ([{"iteration_s": 1.0}], r"but rows lack model, failure, slow_down\.$"),
    ],
)
def test_rows_that_are_none(tmp_path, made, sentence):
    with pytest.raises(InputError, match=sentence):
        failures(made, tmp_path / "none.png")
    assert not os.listdir(tmp_path)


def test_an_unknown_extension(tmp_path):
    with pytest.raises(InputError, match=r"allowed: \.png, \.pdf, \.svg"):
        failures(rows(), tmp_path / "picture.gif")
