"""`mfabric calibrate nccl`: a table, remarks, a file that a case reads, a picture."""

import json

import pytest

from mfabric_jax import cli
from mfabric_jax.fabric import get_transport
from tests.apps.recordings.measurements.samples import FILES, nccl_text, nccl_times
from tests.command_line import line_of, mistake

WORDS = ["calibrate", "nccl", "across.txt", "inside.txt", "--tier", "across,server"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, ranks, alpha_s, rate, share in (("across", 32, 4e-5, 45e9, 3 / 4), ("inside", 8, 1.5e-5, 350e9, 7 / 8)):
        (tmp_path / f"{name}.txt").write_text(nccl_text(nccl_times(alpha_s, rate, share, 0.05, 0), ranks, 8))
    (tmp_path / "osu.txt").write_text(FILES["osu.txt"])


def test_a_table_a_file_and_a_picture(files, tmp_path, capsys):
    assert not cli.main([*WORDS, "--nic-gbps", "400", "--out", "own.json", "--picture", "fit.png"])
    printed = capsys.readouterr()
    assert float(line_of(printed.out, "across", "all-to-all", "48", "32")[3]) == pytest.approx(45, rel=0.03)
    assert "network.transport takes all-to-all across (alltoall_perf, 32 ranks, 8 in a server): 88." in printed.out
    assert printed.err.split() == ["own.json", "fit.png"]
    told = json.loads((tmp_path / "own.json").read_text())
    inside, across = told["measured"]
    assert (inside["tier"], across["tier"]) == ("server", "across")
    assert (across["kind"], across["program"]) == ("all-to-all", "alltoall_perf")
    assert (across["ranks"], across["ranks_per_server"]) == (32, 8)
    assert across["alpha_s"] == get_transport("own.json").startup_s
    assert (tmp_path / "fit.png").stat().st_size > 10_000


def test_a_job_beyond_what_was_measured_is_told_so(files, tmp_path, capsys):
    assert not cli.main([*WORDS, "--nic-gbps", "400", "--out", "own.json"])
    assert get_transport("own.json").measured_bytes == (2**10 * 3 / 4, 2**33 * 3 / 4)
    words = ["traffic", "--preset", "paper", "--model", "mixtral-8x7b", "--gpus", "256", "--set"]
    assert not cli.main([*words, "network.transport=own.json"])
    assert "beyond what was measured" not in capsys.readouterr().out
    told = json.loads((tmp_path / "own.json").read_text()) | {"measured_bytes": [768, 1e6]}
    assert not cli.main([*words[:-1], "--set", "job.dispatcher=nccl", "--set", "network.transport=own.json"])
    assert "set job.dispatcher=ideal" in capsys.readouterr().out
    (tmp_path / "small.json").write_text(json.dumps(told))
    assert not cli.main([*words, "network.transport=small.json"])
    said = capsys.readouterr().out
    assert "was measured at 768 to 1,000,000 bytes over a NIC" in said
    # 32,768 tokens, 2 experts each, 4,096 numbers of 2 bytes; 6 of 8 ranks are in other servers; 4 NICs a rank
    assert f"moves {32768 * 2 * 8192 * 6 // 8 // 4:,} bytes" in said


def test_runs_that_differ_in_ranks_of_a_server_alone_are_told_apart(files, tmp_path, capsys):
    for name, each in (("fours", 4), ("eights", 8)):
        (tmp_path / f"{name}.txt").write_text(nccl_text(nccl_times(4e-5, 45e9, 3 / 4, 0.0, 0), 16, each))
    words = ["calibrate", "nccl", "fours.txt", "eights.txt", "--tier", "across"]
    assert not cli.main([*words[:3], *words[4:]])
    assert "ranks in a server" not in capsys.readouterr().out
    assert not cli.main(words)
    table = capsys.readouterr().out.split("ranks in a server")[1].splitlines()
    assert [line.split()[-2:] for line in table[2:4]] == [["alltoall_perf", "4"], ["alltoall_perf", "8"]]


def test_a_fit_says_where_it_ends(files, capsys):
    assert not cli.main(["calibrate", "nccl", "inside.txt", "--nic-gbps", "400"])
    assert "they say nothing about the network between servers" in capsys.readouterr().out
    assert not cli.main(["calibrate", "nccl", "across.txt", "--tier", "leaf", "--nic-gbps", "400"])
    assert "Nothing was measured across leaf switches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "calibrate nccl needs files of measured times"),
        (
            "osu.txt inside.txt across.txt --ranks 8,16",
            "ranks must have one value, or one for each of the 3 files, got 2",
        ),
        ("across.txt", "across.txt does not state where it was measured; give --tier leaf or across."),
        ("inside.txt --tier across", "was measured inside one server; tier must be server, got 'across'."),
        ("osu.txt --ranks x", "ranks must be whole numbers separated by commas, got 'x'."),
        ("osu.txt --tier across", "give --ranks"),
        ("inside.txt --out own.toml", "out 'own.toml': extension '.toml' is unknown; allowed: .json."),
        ("inside.txt --picture own.gif", "figure 'own.gif': extension '.gif' is unknown"),
        ("across.txt --tier across --nic-gbps 100 --out own.json", "nic_gbps must be at least the"),
    ],
)
def test_mistakes(files, capsys, words, sentence):
    assert sentence in mistake(capsys, "calibrate", "nccl", *words.split())
