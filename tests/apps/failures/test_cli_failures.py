"""`mfabric failures`: what it prints and writes."""

import numpy as np
import pytest

from mfabric_jax.commands.failures import month_loss_lines
from mfabric_jax.report import read_rows
from tests.command_line import header, line_of, status

FAILURES = ("failures", "--all-columns", "--preset", "paper", "--model", "llama-moe", "--set", "run.dtype=float64")
HOURS = 730.0  # of a month

pytestmark = pytest.mark.usefixtures("command_line")
PARTS_S = ["compute_s", "exposed_comm_s", "reconfig_s", "bubble_s", "tp_comm_s", "ep_comm_s", "dp_comm_s"]
FAILURE_COLUMNS = ["model", "fabric", "failure", "nic_gbps", "gpus", "policy", "routing", "nic_use", "stage", "server"]
FAILURE_COLUMNS += ["failed_iteration", "iterations"]
FAILURE_COLUMNS += ["healthy_s", "failed_s", "slow_down", "run_slow_down", "published"]
FAILURE_COLUMNS += [*(f"healthy_{part}" for part in PARTS_S), *PARTS_S, "dtype"]


def test_failures(capsys, tmp_path):
    out, pictures = tmp_path / "rows.csv", tmp_path / "pictures"
    paths = {"kinds": "electrical-nic+link", "iteration": 1, "stage": 3, "server": 1}
    words = [word for path, value in paths.items() for word in ("--set", f"failures.{path}={value}")]
    words += ["--set", "run.iterations=2", "--set", "network.radix=8", "--dp", "8", "--gpus", "512"]
    words += ["--micro-batches", "2"]
    assert status(*FAILURES, *words, "--out", str(out), "--figures", str(pictures)) == 0
    output = capsys.readouterr()
    rows, config = read_rows(out)
    assert [name for name in header(out) if name in FAILURE_COLUMNS] == FAILURE_COLUMNS
    assert {"spare_usd", "spare_network_usd", "spare_part_usd", "devices", "usd_per_million_tokens"} < set(header(out))
    nic_usd, link_usd = 1499, 2 * 659 + 500 * 0.3  # at 400 Gbps: a NIC; two transceivers and 500 m of fibre
    assert [row["spare_part_usd"] for row in rows] == pytest.approx([nic_usd, link_usd])
    assert "spare part [$]" in output.out
    assert [row["failure"] for row in rows] == ["electrical-nic", "link"]
    for row in rows:
        facts = {
            "model": "llama-moe",
            "gpus": 512,
            "nic_gbps": 400,
            "stage": 3,
            "server": 1,
            "failed_iteration": 1,
            "iterations": 2,
        }
        assert row.items() >= (facts | {"published": None}).items()
        assert 0 < row["run_slow_down"] < row["slow_down"] < 0.5  # of two iterations the second suffers
        printed = line_of(output.out.split("\n\n")[0], row["failure"], "mfabric,", "400", "Gbps")
        np.testing.assert_allclose([float(x) for x in printed[:2]], [row["healthy_s"], row["failed_s"]], rtol=5.1e-3)
        percent = [f"{100 * row[field]:.1f}%" for field in ("slow_down", "run_slow_down")]
        assert percent[0] in printed
        assert percent[1] in output.out  # a wide table goes on below
    nic, link = rows
    assert nic["slow_down"] > link["slow_down"]  # half of the NICs, a quarter of links
    assert (config["resolved"]["failures.kinds"], config["resolved"]["network.radix"]) == (
        ["electrical-nic", "link"],
        8,
    )
    assert sorted(path.name for path in pictures.iterdir()) == ["failures.png"]
    assert "2501.03905, 400 Gbps" not in output.out  # no published figure is shown
    assert str(pictures / "failures.png") in output.err


def test_a_month_is_one_use_of_nics():
    rows = [
        {"model": "m", "fabric": "f", "nic_gbps": 400.0, "nic_use": use, "failure": kind, "slow_down": 0.1}
        | {"lost_hours_per_month": 2.0, "stopped_hours_per_month": 1.75}
        for use in ("own", "pooled")
        for kind in ("gpu", "link")
    ]
    assert list(month_loss_lines(rows, HOURS)) == [
        f"m on f, 400 Gbps, {use} NICs: 4 of a month's 730 h lost (0.55%) to 2 kinds of failures: 3.5 h because the "
        "job stops (half a checkpoint interval and the restart), 0.5 h because it runs slower."
        for use in ("own", "pooled")
    ]


def test_hours_lost_follow_from_the_table_and_what_takes_over_is_said(capsys, tmp_path):
    rates, out = tmp_path / "rates.toml", tmp_path / "rows.csv"
    rates.write_text("[gpu]\nmtbf_hours = 50000\n[link]\nper_million_hours = 20\nstops = false\n")
    words = ["--fabric", "fat-tree", "--set", "failures.kinds=gpu+link", "--set", f"failures.rates={rates}"]
    words += ["--set", "failures.gpu_remedy=cheaper", "--micro-batches", "4", "--set", "network.radix=8"]
    assert status(*FAILURES, *words, "--out", str(out)) == 0
    printed, (rows, _) = capsys.readouterr().out, read_rows(out)
    for row in rows:
        slower = row["repair_hours"] * (1 - 1 / (1 + row["slow_down"]))
        want = row["failures_per_month"] * (row["hours_a_stop"] + slower)
        assert row["lost_hours_per_month"] == pytest.approx(want)
    assert [row["remedy"] for row in rows] == ["spare-server", None]
    assert (
        "gpu: a spare server takes over (llama-moe on fat-tree, 400 Gbps, own NICs); failures.gpu_remedy chooses."
        in printed
    )
    for title in ("remedy", "h a stop", "h stopped", "h to repair", "h slower"):
        assert title in printed


def test_a_job_that_waits_for_a_repair_has_hours_and_dollars_and_the_fabrics_are_ranked(capsys, tmp_path):
    rates, out = tmp_path / "rates.toml", tmp_path / "rows.csv"
    rates.write_text("[gpu]\nmtbf_hours = 50000\n")
    words = ["--fabric", "fat-tree,full-mesh", "--set", "failures.kinds=gpu", "--set", f"failures.rates={rates}"]
    words += ["--micro-batches", "1", "--set", "traffic.alike=everything", "--dp", "4", "--gpus", "256"]
    words += ["--efficiency", "0.5"]
    assert status(*FAILURES, *words, "--out", str(out), "--figures", str(tmp_path)) == 0
    printed, ((tree, mesh), _) = capsys.readouterr().out, read_rows(out)
    stop, failures = 2400 / 3600, 256 / 50000 * HOURS
    assert mesh["lost_hours_per_month"] == pytest.approx(failures * (24 + stop))
    assert (mesh["failed_s"], mesh["slow_down"], mesh["remedy"]) == (None, None, "repair")
    assert tree["lost_hours_per_month"] < 24 * failures / 2
    assert tree["remedy"] != "repair"
    assert mesh["lost_usd_per_month"] > tree["lost_usd_per_month"] > 0
    assert "h of them waiting for a repair, because nothing takes over" in printed
    assert "$/M tokens, with failures" in printed
    assert (
        "Cheapest a million tokens with failures: llama-moe on full-mesh, 400 Gbps, pooled NICs; also if nothing fails"
        in printed
    )


def test_the_source_of_published_figures_is_said_beside_them(capsys):
    words = ["--set", "failures.kinds=gpu", "--micro-batches", "1", "--set", "traffic.alike=everything"]
    assert status("failures", "--preset", "paper", "--model", "mixtral-8x22b", *words) == 0
    assert "published: arXiv 2501.03905, 400 Gbps and 1,024 GPUs" in capsys.readouterr().out


def test_a_comparison_of_fabrics_says_that_its_dollars_leave_failures_out(capsys):
    words = ["compare", "--preset", "paper", "--model", "llama-moe", "--efficiency", "0.5", "--nic-gbps", "400"]
    words += ["--micro-batches", "1", "--set", "traffic.alike=everything", "--set", "run.draws=1"]
    said = "Dollars assume that nothing fails. Hours lost to failures can change the order of fabrics"
    assert status(*words, "--fabric", "fat-tree,rail-optimized") == 0
    assert said in capsys.readouterr().out
    assert status(*words, "--fabric", "fat-tree") == 0
    assert said not in capsys.readouterr().out
