"""Arrays of counts whose axes have names, in any order."""

from collections.abc import Sequence

import numpy as np

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.traffic.recording import Sources, Targets

AXES = ("iteration", "layer", "micro-batch", "source", "expert")
DESTINATION = "destination"  # ranks in the place of experts
_READ_AS = {2: (("layer", "expert"),), 5: (AXES,)}
_READ_AS |= {3: (("iteration", "layer", "expert"), ("layer", "source", "expert"))}
_READ_AS |= {4: (("iteration", "layer", "source", "expert"), ("layer", "micro-batch", "source", "expert"))}


def axes_of(words: str | Sequence[str]) -> tuple[str, ...]:
    """Names of axes from words with commas between them, or a list; `_` is `-`, and `source-rank` is `source`.

    `InputError` for a name that is unknown or there twice, and where neither experts nor destinations are named.
    """
    listed = words.split(",") if isinstance(words, str) else [str(word) for word in words]
    plain = [word.strip().lower().replace("_", "-").removesuffix("-rank") for word in listed]
    found = tuple(one_of("axis", word, (*AXES, DESTINATION)) for word in plain)
    if len(set(found)) < len(found) or len({"expert", DESTINATION} & set(found)) != 1:
        raise InputError(f"axes must name expert (or destination), and none twice, got {', '.join(found)}.")
    return found


def guessed(path: object, shape: tuple[int, ...]) -> tuple[str, ...]:
    """The names of axes that nobody named: [layer, expert], or all five. `InputError` where there is a choice."""
    readings = _READ_AS.get(len(shape), ())
    if len(readings) == 1:
        return readings[0]
    how = "such as --axes iteration,layer,expert, or by an entry 'axes' beside the array"
    choice = " or ".join(f"[{', '.join(names)}]" for names in readings) or f"2 to {len(AXES)} of {', '.join(AXES)}"
    raise InputError(f"trace {path} has shape {shape}, which may be {choice}; name its axes, {how}.")


def arranged(path: object, count: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """[iteration, layer, micro-batch, source, expert or destination]; an axis that is not named has length 1."""
    if len(names) != count.ndim or 0 in count.shape:
        raise InputError(
            f"trace {path} must have the axes [{', '.join(names)}], none empty, got shape {list(count.shape)}."
        )
    last = (*AXES[:-1], DESTINATION if DESTINATION in names else "expert")
    ordered = np.transpose(count, [list(names).index(name) for name in last if name in names])
    return ordered.reshape([count.shape[list(names).index(name)] if name in names else 1 for name in last])


def kinds(names: Sequence[str]) -> dict[str, Sources | Targets]:
    """What the last two axes of a recording with these axes are."""
    return {
        "sources": Sources.RANKS if "source" in names else Sources.UNKNOWN,
        "targets": Targets.RANKS if DESTINATION in names else Targets.EXPERTS,
    }
