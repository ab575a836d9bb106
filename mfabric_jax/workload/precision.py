"""What precision means for bytes that are sent."""

from typing import Any

from mfabric_jax.checks import one_of

PRECISION = "precision"
SCALED = 128  # elements of a token that share a scale of 4 bytes
PRECISIONS: dict[str, dict[str, float]] = {  # bytes per element
    "bf16": {"dispatch_bytes": 2, "combine_bytes": 2, "grad_bytes": 2},
    # DeepSeek-V3 (arXiv 2412.19437) sends tokens to experts, and one gradient of the two, in FP8 with scales; answers
    # and all else in bf16. Dispatch and its gradient are of one size here.
    "fp8": {"dispatch_bytes": 1 + 4 / SCALED, "combine_bytes": 2, "grad_bytes": 2},
}

BYTES = {  # per element of what is sent, by number format: FP8 with the scales of tokens
    "dispatch": {"bf16": 2.0, "fp8": PRECISIONS["fp8"]["dispatch_bytes"]},
    "combine": {"bf16": 2.0, "fp8": PRECISIONS["fp8"]["dispatch_bytes"]},
    "gradients": {"bf16": 2.0, "fp8": 1.0},
}


def in_bytes(given: dict[str, Any]) -> dict[str, Any]:
    """Settings with bytes in the place of `precision`; bytes that are given themselves stay."""
    if given.get(PRECISION) is None:
        return {name: value for name, value in given.items() if name != PRECISION}
    bytes_of = PRECISIONS[one_of(PRECISION, given[PRECISION], PRECISIONS)]
    return bytes_of | {name: value for name, value in given.items() if name != PRECISION}
