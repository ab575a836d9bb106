"""The quick way of the host and the traced way of JAX agree on drawn cases of every setting."""

import random

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mfabric_jax.simulation.on_host import covers
from mfabric_jax.timing.exchange import exchanges_inside

from mfabric_jax import InputError, load, resolve
from mfabric_jax.case.fabrics import NAMES
from mfabric_jax.evaluate import solving
from mfabric_jax.fabric.design import group_numbers
from mfabric_jax.timing import iterate
from tests.small import model_file

# What decides the code of a program, several times where it is what the quick way is about.
SHAPES = {
    "network.fabric": [*NAMES, *["mfabric"] * (26 - len(NAMES))],
    "network.nic_use": ["own", "pooled"],
    "network.paths": ["spray"] * 5 + ["ecmp"] * 2,
    "network.payload": ["goodput", "transport"],
    "circuits.policy": [
        *("greedy", "greedy-released", "greedy-next", "uniform", "static", "topoopt", "matching", "index", "joint"),
        *("sample-average", "random", "previous", "local-search", "threshold"),
    ],
    "circuits.routing": ["unsplit", "best-path", "split", "relay"],
    "circuits.turn": ["on-demand", "always", "pays", "pays", "span", "reuse", "predict"],
    "circuits.span.length": ["block", "stage", "iteration", "run"],
    "circuits.span.chosen_on": ["past", "actual"],
    "circuits.predict.both": [False, True],
    "circuits.partial": [False, False, False, True],
    "circuits.packets_wait": [False, True],
    "circuits.cold_start": [False, True],
    "compute.experts": ["balanced", "received"],
    "compute.received.combine": ["barrier", "rank"],
    "job.schedule": ["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe"],
    "job.overlap": ["none", "parts", "passes"],
    "job.recompute": ["none", "attention", "block"],
    "job.dispatch": ["per-expert", "per-server"],
    "job.sharding": ["none", "optimizer", "gradients"],
    "job.capacity_factor": [float("inf"), 1.25],
    "job.parallel.pp": [1, 2],
    "placement.rule": ["contiguous", "contiguous", "hierarchical"],
    "run.replicas": [1, 1, 2],
    "run.sample": [None],
}
CHOSEN = {
    "circuits.span.": "circuits.turn",
    "circuits.predict.": "circuits.turn",
    "compute.received.": "compute.experts",
}
WORDS = {"circuits.span.": "span", "circuits.predict.": "predict", "compute.received.": "received"}


def numbers(draw):
    """What is an input of a program."""
    return {
        "network.nic_gbps": draw.choice((100.0, 200.0, 400.0, 800.0)),
        "circuits.delay_s": 10 ** draw.uniform(-6, -1),
        "circuits.each_s": 10 ** draw.uniform(-7, -3),
        "compute.efficiency": draw.uniform(0.2, 0.9),
        "traffic.generated.skew": draw.uniform(0, 2),
        "run.seed": draw.randrange(1000),
    }


def shapes(draw, model):
    """A case by its alternatives, drawn until they go together."""
    while True:
        said = {path: draw.choice(values) for path, values in SHAPES.items()}
        for group, choice in CHOSEN.items():
            if said[choice] != WORDS[group]:
                said = {path: value for path, value in said.items() if not path.startswith(group)}
        said = {path: value for path, value in said.items() if value is not None}
        said |= {"model.name": model, "job.parallel.tp": 4, "job.parallel.ep": 8, "job.parallel.dp": 2}
        said |= {"job.batch.micro_batches": 4, "job.batch.sequence": 256, "traffic.drawn": 2, "run.iterations": 2}
        try:
            case = load().with_(said | numbers(random.Random(0)))
            resolve(case)
        except InputError:
            continue
        return case


def traced(one):
    """Iterations of a scenario as programs of JAX compute them."""
    dtype, job = one.settings.case.run.dtype, one.workload
    given = solving.program_of(one), group_numbers(one.group, dtype), solving.given_of(one)
    (gbps,) = one.bandwidths
    if one.weighs:
        between = eqx.filter_jit(solving._solve_weighed)(*given, solving.trade_off_at(one, gbps))
    else:
        between = eqx.filter_jit(solving._solve_all)(*given)
    sent = np.concatenate([replica.sent for replica in one.each_replica])
    rates, seconds = one.rates(gbps), one.settings.block_seconds(job)
    times = []
    for at, tokens in enumerate(sent):
        inside = exchanges_inside(job, given[1], jnp.asarray(tokens, dtype))
        each = jax.tree.map(lambda x, at=at: x[at], between)._replace(inside=inside, count=None)
        times.append(iterate(job, rates, each, seconds, rules=one.settings.rules))
    return between, jax.tree.map(lambda *x: np.stack(x), *times)


NEAR = {"float64": 1e-9, "float32": 1e-5}
NEAR_RELAY = {"float64": 1e-7, "float32": 1e-3}  # 100 steps of a search for shares enlarge what rounding differs in


def compare(case, dtype):
    most = (NEAR_RELAY if case.circuits.routing == "relay" else NEAR)[dtype]
    one = solving.problem_at(resolve(case.with_({"run.dtype": dtype})), (case.network.nic_gbps,))
    quick = solving.solve(one)
    between, expected = traced(one)
    found = solving._times_of_replicas(one, quick)
    quick = jax.tree.map(lambda x: x[0], quick) if one.weighs else quick
    for name, expected_of in between._asdict().items():
        if name in ("inside", "count"):  # solved apart; left out
            continue
        got = getattr(quick, name)
        assert (got is None) == (expected_of is None), name
        if got is not None:
            np.testing.assert_allclose(got, expected_of, rtol=most, err_msg=name)
    total = np.asarray(expected.iteration_s)
    for name in expected._fields:
        if name != "stage":
            slack = most * total.max()
            got = np.asarray(getattr(found, name)).reshape(-1)
            np.testing.assert_allclose(got, getattr(expected, name), rtol=most, atol=slack, err_msg=name)
    return covers(one)


def agree(seeds, tmp_path, most_numbers):
    dense = {"dense_blocks": 1, "dense_hidden": 64}
    models = model_file(tmp_path / "small.toml", blocks=4), model_file(tmp_path / "dense.toml", blocks=5, **dense)
    quick = 0
    for seed in seeds:
        draw = random.Random(seed)
        case = shapes(draw, models[seed % 2])
        for _ in range(most_numbers):
            drawn = case.with_(numbers(draw))
            quick += compare(drawn, "float64")
        compare(drawn, "float32")
    return quick


RARE = {  # drawn by chance too seldom
    "replicas under spans of an iteration": {"circuits.span.length": "iteration", "run.replicas": 2},
    "replicas under spans as they will be": {"circuits.span.chosen_on": "actual", "run.replicas": 2},
    "replicas where it pays": {"circuits.turn": "pays", "run.replicas": 2},
    "a run's circuits, overlapping passes": {"circuits.span.length": "run", "job.schedule": "dualpipe"},
}


@pytest.mark.parametrize("what", RARE)
def test_what_is_seldom_drawn(what, tmp_path):
    said = {"model.name": model_file(tmp_path / "small.toml", blocks=4), "job.parallel.tp": 4, "job.parallel.ep": 8}
    said |= {"job.parallel.dp": 2, "job.batch.micro_batches": 4, "job.batch.sequence": 256, "traffic.drawn": 2}
    said |= {"run.iterations": 2, "job.parallel.pp": 2, "traffic.generated.skew": 1.0} | RARE[what]
    assert compare(load().with_(said | {"network.fabric": "mfabric"}), "float64")


def test_a_few_drawn_cases(tmp_path):
    assert agree(range(2), tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_two_hundred_drawn_cases(part, tmp_path):
    assert agree(range(100 + 10 * part, 110 + 10 * part), tmp_path, 5) > 20
