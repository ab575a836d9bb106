"""The commands: a module each, with its `Options` and `run`; `words` reads them, `help` describes them.

The rooms of the package compute, `report` shows; here is what stands between them and the shell.
"""

COMMANDS = {  # by name, and what each tells
    "compare": "iteration time, cost and performance per dollar of fabrics for MoE training",
    "calibrate": "the computation rate that published times imply; calibrate nccl: latency, bandwidth of measured ones",
    "failures": "what a broken NIC, link, switch, GPU or server costs a fabric",
    "cluster": "one iteration's flows on a whole cluster at once: who waits for which link",
    "jobs": "several jobs on shared links: fair sharing, CASSINI's time shifts, MLTCP's weights, the best shifts",
    "serve": "inference: seconds from token to token, tokens a second, dollars a million, of models on fabrics",
    "replay": "a graph of tasks on fabrics: when it ends, what holds it, what more bandwidth would bring",
    "timeline": "what every stage does when in one iteration, as a table, a picture or a trace for Perfetto",
    "export": "one iteration as a graph of tasks: computations, messages, what waits for what",
    "draw": "a picture of a fabric",
    "make-graph": "a graph of GPUs and switches in a file: tree, planes, torus, full mesh, dragonfly",
    "traffic": "bytes of each kind of parallelism in one iteration of a model, memory of a GPU",
    "traces": "what recorded routing holds, and what it means for a job: all-to-all, circuits, predictors",
    "validate": "predictions beside what was measured: packet-level runs, steps of trainings on real clusters",
    "policies": "every policy on every kind of demand: how late, how fast",
    "train": "a policy that chooses circuits: a network, or an index rule of five numbers",
    "evaluate": "policies on demand they were not trained on, known exactly, with errors or predicted",
    "sweep": "every configuration of a design space, from a file; goes on where it was stopped",
    "query": "filter, group and sort the rows of a sweep; its Pareto front",
    "rerun": "the cases of a file of rows simulated again: equal, or which columns differ",
    "report": "one HTML page of the rows of another command: summary, charts, a table to sort and filter",
    "reproduce": "figures of the paper, and every published number beside what comes out",
    "show": "what a case becomes, as TOML, each value with where it comes from",
    "doctor": "what decides the speed here: devices, versions, caches, kernels, and what is slow",
}
OF_CASES = {  # their `run` takes cases, too
    *("show", "compare", "timeline", "export", "traffic", "failures", "sweep", "calibrate", "traces study"),
    *("cluster", "draw", "replay", "serve"),
}
TWO_WORDS = {*(name for name in OF_CASES if " " in name), "calibrate nccl", "traces place"}
STATUS = {  # exit statuses, and what they say
    0: "done",
    1: "a figure failed (reproduce), rows differ (rerun), or the reader of the output has left",
    2: "a mistake in what was asked, in one sentence on standard error",
    130: "interrupted; rows so far are kept",
}
