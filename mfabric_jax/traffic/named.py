"""Workloads with names, for comparisons between people.

Sources: hot experts and ranks, rotation, bursts and empty experts as in the token-imbalance benchmark proposed to
Megatron-LM (pull request 7488, W0 to W7); the exponents of the power laws from aiconfigurator (pull request 134); the
log-normal distribution, as the best fit to recorded loads, from DeepEP (pull request 393). What those leave open
(shares, periods, the log-normal's deviation) is chosen here. W4, ranks that send unequally, is not offered: every
source rank sends the same.
"""

from mfabric_jax.checks import one_of
from mfabric_jax.traffic.knobs import LOG_NORMAL, Knobs

WORKLOADS: dict[str, Knobs] = {
    "balanced": Knobs(),
    "hot-experts": Knobs(hot_experts=2, hot_share=0.5),
    "spread-hot-experts": Knobs(hot_experts=2, hot_share=0.5, hot_spread=True),
    "hot-rank": Knobs(hot_ranks=1, hot_share=0.5),
    "empty-experts": Knobs(sparsity=0.25),
    "rotating-hot-spot": Knobs(hot_ranks=1, hot_share=0.5, rotation=4),
    "burst": Knobs(hot_ranks=1, hot_share=0.5, burst_every=8),
    "power-law-0.6": Knobs(skew=0.6),
    "power-law-0.8": Knobs(skew=0.8),
    "power-law-1.01": Knobs(skew=1.01),
    "power-law-1.2": Knobs(skew=1.2),
    "log-normal": Knobs(popularity=LOG_NORMAL, skew=1.0),
}


def workload_knobs(name: str) -> Knobs:
    """The knobs of a named workload. `InputError` for an unknown name."""
    return WORKLOADS[one_of("traffic workload", name, WORKLOADS)]
