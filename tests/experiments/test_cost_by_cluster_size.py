"""The experiment says what direct calls say, and which trees fit; how its figure looks was judged by eye."""

import json

import pytest

from experiments.cost_by_cluster_size import PICTURE, SCRIPT, Config, run
from experiments.rows import picked
from experiments.script import COMPARED
from mfabric_jax import report
from mfabric_jax.fabric import Prices, cluster_cost
from mfabric_jax.report import style

SMALL = Config(servers=(128, 512), nic_gbps=(100.0, 400.0))


def test_rows_equal_direct_calls():
    rows = list(run(SMALL))
    places = {(row["fabric"], row["tiers"], row["nic_gbps"], row["servers"]) for row in rows}
    assert len(rows) == len(places) == (4 * 2 + 2) * 2 * 2
    assert {row["fabric"] for row in rows} == set(COMPARED)
    for row in rows:
        fabric, servers, gbps = row["fabric"], row["servers"], row["nic_gbps"]
        cost = cluster_cost(fabric, servers, gbps, tiers=row["tiers"] or 3)
        assert (row["network_cost_usd"], row["gpus"], row["usd_per_gpu"]) == (cost, 8 * servers, cost / (8 * servers))
        assert row["over_mfabric"] == cost / cluster_cost("mfabric", servers, gbps)
    with style.look():
        figure = PICTURE.build(rows)
    titles = [axes.get_title(loc="left") for axes in figure.axes[:2]]
    assert titles == ["100 Gbps", "400 Gbps"]
    assert len(figure.legends[0].get_texts()) == len(COMPARED) + 1  # and what is on two tiers


def test_the_published_ratios():
    rows = picked(run(Config()), fabric="fat-tree", tiers=3)
    for gbps, published in {100: 1.524, 200: 1.790, 400: 2.289, 800: 2.331}.items():
        ratios = [row["over_mfabric"] for row in picked(rows, nic_gbps=gbps)]
        assert ratios == pytest.approx([published] * 6, abs=5e-4)


def test_which_trees_fit():
    for fabric, tiers, most in (  # servers of which the 64-port tree has room for the NICs
        ("fat-tree", 2, 64 * 32 // 8),
        ("oversub-fat-tree", 2, 64 * 48 // 8),
        ("rail-only", 2, 64 * 32),
        ("fat-tree", 3, 64 * 32 * 32 // 8),
        ("mfabric", 3, 64 * 32 * 32 // 2),
    ):
        rows = list(run(Config(fabrics=(fabric,), nic_gbps=(400.0,), servers=(1, most, most + 1))))
        rows = picked(rows, tiers=tiers)
        assert [row["fits"] for row in rows] == [True, True, False]
        assert rows[1]["nics_on_a_tree"] == most * {"mfabric": 2, "rail-only": 1}.get(fabric, 8)
    assert {row["fits"] for row in run(Config(fabrics=("topoopt",), servers=(128,)))} == {None}
    rows = list(
        run(Config(fabrics=("fat-tree",), servers=(4, 5, 16), nic_gbps=(400.0,), radix=8))
    )  # room for 32, 128 NICs
    assert [[row["fits"] for row in picked(rows, tiers=n)] for n in (2, 3)] == [[True, False, False], [True] * 3]


def test_settings_reach_the_cost():
    nics = {"nics": 4, "optical_degree": 3, "electrical_nics": 1}
    rows = list(run(Config(servers=(3,), nic_gbps=(200.0,), gpus=4, oversubscription=2, **nics)))
    for fabric, tiers, settings in (
        ("fat-tree", 3, {"nics": 4}),
        ("oversub-fat-tree", 2, {"nics": 4, "oversubscription": 2, "tiers": 2}),
        ("mfabric", 3, {"optical_degree": 3, "electrical_nics": 1}),
    ):
        (row,) = picked(rows, fabric=fabric, tiers=tiers)
        assert (row["gpus"], row["network_cost_usd"]) == (12, cluster_cost(fabric, 3, 200, **settings))


def test_own_prices_and_none(tmp_path, capsys):
    words = ["--out", str(tmp_path), "--servers", "128", "--nic-gbps", "800", "--fabrics", "mfabric,nvl72"]
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"scale_up_per_gpu": 1000, "ocs_port": 0}))
    assert SCRIPT.main([*words, "--prices", str(file)]) == 0
    rows, config = report.read_rows(tmp_path / "cost_by_cluster_size.csv")
    prices = Prices(scale_up_per_gpu=1000, ocs_port=0)
    for fabric in ("mfabric", "nvl72"):
        (row,) = picked(rows, fabric=fabric, tiers=3)
        assert row["network_cost_usd"] == cluster_cost(fabric, 128, 800, prices, gpus=8)
    assert config["price_table"]["ocs_port"] == 0
    assert "has no cost" not in capsys.readouterr().out

    assert SCRIPT.main(words) == 0
    assert "nvl72 has no cost: there are no public prices for NVLink domains;" in capsys.readouterr().out
    rows, _ = report.read_rows(tmp_path / "cost_by_cluster_size.csv")
    unpriced = [(r["network_cost_usd"], r["usd_per_gpu"], r["over_mfabric"]) for r in picked(rows, fabric="nvl72")]
    assert unpriced == [(None,) * 3] * 2
    with style.look():
        assert (
            PICTURE.build(rows).get_suptitle() == f"Without a public price, left out: {style.FABRICS['nvl72'].label}."
        )
