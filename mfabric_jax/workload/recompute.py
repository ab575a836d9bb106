"""What a backward pass computes again instead of keeping it: nothing, parts of a block joined by "+", or a level."""

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
LEVELS: dict[str, tuple[str, ...]] = {  # of a search, from what computes least again
    "none": (),
    "light": ("norm", "activation", "mla-up"),
    "attention": ("attention",),
    "block": tuple(PARTS),
}
WORDS = f"{', '.join(LEVELS)}, or some of {', '.join(PARTS)} joined by +"


class Again(NamedTuple):
    """`parts` of a block; `whole`: from its input on; `attention`, `inner`: some of it, of experts or the FFN;
    `exchanges`: its all-to-alls, too."""

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
def again_of(recompute: str, field: str = "recompute") -> Again:
    """`InputError` for an unknown part."""
    if recompute in LEVELS:
        return Again(frozenset(LEVELS[recompute]), recompute == "block")
    parts = str(recompute).split("+")
    for part in parts:
        if part not in PARTS:
            raise InputError(f"{field} must be {WORDS}, got {recompute!r}.")
    return Again(frozenset(parts), False)
