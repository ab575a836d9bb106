"""Sweeps of single all-to-alls: axes by hand, demand, mistakes in the file of a design space."""

import numpy as np
import pytest

from mfabric_jax.report import Asked, query
from mfabric_jax.sweep import Sweep, read_sweep, sweep
from mfabric_jax.sweep.axes import columns
from mfabric_jax.sweep.design_space import _short
from tests.mistakes import check_refused


def exchanges(**tables):
    """All-to-alls of four servers, files of four rows."""
    fixed = {"servers": 4, "policy": "uniform", "optical_degree": 2} | tables.pop("fixed", {})
    given = {"grid": {"sample": list(range(5)), "nic_gbps": [100.0, 200.0]}} | tables
    return Sweep("all-to-all", fixed, **given, rows_per_shard=4, dtype="float64")


def rows_of(folder):
    """All rows, in order of the configurations."""
    return query([folder], Asked(sort="configuration"))[0]


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


def test_forecast_errors_cost_and_demand_has_the_size_that_was_asked(tmp_path):
    fixed = {"policy": "index", "optical_degree": 6, "demand": "lognormal", "gigabytes": 2.0}
    sweep(exchanges(fixed=fixed, grid={"sigma": [0.0, 2.0], "sample": list(range(20))}), tmp_path)
    found = rows_of(tmp_path)
    known, wrong = ([one["over_bound"] for one in found if one["sigma"] == sigma] for sigma in (0.0, 2.0))
    assert 1 <= min(known) <= max(known)
    assert np.mean(wrong) > np.mean(known)
    rate = 8 * 400 / 8 * 1e9  # of a server, 6 + 2 NICs
    assert all(one["bound_s"] > 2e9 / rate for one in found)


def test_long_lists_stay_out_of_footers():
    config = Sweep("all-to-all", {}, {}, {"sample": list(range(1001))}, dtype="float64")
    assert _short(config.described())["list"] == {"sample": "1001 values in sweep.json"}


MISTAKES = [
    ({"evaluate": "all-to-alls"}, r"evaluate 'all-to-alls' is unknown \(did you mean 'all-to-all'\?\)"),
    ({"evaluate": "iteration"}, r"evaluate 'iteration' is unknown"),
    ({"grid": {"nic_gbp": [100]}}, r"setting of \[grid\] 'nic_gbp' is unknown \(did you mean 'nic_gbps'\?\)"),
    ({"grid": {"nic_gbps": 100}}, r"grid.nic_gbps must be a list of at least one value, got 100"),
    ({"grid": {"nic_gbps": []}}, r"grid.nic_gbps must be a list of at least one value, got \[\]"),
    ({"grid": {"nic_gbps": [100, 100]}}, r"grid.nic_gbps must not repeat a value"),
    ({"grid": {"nic_gbps": [100, 100.0]}}, r"grid.nic_gbps must not repeat a value"),
    ({"grid": {"nic_gbps": ["fast"]}}, r"grid.nic_gbps must be a number, got 'fast'"),
    ({"grid": {"sigma": [0.1, float("nan")]}}, r"grid.sigma must be finite, got nan"),
    ({"fixed": {"gigabytes": float("inf")}}, r"fixed.gigabytes must be finite, got inf"),
    ({"grid": {"seed": [5, 2**32 + 5]}}, r"grid.seed must be below 2\^31, got 4294967301"),
    ({"grid": {"policy": ["gredy"]}}, r"policy 'gredy' is unknown \(did you mean 'greedy'\?\)"),
    ({"grid": {"optical_degree": [2.5]}}, r"grid.optical_degree must be a whole number, got 2.5"),
    ({"fixed": {"sigma": 1.0}, "grid": {"sigma": [1.0]}}, r"'sigma' must be in one of \[fixed\], .*, got it twice"),
    ({"list": {"seed": [1, 2], "sample": [3]}}, r"read side by side and must be equally long, got seed 2, sample 1"),
    ({"random": {"seed": {"low": 0, "high": 2**70, "whole": True}}}, r"whole numbers below 2\^31, got 0 and"),
    ({"random": {"optical_degree": {"low": 1.5, "high": 4, "whole": True}}}, r"low and high must be whole numbers"),
    ({"random": {"sigma": {"low": 0, "high": 1, "scale": "log"}}}, r"random.sigma.low must be above 0 and at most"),
    ({"random": {"sigma": [0, 1]}}, r"random.sigma must be \{ of = \[...\] \} or \{ low"),
    ({"random": {"sigma": {"low": "0", "high": 1}}}, r"random.sigma.low must be a number, got '0'"),
    ({"random": {"sigma": {"low": 10**400, "high": 1}}}, r"random.sigma.low must be a number, got 1000"),
    ({"random": {"sigma": {"low": 1, "high": 2, "scale": "cubic"}}}, r"random.sigma.scale 'cubic' is unknown"),
    (
        {"random": {"sigma": {"low": -1e308, "high": 1e308}}},
        r"random.sigma must be no wider than numbers are large",
    ),
    (
        {"random": {"sigma": {"low": 0, "high": 1}}, "draws": 10**12},
        r"draws must be at most 67,108,864, got 1000000000000",
    ),
    (
        {"random": {"sigma": {"low": 0, "high": 1}}, "draws": 2**26, "grid": {"seed": [1, 2]}},
        r"a sweep must have at most 67,108,864 configurations, got 2 x 1 x 67108864",
    ),
    (
        {"random": {"optical_degree": {"of": [2**63]}}},
        r"random.optical_degree must be below 2\^31, got 9223372036854775808",
    ),
    ({"fixed": {"optical_degree": 2**30}}, r"optical_degree must be from 1e-30 to 4096, got 1.07374e"),
    ({"fixed": {"servers": 5000}}, r"servers of one region must be at most 4,096, got 5,000"),
    ({"grid": {"gigabytes": [1.0, 1e-320]}}, r"gigabytes must be from 1e-09 to 1e\+12, got 9.99"),
    ({"draws": 3}, r"draws is how often the axes of \[random\] are drawn, but there is none"),
    ({"rows_per_shard": 0}, r"rows_per_shard must be a whole number of at least 1, got 0"),
    ({"impossible": "skip"}, r"impossible 'skip' is unknown"),
    ({"fixed": {"policy": "static"}}, r"policy 'static' cannot be swept alone"),
    ({"fixed": {"demand": "recorded"}}, r"demand 'recorded' needs trace"),
    ({"fixed": {"demand": "zip"}}, r"demand 'zip' is unknown \(did you mean 'zipf'\?\)"),
    ({"grid": {"gigabytes": [1.0, 0.0]}}, r"gigabytes must be finite and above 0"),
    ({"grid": {"records": [[1, 2]]}}, r"records chooses from a trace"),
]


def test_mistakes_are_sentences():
    for given, sentence in MISTAKES:
        check_refused(sentence, Sweep, **given)


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
