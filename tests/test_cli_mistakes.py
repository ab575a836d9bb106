"""Every command says in one sentence what was mistyped, before it computes or writes anything."""

import numpy as np
import pytest

from tests.command_line import mistake
from tests.test_cli_sweep import SPACE

TREE = "cluster --model llama-moe --servers 8 --fabric fat-tree"
GRAPH = "cluster --model llama-moe --servers 8 --graph"
TRACE = "compare --models mixtral-8x7b --fabrics fat-tree --trace"
LATE = (TREE, GRAPH, TRACE)  # refused where the cluster is built, the graph or the trace is read

# {the first words: [(those behind, how the sentence begins)]}. What settings refuse whoever asks stands beside these:
# tests/simulation/test_config.py, tests/study/test_failures.py, test_whole_cluster.py, tests/learning/test_scoreboard.py.
MISTAKES = {
    "": [
        ("compar", "command 'compar' is unknown (did you mean 'compare'?); allowed: compare, calibrate, fail"),
        ("--verbose", "command '--verbose' is unknown"),
    ],
    "compare": [
        ("--modles llama-moe", "option '--modles' is unknown (did you mean '--models'?); allowed: --"),
        ("--modles=llama-moe", "option '--modles' is unknown (did you mean '--models'?); allowed: --"),
        ("--nic_gbps 100", "option '--nic_gbps' is unknown (did you mean '--nic-gbps'?)"),
        ("--seed x", "option --seed takes a whole number, got 'x'."),
        ("--gpus 1.5", "option --gpus takes a whole number, got '1.5'."),
        ("--delay-s soon", "option --delay-s takes a number, got 'soon'."),
        ("--models", "models must name at least one"),
        ("--seed", "option --seed needs a value behind it"),
        ("surplus", "compare does not take 'surplus'"),
        ("--models ,", "models must name at least one; allowed: mixtral-8x22b"),
        ("--nic-gbps 100,fast", "nic_gbps must be numbers separated by commas, got 'fast'."),
        ("--records 5", "records must be FIRST-LAST, such as 2011-5001, got '5'."),
        ("--trace x.npz --traffic balanced", "traffic 'balanced' is not used beside a trace; leave out one"),
        ("--trace x.npz --skew 0.5", "skew 0.5 is not used beside a trace; leave out one of them."),
        ("--skew 0.5", "skew is of traffic 'generated' alone, got traffic 'measured'."),
        ("--out rows.txt", "rows file 'rows.txt': extension '.txt' is unknown; allowed: .csv, .parquet"),
        ("--out rows", "rows file 'rows' has no extension; allowed: .csv, .parquet"),
        ("--out occupied/rows.csv", "cannot write into"),
        ("--out folder.csv", "rows file 'folder.csv' is a folder"),
        ("--figures occupied", "cannot write into"),
    ],
    "traffic": [
        ("", "traffic needs the name of a model first; allowed: mixtral-8x22b"),
        ("--dp 1", "traffic needs the name of a model first"),
        ("mixtral", "model 'mixtral' is unknown (did you mean 'mixtral-8x7b'?)"),
        ("mixtral-8x7b llama-moe", "traffic does not take 'llama-moe'"),
        ("mixtral-8x7b --gpsu 8", "option '--gpsu' is unknown (did you mean '--gpu'?)"),
        ("mixtral-8x7b --dp 3 --gpus 1024", "mixtral-8x7b: dp x tp x pp x ep must equal gpus, got 3 x 4 x 4 x 8 = 384"),
        ("none.toml", "cannot read 'none.toml'"),
        ("mixtral-8x7b --precision fp4", "precision 'fp4' is unknown"),
    ],
    "validate": [
        ("", "validate needs to know what first; allowed: packet"),
        ("--runs here", "validate needs to know what first"),
        ("pakcet", "validation 'pakcet' is unknown (did you mean 'packet'?)"),
        ("packet", "validate packet needs --runs"),
        ("packet --rnus here", "option '--rnus' is unknown (did you mean '--runs'?)"),
        ("packet --runs nowhere", "runs must be a folder of packet-level runs (.json)"),
    ],
    "failures --models llama-moe --dtype float64": [
        ("--kinds gpuu", "kinds 'gpuu' is unknown (did you mean 'gpu'?); allowed: electrical-nic"),
        ("--servers 2", "option '--servers' is unknown (did you mean '--server'?)"),
        ("--out rows.txt", "rows file 'rows.txt': extension '.txt' is unknown; allowed: .csv, .parquet."),
        ("gpu", "failures does not take 'gpu'"),
    ],
    "cluster --model llama-moe --servers 8 --dtype float64": [
        ("--routing weighted", "routing 'weighted' is unknown; allowed: spray, ecmp, least-loaded."),
        ("--out rows.txt", "rows file 'rows.txt': extension '.txt' is unknown"),
        ("--flows rows", "rows file 'rows' has no extension"),
        ("--picture x.txt", "figure 'x.txt': extension '.txt' is unknown; allowed: .png, .pdf, .svg."),
        ("--oversubscription 1e-320", "oversubscription must be from 0.001 to 1000, got 9.99"),
        ("extra", "cluster does not take 'extra'"),
    ],
    GRAPH: [
        ("none.json", "cannot read 'none.json'"),
        ("notes.md", "'notes.md' is not JSON"),
    ],
    TRACE: [
        ("none.npz", "trace must be an existing file"),
        ("notes.md", "trace notes.md has none of the formats that are read: .npy, .npz, .json or"),
        ("run.npz", "ep of the workload must divide the 4 source ranks of run.npz, got 8"),
    ],
    TREE: [
        ("--tiers 4", "tiers '4' is unknown; allowed: 2, 3."),
        ("--oversubscription 0", "oversubscription must be finite and above 0, got 0.0."),
        ("--goodput nan", "goodput must be above 0 and at most 1, got nan."),
        ("--at core", "at 'core' is unknown; allowed: edge, aggregation."),
    ],
    "draw": [
        ("", "draw needs a fabric first; allowed: fat-tree, "),
        ("rail-only", "draw needs --out, a .png, .pdf or .svg file."),
        ("rail-only --out a.txt", "figure 'a.txt': extension '.txt' is unknown; allowed: .png, .pdf, .svg."),
        ("rail-onyl --out a.png", "fabric 'rail-onyl' is unknown (did you mean 'rail-only'?)"),
        ("none.json --out a.png", "cannot read 'none.json' (No such file or directory)"),
        ("rail-only --ot a.png", "option '--ot' is unknown (did you mean '--out'?)"),
        ("fat-tree rail-only --out a.png", "draw does not take 'rail-only'"),
        ("fat-tree --servers 12 --out a.png", "servers must hold whole replicas of mixtral-8x22b"),
        ("fat-tree --model gpt --out a.png", "model 'gpt' is unknown"),
    ],
    "timeline": [
        ("--fabrc mfabric", "option '--fabrc' is unknown"),
        ("--fabric donut", "fabric 'donut' is unknown"),
        ("--nic-gbps fast", "option --nic-gbps takes a number, got 'fast'."),
        ("--preset mine", "preset 'mine' is unknown"),
        ("--out t.csv", "trace 't.csv': extension '.csv' is unknown; allowed: .json"),
        ("--picture t.gif", "figure 't.gif': extension '.gif' is unknown; allowed: .png, .pdf, .svg"),
    ],
    "train": [
        ("", "train needs --out, the folder of the run."),
        ("--out x --sizes 8,many", "sizes must be whole numbers separated by commas, got 'many'."),
    ],
    "evaluate": [
        ("--policies gredy", "policy 'gredy' is unknown (did you mean 'greedy'?)"),
        ("--policies none.policy", "policy file 'none.policy' cannot be read"),
        ("--sigmas 0,-1", "sigmas must be finite and not negative, got -1.0."),
        ("--relay-efficiency 2", "relay_efficiency must be above 0 and at most 1, got 2.0."),
        ("--samples 0", "samples must be a whole number of at least 1, got 0."),
        ("--routings best", "routings 'best' is unknown"),
    ],
    "policies": [
        ("", "policies needs to know what first; allowed: bench."),
        ("rank", "policies command 'rank' is unknown; allowed: bench."),
        ("bench --servers x", "servers must be whole numbers separated by commas, got 'x'."),
    ],
    "sweep": [
        ("", "sweep needs the file of the design space first, .toml or .json."),
        ("space.toml", "sweep needs --out, a folder for the rows."),
        ("space.toml --out out --shard 2", "shard must be i/n, such as 1/8, got '2'."),
        ("space.toml --out out --workers 0", "workers must be a whole number of at least 1, got 0."),
    ],
    "query": [
        ("", "query needs a folder of a sweep or a file of rows first."),
        ("out --limit 0", "limit must be a whole number of at least 1, got 0."),
    ],
    "report": [
        ("", "report needs the rows first, a .csv or .parquet file or the folder of a sweep."),
        ("--out x.html", "report needs the rows first, a .csv or .parquet file or the folder of a sweep."),
        ("rows.csv", "report needs --out, a .html file."),
        ("rows.csv --out", "option --out needs a value behind it; --help says which."),
        ("rows.csv --out x.pdf", "report 'x.pdf': extension '.pdf' is unknown; allowed: .html."),
        ("rows.csv --out x", "report 'x' has no extension; allowed: .html."),
        ("rows.csv --out x.html --picture y", "option '--picture' is unknown (did you mean '--pictures'"),
        ("rows.csv --out x.html --pictures none", "pictures 'none' is not a folder; give one that holds"),
        ("rows.csv --out x.html --pictures .", "pictures '.' holds no .png or .svg file; give another"),
        ("rows.csv --out old.html", "report 'old.html' is a folder; give a .html file."),
        ("rows.csv --out occupied/x.html", "cannot write into 'occupied'"),
        ("rows.txt --out x.html", "rows file 'rows.txt': extension '.txt' is unknown; allowed: .csv, .parq"),
        ("none.csv --out x.html", "cannot read 'none.csv' (No such file or directory); give a .csv or"),
        ("no-rows.csv --out x.html", "rows must hold at least one row, got none."),
    ],
    "traces": [
        ("", "traces needs to know what first; allowed: info, convert, fit, study."),
        (
            "inof run.npz",
            "traces command 'inof' is unknown (did you mean 'info'?); allowed: info, convert, fit, study.",
        ),
        ("info", "traces info needs the path of a trace next"),
        ("info run.npz --rank 4", "option '--rank' is unknown (did you mean '--ranks'?)"),
        ("info run.npz --ranks 3", "ranks must divide the 8 columns of "),
        ("info run.npz --ranks-per-server 3", "ranks_per_server must divide the 4 ranks, got 3."),
        ("info run.npz --records 5-9", "records must overlap what "),
        ("info run.npz out.npz", "traces info takes one path, got 'out.npz' too; rows go to --out."),
        (
            "info none.npz",
            "trace must be an existing file or folder, got none.npz; formats: .npy, .npz, .json or .pt of",
        ),
        ("info empty", "trace folder must hold"),
        (f"info {'x' * 300}.npz", f"'{'x' * 300}.npz' cannot be used (File name too long)."),
        (f"info run.npz --out {'x' * 300}.csv", f"rows file '{'x' * 300}.csv' cannot be used (File name too long)"),
        (f"info run.npz --model {'x' * 9999}", f"'{'x' * 700}"),
        ("info notes.md", "trace notes.md has none of the formats that are read: .npy, .npz, .json or"),
        ("info run.npz --out rows.txt", "rows file 'rows.txt': extension '.txt' is unknown"),
        ("convert run.npz", "traces convert needs OUT.npz behind the path."),
        ("convert run.npz out.npy", "a trace is saved as .npz, got 'out.npy'."),
        ("fit run.npz x.json", "traces fit takes one path, got 'x.json' too; knobs go to --out."),
        ("fit run.npz --out knobs.npz", "knobs are written as .json, got 'knobs.npz'."),
        ("fit run.npz --ranks-per-server 2", "ranks_per_server is of traces info and study, got traces fit."),
        ("study run.npz --ranks 2 --model llama-moe", "ranks is of traces info alone, got traces study."),
        ("info run.npz --nic-gbps 400", "nic_gbps is of traces study alone, got traces info."),
        ("info run.npz --axes layer,exprt", "axis 'exprt' is unknown (did you mean 'expert'?)"),
        ("study run.npz", "traces study needs --model, the model whose job the recording is read for."),
        ("study run.npz --model llama-moe --out page.pdf", "report 'page.pdf': extension '.pdf' is unknown"),
        ("fit run.npz --iterations 0", "iterations must be a whole number of at least 1, got 0."),
    ],
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_sentence_and_nothing_is_done(command, capsys, monkeypatch, tmp_path, request):
    request.getfixturevalue("command_line" if command in LATE else "never_computes")
    monkeypatch.chdir(tmp_path)
    for name in ("folder.csv", "old.html", "empty"):
        (tmp_path / name).mkdir()
    texts = {"occupied": "a file, no folder", "no-rows.csv": "", "notes.md": "words", "space.toml": SPACE}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    np.savez(tmp_path / "run.npz", tokens=np.ones((3, 2, 1, 4, 8)))
    before = sorted(tmp_path.iterdir())
    for words, sentence in MISTAKES[command]:
        got = mistake(capsys, *command.split(), *words.split())
        assert got.startswith(sentence), f"{command} {words}: {got}"
    assert sorted(tmp_path.iterdir()) == before
