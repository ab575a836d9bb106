"""Command lines with odd values for the options of every command."""

import contextlib
import importlib
import random
import typing
from typing import Any

from mfabric_jax.commands.options import flags

from mfabric_jax import fabric, policies, workload
from mfabric_jax.commands import NAMES

BASES = {  # words with which each command runs
    "compare": ("--models llama-moe --fabrics fat-tree,mfabric --nic-gbps 400",),
    "calibrate": ("--models llama-moe",),
    "failures": ("--models llama-moe",),
    "cluster": ("--model llama-moe --servers 8", "--model llama-moe --graph graph.json"),
    "timeline": ("--model llama-moe",),
    "draw": ("fat-tree --out p.png --model llama-moe --servers 8", "graph.json --out p.svg"),
    "traffic": ("llama-moe",),
    "traces": (
        "info run.npz",
        "convert run.npz o.npz",
        "fit run.npz",
        "info router.jsonl",
        "info weight.txt",
        "study run.npz --model llama-moe",
    ),
    "validate": ("packet --runs runs",),
    "policies": ("bench --servers 4 --instances 1 --workloads zipf",),
    "train": ("--out t --steps 2",),
    "evaluate": ("--sizes 4 --samples 1",),
    "sweep": ("space.toml --out sw", "space.json --out sw2"),
    "query": ("rows.csv", "rows.parquet", "swept"),
    "report": ("rows.csv --out p.html", "rows.parquet --out p.html"),
    "reproduce": ("--list", ""),
    "tune": ("",),
    "doctor": ("",),
    "show": ("", "--preset paper"),
}
NUMBERS = (
    *("0", "1", "2", "3", "4", "6", "7", "8", "16", "64", "100", "400", "1000", "0.5", "0.05", "-1", "-0.0", "1e-9"),
    *("1e-320", "1e-300", "1e-45", "1e-30", "1e9", "1e12", "1e30", "1e38", "3.5e38", "1e300", "1e308", "-1e308"),
    *("1e400", "nan", "inf", "-inf", "255", "65536", "2147483647", "2147483648", "9223372036854775807"),
    *("9223372036854775808", "18446744073709551616", "1" + "0" * 400, "1000000000000", "1_000", "٣", "0x10", "1e3"),
)
WORDS = (
    *(
        "",
        " ",
        "*",
        ",",
        "1,,2",
        "a,b",
        "-",
        "--",
        "é",
        "=1+1",
        "@x",
        "[]",
        "{}",
        "true",
        "None",
        "null",
        "a\nb",
    ),
    *(
        "\udcff",
        "x" * 300,
        "x" * 300 + ".csv",
        "x" * 250 + ".parquet",
        "x" * 100_000,
        "%s",
        "{0}",
        "../x",
        "/",
        "/dev/null",
    ),
    *("/dev/full", "/dev/full/x.csv", "1-2", "5-3", "0-0", "1-1e3", "9" * 30 + "-" + "9" * 30, "llama-moe", "fat-tree"),
    *(
        "o.csv",
        "o.parquet",
        "o.html",
        "o.png",
        "o.svg",
        "o.json",
        "o.npz",
        "folder",
        "folder.csv",
        ".csv",
        "own.py:mine",
    ),
    *(
        "own.py:absent",
        "absent.py:mine",
        "broken.py:mine",
        "a.policy",
        "iteration_s>1",
        "iteration_s = x|y",
        "model:down",
    ),
)
NAMED = {  # values that are right somewhere, by the end of a flag
    **dict.fromkeys(("model", "models"), workload.NAMES),
    **dict.fromkeys(("fabric", "fabrics"), fabric.NAMES),
    **dict.fromkeys(("policy", "policies"), tuple(policies.REGISTRY)),
    "nic-use": ("own", "pooled", "own,pooled"),
    "circuits-for": ("all-to-all", "block", "stage", "iteration", "run", "run,block"),
    "preset": ("paper", "released"),
    "traffic": ("measured", "generated", "balanced", "burst", "knobs.json"),
    "predictor": ("transition", "uniform", "moving-average"),
    "decision-s": ("measured",),
    "schedule": ("1f1b", "interleaved", "gpipe"),
    "recompute": ("none", "attention", "block"),
    "gpu": ("H100-SXM", "B200-HGX"),
    "ocs": ("telescent", "polatis", "rotornet"),
    "sort": ("iteration_s", "model:down"),
    "by": ("model", "fabric,model"),
    "pareto": ("iteration_s", "iteration_s,network_cost_usd:max"),
    "measures": ("iteration_s:max", "iteration_s:median", "model:mean"),
    "where": ("iteration_s > 1", "model = llama-moe|x"),
    "columns": ("model", "model,model"),
    "device": ("cpu", "gpu"),
    "kinds": ("gpu", "server"),
    "shard": ("1/2", "2/1", "0/0", "1/99999999999999999999"),
}


def command_lines(count: int, seed: int, files: list[str]) -> list[list[str]]:
    """So many lists of words, the same for the same seed.   - `files`: names that exist where they run."""
    rng = random.Random(seed)
    known = {name: flags(importlib.import_module(f"mfabric_jax.commands.{name}").Options) for name in NAMES}
    weights = [len(known[name]) + 5 for name in NAMES]
    return [_line(rng, rng.choices(NAMES, weights)[0], known, files) for _ in range(count)]


def _line(rng: random.Random, command: str, known: dict[str, Any], files: list[str]) -> list[str]:
    words = rng.choice(BASES.get(command, ("",))).split()
    options = [flag for flag in known[command] if flag not in ("--what", "--path", "--paths", "--rows", "--config")]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        flag = rng.choice(options)
        words = _without(words, flag) + _option(rng, flag, known[command][flag], files)
    if rng.random() < 0.08:
        place = rng.randrange(len(words) + 1)
        words = [*words[:place], rng.choice((*WORDS, *NUMBERS)), *words[place + rng.randrange(2) :]]
    return [command, *words]


def _without(words: list[str], flag: str) -> list[str]:
    """The words but an option and its value."""
    if flag not in words:
        return words
    at = words.index(flag)
    return words[:at] + words[at + 2 :]


def _option(rng: random.Random, flag: str, hint: Any, files: list[str]) -> list[str]:
    if hint is bool:
        return [rng.choice((flag, flag.replace("--", "--no-", 1), flag + "=1", flag + "=maybe"))]
    kinds = typing.get_args(hint) or (hint,)
    numeric = int in kinds or float in kinds
    pools = [NUMBERS] * (8 if numeric else 1) + [WORDS, files] * (1 if numeric else 3)
    if flag[2:] in NAMED:
        pools += [NAMED[flag[2:]]] * 6
    if typing.get_origin(hint) is typing.Literal:
        pools += [[str(kind) for kind in kinds]] * 6
    if typing.get_origin(hint) is tuple and rng.random() < 0.5:
        pool = rng.choice(pools)
        value = ",".join(rng.choice(pool) for _ in range(rng.choice((1, 2, 3))))
    else:
        value = rng.choice(rng.choice(pools))
    return [f"{flag}={value}"] if rng.random() < 0.2 or value.startswith("-") else [flag, value]


def numbers_that_nothing_has(words: list[str]) -> list[str]:
    """Values of numeric options of this line that no option can mean; a graph that is drawn asks for none."""
    if words[:2] == ["draw", "graph.json"]:
        return []
    known = flags(importlib.import_module(f"mfabric_jax.commands.{words[0]}").Options)
    pairs = zip(words, [*words[1:], ""], strict=True)
    last = {word.partition("=")[0]: word.partition("=")[2] if "=" in word else after for word, after in pairs}
    return [value for flag, value in last.items() if _is_numeric(known.get(flag)) and _extreme(value)]


def _is_numeric(hint: Any) -> bool:
    kinds = [kind for one in typing.get_args(hint) for kind in (one, *typing.get_args(one))]
    return bool({int, float} & {hint, *kinds})


def _extreme(text: str) -> bool:
    for word in text.split(","):
        with contextlib.suppress(ValueError):
            size = abs(float(word))
            if not (size == 0 or 1e-30 <= size <= 1e30):
                return True
    return False


def real_lines(count: int, seed: int) -> list[list[str]]:
    """Command lines that compute something small, with numbers at the edge of what is sensible."""
    rng = random.Random(seed + 1)
    floats = (
        "--delay-s",
        "--each-s",
        "--reactivation-s",
        "--link-delay-s",
        "--goodput",
        "--efficiency",
        "--decision-s",
    )
    floats = (*floats, "--nvswitch-gigabytes-per-s", "--gpu-tbps", "--nic-gbps")
    tiny = {"compare": "--models llama-moe --iterations 1 --drawn 1 --matrices one", "traffic": "llama-moe"}
    lines = []
    for _ in range(count):
        name = rng.choice(("compare", "compare", "compare", "traffic"))
        words = [name, *tiny[name].split()]
        if name == "compare":
            words += ["--fabrics", rng.choice(("fat-tree", "mfabric", "rail-optimized")), "--nic-gbps", "400"]
            flag = rng.choice(floats)
            words = [*_without(words, flag), f"{flag}={rng.choice(NUMBERS)}", "--out", "real.csv"]
        else:
            flag = rng.choice(("--micro-batch", "--sequence", "--micro-batches", "--dp", "--gpus", "--pp"))
            words += [f"{flag}={rng.choice(NUMBERS)}"]
        lines.append(words)
    return lines
