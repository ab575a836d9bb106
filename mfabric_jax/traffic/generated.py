"""Traffic of a chosen skew: expert popularity follows a power law."""

import numpy as np

from mfabric_jax import checks
from mfabric_jax.traffic.randomness import Purpose, normalised, popularity, stream
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Workload

ROW_NOISE_PER_SKEW = 0.5


def generated(
    workload: Workload,
    skew: float = 0.0,
    iterations: int = 1,
    micro_batches: int = 4,
    seed: int = 0,
    drift: float = 0.0,
) -> Tokens:
    """Expected selections (reals): an expert's popularity is its popularity rank to the power -`skew`.

    Which expert has which rank is permuted per layer by the seed. Every source rank's row is multiplied, expert by
    expert and afresh in every micro-batch, by log-normal noise of sigma 0.5 `skew`; nothing else is sampled, so
    `skew` 0 without `drift` is exactly balanced. `drift` and `seed` are those of `measured`. Every source rank
    sends `workload.selections`. Raises `InputError` for settings out of range.
    """
    checks.not_negative("skew", skew)
    checks.whole("iterations", iterations)
    checks.whole("micro_batches", micro_batches)
    checks.not_negative("drift", drift)
    checks.whole("seed", seed, at_least=0)
    layers, experts = workload.moe_layers, workload.architecture.experts
    count = np.empty((iterations, layers, micro_batches, workload.ep, experts))
    power_law = np.arange(1, experts + 1) ** -float(skew)
    for layer in range(layers):
        base = stream(seed, Purpose.ORDER, layer).permutation(power_law)
        walk = popularity(seed, layer, iterations, experts, drift)
        for iteration in range(iterations):
            row_noise = stream(seed, Purpose.ROW_NOISE, layer, iteration).standard_normal(count.shape[2:])
            weight = base * walk[iteration] * np.exp(ROW_NOISE_PER_SKEW * skew * row_noise)
            count[iteration, layer] = workload.selections * normalised(weight)
    return Tokens(count, f"generated, skew {skew:g}, drift {drift:g}, seed {seed}")
