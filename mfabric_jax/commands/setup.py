"""Options that several commands have."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetUp:
    """Overrides of a model's own set-up."""

    dp: int | None = None
    """Data-parallel degree; the degrees have to multiply to gpus."""
    tp: int | None = None
    """Tensor-parallel degree."""
    pp: int | None = None
    """Pipeline stages."""
    ep: int | None = None
    """Expert-parallel degree."""
    gpus: int | None = None
    """GPUs of the cluster."""
    micro_batch: int | None = None
    """Sequences per EP rank and micro-batch."""
    micro_batches: int | None = None
    """Micro-batches per iteration (default: the pipeline stages)."""
    sequence: int | None = None
    """Tokens of a sequence."""
    schedule: str | None = None
    """Order of passes: 1f1b (default), interleaved, gpipe."""
    chunks: int | None = None
    """Chunks of blocks on a stage, under interleaved."""
    recompute: str | None = None
    """What the backward pass computes again: none (default), attention, block."""
