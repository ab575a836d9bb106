"""Traffic drawn from measured expert shares of trained models: OLMoE (64 experts) and Mixtral 8x7B (8 experts).

Source: routing counts published with OLMoE, arXiv 2409.02060; see data/NOTICE.
"""

import functools
import importlib.resources

import numpy as np

from mfabric_jax import checks
from mfabric_jax.traffic.knobs import Knobs
from mfabric_jax.traffic.popularity import Purpose, deviation, stream, to_shares
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Workload


def measured(
    workload: Workload, iterations: int = 1, micro_batches: int = 4, drift: float = 0.05, seed: int = 0
) -> Tokens:
    """Selections drawn at random (multinomial) with measured expert shares.

    - `micro_batches`: how many distinct ones to draw per iteration.
    - `drift`: standard deviation per iteration of a log-normal random walk of each (layer, expert)'s popularity,
      which all source ranks share; iteration 0 has the measured shares themselves.
    - `seed`: decides everything random; a longer run starts with the shorter one.

    Mixtrals read the Mixtral table, all others OLMoE's. A model with fewer experts than its table gets sums of
    neighbours, one with more gets copies. Layer l reads table slot round(2 l / (layers - 1)), its experts
    permuted per layer (which permutes copies among each other too); source rank r reads text domain r mod 5.
    That the k experts of a token differ is not enforced. Returns int32 counts; every source rank sends
    `workload.selections`. Raises `InputError` for settings out of range, and for a number of experts that
    neither divides the table's nor is a multiple of it.
    """
    checks.whole("iterations", iterations)
    checks.whole("micro_batches", micro_batches)
    checks.not_negative("drift", drift)
    checks.whole("seed", seed, at_least=0)
    layers, experts = workload.moe_layers, workload.architecture.experts
    table = _table("mixtral" if workload.architecture.name.startswith("mixtral") else "olmoe", experts)
    domain = np.arange(workload.ep) % table.shape[0]
    count = np.empty((iterations, layers, micro_batches, workload.ep, experts), np.int32)
    for layer in range(layers):
        order = stream(seed, Purpose.ORDER, layer).permutation(experts)
        slot = round(2 * layer / (layers - 1)) if layers > 1 else 0
        base = table[domain, slot][:, order]
        walk = np.exp(deviation(Knobs(drift=drift), experts, seed, layer, np.arange(iterations)))
        for iteration in range(iterations):
            share = np.broadcast_to(to_shares(base * walk[iteration]), count.shape[2:])
            draw = stream(seed, Purpose.SELECTIONS, layer, iteration)
            count[iteration, layer] = draw.multinomial(workload.selections, share)
    return Tokens(count, f"measured expert shares (arXiv 2409.02060), drift {drift:g}, seed {seed}")


@functools.cache
def _tables() -> dict[str, np.ndarray]:
    file = importlib.resources.files("mfabric_jax.traffic") / "data" / "expert_shares.npz"
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        return {name: to_shares(arrays[name].astype(np.float64)) for name in ("olmoe", "mixtral")}


def _table(name: str, experts: int) -> np.ndarray:
    """[domain, slot, expert] shares of so many experts."""
    table = _tables()[name]
    *axes, known = table.shape
    if known % experts == 0:
        return table.reshape(*axes, experts, known // experts).sum(axis=-1)
    if experts % known == 0:
        return np.tile(table, experts // known)
    raise checks.InputError(
        f"experts must divide or be a multiple of the {known} of the measured table ({name}), got {experts}."
    )
