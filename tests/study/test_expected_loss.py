"""The loss of a month by hand, and files of rates that are refused."""

import pytest

from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.study._expected_loss import Rate, devices, expected_loss, read_rates
from mfabric_jax.study._failure_kinds import ServerPorts, ports_of
from mfabric_jax.workload import get
from tests.mistakes import check_refused


def test_a_month_by_hand():
    # 1,000 GPUs, one failure of each in 73,000 h: 10 a month. Each: 20 h at 4/5 of the speed lose 4 h; half of a
    # checkpoint interval of 1 h and 15 minutes to restart lose 0.75 h. An iteration of 9 s: 400 an hour.
    found = expected_loss(Rate(1 / 73000, 20.0, True), 1000, 0.25, 9.0, 3600.0, 900.0)
    assert found["failures_per_month"] == pytest.approx(10)
    assert found["lost_hours_per_month"] == pytest.approx(47.5)
    assert found["lost_iterations_per_month"] == pytest.approx(47.5 * 400)
    runs_on = expected_loss(Rate(1 / 73000, 20.0, False), 1000, 0.25, 9.0, 3600.0, 900.0)
    assert runs_on["lost_hours_per_month"] == pytest.approx(40)
    assert set(expected_loss(None, 1000, 0.25, 9.0, 3600.0, 900.0).values()) == {None}


def test_how_many_there_are():
    job = get("mixtral-8x7b")  # 128 servers, 4 in a region
    counts = {"gpu": 1024, "server": 128, "electrical-nic": 256, "optical-nic": 768, "link": 256, "nvswitch": 768}
    counts |= {"optical-switch": 32, "controller": 32, "electrical-nics": 128}
    assert {kind: devices(kind, job, ServerPorts(2, 6, 2), 6) for kind in counts} == counts
    # 1,024 NICs, 32 under each edge switch; 48 where there are three links down for one up.
    for over, edges in ((None, 32), (3.0, 22)):
        assert devices("switch", job, ports_of(Electrical(100.0, 8, over), 8, 64), 6) == edges
    # A torus: 6 NICs, two ends of 3 links a server.
    ports = ports_of(DirectLinks(4, 100.0, 4), 6, 64)
    assert [devices(kind, job, ports, 6) for kind in ("electrical-nic", "optical-nic", "link")] == [0, 768, 384]


def test_files_of_rates(tmp_path):
    file = tmp_path / "rates.toml"
    file.write_text("[gpu]\nmtbf_hours = 50000\n[controller]\nper_million_hours = 5\nrepair_hours = 2\n")
    assert read_rates(str(file)) == {"gpu": Rate(2e-5, 24.0, True), "controller": Rate(5e-6, 2.0, False)}
    for text, said in (
        ("[gpus]\nmtbf_hours = 1", "failure in .* 'gpus' is unknown .did you mean 'gpu'"),
        ("[gpu]\nmtbf_hours = [1, 2]", "gpu.mtbf_hours must be a number, got .1, 2."),
        ("[gpu]\nmtbf_hours = 1\nrepair_hours = []", "gpu.repair_hours must be a number"),
        ("gpu = 3", "gpu in .* must be a table such as . mtbf_hours = 50000 ., got 3"),
        ("[gpu]\nmtbf = 1", "key 'mtbf' is unknown"),
        ("[gpu]\nrepair_hours = 1", "needs per_million_hours or mtbf_hours, one of them"),
        ("[gpu]\nmtbf_hours = 1\nper_million_hours = 1", "needs per_million_hours or mtbf_hours, one of them"),
        ("[gpu]\nmtbf_hours = 0", "gpu.mtbf_hours must be finite and above 0, got 0"),
        ("[gpu]\nmtbf_hours = 9\nstops = 1", "gpu.stops must be true or false, got 1"),
        ("[gpu]\nmtbf_hours = 9\nrepair_hours = -1", "gpu.repair_hours must be finite and not negative, got -1"),
    ):
        file.write_text(text)
        check_refused(said, read_rates, str(file))
