"""Every command says in one sentence what was mistyped, before it computes or writes anything."""

import numpy as np
import pytest

from mfabric_jax.apps.graphs.tasks.formats.registry import write_tasks
from tests.apps.graphs.jobs.test_cli_jobs import FILE as JOBS
from tests.apps.graphs.replay.test_replay import two_sends
from tests.command_line import mistake
from tests.test_cli_sweep import SPACE

CLUSTER = "cluster --preset paper --model llama-moe --gpus 64"
TREE = f"{CLUSTER} --fabric fat-tree"
GRAPH = f"{CLUSTER} --graph"
TRACE = "compare --model mixtral-8x7b --fabric fat-tree --trace"
LATE = (TREE, GRAPH, TRACE, "replay", "jobs")  # refused where the cluster is built, or a file is read

# {the first words: [(those behind, what the sentence holds)]}: rules of the command line and of each command. What
# settings refuse whoever asks stands beside these, and in `tests/ROOM/refusals.py`.
MISTAKES = {
    "": [
        (
            "compar",
            "command 'compar' is unknown (did you mean 'compare'?); allowed: compare, calibrate, setup, buy, fail",
        )
    ],
    "compare": [
        ("--modles=llama-moe", "option '--modles' is unknown (did you mean '--models'?)"),
        ("--delay-s 1", "option '--delay-s' is unknown (did you mean --set circuits.delay_s=...?)."),
        (f"--micro-batches 1{'0' * 400}", "micro_batches must be from 1e-30 to 4096, got a whole number above 1e308."),
        (f"--seed 1{'0' * 400}", "run.seed must be from"),
        (f"--gpus 1{'0' * 5000}", "job.parallel.gpus must be a whole number"),
        (f"--set traffic.trace.records=1-{'9' * 5000}", "traffic.trace.records must be FIRST-LAST"),
        ("--set run.seed=-1", "run.seed must"),
        ("--seed x", "run.seed must be a whole number of at least 0, got 'x'."),
        ("--set network.nic_gpbs=3", "network.nic_gpbs is unknown (did you mean network.nic_gbps?)"),
        (b"--gpu \xff".decode(errors="surrogateescape"), "is unknown; allowed: A100-80GB-SXM"),
        (b"--seed \xff".decode(errors="surrogateescape"), "run.seed must be a whole number of at least 0"),
        (b"--set run.dtype=\xff".decode(errors="surrogateescape"), "run.dtype must be float32 or float64"),
        ("--seed 1 --set run.seed=2", "run.seed is stated twice, the second time as '2'; state it once."),
        ("--out a.csv --out b.csv", "option --out is given twice; give it once."),
        ("--seed", "option --seed needs a value after it"),
        ("surplus", "compare does not take 'surplus'"),
        ("--model ,", "model.name must have at least one value, got an empty list."),
        ("--nic-gbps 100,fast", "network.nic_gbps must be a number above 0, got 'fast'."),
        ("--out rows.txt", "rows file 'rows.txt': extension '.txt' is unknown; allowed: .csv, .parquet"),
        ("--out occupied/rows.csv", "cannot write into"),
        ("--out folder.csv", "rows file 'folder.csv' is a folder"),
        ("--figures occupied", "cannot write into"),
    ],
    TRACE: [
        ("none.npz", "trace must be an existing file"),
        ("notes.md", "trace notes.md must have a known format; formats: .npy, .npz, .json or"),
        ("run.npz", "ep of the workload must divide the 4 source ranks of run.npz, got 8"),
    ],
    "calibrate": [
        ("--fabric mfabric", "leave out network.fabric, got 'mfabric'."),
        ("--seed 1,2", "one set of assumptions; give one value of run.seed."),
    ],
    "traffic": [
        ("--model mixtral-8x7b,llama-moe", "traffic shows one case, got 2 that differ in model.name"),
        ("--model none.toml", "cannot read 'none.toml'"),
        (
            "--block 1",
            "block applies only with --alltoallv, the file for one all-to-all; leave it out, or give the file.",
        ),
        ("--alltoallv a.csv", "alltoallv 'a.csv': extension '.csv' is unknown; allowed: .txt."),
        ("--rank-cost a.csv", "rank_cost 'a.csv': extension '.csv' is unknown; allowed: .json."),
    ],
    "timeline": [
        ("--preset mine", "preset 'mine' is unknown"),
        ("--out t.csv", "trace 't.csv': extension '.csv' is unknown; allowed: .json"),
        ("--picture t.gif", "figure 't.gif': extension '.gif' is unknown; allowed: .png, .pdf, .svg"),
    ],
    "export --fabric mfabric": [
        ("--out tasks.txt", "tasks.txt"),
        ("--ends gpu --contention all", "ends must be server for contention if the NICs of a server are pooled"),
    ],
    "validate": [
        ("--runs here", "validate needs a subcommand first; allowed: packet, training, layers, serving"),
        ("training deepseek", "row 'deepseek' is unknown"),
        ("training --transport ndp", "transport applies only to validate packet; leave it out, got 'ndp'."),
        ("serving --dtype float32", "dtype applies only to validate packet; leave it out, got 'float32'."),
        ("training --runs here", "runs apply only to validate packet; leave out --runs here"),
        ("packet grok --runs here", "rows apply only to validate training and serving; leave out 'grok'"),
        ("serving deepseek", "row 'deepseek' is unknown"),
        ("serving --picture a.png", "picture applies only to validate training; leave out --picture a.png"),
        ("training --figures a", "figures apply only to validate serving; leave out --figures a"),
        ("pakcet", "validation 'pakcet' is unknown (did you mean 'packet'?)"),
        ("packet", "validate packet needs --runs"),
        ("packet --runs nowhere", "runs must be a folder of packet-level runs (.json)"),
    ],
    "traffic --model llama-moe": [
        ("--policy uniform", "circuits.policy is not read by traffic; leave it out."),
        ("--set gpu.usd=9", "gpu.usd is not read by traffic; leave it out."),
        ("--tokens 1e12", "job.training_tokens is not read by traffic; leave it out."),
    ],
    "timeline --model llama-moe": [("--set gpu.watts=9", "gpu.watts is not read by timeline; leave it out.")],
    "export --model llama-moe": [("--set network.prices=a.toml", "network.prices is not read by export; leave")],
    "failures --model llama-moe --set run.dtype=float64": [
        ("--set failures.kinds=gpuu", "failures.kinds 'gpuu' is unknown (did you mean 'gpu'?); allowed: electr"),
    ],
    CLUSTER: [
        ("--flows rows", "rows file 'rows' has no extension"),
        ("--routing split", "circuits.routing is not read by cluster; how flows use equal paths is"),
        ("--trace x.npy", "traffic.trace.path is not read by cluster; leave it out."),
        ("--tokens 1e12", "job.training_tokens is not read by cluster; leave it out."),
        ("--set network.alpha_s=1e-5", "network.alpha_s is not read by cluster; the latency of a link is"),
        ("--set gpu.watts=9", "gpu.watts is not read by cluster; leave it out."),
        ("--set network.paths=fastest", "'fastest' is unknown; allowed: spray, ecmp, least-loaded, weighted."),
    ],
    TREE: [
        ("--routing split", "circuits.routing is not read by any case"),
        ("--set network.paths=weighted", "routing 'weighted' is unknown; allowed: spray, ecmp, least-loaded."),
    ],
    GRAPH: [
        ("notes.md", "'notes.md' is not a graph in a known format: give .json"),
        ("x.json --nic-gbps 100", "network.nic_gbps is not used on a graph"),
    ],
    "draw": [
        ("", "draw needs a fabric first; allowed: fat-tree, "),
        ("rail-only", "draw needs --out, a .png, .pdf or .svg file."),
        ("rail-onyl --out a.png", "network.fabric must be fat-tree, oversub-fat-tree"),
        ("none.json --out a.png", "cannot read 'none.json' (No such file or directory)"),
        ("mfabric --out a.png --fabric torus", "network.fabric is mfabric (FABRIC); leave out"),
    ],
    "replay": [
        ("", "replay needs a task graph first"),
        ("broken.cm", "broken.cm"),
        ("job.json --model llama-moe", "model.name is not read by replay; leave it out."),
        ("job.json --set network.alpha_s=1e-5", "network.alpha_s is not read by replay; --alpha-s sets the latency"),
        ("job.json --set gpu.bf16_tflops=9", "gpu.bf16_tflops is not read by replay; --tflops sets"),
        ("job.json --set gpu.usd=9", "gpu.usd is not read by replay; leave it out."),
        ("job.json --graph own.json --nic-gbps 100", "network.nic_gbps is not used on a graph"),
        (
            "job.json --fabric fat-tree --region-servers 2",
            "region_servers applies only to fabrics with optical regions; leave",
        ),
        (
            "job.json --fabric torus --circuits-for all-to-all",
            "circuits_for applies only to fabrics whose circuits change",
        ),
        (
            "job.json --fabric mfabric --first ahead",
            "first applies only to --circuits-for all-to-all; leave it out, got 'ahead'.",
        ),
        ("job.json --tflops 3", "tflops cannot be given"),
        ("job.json --servers 1 --fabrics fat-tree --set gpu.gpus_per_server=1", "servers must hold 3 GPUs"),
    ],
    "jobs": [
        ("", "a .toml or .json file of jobs"),
        ("jobs.toml --ways cassinni", "did you mean 'cassini'"),
        ("jobs.toml --ways fair,cassini --slope 2", "slope applies only to way mltcp or best; leave it out, got 2.0."),
        ("jobs.toml --ways mltcp --steps 2", "steps applies only to way best; leave it out, got 2."),
        ("jobs.toml --ways fair --tick-s 2", "tick_s applies only to way cassini or best; leave it out, got 2.0."),
        ("jobs.toml --ways best --adjust 0.1", "adjust applies only to way cassini; leave it out, got 0.1."),
        ("jobs.toml --placements 2", "placements need a fabric"),
    ],
    "reproduce --list": [
        ("--quick", "quick applies only to figures that are drawn, not listed; leave it out, got True."),
        ("cost", "figures applies only to figures that are drawn, not listed; leave it out, got ('cost',)."),
    ],
    "train": [
        ("", "train needs --out, the output folder."),
        ("--out occupied/run", "cannot write into 'occupied/run' (Not a directory); give another folder."),
    ],
    "evaluate": [
        ("--policies none.policy", "policy file 'none.policy' cannot be read"),
        ("--sigmas 0,-1", "sigmas must be finite and not negative, got -1.0."),
        ("--routings best", "routings 'best' is unknown"),
    ],
    "policies": [("rank", "policies command 'rank' is unknown; allowed: bench.")],
    "sweep": [
        ("", "sweep needs --out, a folder for the rows."),
        ("none.toml --out out", "cannot read 'none.toml'"),
        ("space.toml --out out --shard 2", "shard must be i/n, such as 1/8, got '2'."),
        ("space.toml --out out --workers 0", "workers must be a whole number of at least 1, got 0."),
    ],
    "query": [("out --limit 0", "limit must be a whole number of at least 1, got 0.")],
    "report": [
        ("rows.csv --out x.html --pictures none", "pictures 'none' is not a folder; give one that holds"),
        ("rows.csv --out old.html", "report 'old.html' is a folder; give a .html file."),
        ("none.csv --out x.html", "cannot read 'none.csv' (No such file or directory); give a .csv or"),
        ("no-rows.csv --out x.html", "rows must hold at least one row, got none."),
    ],
    "traces": [
        ("", "traces needs a subcommand first; allowed: info, convert, fit, study, place."),
        ("info", "traces info needs the path of a trace next"),
        ("info run.npz --ranks 3", "ranks must divide the 8 columns of "),
        ("info run.npz --ranks-per-server 3", "ranks_per_server must divide the 4 ranks, got 3."),
        ("info run.npz --records 5-9", "records must overlap what "),
        ("info run.npz out.npz", "traces info takes one path, got 'out.npz' too; rows go to --out."),
        ("info empty", "trace folder must hold"),
        (f"info {'x' * 300}.npz", f"'{'x' * 300}.npz' cannot be used (File name too long)."),
        (f"info run.npz --model {'x' * 9999}", f"'{'x' * 700}"),
        ("info run.npz --ep 2", "--ep is for Megatron router traces, but run.npz holds tokens."),
        ("info run.npz --axes layer,exprt", "axis 'exprt' is unknown (did you mean 'expert'?)"),
        ("convert run.npz", "traces convert needs OUT.npz after the path."),
        ("fit run.npz --out knobs.npz", "knobs are written as .json, got 'knobs.npz'."),
        ("info run.npz --iterations 2", "iterations applies only to traces fit; leave it out, got 2."),
        ("convert run.npz a.npz --out b.npz", "out applies only to traces info and fit; leave it out, got 'b.npz'."),
        ("fit run.npz --ranks-per-server 2", "ranks_per_server applies only to traces info; leave it out, got 2."),
        ("place", "traces place needs the path of a recording, or of a placement, next."),
        ("place run.npz", "traces place needs OUT.json after the path."),
        ("place run.npz own.json", "needs --ranks, the expert-parallel ranks that hold the experts."),
        ("place run.npz own.json --ranks 4 --slots 10", "slots must be a multiple of the 4 ranks"),
        ("place run.npz own.json --ranks 4 --ranks-per-server 3", "ranks_per_server must divide the 4 ranks, got 3."),
        ("place run.npz own.json --rule best", "placement 'best' is unknown; allowed: contiguous,"),
        ("place map.json own.json --rule contiguous", "rule applies only to recordings, but map.json is a placement"),
        ("place run.npz own.txt", "placement 'own.txt': extension '.txt' is unknown; allowed: .json."),
        ("study run.npz", "traces study needs --model, the model of the job that is studied."),
        ("study run.npz --model llama-moe --out page.pdf", "report 'page.pdf': extension '.pdf' is unknown"),
    ],
}
TEXTS = {"occupied": "a file, no folder", "no-rows.csv": "", "notes.md": "words", "space.toml": SPACE}
TEXTS |= {"map.json": '{"physical_to_logical_map": [[1, 0, 2, 3]]}'}
TEXTS |= {"broken.cm": "Nodes 2\n", "jobs.toml": JOBS}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_sentence_and_nothing_is_done(command, capsys, monkeypatch, tmp_path, request):
    request.getfixturevalue("command_line" if command in LATE else "never_computes")
    monkeypatch.chdir(tmp_path)
    for name in ("folder.csv", "old.html", "empty"):
        (tmp_path / name).mkdir()
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    write_tasks(two_sends(), tmp_path / "job.json")
    np.savez(tmp_path / "run.npz", tokens=np.ones((3, 2, 1, 4, 8)))
    before = sorted(tmp_path.iterdir())
    for words, sentence in MISTAKES[command]:
        got = mistake(capsys, *command.split(), *words.split())
        assert sentence in got, f"{command} {words}: {got}"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("flag", "name"), [("--model", "qwen3"), ("--gpu", "H201")])
def test_show_knows_no_other_names_either(flag, name, capsys):
    assert name in mistake(capsys, "show", "--changed", flag, name)
