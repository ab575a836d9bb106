"""Dollars per NIC, counted by hand, and the published ratios."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from mfabric_jax import fabric
from mfabric_jax.fabric import Prices, cluster_cost
from mfabric_jax.fabric.cost import Watts, package_table
from mfabric_jax.fabric.parts_list import OCS, Ocs, PartsTable, get_ocs, own_prices
from mfabric_jax.fabric.registry import cluster_watts, cost_table, no_price
from mfabric_jax.workload.gpus import GPUS

FIBRE = 0.3 * 500

LISTED = {100: (99, 659, 187), 200: (239, 1079, 374), 400: (659, 1499, 1090), 800: (1399, 2248, 1400)}


def fat_tree(gbps, **settings):
    return cluster_cost("fat-tree", 1, gbps, **settings)


def mfabric(gbps, **settings):
    return cluster_cost("mfabric", 1, gbps, **settings)


def test_parts_that_only_count_once():
    assert fat_tree(400, nics=4) == pytest.approx(4 * 11353)
    assert fat_tree(400, nic_use="pooled") == fat_tree(400)
    assert cluster_cost("rail-optimized", 1, 400) == fat_tree(400)
    assert mfabric(400, optical_degree=0, electrical_nics=8) == pytest.approx(fat_tree(400))
    assert mfabric(400, optical_degree=3, electrical_nics=1) == pytest.approx(mfabric(400) / 2)
    edge, above = (cluster_cost("oversub-fat-tree", 1, 400, at=at) for at in ("edge", "aggregation"))
    assert above - edge == pytest.approx(8 * (4 / 3 * (1090 + 659) + 2 / 3 * FIBRE), rel=1e-12)
    assert cluster_cost("topoopt", 1, 400, nics=1) == pytest.approx(1499 + 659 + FIBRE + 100)


def test_between_listed_bandwidths_prices_are_straight_lines_on_log_axes():
    along = math.log(300 / 200) / math.log(2)
    for part, low, high in (("transceiver", 239, 659), ("nic", 1079, 1499), ("switch_port", 374, 1090)):
        by_hand = math.exp(math.log(low) + along * (math.log(high) - math.log(low)))
        assert Prices().price_of(part, 300) == pytest.approx(by_hand, rel=1e-12)
    # sqrt(100 x 200): the geometric mean of the neighbours.
    assert Prices().price_of("nic", math.sqrt(20000)) == pytest.approx(math.sqrt(659 * 1079), rel=1e-12)


def test_more_bandwidth_costs_more():
    for cost in (fat_tree, mfabric):
        dollars = [cost(gbps) for gbps in range(100, 801, 25)]
        assert all(a < b for a, b in itertools.pairwise(dollars))


def test_a_price_beyond_the_integers_of_arrays():
    large = 2**63
    own = Prices(ocs_port=large, sharp_port=large)
    assert cluster_cost("mfabric", 3, np.array([400.0]), own, optical_degree=np.array([6])) >= 3 * 6 * float(large)
    drawn = Watts(ocs_port=large)
    assert cluster_watts("mfabric", 3, np.array([400.0]), drawn, optical_degree=np.array([6])) >= 3 * 6 * float(large)


def test_a_rack_switch_costs_every_server_its_share():
    given = Prices(rack_switch_per_server=75, scale_up_per_gpu=10, co_packaged_per_gpu=10)
    without = dataclasses.replace(given, rack_switch_per_server=0)
    assert cluster_cost("mfabric", 3, 400, given) == 3 * (39674 + 75)
    for name in fabric.NAMES:
        assert cluster_cost(name, 3, 400, given) == pytest.approx(cluster_cost(name, 3, 400, without) + 3 * 75)
        last = cost_table(name, 400, given)[-1]
        assert last == dict(zip(last, ("rack switch", "rack_switch_per_server", 1, 75, 75), strict=True))
    assert cluster_cost("nvl72", 3, 400, Prices(rack_switch_per_server=75)) is None


# NIC, switch ports, transceivers, fibres, OCS ports, panel ports of one server.
SERVER = {
    "fat-tree": (8, 40, 48, 24, 0, 0),
    "oversub-fat-tree": (8, 8 * (1 + 4 / 3), 8 * (2 + 4 / 3), 8 * (1 + 2 / 3), 0, 0),
    "rail-optimized": (8, 40, 48, 24, 0, 0),
    "rail-only": (8, 24, 32, 16, 0, 0),
    "topoopt": (8, 0, 8, 8, 0, 8),
    "mfabric": (8, 10, 18, 12, 6, 0),
}

TWO_TIERS = SERVER | {
    "fat-tree": (8, 24, 32, 16, 0, 0),
    "oversub-fat-tree": (8, 8 * (1 + 2 / 3), 8 * (2 + 2 / 3), 8 * (1 + 1 / 3), 0, 0),
    "rail-optimized": (8, 24, 32, 16, 0, 0),
    "mfabric": (8, 6, 14, 10, 6, 0),
}


def by_hand(counts, gbps):
    transceiver, nic, port = LISTED[gbps]
    unit = (nic, port, transceiver, FIBRE, 520, 100)
    return sum(count * price for count, price in zip(counts, unit, strict=True))


def test_published_ratios_by_name_at_any_size():
    for gbps, published in ((100, 1.524), (200, 1.790), (400, 2.289), (800, 2.331)):
        for name, servers in itertools.product(("fat-tree", "rail-optimized"), (1, 4096)):
            ratio = cluster_cost(name, servers, gbps) / cluster_cost("mfabric", servers, gbps)
            assert ratio == pytest.approx(published, abs=5e-4)


def test_every_priced_fabric_by_hand_and_its_table():
    designs = itertools.product(SERVER, ((3, SERVER), (2, TWO_TIERS)), LISTED)
    for name, (tiers, counted), gbps in designs:
        dollars, rows = by_hand(counted[name], gbps), cost_table(name, gbps, tiers=tiers)
        assert cluster_cost(name, 5, gbps, tiers=tiers) == pytest.approx(5 * dollars, rel=1e-12)
        assert sum(row["usd"] for row in rows) == pytest.approx(dollars, rel=1e-12)
        counts = dict.fromkeys(("nic", "switch_port", "transceiver", "fibre", "ocs_port", "panel_port"), 0)
        for row in rows:
            assert row["count"] > 0
            assert row["usd"] == row["count"] * row["unit_usd"]
            counts[row["part"]] += row["count"]
        assert tuple(counts.values()) == pytest.approx(counted[name], rel=1e-14)


def test_the_table_says_what_hangs_where():
    rows = cost_table("mfabric", 400, optical_degree=3, electrical_nics=1)
    count = {(row["attached_to"], row["part"]): row["count"] for row in rows}
    optical = {("regional OCS", part): 3 for part in ("nic", "transceiver", "fibre", "ocs_port")}
    electrical = {"nic": 1, "switch_port": 5, "transceiver": 6, "fibre": 3}
    assert count == optical | {("switch tree", part): n for part, n in electrical.items()}
    only = cost_table("mfabric", 400, optical_degree=0, electrical_nics=8)
    assert {row["attached_to"] for row in only} == {"switch tree"}
    assert {row["attached_to"] for row in cost_table("rail-only", 400)} == {"rail"}
    assert {row["attached_to"] for row in cost_table("topoopt", 400)} == {"patch panel"}


def test_prices_of_gpus_are_not_invented_but_added():
    fields = {
        "nvl72": ("scale_up_per_gpu", "NVLink domains"),
        "mfabric-cpo": ("co_packaged_per_gpu", "co-packaged optics"),
    }
    ethernet = cluster_cost("fat-tree", 256, 800)
    for name, (field, what) in fields.items():
        give = f"give {field}, dollars per GPU, in the prices."
        assert no_price(name) == f"{name} has no cost: there are no public prices for {what}; {give}"
        assert cluster_cost(name, 256, 800) is None
        *rest, last = cost_table(name, 800, gpus=8)
        assert last == {"attached_to": what, "part": field, "count": 8, "unit_usd": None, "usd": None}
        assert rest == cost_table("fat-tree", 800)
        (other,) = {"scale_up_per_gpu", "co_packaged_per_gpu"} - {field}
        assert cluster_cost(name, 256, 800, Prices(**{other: 1.0})) is None
        prices = Prices(**{field: 1234.5})
        assert no_price(name, prices) is None
        for gpus in (4, 8):
            want = pytest.approx(ethernet + 256 * gpus * 1234.5, rel=1e-14)
            assert cluster_cost(name, 256, 800, prices, gpus=gpus, nics=8) == want
        free = cluster_cost(name, 1, 800, Prices(**{field: 0}), gpus=8)
        assert free == pytest.approx(ethernet / 256, rel=1e-14)  # 0 is a price
        assert cluster_cost("fat-tree", 256, 800, prices) == ethernet


# The user's own prices.

OWN = Prices(
    gbps=(50, 200.5, 1600),
    transceiver=(10, 20, 30.25),
    nic=(100, 90, 80),
    switch_port=(5, 6, 7),
    ocs_port=0,
    panel_port=1,
    fibre_per_metre=0.125,
    metres_per_link=40,
    scale_up_per_gpu=2000,
)


def listed(prices):
    """As a file says them, without whole switches."""
    return {field: value for field, value in dataclasses.asdict(prices).items() if field != "switches"}


def toml(prices):
    given = {field: value for field, value in listed(prices).items() if value is not None}
    lines = [f"{field} = {list(value) if isinstance(value, tuple) else value}" for field, value in given.items()]
    return "\n".join(lines)


def test_prices_come_back_from_files(tmp_path):
    for prices in (Prices(), OWN):
        (tmp_path / "prices.toml").write_text(toml(prices))
        (tmp_path / "prices.JSON").write_text(json.dumps(listed(prices)))
        for name in ("prices.toml", "prices.JSON"):
            read = Prices.read(tmp_path / name)
            assert read == prices == Prices.read(str(tmp_path / name))
            assert hash(read) == hash(prices)
    (tmp_path / "prices.toml").write_text("ocs_port = 100\nnic = [1, 2, 3, 4]  # at the bandwidths that are listed\n")
    assert Prices.read(tmp_path / "prices.toml") == Prices(ocs_port=100, nic=(1, 2, 3, 4))  # the others stay


def test_own_prices_decide():
    assert OWN.price_of("nic", 200.5) == 90
    assert OWN.price_of("nic", 50) == 100
    assert OWN.price_of("transceiver", math.sqrt(50 * 200.5)) == pytest.approx(math.sqrt(10 * 20), rel=1e-12)
    # A switch port for 7, a transceiver for 30.25, 40 m of fibre at 0.125 $: as far as 1600 Gbps.
    assert cluster_cost("fat-tree", 3, 1600, OWN) == pytest.approx(3 * 8 * (80 + 5 * 7 + 6 * 30.25 + 3 * 5), rel=1e-12)
    assert cluster_cost("topoopt", 1, 50, OWN) == 8 * (100 + 10 + 5 + 1)
    assert Prices(gbps=(400,), transceiver=(1,), nic=(2,), switch_port=(3,)).price_of("switch_port", 400) == 3


def test_many_clusters_at_once_cost_what_each_does():
    falling = Prices(nic=(900, 800, 700, 600))
    gbps, degree, nics = np.array([100.0, 137.0, 400.0, 800.0]), np.array([6, 0, 3, 8]), np.array([2, 8, 1, 4])
    own = Prices(scale_up_per_gpu=10.0)
    for name, prices in itertools.product(("mfabric", "rail-only", "nvl72"), (None, falling, own)):
        ports = {"optical_degree": degree, "electrical_nics": nics} if name == "mfabric" else {}
        together = cluster_cost(name, 16, gbps, prices, **ports)
        each = [
            cluster_cost(name, 16, g, prices, **{key: value[at] for key, value in ports.items()})
            for at, g in enumerate(gbps.tolist())
        ]
        assert (together is None and each == [None] * 4) or together.tolist() == pytest.approx(each, rel=1e-12)


def test_every_fabric_draws_what_its_parts_do():
    each = {"nic": 25, "switch_port": 10, "transceiver": 12}
    listed = {part: (watts / 2, watts) for part, watts in each.items()}
    watts = Watts(gbps=(200, 400), **listed, ocs_port=0.5, panel_port=0.25, fibre=0.01)
    unit = (25, 10, 12, 0.01, 0.5, 0.25)
    for name, counts in SERVER.items():
        by_part = sum(count * one for count, one in zip(counts, unit, strict=True))
        assert cluster_watts(name, 3, 400, watts) == pytest.approx(3 * by_part, rel=1e-12)
    half = cluster_watts("topoopt", 1, np.array([200.0, 400.0, 800.0]), watts)
    assert half[:2] == pytest.approx([8 * (12.5 + 6 + 0.01 + 0.25), 8 * (25 + 12 + 0.01 + 0.25)], rel=1e-12)
    assert np.isnan(half[2])
    assert cluster_watts("fat-tree", 1, 800, watts) is None  # nothing is listed there
    assert cluster_watts("topoopt", 2, 400, dataclasses.replace(watts, panel_port=None)) is None
    assert cluster_watts("nvl72", 2, 400, watts) is None  # nobody says what an NVLink domain draws
    own, ethernet = dataclasses.replace(watts, scale_up_per_gpu=7), cluster_watts("fat-tree", 1, 400, watts)
    assert cluster_watts("nvl72", 2, 400, own, gpus=64) == pytest.approx(2 * (8 * ethernet + 64 * 7), rel=1e-12)


def file_of(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(text)
    return path


def test_every_fact_has_a_source_and_every_gpu_of_the_catalogue_its_entry():
    table = package_table()
    listed = {name for name, value in table.items() if not isinstance(value, dict)}
    assert set(table["source"]) == listed
    assert set(table["watts"]["source"]) == set(table["watts"]) - {"source"}
    for kind in ("gpus", "servers", "ocs"):
        assert all(entry["source"] for entry in table[kind].values())
    assert set(table["gpus"]) == set(GPUS)
    assert PartsTable.read().prices == Prices()
    assert PartsTable.read().watts == Watts()


def test_one_entry_of_ones_own_leaves_the_others(tmp_path):
    text = "[gpus.H100-SXM]\nusd = 20000\n[servers.hgx]\nwatts = 4000\n[running]\npue = 1.1\n[watts]\npanel_port = 2\n"
    own, usual = PartsTable.read(file_of(tmp_path, text)), PartsTable.read()
    assert own.gpus["H100-SXM"].usd == 20000
    assert own.gpus["A100-80GB-SXM"] == usual.gpus["A100-80GB-SXM"]
    assert (own.servers["hgx"].watts, own.servers["hgx"].usd) == (4000, usual.servers["hgx"].usd)
    assert (own.running.pue, own.running.years) == (1.1, usual.running.years)
    assert (own.watts.panel_port, own.watts.nic) == (2, usual.watts.nic)
    assert own.prices == usual.prices
    assert own.server_of("H100-SXM") is own.server_of("a GPU that nobody lists") is own.servers["hgx"]
    assert own.server_of("A100-80GB-SXM") is own.servers["dgx-a100"]
    changed = own_prices(file_of(tmp_path, text))
    assert changed["gpus.H100-SXM.usd"] == (20000, usual.gpus["H100-SXM"].usd)
    assert changed["running.pue"] == (1.1, usual.running.pue)
    assert [*changed] == ["gpus.H100-SXM.usd", "servers.hgx.watts", "running.pue", "watts.panel_port"]
    assert own_prices(file_of(tmp_path, f"[running]\npue = {usual.running.pue}\n")) == {}


def test_a_switch_changes_the_price_and_power_of_its_ports(tmp_path):
    telescent, calient, rotornet = (PartsTable.read(ocs=name) for name in ("telescent", "calient", "rotornet"))
    assert (telescent.prices.ocs_port, telescent.watts.ocs_port) == (100, 0.8)  # power: the assumption
    assert (calient.prices.ocs_port, calient.watts.ocs_port) == (520, 0)  # 45 W are the switch's
    assert rotornet.prices.ocs_port is None
    assert PartsTable.read().prices.ocs_port == 520
    own = file_of(
        tmp_path, "ocs_port = 300\n[ocs.mine]\nports = 64\ndelay_s = 0.001\nusd = 9000\n[ocs.polatis]\nusd = 1\n"
    )
    assert PartsTable.read(own, "rotornet").prices.ocs_port == 300  # what the file does not name costs that
    assert PartsTable.read(own, "mine").prices.ocs_port == 0
    assert get_ocs("mine", own) == Ocs("mine", "own", 64, (0.001, 0.001), usd=9000)
    assert (get_ocs("polatis", own).usd, get_ocs("polatis", own).usd_per_port) == (1, 520)
    assert get_ocs("calient", own).usd_per_port == 300
    assert get_ocs("calient", file_of(tmp_path, "panel_port = 1")) is OCS["calient"]


def test_regions_share_a_switch_but_none_is_on_two():
    switch = Ocs("", "", ports=100)
    for region_ports, regions, switches in ((30, 10, 4), (50, 10, 5), (51, 10, 10), (100, 3, 3), (0, 5, 0), (2, 7, 1)):
        assert switch.switches(region_ports, regions) == switches
    assert switch.switches(np.array([30, 51, 0]), 10).tolist() == [4, 10, 0]


def test_nothing_stands_for_not_known(tmp_path):
    path = tmp_path / "own.json"
    path.write_text(
        '{"gpus": {"H100-SXM": {"usd": null}}, "ocs": {"polatis": {"usd_per_port": null}}, "ocs_port": null}'
    )
    own = PartsTable.read(path, "polatis")
    assert (own.gpus["H100-SXM"].usd, own.prices.ocs_port, PartsTable.read(path).prices.ocs_port) == (None, None, None)


QUOTE = "[switch.800]\nusd = 28000\nports = 64\nnic_gbps = 400\n"


def quoted(tmp_path, text=QUOTE):
    (tmp_path / "quote.toml").write_text(text)
    return Prices.read(tmp_path / "quote.toml")


def test_a_whole_switch_with_twin_ports_by_hand(tmp_path):
    # 64 ports of 800 serve 128 NICs of 400: 218.75 dollars each. Behind a NIC of a tree of three tiers: 5 switch ports.
    own = quoted(tmp_path)
    assert own.price_of("switch_port", 400) == 28000 / 128 == 218.75
    assert own.price_of("switch_port", 800) == 1400  # the list's: this switch serves others
    assert own.price_of("switch_port", np.array([100, 400])).tolist() == [187, 218.75]
    less = fat_tree(400) - fat_tree(400, prices=own)
    assert less == pytest.approx(8 * 5 * (1090 - 218.75))
    # Modules of 1,100 in its ports, for two links each: of 6 transceivers behind a NIC the 5 in switches cost 550.
    optics = quoted(tmp_path, QUOTE + "optics_usd = 1100\n")
    assert fat_tree(400, prices=own) - fat_tree(400, prices=optics) == pytest.approx(8 * 5 * (659 - 550))
    usual = quoted(tmp_path, "[switch.400]\nusd = 6400\nports = 64\n")
    assert usual.price_of("switch_port", 400) == 100
    assert quoted(tmp_path, "ocs_port = 520\n") == Prices()  # older files are read as before


def test_quoted_prices_are_those_of_switch_ports_and_gpus_that_nobody_replaced(tmp_path):
    quoted = PartsTable.read().quote_variants("H100-SXM")
    assert list(quoted) == ["low_ports_usd", "low_gpus_usd", "high_gpus_usd"]
    assert quoted["low_ports_usd"].prices.switch_port == (187, 374, 563, 1400)
    assert [quoted[f"{end}_gpus_usd"].gpus["H100-SXM"].usd for end in ("low", "high")] == [25000, 30000]
    assert list(PartsTable.read().quote_variants("A100-80GB-SXM")) == ["low_ports_usd"]
    (tmp_path / "own.toml").write_text("switch_port = [100, 200, 300, 400]\n[gpus.H100-SXM]\nusd = 22000\n")
    assert PartsTable.read(tmp_path / "own.toml").quote_variants("H100-SXM") == {}
