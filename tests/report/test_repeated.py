"""The command that repeats a row of serving, and the pages of several files of serving."""

import re
import shlex

from mfabric_jax.report.html.page import html_report
from mfabric_jax.report.ranking import designs
from mfabric_jax.report.repeated import repeat_command
from mfabric_jax.report.served import candidates, with_limits

ROW = {
    **{"model": "deepseek-v3", "gpu": "H200-SXM", "fabric": "torus", "nic_gbps": 400, "ep": 64, "batch": 33.0},
    **{"overlap": True, "prefill_ep": 32, "prefill_tokens": 8192, "prefill_overlap": False, "by": "high"},
    **{"tokens_per_s_per_user": 20.0, "tokens_per_s_per_gpu": 1000.0, "tpot_limit_s": 0.05, "fits": True},
    **{"load_decode_gpus": 128, "load_prefill_gpus": 64, "load_usd_per_million_tokens": 1.0, "in_time": True},
}
STATED = {"network.fabric": ["torus", "mfabric"], "serving.tpot_ms": 50.0, "serving.load.arrivals": "my log.csv"}
CONFIG = {"stated": STATED, "sources": dict.fromkeys(STATED, "flag"), "varied": ["network.fabric"], "resolved": STATED}


def test_a_command_is_quoted_and_states_the_pools():
    command = repeat_command(ROW, CONFIG)
    words = shlex.split(command)
    assert words[:2] == ["mfabric", "serve"]
    assert "--arrivals 'my log.csv'" in command
    assert "--tpot-ms" not in words
    for wanted in ("--fabric torus", "--ep 64", "--batch 33", "serving.load.decode_groups=2", "load.tpot_ms=50"):
        assert wanted in command


def test_a_command_names_the_case_file_and_none_is_made_up():
    of_file = CONFIG | {"sources": CONFIG["sources"] | {"serving.load.arrivals": "case.toml"}}
    assert repeat_command(ROW, of_file).startswith("mfabric serve case.toml --fabric torus ")
    assert "my log.csv" not in repeat_command(ROW, of_file)
    assert repeat_command({name: ROW[name] for name in ROW if name != "prefill_tokens"}, CONFIG) is None
    assert repeat_command({"iteration_s": 1.0}, CONFIG) is None


def test_a_command_states_no_default_and_nothing_that_other_rows_read():
    """A page of pools and replicas: each has the settings of the other, open or at their defaults."""
    stated = STATED | {"serving.replica.engine": ["vllm"], "serving.host_s": [0.0, 0.014], "serving.tp": 1}
    config = CONFIG | {"stated": stated, "sources": dict.fromkeys(stated, "flag"), "varied": ["network.fabric"]}
    open_settings = {"serving.replica.clients": None, "serving.replica.engine": None, "serving.host_s": 0.0}
    command = repeat_command(ROW | open_settings, config)
    assert not re.search("auto|clients|engine|host_s|--tp ", command)
    assert "--fabric torus" in command
    replica = {"model": "deepseek-v3", "gpu": "H200-SXM", "fabric": None, "ep": 1, "tpot_limit_s": 0.05}
    replica |= {"tokens_per_s_per_user": 20.0, "tokens_per_s_per_gpu": 1000.0, "serving.replica.clients": 16}
    replica |= {"serving.replica.engine": "vllm", "serving.host_s": 0.014, "serving.load.arrivals": None}
    replica |= {"prefill_ep": None, "prefill_overlap": None}
    words = "--tpot-ms 50 --engine vllm --set serving.host_s=0.014 --clients 16"
    assert repeat_command(replica, config) == f"mfabric serve {words}"


def test_a_rate_is_one_job_however_it_is_written():
    rows = [ROW | {"serving.load.rate": rate, "load_requests_per_s": 15.0} for rate in ("150", 150.0, "150.0", 300)]
    assert {row["model"] for row in candidates(rows)} == {
        "deepseek-v3, rate 150",
        "deepseek-v3, rate 300",
    }


def test_rows_with_other_limits_are_other_jobs():
    """One file has its limit from `serving.tpot_ms` and finds its groups, another states both otherwise."""
    settings = {"serving.tpot_ms": None, "serving.load.tpot_ms": None, "serving.load.ttft_ms": 2000.0}
    settings |= {"serving.ep": 32, "serving.load.decode_groups": None, "serving.by": None}
    searched = ROW | settings | {"tpot_limit_s": None, "fabric": "fat-tree"}
    stated = searched | {"fabric": "mfabric", "serving.load.tpot_ms": 40.0, "serving.load.decode_groups": 2}
    stated |= {"serving.ep": 64, "serving.by": "high"}
    rows = [searched | {"serving.tpot_ms": 40.0}, searched | {"serving.tpot_ms": 30.0}, stated]
    jobs = [row["model"] for row in candidates(with_limits(rows, {}))]
    assert sorted(jobs) == ["deepseek-v3, 30 ms a token", *["deepseek-v3, 40 ms a token"] * 2]
    (_, same), (_, other) = designs(with_limits(rows, {}), {}).values()
    assert [list(design.settings) for design in same] == [["fabric", "nic_gbps"]] * 2
    assert len(other) == 1
    late = [row | {"serving.load.ttft_ms": limit} for row, limit in zip(rows[::2], (2000.0, None), strict=True)]
    assert [row["model"] for row in candidates(with_limits(late, {}))] == [
        "deepseek-v3, 2000 ms to the first token",
        "deepseek-v3, no limit to the first token",
    ]


def test_limits_of_a_page_are_those_of_each_file(tmp_path):
    rows = [
        {name: ROW[name] for name in ROW if name != "tpot_limit_s"} | {"serving.tpot_ms": limit, "file": str(limit)}
        for limit in (30.0, 40.0)
    ]
    resolved = {"serving.tpot_ms": [30.0, 40.0]}
    assert [row["tpot_limit_s"] for row in with_limits(rows, resolved)] == [0.03, 0.04]
    runs = {"x/a.csv": {"serving.tpot_ms": 30.0}, "x/b.csv": {"serving.tpot_ms": 40.0}}
    page = html_report(rows, {"resolved": resolved, "runs": runs}, tmp_path / "page.html")
    assert "a.csv: tpot_ms 30; b.csv: tpot_ms 40" in page.read_text(encoding="utf-8")
