"""Policies that remember: an iteration calls them as a plain loop over its all-to-alls does."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, resolve
from mfabric_jax.evaluate.composed import iteration_of
from mfabric_jax.evaluate.solving import solve_between
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan, greedy, uniform
from mfabric_jax.policies.reads import SEEN
from mfabric_jax.timing.passes import places
from tests.small import row, rows, scenario, several, small

ON = {"network.fabric": "mfabric", "run.dtype": "float32"}
BLOCKS = 16  # of a pass of `STAGES`
STAGES = ON | {"job.parallel.pp": 2, "job.batch.micro_batches": 3, "traffic.drawn": 2, "run.iterations": 2}


def skewed(demand, region, *, previous=None, key=None):
    """Greedy for demands whose differences are enlarged: those of this job are small."""
    share = demand / demand.max()
    for _ in range(6):
        share = share * share
    return greedy(share, region, rule="next")


def moved(demand, region, *, previous=None, key=None, history=None, state=None):
    """Greedy for a moving average and the last demands; every third call keeps the circuits."""
    calls, mean = (jnp.zeros((), jnp.int32), demand) if state is None else state
    mean = 0.5 * mean + 0.5 * demand
    fresh = skewed(mean + history[-1] + 0.25 * history[0], region).circuits.count
    kept = (uniform(demand, region) if previous is None else previous).circuits.count  # None only in the trial
    count = jnp.where(calls % 3 == 2, kept.astype(fresh.dtype), fresh)
    return Plan(Circuits(count)), (calls + 1, mean)


def called_by_hand(problem, policy, times):
    """The circuits [I P Q L S S] of a policy in the last of several equal iterations, call by call."""
    where, demand = places(problem.workload), np.asarray(problem.between.demand, np.float32)
    region = Region(demand.shape[-1], 400.0, int(problem.group.optical_degree))
    chosen = np.zeros((len(demand), *where.layer.shape, *demand.shape[-2:]), int)
    for iteration, stage in np.ndindex(len(demand), len(where.layer)):
        count, state, history = uniform(None, region).circuits.count, None, np.zeros((SEEN, *demand.shape[-2:]))
        for _ in range(times):
            for place in np.ndindex(where.layer.shape[1:]):  # passes in their order, then blocks in theirs
                layer = where.layer[stage][place]
                if layer < 0:
                    continue
                own = demand[iteration, layer % demand.shape[1], where.micro_batch[stage][place] % demand.shape[2]]
                plan, state = policy(
                    jnp.asarray(own), region, previous=Plan(Circuits(count)), history=jnp.float32(history), state=state
                )
                count, history = plan.circuits.count, np.concatenate([history[1:], own[None]])
                chosen[(iteration, stage, *place)] = count
    return chosen, where.layer >= 0


@pytest.mark.parametrize("cold", [False, True])
def test_an_iteration_calls_a_policy_with_a_state_as_a_plain_loop_does(cold):
    problem = scenario(small(STAGES | {"circuits.policy": moved, "circuits.cold_start": cold}))
    want, sent = called_by_hand(problem, moved, times=1 if cold else 2)
    got = np.asarray(solve_between(problem).count)[0, ..., 1, :, :]  # of a block's second all-to-all
    np.testing.assert_array_equal(got[:, sent], want[:, sent])
    assert len(np.unique(want[:, sent].reshape(-1, want[0, 0, 0, 0].size), axis=0)) > 10
    once, _ = called_by_hand(problem, moved, times=2 if cold else 1)
    assert (once[:, sent] != want[:, sent]).any()  # the state of the iteration before counts


def agreeing(demand, region, *, previous=None, key=None, history=None, state=None):
    """`skewed`, if the history and the circuits in place are those that the state knows; else no circuits."""
    there = (uniform(demand, region) if previous is None else previous).circuits.count
    sent, last = (jnp.zeros_like(history), there) if state is None else state
    fresh = skewed(demand, region).circuits.count
    agree = jnp.all(sent == history) & jnp.all(there == last)
    return Plan(Circuits(jnp.where(agree, fresh, 0))), (jnp.concatenate([sent[1:], demand[None]]), fresh)


def idle(demand, region, *, previous=None, key=None, state=None):
    """`skewed` with a state that nothing needs."""
    return skewed(demand, region), jnp.zeros(3) if state is None else state + 1


def averaged(demand, region, *, previous=None, key=None, state=None):
    """Circuits for a moving average; a state of two types."""
    mean, longest = (demand, region.delay_s) if state is None else state
    mean = 0.5 * mean + 0.5 * demand
    return skewed(mean, region), (mean, jnp.maximum(longest, region.delay_s))


def of_first_block(demand, region, *, previous=None, key=None, state=None):
    """Circuits for the first block of a pass alone, by a count of calls."""
    calls = jnp.zeros((), jnp.int32) if state is None else state
    return Plan(Circuits(jnp.where(calls % BLOCKS == 0, uniform(demand, region).circuits.count, 0))), calls + 1


def test_a_count_of_calls_is_the_block_of_a_pass_backward_from_the_last():
    problem = scenario(small(STAGES | {"circuits.policy": of_first_block}))
    where, count = places(problem.workload), np.asarray(solve_between(problem).count)[0]  # [I P Q L 2 S S]
    assert where.layer.shape[-1] == BLOCKS
    has_circuits = count.any((-2, -1))
    np.testing.assert_array_equal(has_circuits, np.broadcast_to(np.arange(BLOCKS)[:, None] == 0, has_circuits.shape))
    np.testing.assert_array_equal(np.diff(where.layer), np.where(where.backward[..., 1:], -1, 1))


def of_first_block_forward(demand, region, *, previous=None, key=None, block=None, backward: Any = None):
    """Circuits for the model's first block in forward passes alone."""
    first = (block == 0) & ~backward
    return Plan(Circuits(jnp.where(first, uniform(demand, region).circuits.count, 0)))


def test_a_policy_knows_its_block_and_its_direction():
    problem = scenario(small(STAGES | {"circuits.policy": of_first_block_forward}))
    where, count = places(problem.workload), np.asarray(solve_between(problem).count)[0]
    first = (where.layer == 0) & ~where.backward
    assert 0 < first.sum() < (where.layer == 0).sum()
    sent = where.layer >= 0
    got = count.any((-2, -1))  # [I P Q L 2]
    np.testing.assert_array_equal(got[:, sent], np.broadcast_to(first[..., None], got.shape)[:, sent])


def numbers_of(row):
    return {name: value for name, value in row.items() if name.endswith("_s") and "." not in name}


RULES = [("on-demand", {}), ("reuse", {}), ("pays", {}), ("predict", {"circuits.predict.predictor": "moving-average"})]


@pytest.mark.parametrize(("rule", "settings"), RULES)
def test_a_policy_with_an_idle_state_gets_the_rows_of_one_without(rule, settings):
    job = ON | settings | {"circuits.reconfigure": rule, "traffic.drawn": 2, "run.iterations": 2}
    usual, *others = (
        numbers_of(row(small(job | {"circuits.policy": policy})))
        for policy in (skewed, idle, *([] if rule == "pays" else [agreeing]))  # "pays" may keep other circuits
    )
    assert len(usual) > 8
    assert others == [usual] * len(others)
    even = numbers_of(row(small(job | {"circuits.policy": "uniform"})))
    assert even["iteration_s"] != usual["iteration_s"]


def test_cases_side_by_side_are_those_one_by_one():
    job = STAGES | {"circuits.policy": averaged}
    cases = several(job, {"circuits.delay_s": [1e-5, 0.02], "network.nic_gbps": [100, 400]})
    together = [numbers_of(each) for each in rows(cases)]
    assert together == [numbers_of(row(case)) for case in cases]
    assert len({each["iteration_s"] for each in together}) == 4


def traced_now(function, numbers):
    return function(numbers)


def test_what_keeps_no_memory_says_so():
    job = small(ON | {"circuits.policy": averaged})
    for refused, words in [
        (lambda: resolve(job.with_({"circuits.reconfigure": "span"})), "circuits.span.length must be block for"),
        (lambda: resolve(job.with_({"job.overlap": "passes"})), "circuits.policy must choose by demand alone"),
        (
            lambda: traced_now(*iteration_of(job)),
            "policy must not have the keywords history, state, block and backward in a",
        ),
    ]:
        with pytest.raises(InputError, match=words):
            refused()
