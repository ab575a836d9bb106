"""Sweeps of cases: their rows are those of `simulate`, whatever stopped, divided or disturbed the folder."""

import dataclasses
import json
import pickle

import numpy as np
import pytest

from mfabric_jax import Case, InputError, cases, simulate
from mfabric_jax.apps.sweep import sweep
from mfabric_jax.apps.sweep.case_space import CaseSpace
from mfabric_jax.case import grid
from mfabric_jax.case.layers import layers_of, merge_layers
from mfabric_jax.report import QueryOptions, query, read_rows
from mfabric_jax.report.query import without_values
from mfabric_jax.support.parts import CONFIG, SweepFolder
from tests.apps.sweep.test_sweep_folder import rows_of
from tests.mistakes import check_refused
from tests.small import small

MODEL = "llama-moe"  # two servers a region
GBPS, DEGREE, DELAY = "network.nic_gbps", "network.mfabric.optical_degree", "circuits.delay_s"
EFFICIENCY, FABRIC, SAMPLE = "compute.efficiency", "network.fabric", "run.sample"


def space(axes, changes=None, model=MODEL, **rules):
    """Small cases along axes; rules as [sweep] has them."""
    asked = cases(small({"network.fabric": "mfabric"} | (changes or {}), model), axes)
    return CaseSpace(dataclasses.replace(asked, rules=rules))


def said(text, preset="paper"):
    """The cases of a file."""
    return merge_layers(layers_of({"preset": preset} | text, "space.toml", typed=True))


def assert_rows_of_simulate(asked, folder):
    """Every row of a sweep is that of its case alone: the same columns, the same numbers."""
    sweep(asked, folder)
    found, want = rows_of(folder), simulate(list(asked.cases)).rows()
    assert len(found) == len(want) == asked.count
    for got, row in zip(found, want, strict=True):
        got.pop("configuration")
        for path in asked.cases.varied:
            got.pop(path, None)
            row.pop(path, None)
        assert got.keys() == row.keys()
        for column, value in row.items():
            near = pytest.approx(value, rel=1e-12, abs=1e-15) if isinstance(value, float) else value
            assert got[column] == near, column


def test_rows_are_those_of_simulate_one_by_one(tmp_path):
    axes = {FABRIC: ["mfabric", "fat-tree"], GBPS: [100.0, 400.0], DEGREE: [2, 4, 6], DELAY: [0.025, 0.1, 0.5]}
    asked = space(axes, model="mixtral-8x7b")
    assert [len(block) for block in asked.cases.blocks] == [18, 2]  # columns of one program, and rows by themselves
    assert_rows_of_simulate(asked, tmp_path)
    footer = read_rows(tmp_path / "rows-00000.parquet")[1]
    assert (footer["resolved"]["job.batch.micro_batches"], footer["dtype"]) == (2, "float64")
    assert footer["resolved"][DEGREE] == [axes[DEGREE][at // 3 % 3] for at in range(18)]
    assert footer["version"]


@pytest.mark.slow
def test_rows_are_those_of_simulate_whatever_is_set(tmp_path):
    ecmp = {"network.paths": "ecmp", "run.seed": 3, "run.iterations": 2, "traffic.shares.drift": 0.4}
    many = np.linspace(0.3, 0.6, 9).tolist()
    replicas = {"run.replicas": 2, "traffic.generated.skew": 0.8}
    for name, changes, axes in (
        ("ecmp", ecmp | {DEGREE: 4, DELAY: 0.1}, {"network.goodput": [0.5, 1.0], EFFICIENCY: many}),
        ("replicas", replicas, {EFFICIENCY: many, GBPS: [100.0, 200.0]}),
    ):
        assert_rows_of_simulate(space(axes, changes), tmp_path / name)


def test_what_is_left_open_stands_for_what_its_own_row_has(tmp_path):
    many, found = np.linspace(0.2, 0.6, 9).tolist(), {}
    for first, delays in (("open", [None, 0.5]), ("said", [0.5, None]), ("both", [0.025, 0.5])):
        asked = space({DELAY: delays, EFFICIENCY: many}, {DEGREE: 2}, "mixtral-8x7b")  # circuits that change
        sweep(asked, tmp_path / first)
        found[first] = sorted(one["iteration_s"] for one in rows_of(tmp_path / first))
    assert len(set(found["both"])) == 18
    assert found["open"] == found["said"] == found["both"]


def test_a_row_is_the_mean_of_its_iterations_or_one_of_them(tmp_path):
    drawn = {"run.iterations": 2, "traffic.shares.drift": 0.4}
    many = [0.5, 0.25, 0.2, 0.3, 0.35, 0.4]
    sweep(space({SAMPLE: [None, 0, 1], EFFICIENCY: many}, drawn), tmp_path)
    mean, first, second = np.reshape([one["iteration_s"] for one in rows_of(tmp_path)], (3, 6))
    assert (first != second).all()
    np.testing.assert_allclose(mean, (first + second) / 2, rtol=1e-12)
    assert mean[1] > 1.3 * mean[0]  # at half the rate
    check_refused(r"run.sample must be below run.iterations \(2\), got 2", space({SAMPLE: [0, 2]}, drawn).check)


def test_what_no_gpu_can_do_has_no_price_in_a_sweep_either(tmp_path):
    rates = [0.5, 1.5, *np.linspace(0.1, 0.4, 16).tolist()]
    sweep(space({EFFICIENCY: rates}), tmp_path)
    can, *_ = rows_of(tmp_path)
    front, _ = query([tmp_path], QueryOptions(where=["compute.efficiency >= 0.5"], pareto=["usd_per_million_tokens"]))
    assert front == [can]
    asked = QueryOptions(pareto=["usd_per_million_tokens", "iteration_s"])
    assert without_values([tmp_path], asked) == "1 of 18 rows have no usd_per_million_tokens and are on no front."


def test_many_cases_are_columns_of_few(monkeypatch):
    """Thousands of cases are divided, checked and described without a `Case` for each."""
    built = []
    plainly = grid.build
    for module in ("mfabric_jax.case.grid", "mfabric_jax.apps.sweep.case_space", "mfabric_jax.evaluate.rows.points"):
        monkeypatch.setattr(f"{module}.build", lambda values: built.append(1) or plainly(values))
    gbps = {"low": 100, "high": 800}
    file = {
        "model": MODEL,
        "network": {"fabric": ["mfabric", "fat-tree"], "mfabric": {"optical_degree": [2, 4]}},
        "random": {"network.nic_gbps": gbps, "circuits.delay_s": {"low": "1 ms", "high": "0.1 s", "scale": "log"}},
        "sweep": {"draws": 550, "impossible": "leave-out"},
    }
    asked = CaseSpace(said(file))
    assert asked.count == 3 * 550
    assert len(json.dumps(asked.identity())) < 10_000
    assert asked.files() == {}
    assert [len(part.rows) for part in asked.parts] == [1024, 76, 550]
    assert len(built) < 40 + 3 * 550  # those with which ends are tried; one each to look for ports too many
    assert pickle.loads(pickle.dumps(asked)).identity() == asked.identity()  # as workers get it


def test_values_are_drawn_in_their_range_and_do_not_disturb_each_other():
    random = {
        "network.nic_gbps": {"low": 100, "high": 200},
        "circuits": {
            "delay_s": {"low": "1 us", "high": "1 s", "scale": "log"},
            "policy": {"of": ["greedy", "uniform"]},
        },
        "network.mfabric.optical_degree": {"low": 2, "high": 5, "whole": True},
        "run.iterations": {"low": 1, "high": 64, "whole": True, "scale": "log"},
    }
    file = {"sweep": {"draws": 2500, "draw_seed": 3}, "compute.efficiency": [0.1, 0.2]}
    found = said(file | {"random": random})
    every = list(found)
    assert len(every) == 5000
    gbps, delay, degree = (
        np.array([value for b in found.blocks for value in b.columns[p]]) for p in (GBPS, DELAY, DEGREE)
    )
    assert 100 <= gbps.min() < 101 < 199 < gbps.max() <= 200
    assert 1e-6 <= delay.min() < 2e-6
    assert 0.45 < np.mean(delay < 1e-3) < 0.55  # half of the decades
    assert sorted(set(degree.tolist())) == [2, 3, 4, 5]
    counts = np.array([case.run.iterations for case in every])
    assert set(counts.tolist()) == set(range(1, 65))
    assert np.mean(counts <= 8) == pytest.approx(np.log(8.5 / 0.5) / np.log(64.5 / 0.5), abs=0.03)
    assert {case.circuits.policy for case in every} == {"greedy", "uniform"}
    alone, other = (
        said(file | {"random": {DELAY: random["circuits"]["delay_s"]}, "sweep": {"draws": 2500, "draw_seed": s}})
        for s in (3, 4)
    )
    assert sorted(alone.blocks[0].columns[DELAY]) == sorted(delay.tolist())
    assert alone.blocks[0].columns[DELAY] != other.blocks[0].columns[DELAY]


def test_variants_and_a_grid_with_draws_are_every_combination():
    file = {
        "circuits": {"policy": ["greedy", "uniform"]},
        "network.nic_gbps": [100, 400],
        "variants": [
            {"name": "few", "network.mfabric.optical_degree": 2},
            {"name": "tree", "network.fabric": "fat-tree"},
        ],
        "random": {"compute.efficiency": {"low": 0.1, "high": 0.5}},
        "sweep": {"draws": 3, "rows_per_file": 4},
    }
    asked = CaseSpace(said(file))
    got = [(block.variant, block.case.circuits.policy, len(block)) for block in asked.cases.blocks]
    assert got == [("few", "greedy", 6), ("few", "uniform", 6), ("tree", "greedy", 6)]  # a tree has no policy
    assert [part.rows.tolist() for part in asked.parts][:3] == [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9]]
    few = asked.cases.blocks[0]
    assert few.columns[GBPS] == (100.0,) * 3 + (400.0,) * 3
    assert len(set(few.columns[EFFICIENCY])) == 6


def test_what_cannot_be_is_left_out_where_asked_for():
    axes = {"circuits.ocs": ["polatis", "epiphotonics"], DEGREE: [9, 2, 3], GBPS: [100.0, 400.0]}
    nics = {"network.nics": 10}
    too_many = "ocs 'epiphotonics' has 16 ports, but a region of 2 servers with optical_degree 9"
    check_refused(too_many, space(axes, nics).check)
    asked = space(axes, nics, impossible="leave-out")
    asked.check()
    kept = [(case.circuits.ocs, case.network.mfabric.optical_degree) for case in asked.cases]
    assert sorted(set(kept)) == [*(("epiphotonics", n) for n in (2, 3)), *(("polatis", n) for n in (2, 3, 9))]
    ((why, rows),) = asked.left_out.items()
    assert too_many in why
    assert (asked.count, rows, sum(len(part.rows) for part in asked.parts)) == (10, 2, 10)
    none = {"circuits.ocs": "epiphotonics", DEGREE: 9} | nics
    check_refused("no case is possible; 2 cases: ", space({GBPS: [100.0, 200.0]}, none, impossible="leave-out").check)
    with pytest.raises(InputError):  # what none can have is a mistake
        space({GBPS: [400.0, 1600.0]}, impossible="leave-out").check()


@pytest.mark.parametrize("changes", [{"model.name": "mixtral"}, {"circuits.policy": "gredy"}, {DEGREE: 9}])
def test_cases_that_cannot_be_are_sentences_before_any_compute(changes, tmp_path):
    asked = CaseSpace(cases(Case(), {path: [value] for path, value in changes.items()}))
    check_refused("mixtral|gredy|optical_degree", sweep, asked, tmp_path / "rows")
    assert not (tmp_path / "rows" / CONFIG).exists()


def test_another_sweep_is_refused(tmp_path):
    folder = tmp_path / "rows"
    asked, other = (space({GBPS: some}, {FABRIC: "fat-tree"}) for some in ([100.0, 200.0], [100.0, 400.0]))
    sweep(asked, folder)
    change = r"stated\.network\.nic_gbps was \[100\.0, 200\.0\], now \[100\.0, 400\.0\]"
    check_refused(rf"holds another sweep: {change}; give another folder", sweep, other, folder)
    few = CaseSpace(dataclasses.replace(asked.all_cases, rules={"rows_per_file": 5}))
    check_refused(r"holds another sweep: rules\.rows_per_file was None, now 5; give", sweep, few, folder)


def test_what_differs_between_two_sweeps_is_said_by_path_and_shortly(tmp_path):
    before, after = (
        [{"name": name, "circuits.policy": policy, "network.graph": "x" * long} for name, policy in policies.items()]
        for policies, long in (({"a": "greedy", "b": "uniform"}, 9), ({"a": "greedy", "b": "random"}, 900))
    )
    SweepFolder(tmp_path, {"variants": before, "cases": "12", "parts": 1}).claim()
    with pytest.raises(InputError) as refused:
        SweepFolder(tmp_path, {"variants": after, "cases": "34", "parts": 1}).claim()
    assert "variants.b.circuits.policy was 'uniform', now 'random'; variants.b.network" in str(refused.value)
    assert "cases was" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_long_lists_stay_out_of_folders_and_still_tell_sweeps_apart():
    many = np.linspace(100, 800, 1001).tolist()
    one, two = (space({GBPS: some}).identity() for some in (many, [*many[:-1], 799.0]))
    assert one["stated"][GBPS] == two["stated"][GBPS] == "1001 values"
    assert one["cases"] != two["cases"]
    assert len(json.dumps(one)) < 5000


def test_what_a_case_does_not_read_is_no_value_of_its_row():
    axes = {"network.fabric": ["fat-tree", "mfabric"], DEGREE: [2, 4], "run.seed": [0, 1]}
    told = [(row[DEGREE], row["run.seed"]) for row in simulate(cases(small(), axes)).rows()]
    assert told == [(None, 0), (None, 1), (2, 0), (4, 0), (2, 1), (4, 1)]
