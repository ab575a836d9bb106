"""Sweeps: axes by hand, rows that are those of `compare`, mistakes in the file of a design space."""

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report import Asked, query
from mfabric_jax.report._query import without_values
from mfabric_jax.study.presets import PRESETS
from mfabric_jax.sweep import Sweep, read_sweep, sweep
from mfabric_jax.sweep.axes import columns
from mfabric_jax.sweep.run import Maker, sweep_folder
from tests.mistakes import check_refused
from tests.small import MODEL, row, small

SMALL = {"model": MODEL, "micro_batches": 2, "compute": "achieved"}  # with float64: programs of tests/small


def exchanges(**tables):
    """All-to-alls of four servers, files of four rows."""
    fixed = {"servers": 4, "policy": "uniform", "optical_degree": 2} | tables.pop("fixed", {})
    given = {"grid": {"sample": list(range(5)), "nic_gbps": [100.0, 200.0]}} | tables
    return Sweep("all-to-all", fixed, **given, rows_per_shard=4, dtype="float64")


def rows_of(folder):
    """All rows, in order of the configurations."""
    return query([folder], Asked(sort="configuration"))[0]


def footer_of(folder):
    return query([folder], Asked())[1]


def test_random_axes_stay_in_their_range_and_do_not_disturb_each_other():
    random = {
        "plain": {"low": -1.0, "high": 2.0},
        "log": {"low": 1e-6, "high": 1.0, "scale": "log"},
        "whole": {"low": 2, "high": 5, "whole": True},
        "steps": {"low": 1, "high": 64, "whole": True, "scale": "log"},
        "of": {"of": ["x", "y"]},
    }
    found = columns({"a": [1, 2]}, {}, random, 5000, 3)
    assert {len(values) for values in found.values()} == {10_000}
    assert -1 <= found["plain"].min() < -0.99 < 1.99 < found["plain"].max() <= 2
    assert 1e-6 <= found["log"].min() < 2e-6
    assert 0.45 < np.mean(found["log"] < 1e-3) < 0.55  # half of the decades
    assert sorted(set(found["whole"].tolist())) == [2, 3, 4, 5]
    assert set(found["steps"].tolist()) == set(range(1, 65))
    assert np.mean(found["steps"] <= 8) == pytest.approx(np.log(8.5 / 0.5) / np.log(64.5 / 0.5), abs=0.03)
    assert set(found["of"].tolist()) == {"x", "y"}
    alone, other = (columns({"a": [1, 2]}, {}, {"log": random["log"]}, 5000, seed)["log"] for seed in (3, 4))
    np.testing.assert_array_equal(alone, found["log"])
    assert not np.array_equal(other, found["log"])


def test_a_grid_with_lists_is_every_combination_and_every_row_is_in_one_part():
    found = columns({"a": [1, 2], "b": ["x", "y"]}, {"c": [7.0, 8.0], "d": [True, False]}, {}, 1, 0)
    want = [(a, b, c, d) for a in (1, 2) for b in "xy" for c, d in ((7.0, True), (8.0, False))]
    assert list(zip(*(found[name].tolist() for name in "abcd"), strict=True)) == want
    # What is code makes groups.
    grid = {"sample": [0, 1, 2], "policy": ["greedy", "uniform"], "sigma": [0, 0.5]}
    config = Sweep("all-to-all", grid=grid, rows_per_shard=4)
    assert [group.code["policy"] for group in config.groups] == ["greedy", "uniform"]
    assert [group.rows.tolist() for group in config.groups] == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    assert [part.rows.tolist() for part in config.parts] == [[0, 1, 4, 5], [8, 9], [2, 3, 6, 7], [10, 11]]


PORTS = {"optical_degree": [6, 2], "delay_s": [0.025, 0.5]}
DATA = {"nic_gbps": 200.0, "optical_degree": 4, "electrical_nics": 4, "delay_s": 0.1, "efficiency": 0.3}
DRAWN = {"iterations": 2, "drift": 0.4}


def assert_rows_of_compare(folder, fixed, grid, lists):
    sweep(Sweep("iteration", SMALL | fixed, grid, lists, dtype="float64"), folder)
    for found in rows_of(folder):
        given = fixed | {axis: found[axis] for axis in (*grid, *lists)}
        fabric, gbps = given.pop("fabric", "mfabric"), given.pop("nic_gbps")
        if fabric == "fat-tree":
            given = {axis: value for axis, value in given.items() if axis not in PORTS}
        want = row(small(fabrics=(fabric,), nic_gbps=(gbps,), **given))
        assert want.keys() - found.keys() == set()
        for column in want.keys() - {"traffic"} & given.keys():
            value = want[column]
            near = pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value
            assert found[column] == near, (fixed, column)


def test_rows_are_those_of_compare(tmp_path):
    assert_rows_of_compare(tmp_path, {}, {"fabric": ["mfabric", "fat-tree"], "nic_gbps": [100, 200]}, PORTS)
    footer = footer_of(tmp_path)
    assert len(rows_of(tmp_path)) == 8
    assert (footer["group"]["workloads"][MODEL]["micro_batches"], footer["dtype"]) == (2, "float64")
    assert footer["version"]


def test_a_setting_that_a_fabric_does_not_have_is_named_as_compare_does(tmp_path):
    fabrics = {"fabric": ["mfabric", "fat-tree"]}
    settings = {"policy": ["uniform"], "nic_use": ["own"], "routing": ["split"], "circuits_for": ["all-to-all"]}
    given = settings | {"ocs": ["polatis"], "first": ["reuse"], "nic_gbps": [100.0]}
    sweep(Sweep("iteration", SMALL, fabrics | given, dtype="float64"), tmp_path)
    for found in rows_of(tmp_path):
        asked = {name: value for name, (value,) in given.items()} | {"nic_use": ("own",), "nic_gbps": (100.0,)}
        want = row(small(fabrics=(found["fabric"],), **asked | {"circuits_for": ("all-to-all",)}))
        names = ("policy", "routing", "circuits_for", "nic_use", "ocs", "nic_gbps", "gpus", "first")
        assert [found[name] for name in names] == [want[name] for name in names]
        assert found["iteration_s"] == pytest.approx(want["iteration_s"], rel=1e-9)
    optical, packets = rows_of(tmp_path)
    assert (optical["nic_use"], packets["nic_use"]) == ("pooled", "own")
    assert (optical["policy"], packets["policy"], packets["ocs"]) == ("uniform", "none", "none")


@pytest.mark.slow
def test_rows_are_those_of_compare_whatever_is_fixed(tmp_path):
    pays = {"nic_gbps": [100.0, 800.0, 100.0], "delay_s": [0.025, 0.025, 0.2], "efficiency": [0.5, 0.5, 0.3]}
    fixed = DATA | DRAWN | {"flows": "single", "seed": 3}
    assert_rows_of_compare(tmp_path / "fixed", fixed, {"goodput": [0.5, 1.0]}, {})
    assert_rows_of_compare(tmp_path / "pays", {"first": "pays"}, {}, pays)
    scale_up = {"fabric": "mfabric-cpo"}, {"nic_gbps": [400, 800]}, {}  # 9 and 4 circuits a GPU
    assert_rows_of_compare(tmp_path / "scale-up", *scale_up)
    group = footer_of(tmp_path / "fixed")["group"]
    assert {name: group[name] for name in DATA} == DATA
    assert group["goodput"] == "varies"


def test_nothing_stands_for_the_default_of_its_own_row_alone(tmp_path):
    found = []
    for number, (rates, delays) in enumerate((([0.1, None], [None, 0.1]), ([0.1, 0.5], [0.025, 0.1]))):
        grid = {"efficiency": rates, "delay_s": delays}
        config = Sweep("iteration", SMALL | {"optical_degree": 2}, grid, rows_per_shard=1, dtype="float64")
        sweep(config, tmp_path / str(number))
        found.append([one["iteration_s"] for one in rows_of(tmp_path / str(number))])
    assert found[0] == found[1]
    assert len(set(found[0])) == 4


def test_a_row_is_the_mean_of_its_iterations_or_one_of_them(tmp_path):
    fixed = SMALL | DRAWN | {"nic_gbps": 100.0}
    sweep(Sweep("iteration", fixed, {"sample": [-1, 0, 1], "efficiency": [0.5, 0.25]}, dtype="float64"), tmp_path)
    found = [one["iteration_s"] for one in rows_of(tmp_path)]
    assert found[2] != found[4]
    assert found[0] == pytest.approx((found[2] + found[4]) / 2, rel=1e-12)
    assert found[1] > 1.3 * found[0]  # at half the rate


def test_what_no_gpu_can_do_has_no_price_in_a_sweep_either(tmp_path):
    sweep(Sweep("iteration", SMALL | {"nic_gbps": 100.0}, {"efficiency": [0.5, 1.5]}, dtype="float64"), tmp_path)
    can, cannot = rows_of(tmp_path)
    assert (can["achieved_over_peak"], cannot["achieved_over_peak"]) == (0.5, 1.5)
    assert can["mfu"] * can["iteration_s"] == pytest.approx(cannot["mfu"] * cannot["iteration_s"], rel=1e-12)
    for name in ("usd_per_million_tokens", "joules_per_million_tokens", "perf_per_cluster_dollar"):
        assert can[name] > 0
        assert cannot[name] is None
    front, _ = query([tmp_path], Asked(pareto=["usd_per_million_tokens"]))
    assert front == [can]
    said = without_values([tmp_path], Asked(pareto=["usd_per_million_tokens", "iteration_s"]))
    assert said == "1 of 2 rows have no usd_per_million_tokens and are on no front."


def test_forecast_errors_cost_and_demand_has_the_size_that_was_asked(tmp_path):
    fixed = {"policy": "index", "optical_degree": 6, "demand": "lognormal", "gigabytes": 2.0}
    sweep(exchanges(fixed=fixed, grid={"sigma": [0.0, 2.0], "sample": list(range(20))}), tmp_path)
    found = rows_of(tmp_path)
    known, wrong = ([one["over_bound"] for one in found if one["sigma"] == sigma] for sigma in (0.0, 2.0))
    assert 1 <= min(known) <= max(known)
    assert np.mean(wrong) > np.mean(known)
    rate = 8 * 400 / 8 * 1e9  # of a server, 6 + 2 NICs
    assert all(one["bound_s"] > 2e9 / rate for one in found)


def test_long_lists_stay_out_of_footers(tmp_path):
    config = Sweep("all-to-all", {}, {}, {"sample": list(range(1001))}, dtype="float64")
    maker = Maker(config, sweep_folder(config, tmp_path))
    assert maker.footer["sweep"]["list"] == {"sample": "1001 values in sweep.json"}


CPO = {"fabric": "mfabric-cpo", "gpu_tbps": 0.6, "model": "deepseek-v3"}
MISTAKES = [
    ({"evaluate": "iterations"}, r"evaluate 'iterations' is unknown \(did you mean 'iteration'\?\)"),
    ({"grid": {"nic_gbp": [100]}}, r"setting of \[grid\] 'nic_gbp' is unknown \(did you mean 'nic_gbps'\?\)"),
    ({"grid": {"nic_gbps": 100}}, r"grid.nic_gbps must be a list of at least one value, got 100"),
    ({"grid": {"nic_gbps": []}}, r"grid.nic_gbps must be a list of at least one value, got \[\]"),
    ({"grid": {"nic_gbps": [100, 100]}}, r"grid.nic_gbps must not repeat a value"),
    ({"grid": {"nic_gbps": [100, 100.0]}}, r"grid.nic_gbps must not repeat a value"),
    ({"grid": {"nic_gbps": ["fast"]}}, r"grid.nic_gbps must be a number, got 'fast'"),
    ({"grid": {"nic_gbps": [50]}}, r"nic_gbps.*50"),
    ({"grid": {"pxn": ["yes"]}}, r"grid.pxn must be true or false, got 'yes'"),
    ({"grid": {"delay_s": [0.1, float("nan")]}}, r"grid.delay_s must be finite, got nan"),
    ({"fixed": {"goodput": float("inf")}}, r"fixed.goodput must be finite, got inf"),
    ({"evaluate": "all-to-all", "grid": {"seed": [5, 2**32 + 5]}}, r"grid.seed must be below 2\^31, got 4294967301"),
    ({"grid": {"model": ["mixtral"]}}, r"model 'mixtral' is unknown \(did you mean"),
    ({"grid": {"policy": ["gredy"]}}, r"policy 'gredy' is unknown \(did you mean 'greedy'\?\)"),
    ({"grid": {"optical_degree": [2.5]}}, r"grid.optical_degree must be a whole number, got 2.5"),
    ({"fixed": {"model": 8}}, r"fixed.model must be text or in Python a Workload, got 8"),
    ({"fixed": {"sample": 1}}, r"sample must be below iterations \(1\) and from -1 \(their mean\), got 1"),
    ({"fixed": {"skew": 1.0}, "grid": {"skew": [1.0]}}, r"'skew' must be in one of \[fixed\], .*, got it twice"),
    ({"list": {"dp": [1, 2], "gpus": [128]}}, r"read side by side and must be equally long, got dp 2, gpus 1"),
    ({"random": {"seed": {"low": 0, "high": 2**70, "whole": True}}}, r"whole numbers below 2\^31, got 0 and"),
    ({"random": {"optical_degree": {"low": 1.5, "high": 4, "whole": True}}}, r"low and high must be whole numbers"),
    ({"random": {"delay_s": {"low": 0, "high": 1, "scale": "log"}}}, r"random.delay_s.low must be above 0 and at most"),
    ({"random": {"delay_s": [0, 1]}}, r"random.delay_s must be \{ of = \[...\] \} or \{ low"),
    ({"random": {"delay_s": {"low": "0", "high": 1}}}, r"random.delay_s.low must be a number, got '0'"),
    ({"random": {"delay_s": {"low": 10**400, "high": 1}}}, r"random.delay_s.low must be a number, got 1000"),
    ({"random": {"delay_s": {"low": 1, "high": 2, "scale": "cubic"}}}, r"random.delay_s.scale 'cubic' is unknown"),
    (
        {"random": {"delay_s": {"low": -1e308, "high": 1e308}}},
        r"random.delay_s must be no wider than numbers are large",
    ),
    (
        {"random": {"delay_s": {"low": 0, "high": 1}}, "draws": 10**12},
        r"draws must be at most 67,108,864, got 1000000000000",
    ),
    (
        {"random": {"delay_s": {"low": 0, "high": 1}}, "draws": 2**26, "grid": {"seed": [1, 2]}},
        r"a sweep must have at most 67,108,864 configurations, got 2 x 1 x 67108864",
    ),
    (
        {"random": {"optical_degree": {"of": [2**63]}}},
        r"random.optical_degree must be below 2\^31, got 9223372036854775808",
    ),
    ({"grid": {"optical_degree": [2**31 - 1]}}, r"optical_degree must be at most 4,096, got 2147483647"),
    (
        {"evaluate": "all-to-all", "fixed": {"optical_degree": 2**30}},
        r"optical_degree must be from 1e-30 to 4096, got 1.07374e",
    ),
    ({"evaluate": "all-to-all", "fixed": {"servers": 5000}}, r"servers of one region must be at most 4,096, got 5,000"),
    (
        {"evaluate": "all-to-all", "grid": {"gigabytes": [1.0, 1e-320]}},
        r"gigabytes must be from 1e-09 to 1e\+12, got 9.99",
    ),
    ({"draws": 3}, r"draws is how often the axes of \[random\] are drawn, but there is none"),
    ({"rows_per_shard": 0}, r"rows_per_shard must be a whole number of at least 1, got 0"),
    ({"evaluate": "all-to-all", "fixed": {"policy": "static"}}, r"policy 'static' cannot be swept alone"),
    ({"evaluate": "all-to-all", "fixed": {"demand": "recorded"}}, r"demand 'recorded' needs trace"),
    ({"evaluate": "all-to-all", "fixed": {"demand": "zip"}}, r"demand 'zip' is unknown \(did you mean 'zipf'\?\)"),
    ({"evaluate": "all-to-all", "grid": {"gigabytes": [1.0, 0.0]}}, r"gigabytes must be finite and above 0"),
    ({"evaluate": "all-to-all", "grid": {"records": [[1, 2]]}}, r"records chooses from a trace"),
    ({"fixed": {"flows": "single"}, "grid": {"electrical_nics": [1, 2]}}, r"one number of electrical_nics"),
    ({"fixed": CPO, "grid": {"nic_gbps": [100.0, 400]}}, "gpu_tbps"),
]


def test_mistakes_are_sentences():
    for given, sentence in MISTAKES:
        check_refused(sentence, Sweep, **given)
    for fixed in (  # what goes together is checked together
        CPO | {"nic_gbps": 100.0},
        {"ocs": "palomar", "delay_s": 0.01},
        {"ocs": "epiphotonics", "optical_degree": 2, "model": "llama-moe"},
    ):
        Sweep(fixed=fixed)


def test_a_preset_sets_what_no_table_does():
    both = Sweep(fixed={"model": "llama-moe", "head": "counted"}, grid={"bubble": [0.1, 0.2]}, preset="today")
    assert both.fixed == {"model": "llama-moe", "head": "counted"} | {
        name: PRESETS["today"][name] for name in ("expert_load", "optimizer_step")
    }
    assert both.count == 2
    check_refused("preset 'tody' is unknown", Sweep, preset="tody")
    check_refused("preset is of evaluate 'iteration' alone, got 'today'", Sweep, "all-to-all", preset="today")


def test_what_cannot_be_is_left_out_where_asked_for():
    together = {"optical_degree": [2, 3, 9], "electrical_nics": [6, 5, 1]}
    axes = {"ocs": ["polatis", "epiphotonics"], "nic_gbps": [100.0, 400.0]}
    given = {"fixed": {"model": "llama-moe"}, "grid": axes, "list": together}
    check_refused("ocs 'epiphotonics' has 16 ports, but a region of 2 servers with optical_degree 9", Sweep, **given)
    config = Sweep(**given, impossible="leave-out")
    kept = [
        (config.columns["ocs"][row], config.columns["optical_degree"][row]) for g in config.groups for row in g.rows
    ]
    assert sorted(set(kept)) == [*(("epiphotonics", n) for n in (2, 3)), *(("polatis", n) for n in (2, 3, 9))]
    ((why, rows),) = config.left_out.items()
    assert "needs 18" in why
    assert (config.count, len(rows), sum(len(part.rows) for part in config.parts)) == (10, 2, 10)
    fixed = given["fixed"] | {"ocs": "epiphotonics", "optical_degree": 9}
    check_refused("no configuration is left; 1 of them: ocs", Sweep, fixed=fixed, impossible="leave-out")
    check_refused("impossible 'skip' is unknown", Sweep, impossible="skip")
    for axes in ({"policy": ["greedy", "gredy"]}, {"fabric": ["mfabrc", "mfabric"]}, {"nic_gbps": [400.0, 1600.0]}):
        with pytest.raises(InputError):  # values that none can have are mistakes
            Sweep(fixed={"model": "llama-moe"}, grid=axes, impossible="leave-out")


def test_files_are_read_strictly(tmp_path):
    space = tmp_path / "space.toml"
    space.write_text(
        'evaluate = "all-to-all"\ndraws = 3\n[grid]\nnic_gbps = [100, 400]\n'
        "[random]\nsample = { low = 0, high = 9, whole = true }\n"
    )
    config = read_sweep(space)
    assert (config.count, config.columns["nic_gbps"].tolist()) == (6, [100.0] * 3 + [400.0] * 3)
    for name, text, sentence in (
        ("a.json", '{"shards": 2}', r"sweep setting 'shards' is unknown; allowed: evaluate, fixed, grid"),
        ("b.json", "[1]", r"must hold sweep settings by name, got \[1\]"),
        ("c.toml", "grid = [", "is not TOML"),
        ("d.yaml", "", r"extension .\.yaml. is unknown"),
        ("e/f.toml", None, r"cannot read .*f.toml' \(No such file"),
    ):
        if text is not None:
            (tmp_path / name).write_text(text)
        check_refused(sentence, read_sweep, tmp_path / name)
    for given, sentence in (
        ({"shard": (3, 2)}, "shard must be i/n with i from 1 to n, got 3/2"),
        ({"engine": "dask"}, "engine 'dask' is unknown; allowed: local, ray"),
    ):
        check_refused(sentence, sweep, config, tmp_path, **given)
