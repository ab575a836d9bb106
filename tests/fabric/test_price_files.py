"""Files with some of the prices: every combination of entries is read as it says, or refused in a helpful sentence."""

import itertools

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Prices, cluster_cost
from mfabric_jax.fabric.cost import package_table
from mfabric_jax.fabric.parts_list import PartsTable

LISTS = {"transceiver": [20, 30], "nic": [200, 300], "switch_port": [50, 70]}
SWITCHES = {
    400: "[switch.800]\nusd = 6400\nports = 32\nnic_gbps = 400\nsource = 'a quote'\n",  # 100 for each of 64 NICs
    800: "[switch.1600]\nusd = 4800\nports = 8\nnic_gbps = 800\n",  # 300 for each of 16
}
QUOTED = {400: 100.0, 800: 300.0}
TWO_TIERS = (1, 3, 4, 2)  # NICs, switch ports, transceivers, fibres of a NIC


def file_of(tmp_path, *parts):
    path = tmp_path / "prices.toml"
    path.write_text("".join(parts))
    return path


def subsets(names):
    return [some for many in range(len(names) + 1) for some in itertools.combinations(names, many)]


def nic_usd(prices, gbps):
    return cluster_cost("fat-tree", 1, gbps, prices, tiers=2) / 8


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("listed", subsets(LISTS), ids=" ".join)
@pytest.mark.parametrize("quoted", subsets(SWITCHES), ids=str)
def test_every_combination_of_lists_and_quotes(own, listed, quoted, tmp_path):
    usual = package_table()
    gbps = [400, 800] if own else usual["gbps"]
    lists = {name: LISTS[name] if own else usual[name][:2] + LISTS[name] for name in listed}
    text = [f"gbps = {gbps}\n"] * own + [f"{name} = {values}\n" for name, values in lists.items()]
    file = file_of(tmp_path, *text, *(SWITCHES[nic] for nic in quoted))
    stand_for = {"switch_port"} if set(quoted) == {400, 800} else set()
    if missing := [name for name in LISTS if own and name not in {*listed, *stand_for}]:
        with pytest.raises(InputError) as caught:
            Prices.read(file)
        sentence = str(caught.value)
        assert f"needs prices at its bandwidths; add {', '.join(missing)}" in sentence
        helps = "switch_port" in missing and quoted and set(quoted) < {400, 800}
        assert (f"or [switch.GBPS] for NICs of {800 if 400 in quoted else 400} Gbps" in sentence) == bool(helps)
        return
    prices = Prices.read(file)
    for nic in (400, 800):
        at = usual["gbps"].index(nic)
        of = {name: (lists.get(name) or usual[name])[-2:][at - 2] for name in LISTS}
        port = QUOTED[nic] if nic in quoted else of["switch_port"]
        counts = zip(TWO_TIERS, (of["nic"], port, of["transceiver"], 150), strict=True)
        assert nic_usd(prices, nic) == pytest.approx(sum(count * usd for count, usd in counts)), nic


def test_between_bandwidths_that_are_quoted_ports_are_on_the_line(tmp_path):
    lists = "gbps = [400, 800]\ntransceiver = [20, 30]\nnic = [200, 300]\n"
    prices = Prices.read(file_of(tmp_path, lists, *SWITCHES.values()))
    assert prices.price_of("switch_port", (400 * 800) ** 0.5) == pytest.approx((100 * 300) ** 0.5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[watts]\ngbps = [50, 100, 200, 400]\n",
            "watts.gbps needs the power at its bandwidths; add transceiver, nic, s",
        ),
        (
            "[watts]\ngbps = [400]\nnic = [25]\n",
            "watts.gbps needs the power at its bandwidths; add transceiver, switch_",
        ),
        ("[switch.800]\nusd = 1\n", "switch.800 needs ports of a whole switch."),
        ("[switch.800]\nports = 64\n", "switch.800 needs usd of a whole switch."),
        ("[switch.800]\nusd = 1\nports = 64\nradix = 4\n", "field of switch.800"),
        ("nic = [1, 2]\n", "nic must list one price for each of the 4 bandwidths in gbps"),
        ("gbps = 400\nnic = 5\n", "needs prices at its bandwidths; add transceiver, switch_port."),
        ("switch = 5\n", "switch must be a table of values by name"),
        ("switch_ports = [1]\n", "price"),
        (
            "gbps = [400]\ntransceiver = [1]\nnic = [1]\n[switch.400]\nusd = 0\nports = 64\n",
            "usd of switch.400 must be finite and above 0, got 0",
        ),
    ],
)
def test_what_a_file_may_not_say(text, sentence, tmp_path):
    with pytest.raises(InputError) as caught:
        PartsTable.read(file_of(tmp_path, text))
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")


def test_power_at_bandwidths_of_ones_own(tmp_path):
    text = "[watts]\ngbps = [400]\ntransceiver = [8]\nnic = [20]\nswitch_port = [10]\n"
    watts = PartsTable.read(file_of(tmp_path, text)).watts
    assert (watts.watts_of("nic", 400), watts.watts_of("nic", 100)) == (20, None)
