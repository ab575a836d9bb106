"""Layout of a model's blocks over the places of a pipeline (stages, or their chunks).

A layout is "even", or "ends" (embedding and output head count as one block each), or a pattern in Megatron Core's
notation: E embedding, t block, m block that predicts a further token, L output head, | between places, and *N or
(...)*N for repetition, as in "Et|(tt|)*30mL".
"""

import functools
import re

from mfabric_jax.checks import InputError

EVEN, ENDS = "even", "ends"
ALLOWED = f"{EVEN}, {ENDS}, or places like Et|(tt|)*30mL"
REPEATED = re.compile(r"\(([^()]*)\)\*(\d+)|([Etm L|])\*(\d+)")


@functools.lru_cache(maxsize=4096)
def places_of(layout: str, blocks: int, predicted: int, places: int) -> tuple[int, ...]:
    """Return the number of blocks of every place. The last `predicted` blocks predict further tokens.

    Raise `InputError` for a layout with other numbers of blocks or places, or with a place without a block.
    """
    if layout in (EVEN, ENDS):
        least, more = divmod(blocks + 2 * (layout == ENDS), places)
        counts = [least + (index < more) for index in range(places)]
        if layout == EVEN:
            return tuple(counts)
        counts[0], counts[-1] = counts[0] - 1, counts[-1] - 1
    else:
        counts = _parse_layout(layout, blocks, predicted, places)
    if min(counts) < 1:
        raise InputError(f"layout must leave every place a block, got {layout!r}: {', '.join(map(str, counts))}.")
    return tuple(counts)


def _parse_layout(layout: str, blocks: int, predicted: int, places: int) -> list[int]:
    written = expand(layout)
    if not re.fullmatch(r"E[tm|]*L", written):
        raise InputError(f"layout must be {ALLOWED}, from E to L, got {layout!r}.")
    each = written.split("|")
    counts = {"t": blocks - predicted, "m": predicted}
    for letter, count in counts.items():
        if written.count(letter) != count:
            raise InputError(f"layout must have {count} {letter}, got {written.count(letter)} in {layout!r}.")
    if len(each) != places:
        raise InputError(f"layout must have {places} places (pp x chunks), got {len(each)} in {layout!r}.")
    return [len(part) - part.count("E") - part.count("L") for part in each]


@functools.lru_cache(maxsize=4096)
def expand(layout: str) -> str:
    """Return a pattern without commas, blanks and repetitions."""
    written = layout.replace(",", "").replace(" ", "")
    while (longer := REPEATED.sub(_repeat, written)) != written:
        written = longer
    return written


def _repeat(match: re.Match) -> str:
    group, times, letter, of_letter = match.groups()
    return group * int(times) if times else letter * int(of_letter)
