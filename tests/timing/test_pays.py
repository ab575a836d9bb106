"""Circuits looked up among those of a stage's demands are those found all-to-all after all-to-all."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.policies import greedy
from mfabric_jax.timing import switching
from mfabric_jax.timing.exchange import exchanges_between
from mfabric_jax.timing.passes import places
from mfabric_jax.timing.switching import First, TradeOff, what_pays
from mfabric_jax.workload.schedules import SCHEDULES
from tests.oracles.timeline import Stage
from tests.timing.jobs import TOKENS, job, region
from tests.timing.test_beside import NVLINK, SECONDS, rates, timed

BYTES = 125e6


def solved(policy, cold):
    """For four delays, from free to never worth it."""
    found, workload = [], dataclasses.replace(job(ep=8, experts=8), micro_batches=5)
    busy = np.random.default_rng(0).choice([1.0, 3.0], places(workload).layer.shape)
    for delay in (0.0, 0.02, 0.2, 5.0):
        sizes, inner, behind = jnp.ones(2), jnp.asarray([0.05, 0.1, 0.05]), jnp.asarray([0.0, 0.02, 0.01])
        trade_off = TradeOff(jnp.asarray(delay), jnp.asarray(5e10), sizes, inner, behind, jnp.asarray(1e-3))
        trade_off = trade_off._replace(expert_s=0.8 * inner, busy=jnp.asarray(busy))
        first = First("pays", trade_off=trade_off, cold=cold)
        found.append(exchanges_between(workload, region(), TOKENS, policy, first=first))
    return found


@pytest.mark.parametrize("cold", [False, True])
def test_looked_up_or_one_after_the_other(cold, monkeypatch):
    looked_up = solved(greedy, cold)
    monkeypatch.setattr(switching, "few_pairs", lambda own: False)
    in_turn = solved(lambda *given, **rest: greedy(*given, **rest), cold)  # another policy: traced anew
    for ours, theirs in zip(looked_up, in_turn, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(one, other, rtol=1e-12)
    changes = [int(one.switch.sum()) for one in looked_up]
    assert changes[0] > changes[-1] == 0


@pytest.mark.parametrize("recompute", ["none", "attention"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_foreseen_is_what_every_kind_of_pass_computes(schedule, recompute):
    # All-to-alls take no time: experts run between the two of a block, and behind the second what hides the switch.
    settings = {"schedule": schedule, "recompute": recompute, "overlap_passes": False}
    chunks = 2 if schedule in ("interleaved", "zb-v") else 1
    workload = job(pp=2, blocks=4, micro_batches=6, chunks=chunks, **settings)
    where, slots = places(workload), timed(workload).walked.slots
    trade_off = switching.trade_off_of(workload, rates(), SECONDS)
    kinds, at = {0, 1, 2} if SCHEDULES[schedule].splits else {0, 1}, where.layer >= 0
    assert kinds >= set(where.kind[at]) >= {0, max(kinds)}
    experts, behind = slots.inner[..., 1] - slots.inner[..., 0], slots.end - slots.over[..., 1]
    for foreseen, found in ((trade_off.inner_s, experts), (trade_off.behind_s, behind)):
        np.testing.assert_allclose(found[at], foreseen[where.kind[at]], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("recompute", ["none", "attention"])
def test_what_is_foreseen_is_what_a_plain_clock_needs(recompute):
    # A switch that turns for as long as the block behind computes is not waited for; what it turns longer is.
    workload = job(blocks=2, micro_batches=1, recompute=recompute)
    behind_s = float(switching.trade_off_of(workload, rates(), SECONDS).behind_s[1])
    block = {"attention": SECONDS.attention_s, "inner": SECONDS.moe_s, "tp": 1.5e9 / NVLINK, "exchange": [(1, 0)] * 2}
    for delay, paid in ((behind_s, 0.0), (behind_s + 0.1, 0.1)):
        region = Stage(delay, recompute=recompute)
        region.run("B", block | {"switch": (False, False), "ahead": True})
        second = region.run("B", block | {"switch": (True, False), "ahead": True})
        assert second["paid"] == pytest.approx(paid)


def test_a_gain_within_the_tolerance_is_none():
    old, new = (jnp.asarray(BYTES), jnp.asarray(0.0)), (jnp.asarray(0.9995 * BYTES), jnp.asarray(0.0))
    free = TradeOff(0.0, 1.0, jnp.ones(2), jnp.zeros(3), jnp.zeros(3))
    given = old, new, jnp.asarray(1.0), jnp.asarray(0), jnp.asarray(0), jnp.asarray(1.0)
    assert what_pays(free, *given).all()
    assert not what_pays(free._replace(tolerance=switching.RELAY_TOLERANCE), *given).any()
