"""What each choice of a set-up is worth: the best set-up of the same space without it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from mfabric_jax.case import Case
from mfabric_jax.case.paths import flat
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax
from mfabric_jax.evaluate.setups.search import Runner
from mfabric_jax.workload.kernels import USUAL_DISPATCHER
from mfabric_jax.workload.layout import ENDS, EVEN
from mfabric_jax.workload.space import LATER_SHARDING, OPEN, SetUp, divisors


class SetUpChoice(NamedTuple):
    """A choice that a set-up makes, in words, and the settings that state it away, in one or several `ways`."""

    words: str
    ways: tuple[Mapping[str, Any], ...]


def choices_of(case: Case, set_up: SetUp, per_server: int) -> list[SetUpChoice]:
    """Return the choices of a set-up that the case did not state itself. `per_server`: GPUs of a server."""
    values = flat(case)
    every = [choice for made, choice in _every_choice(set_up, per_server) if made]
    is_open = {None, OPEN}
    return [choice for choice in every if all(values.get(path) in is_open for way in choice.ways for path in way)]


def _every_choice(own: SetUp, per_server: int) -> Iterator[tuple[bool, SetUpChoice]]:
    """Yield every known choice, and whether a set-up makes it."""
    same = tuple({"job.parallel.tp": tp, "job.parallel.etp": tp} for tp in divisors(per_server))
    usual = USUAL_DISPATCHER["per-expert"]  # every cluster has it
    plain = {"job.dispatcher": usual, "job.dispatch": "per-expert"}
    yield own.overlap == "passes", SetUpChoice("overlap of passes", ({"job.overlap": "none"},))
    yield own.schedule == "interleaved", SetUpChoice("interleaving", ({"job.schedule": "1f1b"},))
    yield own.layout not in (EVEN, ENDS), SetUpChoice("a layout written out", ({"job.layout": EVEN},))
    yield own.dispatcher not in (usual, "ideal"), SetUpChoice(f"dispatcher {own.dispatcher}", (plain,))
    yield own.cp > 1, SetUpChoice("context parallelism", ({"job.parallel.cp": 1},))
    yield own.recompute != "none", SetUpChoice("recomputation", ({"job.recompute": "none"},))
    yield own.etp < own.tp, SetUpChoice("folding (etp below tp)", same)
    yield 1 < own.etp == own.tp, SetUpChoice("TP inside experts", ({"job.parallel.etp": 1},))
    yield own.sharding in LATER_SHARDING, SetUpChoice(f"sharding {own.sharding}", ({"job.sharding": "optimizer"},))


def seconds_without(
    case: Case, choice: SetUpChoice, progress: Callable[[str], None] = lambda words: None
) -> Runner | None:
    """Return the fastest set-up without a choice, by a search for each of its ways; None: there is none.

    `progress` is called with words before each search.
    """
    fastest = None
    for way in choice.ways:
        progress(f"without {choice.words}")
        try:
            resolved = resolve_without_jax(case.with_(way))
        except InputError:
            continue
        if resolved.searched is not None and (fastest is None or resolved.searched.seconds < fastest.seconds):
            fastest = resolved.searched.runners[0]
    return fastest
