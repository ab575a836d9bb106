"""Questions to rows on disk, against plain Python."""

import itertools
import statistics

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from mfabric_jax.report import Asked, query, write_rows
from mfabric_jax.report.fronts import unbeaten
from tests.mistakes import check_refused

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
        assert query([folder], Asked(where=[where])) == ([row for row in made() if keep(row)], {"seed": 0}), where


def test_groups_and_their_measures(folder):
    asked = Asked(by=["fabric", "nic_gbps"], measures=["iteration_s:max", "cost:mean", "cost:median"])
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
    usual, _ = query([folder], Asked(by=["fabric"]))
    assert set(usual[0]) == {"fabric", "rows", "iteration_s_mean"}


def test_the_front_of_all_and_of_every_group(folder):
    asked = ["cost", "iteration_s"]
    priced = [row for row in made() if row["cost"] is not None]

    def best(rows):
        values = np.array([[row[name] for name in asked] for row in rows])
        kept = (not any((q <= p).all() and (q < p).any() for q in values) for p in values)
        return [*itertools.compress(rows, kept)]

    assert query([folder], Asked(pareto=asked))[0] == best(priced)
    each, _ = query([folder], Asked(pareto=asked, by=["fabric"]))
    fronts = [best([row for row in priced if row["fabric"] == fabric]) for fabric in FABRICS]
    assert each == sorted(itertools.chain(*fronts), key=lambda row: row["configuration"])
    turned, _ = query([folder], Asked(pareto=["cost:max"]))
    assert {row["cost"] for row in turned} == {max(row["cost"] for row in priced)}
    assert query([folder], Asked(where=["cost > 1000"], pareto=["cost"]))[0] == []


@hypothesis.given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_fronts_are_what_nothing_beats(points):
    values = np.asarray(points, float)
    want = [not any((q <= p).all() and (q < p).any() for q in values) for p in values]
    assert unbeaten(values).tolist() == want


def test_sorted_some_columns_and_few(folder):
    asked = Asked(sort="iteration_s:down", columns=["iteration_s", "fabric"], limit=7)
    rows, _ = query([folder], asked)
    assert [list(row) for row in rows] == [["iteration_s", "fabric"]] * 7
    assert [row["iteration_s"] for row in rows] == sorted((row["iteration_s"] for row in made()), reverse=True)[:7]


def test_files_of_any_kind_together(folder, tmp_path):
    write_rows([{"configuration": 99, "fabric": "own", "speed": 1.5}], tmp_path / "more.csv", {})
    rows, config = query([folder / "a.parquet", tmp_path / "more.csv"], Asked())
    assert [row["configuration"] for row in rows] == [*range(25), 99]
    assert (rows[-1]["speed"], rows[0]["speed"], rows[-1]["cost"]) == (1.5, None, None)
    assert config == {"seed": 0}
    write_rows([{"n": 1}, {"n": 2**62}], tmp_path / "rows.parquet", {})  # whole numbers of any size are compared
    assert query([tmp_path], Asked(where=["n > 5"]))[0] == [{"n": 2**62}]


def test_settings_in_which_files_differ_are_columns(tmp_path):
    for name, tiers, seed in (("a", 2, 0), ("b", 3, 0), ("c", 3, 1)):
        about = {"tiers": tiers, "seed": seed, "nic_gbps": [1], "version": name}
        write_rows([{"fabric": "fat-tree", "iteration_s": 1.0}], tmp_path / f"{name}.csv", about)
    rows, _ = query([tmp_path / "a.csv", tmp_path / "b.csv"], Asked())
    assert rows == [{"fabric": "fat-tree", "tiers": n, "iteration_s": 1.0} for n in (2, 3)]
    assert list(rows[0])[-1] == "iteration_s"
    rows, _ = query([tmp_path / "b.csv", tmp_path / "c.csv"], Asked())
    assert [row["seed"] for row in rows] == [0, 1]
    assert "tiers" not in rows[0]
    for number in (0, 1):  # files of one sweep differ in what its columns imply
        about = {"sweep": {"grid": 1}, "group": {"tiers": 2, "seed": 0, "delay_s": number}}
        write_rows([{"ocs": "xy"[number], "iteration_s": 2.0}], tmp_path / f"s{number}.parquet", about)
    rows, _ = query([tmp_path / "s0.parquet", tmp_path / "s1.parquet", tmp_path / "b.csv"], Asked())
    assert [(row["ocs"], row["tiers"]) for row in rows] == [("x", 2), ("y", 2), (None, 3)]
    assert "delay_s" not in rows[0]
    write_rows([{"fabric": "mfabric", "tiers": 2, "iteration_s": 2.0}], tmp_path / "d.csv", {"tiers": 2, "seed": 0})
    rows, _ = query([tmp_path / "d.csv", tmp_path / "b.csv"], Asked(where=["tiers = 3"]))
    assert [row["fabric"] for row in rows] == ["fat-tree"]


def test_rows_of_other_assumptions_never_look_alike(tmp_path):
    """A file of few micro-batches and one of many, the same model and fabric; one file alone may vary what it likes."""
    row = {"model": "m", "fabric": "fat-tree", "expert_load": "balanced", "micro_batches": 4, "iteration_s": 4.0}
    more = row | {"expert_load": "received", "micro_batches": 17, "iteration_s": 15.0}
    write_rows([row, row | {"fabric": "torus"}], tmp_path / "a.csv", {"bubble": None})
    write_rows([more], tmp_path / "b.csv", {"bubble": 0.15})
    both = [tmp_path / "a.csv", tmp_path / "b.csv"]
    rows, _ = query(both, Asked(columns=["model", "iteration_s"]))
    assert [[*one.values()] for one in rows] == [["m", 4.0, 4], ["m", 4.0, 4], ["m", 15.0, 17]]
    rows, _ = query(both, Asked(by=["model"]))
    assert [[*one.values()] for one in rows] == [["m", 4, 2, 4.0], ["m", 17, 1, 15.0]]
    rows, _ = query(both, Asked(columns=["expert_load", "iteration_s"]))  # which tells them apart
    assert list(rows[0]) == ["expert_load", "iteration_s"]
    write_rows([row, more], tmp_path / "c.csv", {})
    rows, _ = query([tmp_path / "c.csv"], Asked(by=["model"]))
    assert [(one["rows"], list(one)) for one in rows] == [(2, ["model", "rows", "iteration_s_mean"])]
    write_rows([more | {"model": "n"}], tmp_path / "d.csv", {"bubble": None})  # of another model: no other assumption
    rows, _ = query([tmp_path / "a.csv", tmp_path / "d.csv"], Asked(columns=["model", "iteration_s"]))
    assert list(rows[0]) == ["model", "iteration_s"]
    write_rows([{"model": "m", "iteration_s": 1.0}], tmp_path / "e.csv", {"bubble": 0.5})
    rows, _ = query([tmp_path / "b.csv", tmp_path / "e.csv"], Asked(columns=["iteration_s"]))
    assert len({tuple(one.values())[1:] for one in rows}) == 2


def test_mistakes_are_sentences(folder):
    for asked, sentence in (
        ({"where": ["fabrik = x"]}, r"column 'fabrik' is unknown \(did you mean 'fabric'\?\)"),
        ({"where": ["fabric"]}, r"a condition is COLUMN OP VALUE with =, !=, <, <=, > or >=, got 'fabric'"),
        ({"where": ["cost =< 3"]}, r"a condition is COLUMN OP VALUE with .*, got 'cost =< 3'"),
        ({"where": ["cost > dear"]}, r"column cost holds numbers, got 'dear'"),
        ({"where": ["cost > 1|2"]}, r"several values go with = and != only, got 'cost > 1\|2'"),
        ({"where": ["pooled = maybe"]}, r"pooled 'maybe' is unknown; allowed: true, false"),
        ({"by": ["fabric"], "measures": ["cost:most"]}, r"measure 'most' is unknown"),
        ({"by": ["fabric"], "measures": ["fabric:mean"]}, r"column fabric must hold numbers here, got string"),
        ({"measures": ["cost:mean"]}, r"measures are of groups; name columns to group by, got cost:mean alone"),
        ({"pareto": ["cost:least"]}, r"pareto 'cost:least': direction 'least' is unknown; allowed: min, max"),
        ({"sort": "cost:high"}, r"sort 'cost:high': direction 'high' is unknown; allowed: up, down"),
    ):
        check_refused(sentence, query, [folder], Asked(**asked))


def test_files_that_are_not_there_or_hold_no_rows(tmp_path):
    check_refused(r"holds no .parquet file of rows; has its sweep written any yet\?", query, [tmp_path], Asked())
    (tmp_path / "broken.parquet").write_text("PAR1")
    write_rows([{"a": 1.0}], tmp_path / "one.parquet", {})
    write_rows([{"a": "x"}], tmp_path / "two.parquet", {})
    for names, sentence in (
        (["nothing"], r"cannot read .*nothing.parquet'"),
        (["broken"], r"broken.parquet' does not hold rows"),
        (["one", "two"], "columns of other kinds under the same name"),
    ):
        check_refused(sentence, query, [tmp_path / f"{name}.parquet" for name in names], Asked())
