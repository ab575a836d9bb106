"""Sweeps: axes by hand, rows that are those of `compare`, and the same files whatever stopped or divided them."""

import errno
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from pyarrow import parquet

import mfabric_jax
from mfabric_jax.checks import InputError
from mfabric_jax.report import Asked, query
from mfabric_jax.study import Compare, Sweep, read_sweep, sweep
from mfabric_jax.study.sweeps import run, shards
from mfabric_jax.study.sweeps.axes import columns
from tests.study.small import MODEL, row, small

SMALL = {"model": MODEL, "micro_batches": 2, "compute": "achieved"}  # with float64: programs of tests/study/small


def exchanges(**tables):
    """All-to-alls of four servers, files of four rows."""
    fixed = {"servers": 4, "policy": "uniform", "optical_degree": 2} | tables.pop("fixed", {})
    given = {"grid": {"sample": list(range(5)), "nic_gbps": [100.0, 200.0]}} | tables
    return Sweep("all-to-all", fixed, **given, rows_per_shard=4, dtype="float64")


def rows_of(folder):
    """All rows, in order of the configurations."""
    found = [row for path in sorted(folder.glob("*.parquet")) for row in parquet.ParquetFile(path).read().to_pylist()]
    return sorted(found, key=lambda row: row["configuration"])


def files_of(folder):
    """The rows of every file, and its footer but for the commit, which may change while tests run."""
    found = {}
    for path in folder.glob("*.parquet"):
        table = parquet.ParquetFile(path).read()
        footer = json.loads(table.schema.metadata[b"mfabric"])
        found[path.name] = table.to_pydict(), {name: value for name, value in footer.items() if name != "commit"}
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    sweep(exchanges(), folder)
    return folder


# ------------------------------------------------------------------------------------------------ axes
def test_a_grid_with_lists_is_every_combination():
    found = columns({"a": [1, 2], "b": ["x", "y"]}, {"c": [7.0, 8.0], "d": [True, False]}, {}, 1, 0)
    want = [(a, b, c, d) for a in (1, 2) for b in "xy" for c, d in ((7.0, True), (8.0, False))]
    assert list(zip(*(found[name].tolist() for name in "abcd"), strict=True)) == want


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
    alone = columns({"a": [1, 2]}, {}, {"log": random["log"]}, 5000, 3)
    np.testing.assert_array_equal(alone["log"], found["log"])
    assert not np.array_equal(columns({"a": [1, 2]}, {}, {"log": random["log"]}, 5000, 4)["log"], found["log"])


def test_what_is_code_makes_groups_and_every_row_is_in_one_shard():
    config = Sweep(
        "all-to-all", grid={"sample": [0, 1, 2], "policy": ["greedy", "uniform"], "sigma": [0, 0.5]}, rows_per_shard=4
    )
    groups = config.groups
    assert [group.code["policy"] for group in groups] == ["greedy", "uniform"]
    assert [group.rows.tolist() for group in groups] == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    assert [shard.rows.tolist() for shard in config.shards] == [[0, 1, 4, 5], [8, 9], [2, 3, 6, 7], [10, 11]]


# ------------------------------------------------------------------------------------------------ rows
def test_rows_are_those_of_compare(tmp_path):
    grid = {"fabric": ["mfabric", "fat-tree"], "nic_gbps": [100, 200]}
    lists = {"optical_degree": [6, 2], "delay_s": [0.025, 0.5]}
    sweep(Sweep("iteration", SMALL, grid, lists, dtype="float64"), tmp_path)
    found = rows_of(tmp_path)
    assert len(found) == 8
    for one in found:
        given = {"fabrics": (one["fabric"],), "nic_gbps": (one["nic_gbps"],)}
        ports = {name: one[name] for name in lists if one["fabric"] == "mfabric"}
        want = row(small(**given | ports))
        for name, value in one.items():
            if name in want:
                assert value == (pytest.approx(want[name], rel=1e-9) if isinstance(value, float) else want[name]), name
    footer = json.loads(parquet.ParquetFile(tmp_path / "rows-00000.parquet").schema_arrow.metadata[b"mfabric"])
    assert footer["group"]["workloads"][MODEL]["micro_batches"] == 2
    assert footer["dtype"] == "float64"
    assert footer["version"]


def test_what_is_fixed_is_that_of_compare_and_of_the_footer(tmp_path):
    data = {"nic_gbps": 200.0, "optical_degree": 4, "electrical_nics": 4, "delay_s": 0.1, "efficiency": 0.3}
    fixed = {**SMALL, **data, "flows": "single", "seed": 3}
    sweep(Sweep("iteration", fixed, {"goodput": [0.5, 1.0]}, dtype="float64"), tmp_path)
    given = data | {"fabrics": ("mfabric",), "nic_gbps": (200.0,), "flows": "single", "seed": 3}
    for found in rows_of(tmp_path):
        want = row(small(**given | {"goodput": found["goodput"]}))
        for name in ("nic_gbps", "iteration_s", "reconfig_s", "network_cost_usd"):
            assert found[name] == pytest.approx(want[name], rel=1e-9), name
    footer = json.loads(parquet.ParquetFile(tmp_path / "rows-00000.parquet").schema_arrow.metadata[b"mfabric"])
    assert {name: footer["group"][name] for name in data} == data | {"nic_gbps": [200.0]}
    assert footer["group"]["goodput"] == "varies"


def test_settings_that_go_together_are_checked_together():
    Sweep(fixed={"ocs": "palomar", "delay_s": 0.01})
    Sweep(fixed={"ocs": "epiphotonics", "optical_degree": 2, "model": "llama-moe"})
    Sweep(fixed={"fabric": "mfabric-cpo", "gpu_tbps": 0.6, "nic_gbps": 100.0, "model": "deepseek-v3"})
    with pytest.raises(InputError, match="gpu_tbps"):
        Sweep(fixed={"fabric": "mfabric-cpo", "gpu_tbps": 0.6, "model": "deepseek-v3"}, grid={"nic_gbps": [100.0, 400]})


def test_nothing_stands_for_the_default_of_its_own_row_alone(tmp_path):
    def seconds(name, **grid):
        fixed = SMALL | {"optical_degree": 2}
        sweep(Sweep("iteration", fixed, grid, rows_per_shard=1, dtype="float64"), tmp_path / name)
        return [one["iteration_s"] for one in query([tmp_path / name], Asked())[0]]

    assert seconds("rate", efficiency=[0.1, None]) == seconds("same rate", efficiency=[0.1, 0.5])
    assert seconds("delay", delay_s=[None, 0.1]) == seconds("same delay", delay_s=[0.025, 0.1])


def test_another_version_does_not_go_on_with_a_sweep(tmp_path, monkeypatch):
    config = exchanges(grid={"sample": [0, 1]})
    sweep(config, tmp_path)
    monkeypatch.setattr(mfabric_jax, "__version__", "999")
    with pytest.raises(InputError, match=r"holds another sweep: version was .*, now '999'; give another folder"):
        sweep(config, tmp_path)


def test_long_lists_stay_out_of_footers(tmp_path):
    config = Sweep("all-to-all", {}, {}, {"sample": list(range(1001))}, dtype="float64")
    assert run._short(run.stated(config))["list"] == {"sample": "1001 values in sweep.json"}
    assert run._short(run.stated(exchanges(grid={}, list={"sample": [0, 1]})))["list"] == {"sample": [0, 1]}


def test_circuits_that_pay_are_weighed_in_every_row(tmp_path):
    fixed = SMALL | {"first": "pays"}
    lists = {"nic_gbps": [100, 800, 100], "delay_s": [0.025, 0.025, 0.2], "efficiency": [0.5, 0.5, 0.3]}
    sweep(Sweep("iteration", fixed, {}, lists, dtype="float64"), tmp_path)
    want = [
        small(fabrics=("mfabric",), first="pays", nic_gbps=(gbps,), delay_s=delay_s, efficiency=rate)
        for gbps, delay_s, rate in zip(*lists.values(), strict=True)
    ]
    for found, config in zip(rows_of(tmp_path), want, strict=True):
        for name in ("iteration_s", "reconfig_s", "ep_comm_s"):
            assert found[name] == pytest.approx(row(config)[name], rel=1e-9, abs=1e-12)


def test_a_row_is_the_mean_of_its_iterations_or_one_of_them(tmp_path):
    fixed = SMALL | {"nic_gbps": 100.0, "iterations": 2, "drift": 0.4}
    sweep(Sweep("iteration", fixed, {"sample": [-1, 0, 1], "efficiency": [0.5, 0.25]}, dtype="float64"), tmp_path)
    found = [one["iteration_s"] for one in rows_of(tmp_path)]
    assert found[2] != found[4]
    assert found[0] == pytest.approx((found[2] + found[4]) / 2, rel=1e-12)
    assert found[0] == pytest.approx(row(small(fabrics=("mfabric",), iterations=2, drift=0.4))["iteration_s"], rel=1e-9)
    assert found[1] > 1.3 * found[0]  # at half the rate


def test_scale_up_domains_have_the_ports_that_their_bandwidth_leaves():
    config = Sweep("iteration", {"model": "deepseek-v3", "fabric": "mfabric-cpo"}, {"nic_gbps": [400.0, 800.0]})
    (group,) = config.groups
    kind = config.program(group)
    cases = kind.cases(config.data(group.rows))
    compared = Compare(models=("deepseek-v3",), fabrics=("mfabric-cpo",), nic_gbps=(400.0, 800.0))
    want = [region.optical_degree for _, region in compared.variants("deepseek-v3")]
    assert cases["optical_degree"].tolist() == want
    inside = [compared.nvswitch_Bps("mfabric-cpo", gbps) / 1e9 for gbps in (400.0, 800.0)]
    np.testing.assert_allclose(cases["nvswitch_gigabytes_per_s"], inside)
    seconds = {"iteration_s": np.ones(2), "ep_comm_s": np.ones(2)}
    assert np.isnan(kind._judged(seconds, config.data(group.rows))["network_cost_usd"]).all()  # nobody sells it


def test_forecast_errors_cost_and_demand_has_the_size_that_was_asked(tmp_path):
    fixed = {"policy": "index", "optical_degree": 6, "demand": "lognormal", "gigabytes": 2.0}
    sweep(exchanges(fixed=fixed, grid={"sigma": [0.0, 2.0], "sample": list(range(20))}), tmp_path)
    found = rows_of(tmp_path)
    known, wrong = ([one["over_bound"] for one in found if one["sigma"] == sigma] for sigma in (0.0, 2.0))
    assert 1 <= min(known) <= max(known)
    assert np.mean(wrong) > np.mean(known)
    rate = 8 * 400 / 8 * 1e9  # of a server, 6 + 2 NICs
    assert all(one["bound_s"] > 2e9 / rate for one in found)


# ------------------------------------------------------------------------------------------------ files
def test_what_is_there_is_not_made_again_and_comes_out_the_same(whole, tmp_path):
    told = []
    sweep(exchanges(), tmp_path, progress=told.append)
    assert files_of(tmp_path) == files_of(whole)
    assert [now.done for now in told if now.estimate is None or now.done][-1] == 10
    (tmp_path / "rows-00001.parquet").unlink()
    kept = (tmp_path / "rows-00000.parquet").stat().st_mtime_ns
    again = []
    sweep(exchanges(), tmp_path, progress=again.append)
    assert files_of(tmp_path) == files_of(whole)
    assert (tmp_path / "rows-00000.parquet").stat().st_mtime_ns == kept
    assert (again[0].found, again[-1].done, again[-1].rows) == (6, 10, 10)


def test_job_arrays_make_the_same_files(whole, tmp_path):
    parts = [sweep(exchanges(), tmp_path, shard=(at, 2)) for at in (1, 2)]
    assert [len(part) for part in parts] == [2, 1]
    assert files_of(tmp_path) == files_of(whole)


KILLED = """
import sys, tests.conftest
from mfabric_jax.study import sweep
from tests.study.test_sweeps import exchanges
import time
def slow(now):
    time.sleep(0.3)
sweep(exchanges(), sys.argv[1], progress=slow)
"""


def test_a_killed_sweep_goes_on(whole, tmp_path):
    started = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    try:
        for _ in range(600):
            if (tmp_path / "rows-00000.parquet").exists() or started.poll() is not None:
                break
            time.sleep(0.1)
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()
    assert started.returncode == -signal.SIGKILL
    left = files_of(tmp_path)
    assert 0 < len(left) < 3
    sweep(exchanges(), tmp_path)
    assert files_of(tmp_path) == files_of(whole)


def test_a_full_disk_is_a_sentence_and_loses_nothing(whole, tmp_path, monkeypatch):
    def full(table, where):
        where.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    sweep(exchanges(), tmp_path, shard=(1, 3))
    monkeypatch.setattr(parquet, "write_table", full)
    with pytest.raises(InputError, match=r"cannot write .*rows-00001.parquet' \(No space left on device\)"):
        sweep(exchanges(), tmp_path)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".json"] == ["rows-00000.parquet"]
    sweep(exchanges(), tmp_path)
    assert files_of(tmp_path) == files_of(whole)


def test_a_folder_that_cannot_be_written_or_is_of_another_sweep(whole, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write into .*file' \("):
        sweep(exchanges(), tmp_path / "file")
    with pytest.raises(InputError, match=r"holds another sweep: fixed was .*; give another folder"):
        sweep(exchanges(fixed={"policy": "greedy"}), whole)
    (tmp_path / "rows-00000.parquet").write_text("")
    with pytest.raises(InputError, match=r"holds rows without sweep.json"):
        sweep(exchanges(), tmp_path)
    (whole / shards.CONFIG).rename(tmp_path / "kept")
    (whole / shards.CONFIG).write_text("{")
    with pytest.raises(InputError, match=r"cannot read .*sweep.json"):
        sweep(exchanges(), whole)
    (tmp_path / "kept").rename(whole / shards.CONFIG)


# ------------------------------------------------------------------------------------------------ mistakes
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"evaluate": "iterations"}, r"evaluate 'iterations' is unknown \(did you mean 'iteration'\?\)"),
        ({"grid": {"nic_gbp": [100]}}, r"setting of \[grid\] 'nic_gbp' is unknown \(did you mean 'nic_gbps'\?\)"),
        ({"grid": {"nic_gbps": 100}}, r"grid.nic_gbps must be a list of at least one value, got 100"),
        ({"grid": {"nic_gbps": []}}, r"grid.nic_gbps must be a list of at least one value, got \[\]"),
        ({"grid": {"nic_gbps": [100, 100]}}, r"grid.nic_gbps must not repeat a value"),
        ({"grid": {"nic_gbps": ["fast"]}}, r"grid.nic_gbps must be a number, got 'fast'"),
        ({"grid": {"nic_gbps": [50]}}, r"nic_gbps.*50"),
        ({"grid": {"pxn": ["yes"]}}, r"grid.pxn must be true or false, got 'yes'"),
        ({"grid": {"delay_s": [0.1, float("nan")]}}, r"grid.delay_s must be finite, got nan"),
        ({"fixed": {"goodput": float("inf")}}, r"fixed.goodput must be finite, got inf"),
        (
            {"evaluate": "all-to-all", "grid": {"seed": [5, 2**32 + 5]}},
            r"grid.seed must be below 2\^31, got 4294967301",
        ),
        ({"random": {"seed": {"low": 0, "high": 2**70, "whole": True}}}, r"low and high must be below 2\^31"),
        ({"grid": {"nic_gbps": [100, 100.0]}}, r"grid.nic_gbps must not repeat a value"),
        ({"grid": {"model": ["mixtral"]}}, r"model 'mixtral' is unknown \(did you mean"),
        ({"grid": {"policy": ["gredy"]}}, r"policy 'gredy' is unknown \(did you mean 'greedy'\?\)"),
        ({"grid": {"optical_degree": [2.5]}}, r"grid.optical_degree must be a whole number, got 2.5"),
        ({"fixed": {"model": 8}}, r"fixed.model must be text, got 8"),
        ({"fixed": {"sample": 1}}, r"sample must be below iterations \(1\) and from -1 \(their mean\), got 1"),
        ({"fixed": {"skew": 1.0}, "grid": {"skew": [1.0]}}, r"setting 'skew' must be in one of \[fixed\], \[grid\]"),
        ({"list": {"dp": [1, 2], "gpus": [128]}}, r"read side by side and must be equally long, got dp 2, gpus 1"),
        (
            {"random": {"delay_s": {"low": 0, "high": 1, "scale": "log"}}},
            r"random.delay_s.low must be above 0 and at most",
        ),
        ({"random": {"delay_s": [0, 1]}}, r"random.delay_s must be \{ of = \[...\] \} or \{ low"),
        ({"random": {"delay_s": {"low": "0", "high": 1}}}, r"random.delay_s.low must be a number, got '0'"),
        ({"random": {"optical_degree": {"low": 1.5, "high": 4, "whole": True}}}, r"low and high must be whole numbers"),
        ({"random": {"delay_s": {"low": 1, "high": 2, "scale": "cubic"}}}, r"random.delay_s.scale 'cubic' is unknown"),
        ({"draws": 3}, r"draws is how often the axes of \[random\] are drawn, but there is none"),
        ({"rows_per_shard": 0}, r"rows_per_shard must be a whole number of at least 1, got 0"),
        ({"evaluate": "all-to-all", "fixed": {"policy": "static"}}, r"policy 'static' cannot be swept alone"),
        ({"evaluate": "all-to-all", "fixed": {"demand": "recorded"}}, r"demand 'recorded' needs trace"),
        ({"evaluate": "all-to-all", "fixed": {"demand": "zip"}}, r"demand 'zip' is unknown \(did you mean 'zipf'\?\)"),
        ({"evaluate": "all-to-all", "grid": {"gigabytes": [1.0, 0.0]}}, r"gigabytes must be finite and above 0"),
        ({"evaluate": "all-to-all", "grid": {"records": [[1, 2]]}}, r"records chooses from a trace"),
        ({"fixed": {"flows": "single"}, "grid": {"electrical_nics": [1, 2]}}, r"one number of electrical_nics"),
    ],
)
def test_mistakes_are_sentences(given, sentence):
    with pytest.raises(InputError, match=sentence):
        Sweep(**given)


def test_a_policy_that_has_changed_is_another_sweep(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from mfabric_jax import policies\n\ndef mine(demand, region, *, previous=None, key=None):"
        "\n    return policies.uniform(demand, region)\n"
    )
    config = exchanges(fixed={"policy": f"{mine}:mine"}, grid={"sample": [0, 1]})
    sweep(config, tmp_path / "rows")
    assert sweep(config, tmp_path / "rows")
    mine.write_text(mine.read_text() + "# other\n")
    with pytest.raises(InputError, match="holds another sweep: files was"):
        sweep(config, tmp_path / "rows")


def test_files_are_read_strictly(tmp_path):
    toml, other = tmp_path / "space.toml", tmp_path / "space.json"
    toml.write_text(
        'evaluate = "all-to-all"\ndraws = 3\n[grid]\nnic_gbps = [100, 400]\n'
        "[random]\nsample = { low = 0, high = 9, whole = true }\n"
    )
    config = read_sweep(toml)
    assert (config.count, config.columns["nic_gbps"].tolist()) == (6, [100.0] * 3 + [400.0] * 3)
    other.write_text(json.dumps({"grid": {"nic_gbps": [100]}, "shards": 2}))
    with pytest.raises(InputError, match=r"sweep setting 'shards' is unknown; allowed: evaluate, fixed, grid"):
        read_sweep(other)
    other.write_text("[1]")
    with pytest.raises(InputError, match=r"must hold a table of settings, got \[1\]"):
        read_sweep(other)
    toml.write_text("grid = [")
    with pytest.raises(InputError, match="is not TOML"):
        read_sweep(toml)
    with pytest.raises(InputError, match=r"cannot read .*nowhere.toml' \(No such file"):
        read_sweep(tmp_path / "nowhere.toml")
    with pytest.raises(InputError, match=r"extension .\.yaml. is unknown"):
        read_sweep(tmp_path / "space.yaml")
    with pytest.raises(InputError, match="shard must be i/n with i from 1 to n, got 3/2"):
        sweep(config, tmp_path, shard=(3, 2))
    with pytest.raises(InputError, match="engine 'dask' is unknown; allowed: local, ray"):
        sweep(config, tmp_path, engine="dask")
