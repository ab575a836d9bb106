"""Small workloads for the tests of this folder, and one traced iteration per fabric that several tests share."""

import functools
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.policies import Plan, greedy, keep, uniform
from mfabric_jax.timing import First, Rules, exchanges, iterate, rates_of
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.workload import GroupedQuery, Workload, models
from mfabric_jax.workload.compute import BlockSeconds


def job(*, tp=4, ep=4, dp=1, pp=1, blocks=2, experts=4, dense_blocks=0, micro_batches=2, top_k=1, **settings):
    """Tokens of 1,000 elements; 996,000 parameters of attention, 1,000 an expert of gate, 3e6 an expert. Unless
    `settings` say otherwise, attention alone is all-reduced."""
    size = {"blocks": blocks, "hidden": 1000, "experts": experts, "top_k": top_k, "expert_hidden": 1000}
    size |= {"dense_blocks": dense_blocks, "dense_hidden": 500}
    model = models.Architecture(name="tiny", attention=GroupedQuery(1, 1, 249), source="made up", **size)
    settings = {"sequence": 500_000, "micro_batch": 1, "grad_bytes": 1000, "sharding": "none"} | settings
    settings = {"tp_reduces": "attention"} | settings
    return Workload.of("tiny", model, dp, tp, pp, ep, gpus=dp * tp * pp * ep, micro_batches=micro_batches, **settings)


def of_cases(numbers):
    """Numbers of one case, [1 1] or [1 P], as JAX arrays."""
    return jax.tree.map(lambda x: jnp.asarray(x, float).reshape(1, -1), numbers)


COLD = First(cold=True)  # circuits are uniform before the iteration


def timed(workload, fabric, found, seconds, nvswitch_Bps, *, tp_Bps=None, **rules):
    """The iteration on a fabric or at rates, with an NVSwitch of so many bytes/s; `rules`: fields of `Rules`."""
    rates = fabric if isinstance(fabric, FabricRates) else rates_of(fabric)
    rates = rates._replace(nvlink_Bps=nvswitch_Bps)
    return iterate(workload, rates, found, seconds, rules=Rules(**rules), tp_Bps=tp_Bps)


def simulate(workload, fabric, tokens, seconds, policy, nvswitch_Bps, first=COLD):
    """Exchanges and iteration."""
    found = exchanges(workload, fabric, tokens, policy, first=first)
    return found, timed(workload, fabric, found, seconds, nvswitch_Bps)


# 3 stages on 4 servers each, 2 ranks a server, one expert a rank; fp8 dispatch, bf16 combine. 7 blocks: STAGES has
# those of each stage, the first two are dense. Tokens are known for 3 of 4 micro-batches: the last reads the first's.
STAGES = ((0, 1, 2), (3, 4), (5, 6))
DENSE, BATCHES, RECORDED = 2, 4, 3
SIZES = {"dispatch_bytes": 1, "combine_bytes": 2}
DRAWN = job(pp=3, ep=8, experts=8, blocks=7, dense_blocks=DENSE, micro_batches=BATCHES, **SIZES)
BYTES_PER_TOKEN = 1000
GREEDY, KEEP, UNIFORM = range(3)


class Chosen(eqx.Module):
    """A policy with an array in it: one of three by number, so that all share one trace."""

    number: jax.Array

    def __call__(self, demand, region, *, previous=None, key=None):
        plans = [policy(demand, region, previous=previous, key=key) for policy in (greedy, keep, uniform)]
        return Plan(Circuits(jnp.stack([plan.circuits.count for plan in plans])[self.number]))


def draw_tokens(seed):
    """Selections [layer M R E] as real numbers; every block and micro-batch has its own hot experts."""
    rng = np.random.default_rng(seed)
    shape = (DRAWN.moe_layers, RECORDED, 8, 8)
    heat = rng.lognormal(0, 1.5, (*shape[:2], 1, shape[3]))
    return rng.uniform(0, 1, shape) ** 2 * heat * DRAWN.selections / 8


def numbers(*values):
    """Scalars of the default types, so that none traces anew."""
    return tuple(jnp.asarray(value, int if isinstance(value, int) else float) for value in values)


def region(nic_gbps=8.0, degree=6, nics=2.0, delay=2.0):
    return Region(4, *numbers(nic_gbps, degree, nics, delay))


def fat_tree(nic_gbps=8.0, oversubscription=1.0):
    nic_gbps, oversubscription = numbers(nic_gbps, oversubscription)
    return Electrical(nic_gbps, oversubscription=oversubscription)


TOKENS = draw_tokens(0)
SECONDS = BlockSeconds(*numbers(0.2, 0.3, 0.4))
(NVSWITCH,) = numbers(10e9)


@functools.cache
def _once(kind, file):
    """A second trace fails, whichever test of a file asks for it; between files caches may be dropped."""
    return eqx.filter_jit(eqx.debug.assert_max_traces(simulate, max_traces=1))


def drawn(fabric, tokens=TOKENS, policy=GREEDY, seconds=SECONDS, nvswitch_Bps=NVSWITCH):
    """Exchanges and iteration of the drawn job."""
    once = _once(type(fabric), sys._getframe(1).f_globals["__name__"])
    return once(DRAWN, fabric, tokens, seconds, Chosen(jnp.asarray(policy)), nvswitch_Bps)


@eqx.filter_jit
def drawn_again(fabric, found, seconds, nvswitch_Bps):
    """Iteration of the drawn job with known all-to-alls, if packets wait for the switch too."""
    return timed(DRAWN, fabric, found, seconds, nvswitch_Bps, eps_waits=True)
