"""Command lines drawn by a seed and judged: `python -m tests.fuzz_lines --count 5000 --seed 4612`.

A line is a small valid one of some command, then changed: options and settings of the real schema with plausible,
extreme and wrong values, words dropped, doubled, swapped. Wanted of each: a documented exit status; with status 2 one
sentence and nothing else; no traceback, no warning, no number that is none in a table; an end within a minute; and
every accepted `--set PATH=VALUE` in the configuration of the rows. Lines run in forked processes, a folder each.
"""

import argparse
import collections
import contextlib
import importlib
import io
import itertools
import json
import os
import pathlib
import random
import re
import resource
import select
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import typing
import unittest.mock as mock
import warnings

import numpy as np

SMALL = "--preset paper --model llama-moe --micro-batches 1 --dp 1 --pp 4"
TINY = "--steps 2 --batch 2 --width 4 --depth 1 --sizes 4 --log-every 1 --checkpoint-every 1"
JOBS = "iterations = 4\n[links]\ntrunk = 8\n" + '[[jobs]]\ncompute_s = 1\ngigabytes = 1\nlinks = ["trunk"]\n' * 2
SWEPT = """preset = "paper"
model = "llama-moe"
job.batch.micro_batches = 1
job.parallel = { dp = 1, pp = 4 }
network.fabric = ["fat-tree", "mfabric"]
network.nic_gbps = [100, 200]
"""
LINES = {  # of every command: small ones that are right
    "compare": [
        f"compare {SMALL} --fabrics fat-tree,mfabric --out rows.csv",
        f"compare {SMALL} --fabric rail-only --nic-gbps 100,400 --out rows.csv",
        f"compare {SMALL} --fabric torus --out rows.csv --set run.dtype=float64",
        f"compare {SMALL} --fabric fat-tree --trace trace.npz --out rows.csv",
        "compare case.toml --out rows.parquet",
    ],
    "calibrate": [f"calibrate {SMALL}"],
    "setup": ["setup --model llama-moe --gpus 16 --tp 1 --pp 2 --global-batch 64 --fabric fat-tree --out best.toml"],
    "calibrate nccl": ["calibrate nccl nccl.txt --tier across --out fit.json", "calibrate nccl nccl.json --tier leaf"],
    "failures": [f"failures {SMALL} --fabric fat-tree --set failures.kinds=electrical-nic --out lost.csv"],
    "cluster": [f"cluster {SMALL} --fabric fat-tree --out kinds.csv", f"cluster {SMALL} --graph graph.json"],
    "jobs": ["jobs jobs.toml --ways fair --out jobs.csv"],
    "serve": [
        "serve --model mixtral-8x7b --fabrics fat-tree,mfabric --ep 8 --batch 8 --out served.csv",
        "serve --model mixtral-8x7b --fabric fat-tree --ep 8 --batch 8 --rate 5 --set serving.load.requests=40",
        "serve --model mixtral-8x7b --fabric fat-tree --ep 8 --batch 8 --arrivals requests.csv",
    ],
    "replay": ["replay tasks.json --fabric fat-tree --out ends.csv", "replay tasks.json --graph graph.json"],
    "timeline": [f"timeline {SMALL} --fabric mfabric --out spans.json"],
    "export": [f"export {SMALL} --fabric fat-tree --out new.json"],
    "draw": [f"draw fat-tree {SMALL} --out a.png", "draw graph.json --out a.svg"],
    "make-graph": [
        "make-graph leaf-spine --gpus 16 --out new.json",
        "make-graph planes --gpus 32 --planes 2 --out new.json",
        "make-graph fat-tree --gpus 32 --radix 8 --out new.json",
        "make-graph torus --shape 2x2x4 --out new.json",
        "make-graph full-mesh --shape 4x4 --out new.json",
        "make-graph dragonfly --gpus 32 --out new.json",
    ],
    "traffic": [f"traffic {SMALL}", f"traffic {SMALL} --alltoallv bytes.txt --rank-cost cost.json"],
    "traces": [
        "traces info trace.npz --out seen.csv",
        "traces convert trace.npz new.npz",
        "traces fit trace.npz --out knobs.json",
    ],
    "traces place": ["traces place trace.npz new.json --ranks 4", "traces place map.json new.json --form eplb"],
    "traces study": [f"traces study trace.npz {SMALL} --out study.html"],
    "validate": [
        "validate packet --runs runs --out errors.csv",
        "validate training nothing",
        "validate serving --out errors.csv",
    ],
    "policies": ["policies bench --policies uniform --workloads zipf --servers 4 --instances 2 --routings unsplit"],
    "train": [f"train --out new {TINY}"],
    "evaluate": ["evaluate --policies uniform --sizes 4 --routings unsplit --sigmas 0 --samples 2"],
    "sweep": ["sweep sweep.toml --out new", f"sweep {SMALL} --fabric fat-tree --nic-gbps 100,400 --out new"],
    "query": [
        "query swept --by fabric --measures iteration_s:mean",
        "query rows.csv --where nic_gbps>=100 --sort iteration_s:down --limit 3 --out new.csv",
        "query rows.csv rows.parquet --pareto iteration_s,network_cost_usd",
        "query swept --by nic_gbps --over fabric=fat-tree --measures iteration_s:mean",
    ],
    "rerun": ["rerun rows.csv", "rerun swept --rtol 0.001"],
    "report": ["report rows.csv --out page.html", "report swept --title Rows --out page.html"],
    "reproduce": ["reproduce --list", "reproduce nothing --out new"],
    "show": [f"show {SMALL} --fabric mfabric", "show case.toml", "show"],
    "doctor": ["doctor"],
    "completion": ["completion bash"],
    "experiment": ["experiment"],
    "": ["", "--version", "--help", "compare --help", "show --help network", "nothing"],
}
FEW = {"calibrate", "completion", "doctor", "experiment", "", "train", "evaluate", "policies", "reproduce"}
HEAVY = {  # stopped where compiling begins, which takes a minute; every tenth line runs
    "train": "learning.train",
    "evaluate": "learning.evaluate_policies",
    "policies": "learning.scoreboard",
    "traces study": "recordings.study.trace_study",
}
CHECKED = {"compare", "failures", "serve"}  # rows with a configuration that states every setting
FILES = (
    *("case.toml", "sweep.toml", "jobs.toml", "rows.csv", "rows.parquet", "swept", "graph.json", "tasks.json"),
    *("trace.npz", "map.json", "nccl.txt", "nccl.json", "requests.csv", "runs", "own.policy", "own.py:turned"),
    *("binary.bin", "binary.json", "empty.csv", "empty.toml", "empty.json", "folder", "none.json", "none.toml"),
)
EDGES = (
    *("0", "-1", "1", "2", "1.5", "-0.0", "1e-300", "1e308", "1e309", "nan", "inf", "-inf", str(2**31), str(2**63)),
    *("1" + "0" * 400, "1e3", "0x10", "1_000", "+5", " 5 ", "\u0661\u0662", "1,2", "1-2", "2-1", "1/2", "3/2", "1,1"),
    *(
        "",
        " ",
        ",",
        ",,",
        "=",
        "a=b",
        "'",
        '"',
        "''",
        "[",
        "]",
        "{}",
        "(1)",
        "%s",
        "%d%n",
        "$HOME",
        "~",
        "-",
        "--",
        "*",
    ),
    *("é", "日本語", "\udcff", "\u202e", "\x07", "\x1b[31m", "a\tb", "a\nb", "x" * 300, "y" * 5000, "None", "true"),
    *(
        "auto",
        "default",
        "../x",
        "/dev/null/x",
        "/proc/none",
        "..",
        ".",
        "a+b",
        "a:b",
        "a|b",
        "400 Gbps",
        "5 us",
        "1 x",
    ),
)
LARGE = re.compile(r"\d{4}|\de\+?[1-9]")  # a line that asks for much may take long
LIMIT_S = 60.0  # of processors, of a line that does not ask for much
MOST_S = 300.0
MEMORY = 10 << 30  # bytes of a process
CHUNK = 120  # lines of a process
WRONG = re.compile(
    r"Traceback \(most|Exception ignored|Fatal Python|terminate called|\b\w*Warning: |^[WEF]\d{4} ", re.M
)
NO_NUMBER = re.compile(r"(?<![\w./'\"-])-?(?:nan|inf)(?![\w./'\"])", re.I)
PROGRESS = re.compile(r"[\w -]+: .*|.*\.\w{1,8}|[\w-]+")


# --------------------------------------------------------------------------------------------------------------- files
def write_files(folder):
    """What lines read; what a command makes a child process makes."""
    from tests.apps.recordings.measurements.samples import nccl_json, nccl_text, nccl_times
    from tests.apps.validation.conftest import flow, run_of

    texts = {"jobs.toml": JOBS, "sweep.toml": SWEPT, "empty.csv": "", "empty.toml": "", "empty.json": ""}
    texts["case.toml"] = SWEPT.replace('["fat-tree", "mfabric"]', '"rail-only"').replace("[100, 200]", "200")
    texts["requests.csv"] = "Timestamp,Request tokens,Response tokens\n" + "".join(
        f"{at / 4},{64 + at},{32 + at % 5}\n" for at in range(30)
    )
    texts["nccl.txt"] = nccl_text(list(nccl_times(2e-5, 4e10, 1.0, 0.01, 1)), 16, 8)
    texts["nccl.json"] = nccl_json(list(nccl_times(2e-5, 4e10, 1.0, 0.01, 2)), 16, 8)
    texts["map.json"] = json.dumps({"physical_to_logical_map": [[3, 2, 1, 0, 4, 5, 6, 7]] * 2})
    texts["own.py"] = (
        "from mfabric_jax import policies\n\n\ndef turned(demand, region, *, previous=None, key=None):\n"
        "    return policies.get('uniform')(demand, region, previous=previous, key=key)\n"
    )
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("binary.bin", "binary.json", "own.policy"):
        (folder / name).write_bytes(random.Random(name).randbytes(500))
    (folder / "folder").mkdir()
    (folder / "runs").mkdir()
    (folder / "runs" / "a.json").write_text(json.dumps(run_of([flow(0, 1, 10**6), flow(2, 3, 10**6)])))
    np.savez(folder / "trace.npz", tokens=np.random.default_rng(0).integers(1, 9, (3, 2, 1, 16, 16)).astype(float))
    made = (
        f"compare {SMALL} --fabrics fat-tree,mfabric --out rows.csv",
        "query rows.csv --out rows.parquet",
        "sweep sweep.toml --out swept",
        "make-graph leaf-spine --gpus 64 --out graph.json",
        f"export {SMALL} --fabric fat-tree --out tasks.json",
    )
    for line, found in zip(made, results([line.split() for line in made], folder, keep=True), strict=True):
        assert found["status"] == 0, (line, found)


# --------------------------------------------------------------------------------------------------------------- lines
def drawn_lines(count, seed, commands):
    """(command, words), each drawn by its own number."""
    names = [name for name in LINES if not commands or name in commands]
    weights = [1 if name in FEW else 3 if name == "compare" else 2 for name in names]
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        (command,) = draw.choices(names, weights)
        words = draw.choice(LINES[command]).split()
        for _ in range(draw.choice((0, 1, 1, 1, 1, 2, 2, 3))):
            words = changed(draw, command, words)
        yield command, [word.replace("\0", "") for word in words]


def changed(draw, command, words):
    ways = (setting_added, option_added, value_replaced, word_dropped, word_doubled, words_swapped, word_put)
    (way,) = draw.choices(ways, (34, 28, 18, 4, 4, 4, 4))
    return way(draw, command, list(words))


def options_of(command):
    from mfabric_jax.commands.words import options_in

    name = {"policies": "policies", "": "compare", "experiment": "compare"}.get(command, command)
    module = importlib.import_module(f"mfabric_jax.commands.{name.replace(' ', '_').replace('-', '_')}")
    return [option for option in options_in(module.Options).values() if option.positional is None]


def setting_added(draw, command, words):
    from mfabric_jax.case.paths import SettingChoice, settings
    from mfabric_jax.commands import OF_CASES
    from mfabric_jax.commands.words import ALSO, flags_of_cases

    if command not in OF_CASES and draw.random() < 0.9:
        return option_added(draw, command, words)
    setting = draw.choice(list(settings().values()))
    short = {path: flag for flag, path in flags_of_cases(command).items()}
    several = 1 if draw.random() < 0.85 else 2
    kind = None if isinstance(setting, SettingChoice) else setting.kind
    names = list(setting.alternatives) if kind is None else []
    value = ",".join(value_for(draw, kind, setting.default, names) for _ in range(several))
    if setting.path in short and draw.random() < 0.4:
        flag = short[setting.path]
        flag = draw.choice([flag, *(other for other, same in ALSO.items() if same == flag)])
        return [*words, flag, value] if draw.random() < 0.7 else [*words, f"{flag}={value}"]
    if draw.random() < 0.05:
        return [*words, "--preset", draw.choice(("paper", "designs", "none", value))]
    return [*words, "--set", f"{setting.path}={value}"]


def option_added(draw, command, words):
    options = options_of(command)
    if not options:
        return words
    option = draw.choice(options)
    if option.switch:
        return [*words, draw.choice((option.flag, f"--no-{option.flag[2:]}"))]
    several = draw.choice((1, 1, 1, 2)) if option.takes_list else 1
    return [*words, option.flag, ",".join(value_for(draw, option.kind, option.default) for _ in range(several))]


def value_for(draw, kind, default, names=()):
    """A value: a plausible one, one at an edge, or one of something else."""
    chance = draw.random()
    if chance < 0.24:
        return draw.choice(EDGES)
    if chance < 0.31:
        return draw.choice(FILES)
    return plausible(draw, kind, default, list(names))


def plausible(draw, kind, default, names):
    from mfabric_jax.case.paths import parts_of

    parts = [] if kind is None else parts_of(kind)
    for one in parts:
        if typing.get_origin(one) is typing.Literal:
            names += map(str, typing.get_args(one))
        elif typing.get_origin(one) is tuple:
            return draw.choice(("1-2", "0-0", "4", "1,2", "uniform", "greedy,uniform", "zipf", "0.1"))
        elif one is bool:
            names += ["true", "false"]
        elif one is int:
            near = default if isinstance(default, int) else draw.choice((1, 2, 4, 8))
            names.append(str(draw.choice((near, near + 1, 2 * near, max(near // 2, 1), 1, 2, 3, 4))))
        elif one is float:
            near = default if isinstance(default, float) else draw.choice((0.1, 0.5, 1.0, 10.0))
            names.append(f"{near * draw.choice((1, 1, 0.5, 2, 1.1)):g}")
        elif one is str:
            names += [str(default), draw.choice(OUTPUTS), draw.choice(NAMES)]
    return draw.choice(names) if names else draw.choice(EDGES)


OUTPUTS = ("new.csv", "new.parquet", "new.json", "new.png", "new.svg", "new.txt", "new.html", "new", "folder/new.csv")
NAMES = (
    *("fat-tree", "mfabric", "torus", "uniform", "greedy", "llama-moe", "mixtral-8x7b", "deepseek-v3", "H100", "A100"),
    *("fabric", "iteration_s", "iteration_s:max", "fabric = mfabric", "nic_gbps >= 100", "all", "none", "cpu", "gpu"),
    *("iteration,layer,micro-batch,source,expert", "layer,expert", "hierarchical", "eplb", "ascend", "spray", "ecmp"),
    *("server,leaf", "across", "2x2x2", "4x8", "1/2", "ray", "zipf", "split", "relay", "fair", "cassini", "high"),
)


def value_replaced(draw, command, words):
    at = [number for number, word in enumerate(words) if number and not word.startswith("--")]
    if at:
        words[draw.choice(at)] = draw.choice((*EDGES, *FILES, *NAMES))
    return words


def word_dropped(draw, command, words):
    if words:
        words.pop(draw.randrange(len(words)))
    return words


def word_doubled(draw, command, words):
    if words:
        at = draw.randrange(len(words))
        words[at:at] = words[at : at + draw.choice((1, 2))]
    return words


def words_swapped(draw, command, words):
    if len(words) > 1:
        one, other = draw.sample(range(len(words)), 2)
        words[one], words[other] = words[other], words[one]
    return words


def word_put(draw, command, words):
    put = draw.choice((*EDGES, *FILES, *NAMES, "--help", "-h", "--nothing", "--set", "--=", "--out", "--no-out"))
    words.insert(draw.randint(0, len(words)), put)
    return words


def unchanged(commands):
    """Every small line as it stands."""
    return [(name, line.split()) for name, lines in LINES.items() if not commands or name in commands for line in lines]


def harmless(words):
    """Whether a line is small: it starts no figure of the paper, and writes only where it runs."""
    if "reproduce" in words and (not {"--list", "nothing", "--help", "-h"} & set(words) or "--no-list" in words):
        return False
    return not {"validate", "training"} <= set(words) or "nothing" in words


# ----------------------------------------------------------------------------------------------------------------- run
def results(lines, files, keep=False):
    """What every line came to, in order; a process for many of them, a new one where it ended or was ended.

    `keep`: lines run in the folder of files itself.
    """
    left = collections.deque(enumerate(lines))
    while left:
        several = [left.popleft() for _ in range(min(CHUNK, len(left)))]
        found = list(in_a_child(several, files, keep))
        yield from found
        for one in reversed(several[len(found) :]):
            left.appendleft(one)


def in_a_child(several, files, keep):
    """Results of one process: of all lines, or up to a line that ended it or took too long."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            os.close(reads)
            with open(writes, "wb", buffering=0) as pipe:
                serve_lines(several, files, keep, pipe)
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads, "rb", buffering=0) as pipe:
        came = b""
        for _, words in several:
            began, cpu_s = time.monotonic(), cpu_s_of(child)
            while b"\n" not in came and time.monotonic() - began < MOST_S and cpu_s_of(child) - cpu_s < LIMIT_S:
                if select.select([pipe], [], [], 1.0)[0]:
                    if not (got := pipe.read(1 << 20)):
                        break
                    came += got
            line, there, came = came.partition(b"\n")
            if not there:
                yield ended(child, words, time.monotonic() - began)
                return
            yield json.loads(line)
    os.waitpid(child, 0)


def cpu_s_of(process):
    """Seconds of processors that a process has had: on a busy machine a line takes longer than it should."""
    try:
        words = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def ended(child, words, took):
    """The result of a line that did not come back; what its process started ends with it."""
    alive = os.waitpid(child, os.WNOHANG) == (0, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1] if alive else None
    how = "hangs" if alive and took >= LIMIT_S else f"the process ended ({status})"
    return {"status": None, "how": how, "out": "", "err": "", "took": took, "words": words}


def serve_lines(several, files, keep, pipe):
    prepare_process()
    for number, words in several:
        scratch = None if keep else pathlib.Path(tempfile.mkdtemp())
        folder = files if scratch is None else shutil.copytree(files, scratch / "a" / "b" / "c")
        os.chdir(folder)
        with stopped_where_heavy() if number % 10 else contextlib.nullcontext():
            found = run_line(words) | {"words": words}
        found["config"] = configuration(words) if found["status"] == 0 else None
        os.chdir("/")
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        pipe.write(json.dumps(found).encode() + b"\n")


def prepare_process():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ["COLUMNS"] = "200"


class Computes(BaseException):
    """A line that begins to compute for long."""


@contextlib.contextmanager
def stopped_where_heavy():
    def compute(*args, **named):
        raise Computes

    with contextlib.ExitStack() as patches:
        for name in HEAVY.values():
            patches.enter_context(mock.patch(f"mfabric_jax.{name}", compute))
        yield


def run_line(words):
    import jax

    from mfabric_jax import cli

    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_default_device", None)
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, redirected(out, err):
        with warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)
            warnings.simplefilter("always", UserWarning)
            status = how = None
            try:
                status = cli.main(words)
            except SystemExit as end:
                status = end.code
            except Computes:
                status = 0
            except BaseException:
                how = traceback.format_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        texts = [text_of(stream) for stream in (out, err)]
    return {"status": status, "how": how, "out": texts[0], "err": texts[1], "took": time.monotonic() - began}


def text_of(stream):
    stream.seek(0)
    return stream.read().decode("utf-8", "backslashreplace")


@contextlib.contextmanager
def redirected(out, err):
    """Both streams, and what libraries of C write to them, to files."""
    before = [os.dup(1), os.dup(2)]
    streams = sys.stdout, sys.stderr
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(os.dup(number), "wb"), "utf-8", "backslashreplace", write_through=True)
        for number in (1, 2)
    )
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams
        for number, old in zip((1, 2), before, strict=True):
            os.dup2(old, number)
            os.close(old)


def configuration(words):
    """What stands in the configuration of the rows of `--out`."""
    from mfabric_jax.report import read_rows

    for flag, name in itertools.pairwise(words):
        if flag == "--out" and name.endswith((".csv", ".parquet")) and words[0] in CHECKED:
            rows, config = read_rows(name)
            bad = [f"{key} {value}" for row in rows for key, value in row.items() if value != value]
            return {"stated": config.get("stated"), "resolved": config.get("resolved"), "bad": bad[:3]}
    return None


# --------------------------------------------------------------------------------------------------------------- judge
def faults(words, found):
    """What is wrong with a result, a word and a text each."""
    from mfabric_jax.commands import STATUS

    said = found["how"] or found["err"]
    if found["how"] == "hangs":
        return [] if LARGE.search(" ".join(words)) else [("hangs", "")]
    if found["how"]:
        return [("traceback" if "Traceback" in found["how"] else "signal", found["how"])]
    if WRONG.search(found["err"]):
        return [("warning or traceback", said)]
    if found["status"] not in STATUS:
        return [("status", f"{found['status']}")]
    if found["status"] == 2:
        return [("refusal", said)] if not refused_well(found) else []
    wrong = []
    if words[0] != "show" and not {"inf", "nan", "-inf"} & set(re.split(r"[=,\s]", " ".join(words))):
        wrong += [("no number", line) for line in found["out"].splitlines() if NO_NUMBER.search(line)][:1]
    config = found.get("config")
    if config:
        wrong += [("no number in rows", ", ".join(config["bad"]))] if config["bad"] else []
        wrong += [("ignored", text) for text in ignored(words, config)]
    return wrong


def refused_well(found):
    *before, last = found["err"].split("\n")[:-1] or [""]
    sentences = [line for line in (*before, last) if line.startswith("mfabric: ")]
    one = len(sentences) == 1 and last.startswith("mfabric: ") and last.endswith(".") and found["err"].endswith("\n")
    return one and all(PROGRESS.fullmatch(line) for line in before) and not found["out"]


def ignored(words, config):
    """Settings of `--set` that the configuration does not hold as they were stated."""
    for flag, text in itertools.pairwise(words):
        path, equals, value = text.partition("=")
        if flag != "--set" or not equals:
            continue
        path, stated = path.strip(), config["stated"] or {}
        held = [stated[name] for name in (path, f"{path}.name", *SHORTER.get(path, ())) if name in stated]
        if not held:
            yield f"{path} is not in the configuration"
        elif not as_stated(value, held[0]):
            yield f"{path} is {held[0]!r}, stated was {value!r}"


SHORTER = {
    **{"network": ["network.fabric"], "traffic": ["traffic.source"], "placement": ["placement.rule"]},
    "job.precision": ["job.precision.compute"],
}


def as_stated(text, held):
    if "," in text and not isinstance(held, str):
        return isinstance(held, list | tuple) or len({one.strip() for one in text.split(",") if one.strip()}) == 1
    try:
        return float(text) == float(held)
    except (TypeError, ValueError):
        pass
    if isinstance(held, bool) or held is None:
        return text.strip() in {True: ("true",), False: ("false",), None: ("auto",)}[held]
    return isinstance(held, int | float | list | tuple) or text.strip() == str(held)


# ---------------------------------------------------------------------------------------------------------------- main
def outcome(found):
    return "none" if found["status"] is None else str(found["status"])


def judged(lines, files):
    for number, ((command, words), found) in enumerate(
        zip(lines, results([words for _, words in lines], files), strict=True)
    ):
        yield number, command, words, found, faults(words, found)


def side_by_side(lines, files, workers):
    """Judgements of all lines, by processes that each take every n-th line."""
    if workers == 1:
        yield from judged(lines, files)
        return
    pipes = {}
    for worker in range(workers):
        reads, writes = os.pipe()
        if not os.fork():
            try:
                os.close(reads)
                with open(writes, "w") as pipe:
                    for one in judged(lines[worker::workers], files):
                        print(json.dumps(one), file=pipe, flush=True)
            finally:
                os._exit(0)
        os.close(writes)
        pipes[os.fdopen(reads)] = worker
    while pipes:
        for pipe in select.select(list(pipes), [], [])[0]:
            if line := pipe.readline():
                number, *others = json.loads(line)
                yield number * workers + pipes[pipe], *others
            else:
                del pipes[pipe]


def main():
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--count", type=int, default=500)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--commands", nargs="*", default=[], choices=list(LINES))
    asked.add_argument("--workers", type=int, default=1)
    asked.add_argument("--slow", type=float, default=0, help="name lines that take longer than these seconds")
    asked.add_argument("--refused", action="store_true", help="print every refusal")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        environment(pathlib.Path(name))
        files = pathlib.Path(name) / "files"
        files.mkdir()
        import_everything()
        write_files(files)
        drawn = [*unchanged(options.commands), *drawn_lines(options.count, options.seed, options.commands)]
        lines = [(command, words) for command, words in drawn if harmless(words)]
        return reported(side_by_side(lines, files, options.workers), options)


def environment(folder):
    programs = os.environ.get("MFABRIC_TEST_PROGRAMS", str(folder / "programs"))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    os.environ["MFABRIC_PROGRAMS"] = f"{programs}/kept-lines"
    tempfile.tempdir = str(folder)


def import_everything():
    """Once, for all forked processes; nothing is computed, for JAX's threads do not outlive a fork."""
    import mfabric_jax
    from mfabric_jax import evaluate as simulation
    from mfabric_jax import report
    from mfabric_jax.apps import learning, recordings, serving, sweep
    from mfabric_jax.apps.graphs import replay
    from mfabric_jax.apps.recordings import measurements
    from mfabric_jax.commands import COMMANDS
    from mfabric_jax.report import figures
    from mfabric_jax.support import interrupts

    del mfabric_jax, interrupts, learning, measurements, recordings, replay, report, serving, simulation, sweep, figures
    for name in COMMANDS:
        options_of(name)


def reported(every, options):
    counts, found_faults, began = collections.Counter(), collections.Counter(), time.monotonic()
    for done, (number, command, words, found, wrong) in enumerate(every, 1):
        counts[command, outcome(found)] += 1
        line = f"{number}: mfabric {shlex.join(words)}"
        if options.slow and found["took"] > options.slow:
            print(f"    {found['took']:.1f} s, {line:.300}", flush=True)
        if options.refused and found["status"] == 2:
            print(f"    {line:.300}\n        {found['err'].strip():.400}", flush=True)
        for kind, text in wrong:
            found_faults[kind] += 1
            print(f"--- {kind}, {line:.1500}\n{text[-2500:]}", flush=True)
        if done % 250 == 0:
            print(f"{done} lines, {time.monotonic() - began:.0f} s, {found_faults.total()} faults", flush=True)
    print(f"\n{counts.total()} lines of seed {options.seed}, {time.monotonic() - began:.0f} s")
    for command in LINES:
        each = {status: count for (name, status), count in counts.items() if name == command}
        print(f"{command or '(none)':<15} {dict(sorted(each.items()))}")
    print(f"faults: {dict(found_faults) or 'none'}")
    return 1 if found_faults else 0


if __name__ == "__main__":
    sys.exit(main())
