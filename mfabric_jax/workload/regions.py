"""What the size of a region decides by itself, in words."""

PAIR = "is two servers, one pair: every policy that uses all circuits sets the same ones"
INSIDE = "fits into one server: no all-to-all leaves it, and circuits carry nothing"


def region_remark(servers: int, what: str = "A region") -> str | None:
    """A sentence on regions of one or two servers; None for larger ones, where circuits can differ."""
    said = {1: INSIDE, 2: PAIR}.get(servers)
    return None if said is None else f"{what} {said}."
