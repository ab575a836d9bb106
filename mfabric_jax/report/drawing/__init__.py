"""Draw with matplotlib, an extra. Importing this package raises InputError if matplotlib is missing.

Modules of this folder, `figures` and `html` import matplotlib at the top; they are loaded only to draw, after this one.
"""

from mfabric_jax.support.extras import extra

with extra("plot", "drawing figures"):
    import matplotlib  # noqa: F401
