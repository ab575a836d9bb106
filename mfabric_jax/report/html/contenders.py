"""The designs of a ranking as the page shows them: numbered, those that are equal first, each with its verdict."""

from typing import NamedTuple

from mfabric_jax.report import style
from mfabric_jax.report.grid import GPU, TIME, TOKEN_USD, WORTH
from mfabric_jax.report.html.markup import tag, words
from mfabric_jax.report.numerals import number
from mfabric_jax.report.ranking import Design, Over, Ranking, are_equal
from mfabric_jax.report.row_remarks import MILLION
from mfabric_jax.report.served import LOAD_USD, is_served

BEST, EQUAL, BEHIND = "best", "equal", "behind"
MARKERS = "osv^DPXh<>"  # of designs, by number: equal designs share a colour
COLOURS = {BEST: style.BEST, EQUAL: style.EQUAL, BEHIND: style.BEHIND}


class Value(NamedTuple):
    """How values of what ranks are written: `form` with the number times `factor`, a `unit` behind it, and a title."""

    factor: float
    form: str
    unit: str
    title: str


VALUES = {
    LOAD_USD: Value(1.0, "${}", "a million answer tokens", "dollars a million answer tokens at this load"),
    TOKEN_USD: Value(1.0, "${}", "a million tokens", "dollars a million tokens"),
    WORTH: Value(MILLION, "{}", "iterations a second for a M$ of network", "iterations a second for a M$ of network"),
    TIME: Value(1.0, "{} s", "an iteration", "seconds an iteration"),
    "seconds": Value(1.0, "{} s", "", "seconds"),
}


class Contender(NamedTuple):
    """A design with its number on the page, its verdict, its name and value, and its ratio to the best."""

    number: int
    design: Design
    verdict: str
    name: str
    over: Over | None
    value: str

    @property
    def look(self) -> style.Look:
        return style.Look(
            f"{self.number} {self.name}", COLOURS[self.verdict], MARKERS[(self.number - 1) % len(MARKERS)]
        )

    @property
    def badge(self) -> str:
        return tag("span", str(self.number), class_=f"badge {self.verdict}")

    @property
    def label(self) -> str:
        """The number and the name as HTML."""
        return self.badge + tag("span", tag("b", words(self.name)), class_="who")

    @property
    def full_label(self) -> str:
        """The number, the name and the settings that it leaves out, as HTML."""
        choice = "" if self.name == str(self.design) else _choice(self.design)
        small = f" {tag('small', words(choice))}" if choice else ""
        return self.badge + tag("span", tag("b", words(self.name)), small, class_="who")


def contenders(ranking: Ranking) -> list[Contender]:
    """Return the shown designs of a ranking: those equal to the best, then the others, best first."""
    equal, best = are_equal(ranking.shown, ranking.column), ranking.shown[0]
    pairs = list(zip(ranking.shown, equal, strict=True))
    ordered = sorted(pairs, key=lambda pair: not pair[1]) if equal[0] else pairs
    value, kinds = VALUES[ranking.column], [design.kind for design in ranking.shown]
    named = all(kinds) and len(set(kinds)) == len(kinds) and not best.stated_name
    return [
        Contender(
            count,
            design,
            EQUAL if is_equal else BEST if design is best else BEHIND,
            _name(design) if named else str(design) or "all rows",
            None if design is best else design.over(best, ranking.column),
            value.form.format(number(value.factor * design.mean[ranking.column])),
        )
        for count, (design, is_equal) in enumerate(ordered, 1)
    ]


def _name(design: Design) -> str:
    """The kind of a design; of serving, GPUs come first."""
    gpu = design.settings.get(GPU)
    return f"{gpu} on {design.network}" if gpu and design.network and is_served(design.rows[0]) else design.kind


def _choice(design: Design) -> str:
    """What the name leaves out."""
    if not is_served(design.rows[0]):
        return design.choice
    return design._replace(settings={name: value for name, value in design.settings.items() if name != GPU}).choice
