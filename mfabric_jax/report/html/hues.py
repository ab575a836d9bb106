"""The colours of `style` in two themes: as they are on white, and no darker than can be seen on a dark page."""

from mfabric_jax.report import style

PAPER = {"light": "#FFFFFF", "dark": "#1B2028"}  # --paper of page.css
SEEN = 4.0  # contrast of a mark (WCAG 2.1, 1.4.11 asks for 3)
_STEP = 0.05


def hue(colour: str) -> str:
    """A colour of CSS for both themes; white is the paper of either."""
    if colour.upper() == PAPER["light"]:
        return "var(--paper)"
    return f"light-dark({colour}, {on_dark(colour)})"


def ink(colour: str) -> str:
    """What can be read on that colour, in both themes."""
    if colour.upper() == PAPER["light"]:
        return "var(--ink)"
    return f"light-dark({style.ink_on(colour)}, {style.ink_on(on_dark(colour))})"


def on_dark(colour: str) -> str:
    """The colour itself, or with as much white as it needs to be seen on the dark page."""
    white = 0.0
    mixed = colour
    while contrast(mixed, PAPER["dark"]) < SEEN:
        white += _STEP
        mixed = _hex([part + (1 - part) * white for part in _parts(colour)])
    return mixed


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2.1)."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in _parts(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _parts(colour: str) -> list[float]:
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def _hex(parts: list[float]) -> str:
    return "#" + "".join(f"{round(part * 255):02X}" for part in parts)
