"""The batches of the host and the program of JAX that composes an iteration agree on drawn cases of every setting."""

import random

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, load, resolve
from mfabric_jax.case.network import NAMES
from mfabric_jax.evaluate import solving
from mfabric_jax.evaluate.composed import function_of
from tests.small import model_file, scenario

pytestmark = pytest.mark.usefixtures("as_users_have_it")

# What decides the code of a program, several times where most rules apply.
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
    "circuits.reconfigure": ["on-demand", "always", "pays", "pays", "span", "reuse", "predict"],
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
    "run.sample": [None],
}
CHOSEN = {
    "circuits.span.": "circuits.reconfigure",
    "circuits.predict.": "circuits.reconfigure",
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


@eqx.filter_jit
def composed(function, case):
    """The all-to-alls of one iteration and its seconds."""
    found = function.exchanges(case)
    return found, function.time(case, found)


def inside_jax(one):
    """The all-to-alls of every iteration and their seconds, as one program of JAX computes them."""
    function, case = function_of(one)
    case = {path: jnp.asarray(number) for path, number in case.items()}
    every = [composed(function, case | {"run.sample": jnp.asarray(at)}) for at in range(len(one.own_selections))]
    return jax.tree.map(lambda *x: np.stack(x), *every)


NEAR = {"float64": 1e-9, "float32": 1e-5}
NEAR_RELAY = {"float64": 1e-7, "float32": 1e-3}  # 100 steps of a search for shares enlarge what rounding differs in


def compare(case, dtype):
    most = (NEAR_RELAY if case.circuits.routing == "relay" else NEAR)[dtype]
    one = scenario(case.with_({"run.dtype": dtype}))
    got = solving.solve(one)
    times = solving.times_of(one, got)
    got = jax.tree.map(lambda x: x[0], got) if one.weighs else got
    wanted, seconds = inside_jax(one)
    for name, want in wanted._asdict().items():
        if name == "count":  # left out on the host
            continue
        assert (getattr(got, name) is None) == (want is None), name
        if want is not None:
            np.testing.assert_allclose(getattr(got, name), want, rtol=most, err_msg=name)
    slack = most * seconds["iteration_s"].max()
    for name, want in seconds.items():
        np.testing.assert_allclose(getattr(times, name)[:, 0], want, rtol=most, atol=slack, err_msg=name)


def agree(seeds, tmp_path, most_numbers):
    dense = {"dense_blocks": 1, "dense_hidden": 64}
    models = model_file(tmp_path / "small.toml", blocks=4), model_file(tmp_path / "dense.toml", blocks=5, **dense)
    for seed in seeds:
        draw = random.Random(seed)
        case = shapes(draw, models[seed % 2])
        for _ in range(most_numbers):
            drawn = case.with_(numbers(draw))
            compare(drawn, "float64")
        compare(drawn, "float32")


def small_job(tmp_path, changes):
    said = {"model.name": model_file(tmp_path / "small.toml", blocks=4), "job.parallel.tp": 4, "job.parallel.ep": 8}
    said |= {"job.parallel.dp": 2, "job.batch.micro_batches": 4, "job.batch.sequence": 256, "traffic.drawn": 2}
    said |= {"run.iterations": 2, "job.parallel.pp": 2, "traffic.generated.skew": 1.0, "run.dtype": "float64"}
    return load().with_(said | {"network.fabric": "mfabric"} | changes)


def test_circuits_of_a_run_where_passes_overlap(tmp_path):
    """Drawn by chance too seldom."""
    compare(small_job(tmp_path, {"circuits.span.length": "run", "job.schedule": "dualpipe"}), "float64")


@pytest.mark.parametrize(
    "changes",
    [
        {"circuits.span.length": "iteration"},
        {"circuits.span.length": "iteration", "circuits.span.chosen_on": "actual"},
        {"circuits.reconfigure": "pays"},
        {"circuits.reconfigure": "predict", "compute.experts": "received"},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())),
)
def test_replicas_have_the_all_to_alls_of_each_alone_and_the_times_of_the_slowest(changes, tmp_path):
    one = scenario(small_job(tmp_path, changes | {"run.replicas": 2}))
    together, alone = solving.solve(one), [solving.solve(each) for each in one.each_replica]
    axis = 1 if one.weighs else 0
    jax.tree.map(lambda got, *each: np.testing.assert_array_equal(got, np.concatenate(each, axis)), together, *alone)
    times = [solving.times_of(each, loads).iteration_s for each, loads in zip(one.each_replica, alone, strict=True)]
    assert (times[0] != times[1]).all()
    np.testing.assert_array_equal(solving.times_of(one, together).iteration_s, np.maximum(*times))


def test_a_few_drawn_cases(tmp_path):
    agree(range(2), tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_two_hundred_drawn_cases(part, tmp_path):
    agree(range(100 + 10 * part, 110 + 10 * part), tmp_path, 5)
