"""Mistakes in settings, files and words that are answered with one sentence."""

from mfabric_jax.case import Case
from mfabric_jax.case.layers import SettingsLayer, layers_of, merge_layers
from mfabric_jax.case.paths import read_statement
from mfabric_jax.commands import show
from mfabric_jax.commands.words import read

FLAGS = {  # of a flag PATH=VALUE
    "network.nic_gpbs=400": "network.nic_gpbs is unknown (did you mean network.nic_gbps?)",
    "nic_gbps=400": "nic_gbps is unknown (did you mean network.nic_gbps?)",
    "job.gpus=8": "job.gpus is unknown (did you mean job.parallel.gpus?)",
    "network.nic_gbps=0": "network.nic_gbps must be a number above 0, got 0.",
    "network.nic_gbps=fast": "network.nic_gbps must be a number above 0, got 'fast'.",
    "run.seed=auto": "run.seed must have a value, got 'auto'.",
    "run.seed=-1": "run.seed must be a whole number of at least 0, got -1.",
    "circuits.reconfigure=pay": "circuits.reconfigure 'pay' is unknown (did you mean 'pays'?); allowed: on-demand, ",
    "circuits.turn=pays": "circuits.turn is now circuits.reconfigure; use that name.",
    "circuits.predict=1": "circuits.predict is an alternative of circuits.reconfigure without a value of its own",
    "network.fabric=donut": "network.fabric must be fat-tree, oversub-fat-tree, ",
    "job.precision=fp4": "job.precision must be bf16 or fp8, or a table, got 'fp4'.",
}
WORDS = {  # of a command line
    "--delay-s 3": "option '--delay-s' is unknown (did you mean --set circuits.delay_s=...?).",
    "--rule next": "option '--rule' is unknown (did you mean --set placement.rule=...?).",
    "--overlap-passes": "option '--overlap-passes' is unknown; --help lists all options.",
    "--wiring rings": "option '--wiring' is unknown (did you mean --set network.topoopt.wiring=...?).",
    "--tile 3": "option '--tile' is unknown (did you mean --set compute.received.tile=...?).",
    "--modle x": "option '--modle' is unknown (did you mean '--model'?); --help lists all options.",
    "--page x.html": "option '--page' is unknown; --help lists all options.",
    "--set run.seed=1,run.draws=2": "takes one path, got run.seed and run.draws; give --set once for each.",
    "--set run.seed": "option --set takes PATH=VALUE, such as network.nic_gbps=100,400, got 'run.seed'.",
    "--nic-gbps": "option --nic-gbps needs a value after it; --help shows what it takes.",
    "--changed=yes": "option --changed takes no value, got 'yes'.",
    "surplus": "show does not take 'surplus'; --help lists what it takes.",
    "none.toml": "; give a .toml or .json file of settings of a case.",
}
FILE = {"network.fabric": "fat-tree", "circuits.policy": "joint"}
FILES = [  # of what a file holds
    ({"nic_gbps": 3}, "case.toml: nic_gbps is unknown (did you mean network.nic_gbps?)"),
    ({"preset": "papr"}, "preset 'papr' is unknown (did you mean 'paper'?); allowed: "),
    ({"network.nic_gbps": [400, 400]}, "case.toml: network.nic_gbps must not repeat a value, got 400, 400."),
    ({"network.nic_gbps": []}, "case.toml: network.nic_gbps must have at least one value, got an empty list."),
    ({"sweep": 3}, "case.toml: sweep must be a table, got 3."),
    ({"model": "a", "model.name": "b"}, "case.toml: model.name is stated twice."),
    ({"variants": [{"run.seed": 1}]}, "case.toml: every table of variants needs a name"),
    (
        {"circuits": {"reconfigure": "pays", "predict": {"sigma": 0.5}}},
        "circuits.reconfigure has one alternative at a time, got pays",
    ),
    (FILE, "circuits.policy is not read by any case here (fat-tree); leave it out."),
]


def of_file(given):
    return lambda: merge_layers(layers_of(given, "case.toml", typed=True))


def of_flags(given):
    return lambda: merge_layers([SettingsLayer("flag", read_statement(given, text=True), typed=True)])


def of_words(words):
    return lambda: read("show", words.split(), show.Options)


REFUSED = [
    *((of_file(given), *words) for given, *words in FILES),
    *((of_flags(dict([words.split("=")])), sentence) for words, sentence in FLAGS.items()),
    *((of_words(words), sentence) for words, sentence in WORDS.items()),
    (of_flags(FILE), "circuits.policy is not read by any case here (fat-tree); leave it out."),
    (lambda: Case().with_({"circuits.delay_s": "25 furlongs"}), "a text in s, ms, us, ns, min, h, got '25 furlongs'."),
]
