"""Where an iteration goes: stacked bars of its parts, a panel per model, a bar per fabric."""

from mfabric_jax.report import style
from mfabric_jax.report.grid import DETAIL_GBPS, Grid, Rows, Series
from mfabric_jax.report.html.chart import Chart, gridded, panels
from mfabric_jax.report.html.frame import Frame, x_axis
from mfabric_jax.report.html.marks import Drawn, bar, parts_key, series_looks
from mfabric_jax.report.html.markup import tag, words
from mfabric_jax.report.html.scales import Scale
from mfabric_jax.report.numerals import significant

_BAR, _GAP = 20, 8
_LETTER = 6.2  # units of width
_LEGIBLE = 30  # units that a share needs inside its part


def breakdown(rows: Rows) -> Chart:
    """The chart at the bandwidth nearest to 400 Gbps; other bandwidths unfold below it."""
    grid = gridded(rows, ["iteration_s", *style.PARTS])
    looks = series_looks(grid.series)
    nearest = min(grid.bandwidths, key=lambda gbps: abs(gbps - DETAIL_GBPS))
    others = [_folded(grid, gbps, looks) for gbps in grid.bandwidths if gbps != nearest]
    note = f"At {nearest:g} Gbps a NIC; in the bars: share of that bar's iteration; behind them: seconds."
    key = parts_key(style.PARTS)
    return Chart("Parts of an iteration", note, key, _drawn(grid, nearest, looks), more="".join(others))


def _folded(grid: Grid, gbps: float, looks: dict[Series, Drawn]) -> str:
    return tag("details", tag("summary", words(f"At {gbps:g} Gbps")), panels(_drawn(grid, gbps, looks)))


def _drawn(grid: Grid, gbps: float, looks: dict[Series, Drawn]) -> list[str]:
    return [panel for model in grid.models if (panel := _panel(grid, model, gbps, looks))]


def _panel(grid: Grid, model: str, gbps: float, looks: dict[Series, Drawn]) -> str | None:
    present = [s for s in grid.series if grid.value(model, s, gbps, "iteration_s") is not None]
    if not present:
        return None
    seconds = {s: {name: grid.value(model, s, gbps, name) or 0.0 for name in style.PARTS} for s in present}
    left = 14 + _LETTER * max(len(looks[s].label) for s in present)
    frame = Frame(height=34 + 46 + (_BAR + _GAP) * len(present), left=left, right=48)
    scale = Scale(0.0, max(sum(parts.values()) for parts in seconds.values()) or 1.0, *frame.across)
    marks = [x_axis(frame, scale, "seconds of an iteration", scale.ticks(4))]
    for place, series in enumerate(present):
        top = frame.top + _GAP / 2 + place * (_BAR + _GAP)
        marks.append(_bar(scale, top, looks[series].label, gbps, seconds[series]))
    return frame.drawn(str(model), *marks)


def _bar(scale: Scale, top: float, label: str, gbps: float, seconds: dict[str, float]) -> str:
    """The parts of one iteration, one after the other, its name before them and its length behind."""
    middle = top + _BAR / 2 + 4
    marks = [tag("text", words(label), class_="tick", x=scale.start - 6, y=middle, text_anchor="end")]
    begun, total = 0.0, sum(seconds.values())
    for name, part in style.PARTS.items():
        if seconds[name] <= 0:
            continue
        x, wide = scale(begun), scale(begun + seconds[name]) - scale(begun)
        share = f"{seconds[name] / total:.0%}"
        said = f"{label}, {gbps:g} Gbps: {part.label} {significant(seconds[name])} s, {share}"
        inside = bar(x, top, wide, _BAR, said)
        if wide > _LEGIBLE:
            inside += tag("text", share, class_="share", x=x + wide / 2, y=middle, text_anchor="middle")
        marks.append(Drawn(part.label, part.colour).group(inside))
        begun += seconds[name]
    marks.append(tag("text", significant(total, 3), class_="total", x=scale(begun) + 5, y=middle))
    return tag("g", *marks)
