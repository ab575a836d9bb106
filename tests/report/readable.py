"""Whether the words of a figure can be read: none lies over another, none is cut off, none is tiny."""

import itertools


def assert_readable(figure, texts=True):
    """`texts`: those inside of axes too, which charts place by themselves."""
    figure.draw_without_rendering()
    artists = [*figure.texts]
    for axes in figure.axes:
        artists += axes.texts if texts else []
        artists += [axes.title, axes.xaxis.label, axes.yaxis.label] if axes.axison else [axes.title]
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())) if axes.axison else ():
            labels = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
            artists += [label for place, label in labels if min(limits) <= place <= max(limits)]
        artists += axes.get_legend().get_texts() if axes.get_legend() else []
    boxes = [(text.get_text(), text.get_window_extent()) for text in artists if text.get_text() and text.get_visible()]
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        apart = a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0
        assert apart, f"{one!r} lies over {other!r}"
    for text, box in boxes:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert inside, f"{text!r} is cut off"
    assert min(text.get_fontsize() for text in artists if text.get_text()) >= 5
