"""Recomputation: what a backward pass computes again instead of keeping it. A setting is a level, or parts of a block
joined by "+"."""

import functools
from typing import NamedTuple

from mfabric_jax.checks import InputError

ATTENTION_PARTS = {
    "norm": "the norms before attention and FFN",
    "mla-up": "queries, keys and values from the latents of multi-head latent attention",
    "attention": "all of attention",
}
INNER_PARTS = {
    "activation": "the gated product of experts and FFNs",
    "shared": "shared experts",
    "mlp": "FFNs of dense blocks",
    "router": "logits and probabilities of experts",
    "moe": "experts, with their all-to-alls",
}
PARTS = ATTENTION_PARTS | INNER_PARTS
LEVELS: dict[str, tuple[str, ...]] = {  # in the order of a search, least recomputation first
    "none": (),
    "light": ("norm", "activation", "mla-up"),
    "attention": ("attention",),
    "block": tuple(PARTS),
}
WORDS = f"{', '.join(LEVELS)}, or some of {', '.join(PARTS)} joined by +"


class Recomputed(NamedTuple):
    """What a backward pass recomputes of a block: `parts`, or the `whole` block from its input on. `attention`,
    `inner`, `exchanges`: whether that includes parts of attention, parts of experts and FFNs, and all-to-alls.
    """

    parts: frozenset[str]
    whole: bool

    @property
    def attention(self) -> bool:
        return bool(self.parts & {*ATTENTION_PARTS})

    @property
    def inner(self) -> bool:
        return bool(self.parts & {*INNER_PARTS, "norm"})

    @property
    def exchanges(self) -> bool:
        return "moe" in self.parts


@functools.cache
def recomputed_of(recompute: str, field: str = "recompute") -> Recomputed:
    """Return what a `recompute` setting recomputes. Raise `InputError`, which names `field`, for an unknown part."""
    if recompute in LEVELS:
        return Recomputed(frozenset(LEVELS[recompute]), recompute == "block")
    parts = str(recompute).split("+")
    for part in parts:
        if part not in PARTS:
            raise InputError(f"{field} must be {WORDS}, got {recompute!r}.")
    return Recomputed(frozenset(parts), False)
