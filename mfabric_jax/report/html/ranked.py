"""The ranking on the page: equal designs under a heading that says so, and every design's distance from the best."""

from collections.abc import Sequence

from mfabric_jax.report.html.contenders import EQUAL, VALUES, Contender
from mfabric_jax.report.html.headline import values_words
from mfabric_jax.report.html.markup import tag, words
from mfabric_jax.report.numerals import percent
from mfabric_jax.report.ranking import Ranking

_APART = 34  # least distance of two texts of a scale, in percent of it


def ranking_section(ranking: Ranking, own: Sequence[Contender]) -> str:
    """Return the ranking as HTML: a line per design, with a dot and the range of its error on a common scale."""
    ends = [end - 1 for each in own if each.over for end in (each.over.ratio, *each.over.ends)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    value = VALUES[ranking.column]
    tied = [each for each in own if each.verdict == EQUAL] if own[0].verdict == EQUAL else []
    written = []
    if tied:
        far = max(abs(each.over.ratio - 1) for each in tied if each.over)
        written.append(_group(f"These {len(tied)} are equal: {values_words(tied)} {value.unit}. ", _apart(far)))
        written += [_line(each, low, high, True) for each in tied]
    behind = list(own)[len(tied) :]
    if behind and tied:
        written.append(_group("Outside the error", ""))
    written += [_line(each, low, high, False) for each in behind]
    scale = tag("div", tag("span"), tag("span"), _scale(low, high), tag("span"), class_="scale")
    title = f"{value.title[:1].upper()}{value.title[1:]}"
    note = f"{title}, and how far each design is from the best; lines show the range of the error."
    return tag("p", words(note), class_="note") + tag("div", *written, scale if ends else "", class_="ranks")


def _apart(far: float) -> str:
    return f"They differ by {percent(far)} at most, inside the error."


def _group(heading: str, sentence: str) -> str:
    return tag("div", tag("b", words(heading)), words(sentence), class_="group")


def _line(each: Contender, low: float, high: float, is_grouped: bool) -> str:
    share = lambda value: 100 * (value - low) / (high - low or 1)  # noqa: E731
    zero = tag("i", class_="zero", style=f"left:{share(0.0):.4g}%")
    ratio = each.over.ratio - 1 if each.over else 0.0
    dot = tag("i", class_=f"dot {each.verdict}", style=f"left:{share(ratio):.4g}%")
    reach = ""
    if each.over and each.over.ends[0] < each.over.ends[1]:
        begin, end = (share(end - 1) for end in each.over.ends)
        reach = tag("i", class_=f"reach {each.verdict}", style=f"left:{begin:.4g}%;width:{end - begin:.4g}%")
    inside = "" if each.verdict != EQUAL or is_grouped else " equal"
    over = (
        f"{each.over}{inside}" if each.over else "the least" if each.number == 1 and each.verdict == EQUAL else "best"
    )
    return tag(
        "div", tag("span", each.full_label, class_="name"), tag("b", words(each.value), class_="value"),
        tag("span", zero, reach, dot, class_="track"), tag("span", words(over), class_="over"), class_="line",
    )  # fmt: off


def _scale(low: float, high: float) -> str:
    ends = dict.fromkeys((low, 0.0, high))
    share = lambda value: 100 * (value - low) / (high - low or 1)  # noqa: E731
    shown = [end for end in ends if end == 0 or abs(share(end) - share(0.0)) > _APART]
    texts = (_end_of_scale(percent(end, signed=True) if end else "best", share(end)) for end in shown)
    return tag("span", *texts, class_="track")


def _end_of_scale(text: str, share: float) -> str:
    side = "left" if share < 15 else "right" if share > 85 else "middle"
    return tag("i", words(text), class_=side, style=f"left:{share:.4g}%")
