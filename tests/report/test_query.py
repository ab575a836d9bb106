"""Questions to rows on disk, against plain Python."""

import itertools
import statistics

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from mfabric_jax.report import QueryOptions, query, write_rows
from mfabric_jax.report.grid import unbeaten
from mfabric_jax.report.query import equal_over_seeds, pairing
from mfabric_jax.support.parts import SweepFolder

FABRICS = ("mfabric", "fat-tree", "topoopt")


def made(count=60, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {"configuration": i, "fabric": FABRICS[rng.integers(3)], "pooled": bool(rng.integers(2))}
        | {"nic_gbps": float(rng.choice([100, 400])), "iteration_s": float(rng.integers(1, 30))}
        | {"cost": float(rng.integers(1, 30)) if rng.random() < 0.9 else None}
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows in two shards."""
    where, rows = tmp_path_factory.mktemp("rows"), made()
    write_rows(rows[:25], where / "a.parquet", {"seed": 0})
    write_rows(rows[25:], where / "b.parquet", {"seed": 0})
    return where


def test_conditions(folder):
    for where, keep in (
        ("fabric = mfabric", lambda row: row["fabric"] == "mfabric"),
        ("fabric == mfabric|topoopt", lambda row: row["fabric"] in ("mfabric", "topoopt")),
        ("fabric != mfabric|topoopt", lambda row: row["fabric"] == "fat-tree"),
        ("nic_gbps>=400", lambda row: row["nic_gbps"] >= 400),
        ("iteration_s < 7", lambda row: row["iteration_s"] < 7),
        ("cost > 3", lambda row: row["cost"] is not None and row["cost"] > 3),
        ("pooled = true", lambda row: row["pooled"]),
        ("configuration <= 4", lambda row: row["configuration"] <= 4),
    ):
        assert query([folder], QueryOptions(where=[where])) == ([row for row in made() if keep(row)], {"seed": 0}), (
            where
        )


def test_groups_and_their_measures(folder):
    asked = QueryOptions(by=["fabric", "nic_gbps"], measures=["iteration_s:max", "cost:mean", "cost:median"])
    rows, _ = query([folder], asked)
    want = {}
    for row in made():
        want.setdefault((row["fabric"], row["nic_gbps"]), []).append(row)
    assert len(rows) == len(want)
    for row in rows:
        group = want[row["fabric"], row["nic_gbps"]]
        assert row["rows"] == len(group)
        assert row["iteration_s_max"] == max(one["iteration_s"] for one in group)
        assert row["cost_mean"] == pytest.approx(statistics.mean(one["cost"] for one in group if one["cost"]))
        assert row["cost_median"] == statistics.median(one["cost"] for one in group if one["cost"])
    usual, _ = query([folder], QueryOptions(by=["fabric"]))
    assert set(usual[0]) == {"fabric", "rows", "iteration_s_mean"}


def test_the_spread_of_a_sample_and_of_its_mean(tmp_path):
    """Standard deviation by n - 1; Student's t of 2 degrees of freedom at 97.5 % is 4.302653."""
    values = {"a": [1.0, 2.0, 4.0, None], "b": [5.0], "c": [None]}
    write_rows([{"of": of, "x": x} for of, some in values.items() for x in some], tmp_path / "rows.parquet", {})
    rows, _ = query([tmp_path], QueryOptions(by=["of"], measures=["x:std", "x:ci95", "x:mean"]))
    std = statistics.stdev([1, 2, 4])
    assert [row["x_std"] for row in rows] == [pytest.approx(std), None, None]
    assert [row["x_ci95"] for row in rows] == [pytest.approx(4.302653 * std / 3**0.5, rel=1e-6), None, None]


def seeded(policies=("greedy", "uniform", "own"), seeds=(0, 1, 2)):
    """Rows of policies on the same seeds, at times that depend on both; what a policy brings differs with it."""
    return [
        {"configuration": at, "policy": policy, "routing": "relay" if policy == "own" else "unsplit"}
        | {"iteration_s": (1 + seed) * (1 + at // len(seeds)) + 0.1 * seed * (policy == "own"), "run.seed": seed}
        for at, (policy, seed) in enumerate(itertools.product(policies, seeds))
    ]


def test_a_spread_of_nothing_says_that_traffic_does_not_vary(tmp_path):
    asked = QueryOptions(by=["policy"], measures=["iteration_s:mean", "iteration_s:ci95"])
    write_rows(seeded(), tmp_path / "varies.parquet", {})
    alike = [row | {"iteration_s": 1.5, "empty": None if row["policy"] == "own" else 1.0} for row in seeded()]
    write_rows(alike, tmp_path / "alike.parquet", {})
    write_rows(alike[::3], tmp_path / "one_seed.parquet", {})
    assert equal_over_seeds([tmp_path / "varies.parquet"], asked) is None
    assert equal_over_seeds([tmp_path / "one_seed.parquet"], asked) is None
    assert equal_over_seeds([tmp_path / "alike.parquet"], asked._replace(measures=["iteration_s:mean"])) is None
    words = "iteration_s is equal over run.seed: this traffic does not vary with the seed."
    assert equal_over_seeds([tmp_path / "alike.parquet"], asked) == words
    assert equal_over_seeds([tmp_path / "alike.parquet"], asked._replace(measures=["empty:std"])) is None


def test_ratios_are_over_the_row_of_the_same_seed(tmp_path):
    write_rows([*seeded(), seeded()[-1] | {"run.seed": 9}], tmp_path / "rows.parquet", {})
    asked = QueryOptions(by=["policy"], measures=["iteration_s:mean", "iteration_s:ci95"], over="policy = greedy")
    rows, _ = query([tmp_path], asked)
    own = [(3 * (1 + seed) + 0.1 * seed) / (1 + seed) for seed in range(3)]
    assert [row["policy"] for row in rows] == ["greedy", "own", "uniform"]  # sorted
    assert [row["iteration_s_over_mean"] for row in rows] == [1.0, pytest.approx(statistics.mean(own)), 2.0]
    half = 4.302653 * statistics.stdev(own) / 3**0.5
    assert [row["iteration_s_over_ci95"] for row in rows] == [0.0, pytest.approx(half, rel=1e-6), 0.0]
    said = "ratios divide by the row with policy = greedy and the same run.seed. 1 of 10 rows have no such row, so "
    assert pairing([tmp_path], asked) == f"{said}they have no ratio."


def test_ratios_are_over_rows_of_several_conditions(tmp_path):
    rows = [row | {"when": when} for when in ("pays", "always") for row in seeded()]
    rows = [
        row | {"configuration": at, "iteration_s": row["iteration_s"] * (1 + at // 9)} for at, row in enumerate(rows)
    ]
    write_rows(
        [{key: row[key] for key in (*list(row)[:3], "when", *list(row)[3:5])} for row in rows], tmp_path / "r.csv", {}
    )
    asked = QueryOptions(by=["policy", "when"], over="policy = greedy, when = pays")
    ratios = {
        (row["policy"], row["when"]): row["iteration_s_over_mean"] for row in query([tmp_path / "r.csv"], asked)[0]
    }
    assert ratios["greedy", "pays"] == 1
    assert ratios["greedy", "always"] == ratios["uniform", "pays"] == 2


def test_the_front_of_all_and_of_every_group(folder):
    asked = ["cost", "iteration_s"]
    priced = [row for row in made() if row["cost"] is not None]

    def best(rows):
        values = np.array([[row[name] for name in asked] for row in rows])
        kept = (not any((q <= p).all() and (q < p).any() for q in values) for p in values)
        return [*itertools.compress(rows, kept)]

    assert query([folder], QueryOptions(pareto=asked))[0] == best(priced)
    each, _ = query([folder], QueryOptions(pareto=asked, by=["fabric"]))
    fronts = [best([row for row in priced if row["fabric"] == fabric]) for fabric in FABRICS]
    assert each == sorted(itertools.chain(*fronts), key=lambda row: row["configuration"])
    turned, _ = query([folder], QueryOptions(pareto=["cost:max"]))
    assert {row["cost"] for row in turned} == {max(row["cost"] for row in priced)}
    assert query([folder], QueryOptions(where=["cost > 1000"], pareto=["cost"]))[0] == []


@hypothesis.given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_fronts_are_what_nothing_beats(points):
    values = np.asarray(points, float)
    want = [not any((q <= p).all() and (q < p).any() for q in values) for p in values]
    assert unbeaten(values).tolist() == want


def test_sorted_some_columns_and_few(folder):
    asked = QueryOptions(sort="iteration_s:down", columns=["iteration_s", "fabric"], limit=7)
    rows, _ = query([folder], asked)
    assert [list(row) for row in rows] == [["iteration_s", "fabric"]] * 7
    assert [row["iteration_s"] for row in rows] == sorted((row["iteration_s"] for row in made()), reverse=True)[:7]


def test_files_of_any_kind_together(folder, tmp_path):
    write_rows([{"configuration": 99, "fabric": "own", "speed": 1.5}], tmp_path / "more.csv", {})
    rows, config = query([folder / "a.parquet", tmp_path / "more.csv"], QueryOptions())
    assert [row["configuration"] for row in rows] == [*range(25), 99]
    assert (rows[-1]["speed"], rows[0]["speed"], rows[-1]["cost"]) == (1.5, None, None)
    assert config == {"seed": 0}
    write_rows([{"n": 1}, {"n": 2**62}], tmp_path / "rows.parquet", {})  # whole numbers of any size are compared
    assert query([tmp_path], QueryOptions(where=["n > 5"]))[0] == [{"n": 2**62}]


def test_an_empty_column_of_a_file_has_the_kind_that_it_has_in_others(tmp_path):
    """Also where an older sweep wrote it as numbers, and in a column that no file fills."""
    empty, link = np.full(2, np.nan), np.array(["a 0 -> b 1", None], object)
    places = SweepFolder(tmp_path, {"parts": 3})
    places.claim()
    for number, columns in enumerate(
        [
            {"busiest_link": empty, "use": empty, "tpot_s": empty, "at": np.array([0.5, 1.0]), "pays": link},
            {
                "busiest_link": link,
                "use": np.array([True, False]),
                "tpot_s": np.array([None] * 2),
                "at": empty,
                "pays": np.array([True, False]),
            },
            {"busiest_link": np.array([None] * 2), "use": empty, "at": np.array(["measured", "measured"], object)},
        ]
    ):
        places.write(number, columns, {})
    rows, _ = query([tmp_path], QueryOptions())
    assert [row["busiest_link"] for row in rows] == [None, None, "a 0 -> b 1", None, None, None]
    assert [row["use"] for row in rows] == [None, None, True, False, None, None]
    assert [row["tpot_s"] for row in rows] == [None] * 6
    assert [row["pays"] for row in rows] == ["a 0 -> b 1", None, "True", "False", None, None]
    assert [row["at"] for row in rows] == ["0.5", "1", None, None, "measured", "measured"]  # text, as in a CSV
    assert len(query([tmp_path], QueryOptions(where=["busiest_link = a 0 -> b 1", "use = true"]))[0]) == 1


def test_files_of_other_settings_are_told_apart(tmp_path):
    """Also in groups and columns that are asked for; parts of one sweep, and files that say the same, are not."""
    row = {"fabric": "fat-tree", "iteration_s": 1.0}
    for name, tiers in (("a", 2), ("b", 3), ("c", 3)):
        write_rows([row], tmp_path / f"{name}.csv", {"tiers": tiers, "version": name})
    both = [str(tmp_path / f"{name}.csv") for name in "ab"]
    assert query(both, QueryOptions())[0] == [{"fabric": "fat-tree", "file": file, "iteration_s": 1.0} for file in both]
    grouped, _ = query(both, QueryOptions(by=["fabric"]))
    assert [(one["file"], one["rows"]) for one in grouped] == [(file, 1) for file in both]
    assert [[*one.values()] for one in query(both, QueryOptions(columns=["iteration_s"]))[0]] == [
        [1.0, file] for file in both
    ]
    assert query([tmp_path / "b.csv", tmp_path / "c.csv"], QueryOptions())[0] == [row, row]
    for number in (0, 1):
        about = {"sweep": {"grid": 1}, "group": {"tiers": 2, "delay_s": number}}
        write_rows([{"ocs": "xy"[number], "iteration_s": 2.0}], tmp_path / f"s{number}.parquet", about)
    rows, _ = query([tmp_path / "s0.parquet", tmp_path / "s1.parquet"], QueryOptions())
    assert rows == [{"ocs": "x", "iteration_s": 2.0}, {"ocs": "y", "iteration_s": 2.0}]


def test_a_front_has_throughput_large_unless_it_is_told_otherwise(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("tokens_per_s_per_gpu,usd_per_million_tokens\n10,1\n20,2\n15,3\n", encoding="utf-8")

    def kept(*pareto):
        rows, _ = query([path], QueryOptions(pareto=pareto))
        return [row["tokens_per_s_per_gpu"] for row in rows]

    assert kept("tokens_per_s_per_gpu", "usd_per_million_tokens") == [10, 20]
    assert kept("tokens_per_s_per_gpu") == kept("tokens_per_s_per_gpu:max") == [20]
    assert kept("tokens_per_s_per_gpu:min") == [10]


def test_stated_settings_tell_files_apart_if_they_can(tmp_path):
    """A column of the settings takes the place of file names, so that designs of two files are not one."""
    rows = [{"fabric": "fat-tree", "iteration_s": 1.0}]
    config = {"stated": {"model.name": "m"}, "resolved": {"model.name": "m", "gpu.name": "H100-SXM", "gpu.watts": 700}}
    other = {
        "stated": {"gpu.name": "B200-HGX"},
        "resolved": {"gpu.name": "B200-HGX", "gpu.watts": 1000, "model.name": "m"},
    }
    both = [str(write_rows(rows, tmp_path / f"{name}.csv", own)) for name, own in (("a", config), ("b", other))]
    assert query(both, QueryOptions())[0] == [
        row | {"gpu.name": gpu} for row in rows for gpu in ("H100-SXM", "B200-HGX")
    ]
    third = str(
        write_rows(rows, tmp_path / "c.csv", other | {"stated": {}, "resolved": other["resolved"] | {"gpu.watts": 1}})
    )
    assert [row["file"] for row in query([*both, third], QueryOptions())[0]] == [*both, third]


def test_every_file_keeps_its_own_settings_where_they_differ(tmp_path):
    """Also beside a file whose rows vary a setting; equal numbers are equal however they are written."""
    one_file = {"serving.load.rate": 150.0, "serving.tpot_ms": 30.0, "serving.prompt": 900}
    varied = {"serving.load.rate": [150, 300], "serving.tpot_ms": 40.0, "serving.prompt": 900.0}
    for name, own in (("a", one_file), ("b", varied)):
        rates = own["serving.load.rate"] if name == "b" else [None]
        rows = [
            {"fabric": "torus", "iteration_s": 1.0} | ({"serving.load.rate": rate} if rate else {}) for rate in rates
        ]
        write_rows(rows, tmp_path / f"{name}.csv", {"stated": own, "resolved": own, "varied": []})
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    rows, config = query(files, QueryOptions())
    assert [(row["serving.load.rate"], row["serving.tpot_ms"]) for row in rows] == [(150, 30), (150, 40), (300, 40)]
    assert config["runs"] == {
        str(files[0]): {"serving.load.rate": 150.0, "serving.tpot_ms": 30.0},
        str(files[1]): {"serving.load.rate": [150, 300], "serving.tpot_ms": 40.0},
    }
    assert config["resolved"]["serving.tpot_ms"] == [30.0, 40.0]
    assert config["resolved"]["serving.load.rate"] == [150, 300]
