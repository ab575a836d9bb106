"""The commands of the shell, one module each with `Options` and `run`. `words` parses them; `help` describes them.

Commands only connect the shell with the other packages, which compute, and with `report`, which shows results.
"""

import importlib
from types import ModuleType

COMMANDS = {  # by name, with a description
    "compare": "compare fabrics for MoE training: iteration time, cost, performance per dollar",
    "calibrate": "fit computation rates to published times; calibrate nccl: latency and bandwidth to measured ones",
    "setup": "search the set-up that trains a model fastest or on the fewest GPUs: degrees, schedule, dispatch",
    "buy": "rank networks for several jobs: dollars with failures, prices that change the answer, as one page",
    "failures": "simulate a broken NIC, link, switch, GPU or server, and its cost",
    "cluster": "simulate one iteration's flows on a whole cluster, and the links that hold them back",
    "jobs": "simulate jobs on shared links: fair sharing, CASSINI's time shifts, MLTCP's weights, best shifts",
    "serve": "simulate inference: time per output token, tokens per second, dollars per million answer tokens",
    "replay": "simulate a task graph: makespan, what determines it, what more bandwidth would save",
    "timeline": "show every pipeline stage over an iteration: a table, a picture or a Perfetto trace",
    "export": "export one iteration as a task graph: computations, messages and their dependencies",
    "draw": "draw a fabric",
    "make-graph": "write a graph of GPUs and switches: tree, planes, torus, full mesh, dragonfly",
    "traffic": "show the bytes of each kind of parallelism in one iteration, and the memory of a GPU",
    "traces": "analyse recorded routing and its effect on a job: all-to-alls, circuits, predictors",
    "validate": "compare predictions with measurements: packet-level runs, training on clusters, serving",
    "policies": "benchmark policies of one demand; policies regimes: policies over time, where reconfiguring costs",
    "train": "train a policy that chooses circuits: a neural network, or an index rule of five numbers",
    "evaluate": "evaluate policies on demand outside their training data: known exactly, with errors or predicted",
    "sweep": "simulate every configuration of a design space in a file; an interrupted sweep resumes",
    "query": "filter, group and sort the rows of a sweep; find its Pareto front",
    "rerun": "simulate the cases of a file of rows again, and list the columns that differ",
    "report": "make an HTML page from the rows of another command: what is best and why, charts, a table",
    "reproduce": "reproduce figures of the paper, and compare every published number",
    "show": "print the resolved case as TOML, with the source of every value",
    "doctor": "print what determines the speed on this machine: devices, versions, caches, kernels, slow settings",
    "completion": "print a script that completes command lines in bash, zsh or fish",
}
OF_CASES = {  # commands whose `run` takes cases
    *("show", "compare", "timeline", "export", "traffic", "failures", "sweep", "calibrate", "traces study"),
    *("cluster", "draw", "replay", "serve", "setup", "buy"),
}
TWO_WORDS = {*(name for name in OF_CASES if " " in name), "calibrate nccl", "traces place", "policies regimes"}
STATUS = {  # exit statuses and their meaning
    0: "done",
    1: "a figure failed (reproduce), rows differ (rerun), or the reader of the output closed the pipe",
    2: "a mistake in the input, explained in one sentence on standard error",
    130: "interrupted; rows finished so far are kept",
}


def load_command(command: str) -> ModuleType:
    """Return the module of a command: its `Options` and `run`."""
    return importlib.import_module(f"mfabric_jax.commands.{command.replace(' ', '_').replace('-', '_')}")
