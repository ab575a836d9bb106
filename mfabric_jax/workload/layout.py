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
        found = [least + (place < more) for place in range(places)]
        if layout == EVEN:
            return tuple(found)
        found[0], found[-1] = found[0] - 1, found[-1] - 1
    else:
        found = _written(layout, blocks, predicted, places)
    if min(found) < 1:
        raise InputError(f"layout must leave every place a block, got {layout!r}: {', '.join(map(str, found))}.")
    return tuple(found)


def _written(layout: str, blocks: int, predicted: int, places: int) -> list[int]:
    written = layout.replace(",", "").replace(" ", "")
    while (longer := REPEATED.sub(_repeated, written)) != written:
        written = longer
    if not re.fullmatch(r"E[tm|]*L", written):
        raise InputError(f"layout must be {ALLOWED}, from E to L, got {layout!r}.")
    each = written.split("|")
    counts = {"t": blocks - predicted, "m": predicted}
    for letter, count in counts.items():
        if written.count(letter) != count:
            raise InputError(f"layout must have {count} {letter}, got {written.count(letter)} in {layout!r}.")
    if len(each) != places:
        raise InputError(f"layout must have {places} places (pp x chunks), got {len(each)} in {layout!r}.")
    return [len(place) - place.count("E") - place.count("L") for place in each]


def _repeated(found: re.Match) -> str:
    group, times, letter, of_letter = found.groups()
    return group * int(times) if times else letter * int(of_letter)
