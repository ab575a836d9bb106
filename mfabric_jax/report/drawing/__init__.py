"""Drawing with matplotlib, an extra: importing this package raises InputError if matplotlib is missing.

This folder, `figures` and `html` import matplotlib at the top, so they are loaded only to draw, after this file.
"""

from mfabric_jax.support.extras import extra

with extra("plot", "drawing figures"):
    import matplotlib  # noqa: F401
