"""Where the prices of the GPUs that are for sale come from."""

from collections.abc import Iterable
from typing import NamedTuple

from mfabric_jax.case import Case
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.evaluate.rows.costs import usd_of_gpu
from mfabric_jax.fabric.cost import updated_table


class GpuQuote(NamedTuple):
    """The price of a GPU. `source`: that of the catalogue; None: the price is the user's."""

    name: str
    usd: float
    source: str | None


def gpu_quotes(settled: Iterable[Case]) -> list[GpuQuote]:
    """Return the known price of every GPU of the cases."""
    return list(dict.fromkeys(quote for quote in map(_quote, settled) if quote is not None))


def _quote(case: Case) -> GpuQuote | None:
    settings = resolve(case)
    gpu, usd = settings.server, usd_of_gpu(settings)
    if usd is None:
        return None
    own = {} if case.network.prices is None else updated_table(case.network.prices)[1].get("gpus", {})
    is_own = gpu.usd is not None or "usd" in own.get(gpu.name, {})
    return GpuQuote(gpu.name, usd, None if is_own else settings.parts.gpus[gpu.name].source)
