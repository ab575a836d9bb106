"""Programs for platforms that are not here."""

import pytest


def text_for(traced, platform):
    """The program of a traced function for a platform; skipped where this JAX cannot lower without its device."""
    try:
        return traced.lower(lowering_platforms=(platform,)).as_text()
    except (ImportError, RuntimeError) as error:  # a CUDA plugin, or a GPU, is needed to lower Triton kernels
        pytest.skip(f"this JAX cannot lower for {platform} here: {error}")
