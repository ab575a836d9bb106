"""The commands of the shell, one module each with `Options` and `run`. `words` parses them; `help` describes them.

Commands only connect the shell with the other packages, which compute, and with `report`, which shows results.
"""

COMMANDS = {  # by name, with a description
    "compare": "iteration time, cost and performance per dollar of fabrics for MoE training",
    "calibrate": "computation rate from published times; calibrate nccl: latency and bandwidth from measured times",
    "failures": "the cost of a broken NIC, link, switch, GPU or server on a fabric",
    "cluster": "the flows of one iteration on a whole cluster at once, and the links that hold them back",
    "jobs": "several jobs on shared links: fair sharing, time shifts of CASSINI, weights of MLTCP, best shifts",
    "serve": "inference on fabrics: time per output token, tokens per second, dollars per million tokens",
    "replay": "a task graph on fabrics: makespan, what determines it, what more bandwidth would save",
    "timeline": "the schedule of every pipeline stage in one iteration: a table, a picture or a Perfetto trace",
    "export": "one iteration as a task graph: computations, messages and their dependencies",
    "draw": "a picture of a fabric",
    "make-graph": "write a graph of GPUs and switches: tree, planes, torus, full mesh, dragonfly",
    "traffic": "bytes of each kind of parallelism in one iteration, and memory of a GPU",
    "traces": "statistics of recorded routing, and its effect on a job: all-to-alls, circuits, predictors",
    "validate": "predictions beside measurements: packet-level runs, training on real clusters, serving",
    "policies": "every policy on every kind of demand: time over the bound, decisions per second",
    "train": "train a policy that chooses circuits: a neural network, or an index rule of five numbers",
    "evaluate": "policies on demand outside their training data, known exactly, with errors or predicted",
    "sweep": "every configuration of a design space in a file; an interrupted sweep resumes",
    "query": "filter, group and sort the rows of a sweep; find its Pareto front",
    "rerun": "simulate the cases of a file of rows again, and list the columns that differ",
    "report": "one HTML page from the rows of another command: summary, charts, a table to sort and filter",
    "reproduce": "figures of the paper, and every published number beside the simulated one",
    "show": "the resolved case as TOML, with the source of every value",
    "doctor": "what determines the speed on this machine: devices, versions, caches, kernels, slow settings",
}
OF_CASES = {  # commands whose `run` takes cases
    *("show", "compare", "timeline", "export", "traffic", "failures", "sweep", "calibrate", "traces study"),
    *("cluster", "draw", "replay", "serve"),
}
TWO_WORDS = {*(name for name in OF_CASES if " " in name), "calibrate nccl", "traces place"}
STATUS = {  # exit statuses and their meaning
    0: "done",
    1: "a figure failed (reproduce), rows differ (rerun), or the reader of the output closed the pipe",
    2: "a mistake in the input, explained in one sentence on standard error",
    130: "interrupted; rows finished so far are kept",
}
