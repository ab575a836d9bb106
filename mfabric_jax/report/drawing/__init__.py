"""Charts and paper as matplotlib draws them, which this folder, `figures` and `html` import at the top: they are loaded
where something is drawn, and this file before any other of them."""

from mfabric_jax.support.extras import extra

with extra("plot", "drawing figures"):
    import matplotlib  # noqa: F401
