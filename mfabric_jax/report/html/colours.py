"""Colours of the page: unchanged on white, lightened on a dark page."""

from functools import cache

from mfabric_jax.report import style

PAPER = {"light": "#ffffff", "dark": "#1b2028"}  # --paper of page.css
_THEMED = {style.INK: "var(--ink)", style.PAPER: "var(--paper)", style.FAINT: "var(--edge)", style.RULE: "var(--rule)"}
_THEMED |= {style.BEST: "var(--best)", style.EQUAL: "var(--equal)", style.BEHIND: "var(--behind)"}
_SEEN = 4.0  # least contrast of a mark (WCAG 2.1, 1.4.11 asks for 3)


@cache
def hue(colour: str) -> str:
    """Return a CSS colour that fits both themes."""
    colour = colour.lower()
    return _THEMED.get(colour) or f"light-dark({colour}, {on_dark(colour)})"


def on_dark(colour: str) -> str:
    """Return the colour, mixed with white until it is visible on the dark page."""
    white, seen = 0.0, colour
    while contrast(seen, PAPER["dark"]) < _SEEN:
        white += 0.05
        seen = style.mix_with_white(colour, white)
    return seen


def contrast(colour: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2.1)."""
    darker, lighter = sorted((_luminance(colour), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in style.rgb(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
