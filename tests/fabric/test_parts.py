"""The table of parts: what it says, a user's own over it, optical switches of one's own, what is refused."""

import numpy as np

from mfabric_jax.fabric import Prices
from mfabric_jax.fabric.cost import Watts
from mfabric_jax.fabric.ocs import OCS, Ocs, get_ocs
from mfabric_jax.fabric.parts_file import packaged
from mfabric_jax.fabric.parts_list import Parts
from mfabric_jax.workload.gpus import GPUS
from tests.mistakes import refused


def file_of(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(text)
    return path


def test_every_fact_has_a_source_and_every_gpu_of_the_catalogue_its_entry():
    table = packaged()
    listed = {name for name, value in table.items() if not isinstance(value, dict)}
    assert set(table["source"]) == listed
    assert set(table["watts"]["source"]) == set(table["watts"]) - {"source"}
    for kind in ("gpus", "servers", "ocs"):
        assert all(entry["source"] for entry in table[kind].values())
    assert set(table["gpus"]) == set(GPUS)
    assert Parts.read().prices == Prices()
    assert Parts.read().watts == Watts()


def test_one_entry_of_ones_own_leaves_the_others(tmp_path):
    text = "[gpus.H100-SXM]\nusd = 20000\n[servers.hgx]\nwatts = 4000\n[running]\npue = 1.1\n[watts]\npanel_port = 2\n"
    own, usual = Parts.read(file_of(tmp_path, text)), Parts.read()
    assert own.gpus["H100-SXM"].usd == 20000
    assert own.gpus["A100-80GB-SXM"] == usual.gpus["A100-80GB-SXM"]
    assert (own.servers["hgx"].watts, own.servers["hgx"].usd) == (4000, usual.servers["hgx"].usd)
    assert (own.running.pue, own.running.years) == (1.1, usual.running.years)
    assert (own.watts.panel_port, own.watts.nic) == (2, usual.watts.nic)
    assert own.prices == usual.prices
    assert own.server_of("H100-SXM") is own.server_of("a GPU that nobody lists") is own.servers["hgx"]
    assert own.server_of("A100-80GB-SXM") is own.servers["dgx-a100"]


def test_a_switch_changes_the_price_and_power_of_its_ports(tmp_path):
    telescent, calient, rotornet = (Parts.read(ocs=name) for name in ("telescent", "calient", "rotornet"))
    assert (telescent.prices.ocs_port, telescent.watts.ocs_port) == (100, 0.8)  # power: the assumption
    assert (calient.prices.ocs_port, calient.watts.ocs_port) == (520, 0)  # 45 W are the switch's
    assert rotornet.prices.ocs_port is None
    assert Parts.read().prices.ocs_port == 520
    own = file_of(
        tmp_path, "ocs_port = 300\n[ocs.mine]\nports = 64\ndelay_s = 0.001\nusd = 9000\n[ocs.polatis]\nusd = 1\n"
    )
    assert Parts.read(own, "rotornet").prices.ocs_port == 300  # what the file does not name costs that
    assert Parts.read(own, "mine").prices.ocs_port == 0
    assert get_ocs("mine", own) == Ocs("mine", "own", 64, (0.001, 0.001), usd=9000)
    assert (get_ocs("polatis", own).usd, get_ocs("polatis", own).usd_per_port) == (1, 520)
    assert get_ocs("calient", own).usd_per_port == 300
    assert get_ocs("calient", file_of(tmp_path, "panel_port = 1")) is OCS["calient"]


def test_regions_share_a_switch_but_none_is_on_two():
    switch = Ocs("", "", ports=100)
    for region_ports, regions, switches in ((30, 10, 4), (50, 10, 5), (51, 10, 10), (100, 3, 3), (0, 5, 0), (2, 7, 1)):
        assert switch.switches(region_ports, regions) == switches
    assert switch.switches(np.array([30, 51, 0]), 10).tolist() == [4, 10, 0]


def test_what_is_no_table_of_parts(tmp_path):
    for text, sentence in [
        ("[gpu]\nusd = 1", "price 'gpu' is unknown (did you mean 'gpus'?)"),
        ("gpus = 3", "gpus must be a table of values by name, got 3."),
        ("[gpus]\nH100-SXM = 3", "gpus.H100-SXM must be a table of values by name, got 3."),
        ("[gpus.X]\nwatts = 3", "field of gpus.X 'watts' is unknown; allowed: usd, server, source."),
        ("[gpus.X]\nusd = -3", "gpus.X.usd must be finite and not negative, got -3."),
        ("[gpus.X]\nusd = [1]", "gpus.X.usd must be a number, got [1]."),
        ("[gpus.X]\nserver = 'hgy'", "gpus.X.server 'hgy' is unknown (did you mean 'hgx'?)"),
        ("[servers.X]\ngpus = 0", "servers.X.gpus must be a whole number of at least 1, got 0."),
        ("[running]\npue = 0.9", "running.pue must be at least 1, got 0.9."),
        ("[running]\nyears = 0", "running.years must be finite and above 0, got 0."),
        ("[running]\nusd_per_kWh = 1", "field of running 'usd_per_kWh' is unknown (did you mean 'usd_per_kwh'?)"),
        ("[watts]\nnic = [1, 2]", "watts: nic must list one power for each of the 4 bandwidths in gbps, got [1, 2]."),
        ("[watts]\nnics = 1", "field of watts 'nics' is unknown (did you mean 'nic'?)"),
        ("[ocs.X]\nusd = 1", "ocs.X needs ports, how many one switch has."),
        ("[ocs.X]\nports = 8\ndelay_s = [2, 1]", "ocs.X.delay_s must be fastest and slowest, got [2, 1]."),
        ("[ocs.X]\nports = 8\ndelay_s = [1, 2, 3]", "ocs.X.delay_s must be one number or two, fastest and slowest"),
        ("[ocs.X]\nports = 8\nturns_per_s = 0", "ocs.X.turns_per_s must be finite and above 0, got 0."),
        ("[ocs.X]\nport = 8", "field of ocs.X 'port' is unknown (did you mean 'ports'?)"),
    ]:
        assert sentence in refused(Parts.read, file_of(tmp_path, text), "X" if "ocs" in text else None)


def test_nothing_stands_for_not_known(tmp_path):
    path = tmp_path / "own.json"
    path.write_text(
        '{"gpus": {"H100-SXM": {"usd": null}}, "ocs": {"polatis": {"usd_per_port": null}}, "ocs_port": null}'
    )
    own = Parts.read(path, "polatis")
    assert (own.gpus["H100-SXM"].usd, own.prices.ocs_port, Parts.read(path).prices.ocs_port) == (None, None, None)
    for text, sentence in [
        ('{"servers": {"hgx": {"gpus": null}}}', "servers.hgx.gpus must be a whole number of at least 1, got None."),
        ('{"running": {"pue": null}}', "running.pue must be a number, got nothing."),
        ('{"watts": {"nic": null}}', "watts: nic must be a list of numbers, got None."),
    ]:
        path.write_text(text)
        assert sentence in refused(Parts.read, path)
