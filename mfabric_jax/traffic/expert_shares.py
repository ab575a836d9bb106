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
    neighbours, one with more gets copies; where the numbers do not divide, the shares of every slot, in order of
    popularity, are cut anew into as many parts of equal width (`source` says so). Layer l reads table slot
    round(2 l / (layers - 1)), its experts permuted per layer (which permutes copies among each other too); source rank
    r reads text domain r mod 5. That the k experts of a token differ is not enforced. Returns int32 counts; every
    source rank sends `workload.selections`. Raises `InputError` for settings out of range.
    """
    checks.whole("iterations", iterations)
    checks.whole("micro_batches", micro_batches)
    checks.not_negative("drift", drift)
    checks.whole("seed", seed, at_least=0)
    layers, experts = workload.moe_layers, workload.architecture.experts
    mixtral = workload.architecture.name.lower().startswith("mixtral")
    table, said = _table("mixtral" if mixtral else "olmoe", experts)
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
    return Tokens(count, f"measured expert shares (arXiv 2409.02060){said}, drift {drift:g}, seed {seed}")


@functools.cache
def _tables() -> dict[str, np.ndarray]:
    file = importlib.resources.files("mfabric_jax.traffic") / "data" / "expert_shares.npz"
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        return {name: to_shares(arrays[name].astype(np.float64)) for name in ("olmoe", "mixtral")}


def _table(name: str, experts: int) -> tuple[np.ndarray, str]:
    """[domain, slot, expert] shares of so many experts, and what to say about them."""
    table = _tables()[name]
    *axes, known = table.shape
    if known % experts == 0:
        return table.reshape(*axes, experts, known // experts).sum(axis=-1), ""
    if experts % known == 0:
        return np.tile(table, experts // known), ""
    return shares_of_others(table, experts), f" of {known} experts resampled to {experts}"


def shares_of_others(table: np.ndarray, experts: int) -> np.ndarray:
    """Shares [domain, slot, expert] of another number of experts: those of every slot, in order of popularity over all
    domains, side by side on a line of length 1 that is cut into as many equal parts."""
    order = np.argsort(-table.mean(axis=0, keepdims=True), axis=-1, kind="stable")
    ordered = np.take_along_axis(table, np.broadcast_to(order, table.shape), axis=-1)
    below = np.concatenate([np.zeros((*table.shape[:-1], 1)), np.cumsum(ordered, axis=-1)], axis=-1)
    cuts = np.linspace(0, table.shape[-1], experts + 1)
    left = np.minimum(cuts.astype(int), table.shape[-1] - 1)
    within = below[..., left] + (cuts - left) * ordered[..., left]
    return to_shares(np.diff(within, axis=-1))


# The token matrix that stands in the packet simulator which mFabric's authors released, for any number of ranks.

SIZE = 8
# Selections of 8 sources (rows) for 8 destinations; a row is one micro-batch of 8 x 4096 tokens. Source: mixnet.cpp,
# Mixnet::weighted_connect, of the simulator released with arXiv 2501.03905. That it made the figures is a guess.
MATRIX = np.array(
    [
        [9810, 5338, 1231, 3042, 4452, 2004, 841, 6050],
        [9278, 6282, 839, 3722, 3821, 2903, 909, 5014],
        [10684, 5165, 1044, 2634, 4344, 3333, 675, 4889],
        [10897, 5629, 1086, 2114, 2762, 3463, 1059, 5758],
        [8684, 5666, 1046, 3955, 4334, 2952, 944, 5187],
        [8361, 5908, 777, 3043, 3984, 3422, 897, 6376],
        [10208, 5507, 1117, 4148, 3967, 3119, 904, 3798],
        [9781, 5211, 902, 3343, 4289, 2839, 1008, 5395],
    ]
)


def authors(workload: Workload, iterations: int = 1) -> Tokens:
    """Expected selections [iteration layer 1 R E], the same in every iteration, layer and micro-batch.

    Rank s sends rank d in proportion to the matrix at (s mod 8, d mod 8), and all experts of a rank get the same; every
    source rank sends `workload.selections` (the released code scales rows by the number of ranks instead).
    """
    ranks, experts = workload.ep, workload.architecture.experts
    place = np.arange(ranks) % SIZE
    weight = np.repeat(MATRIX[np.ix_(place, place)], experts // ranks, axis=1).astype(float)
    count = workload.selections * weight / weight.sum(axis=1, keepdims=True)
    shape = (iterations, workload.moe_layers, 1, ranks, experts)
    return Tokens(np.broadcast_to(count, shape), "the authors' 8 x 8 matrix, tiled")
