"""What a person may mistype, found before anything runs, in one sentence; and how a mistake ends in the shell."""

import importlib
import re

import pytest

from mfabric_jax.checks import InputError

LEAST = {  # of whole numbers; one less is refused
    "cost_by_cluster_size": {"servers": 1, "radix": 2, "nics": 1},
    "many_demands": {"servers": 2, "demands": 1, "scenarios": 1, "few": 1, "past": 1, "share_steps": 1},
    "predictor_on_traces": {"servers": 2, "samples": 1, "iterations": 1, "window": 1, "electrical_nics": 1},
}
ONCE = {  # at least one and none twice
    "cost_by_cluster_size": ("servers", "tiers"),
    "scale_up_domains": ("gpu_tbps", "efficiency"),
}
RANKS = "servers must divide the 16 ranks of the recording, got 3."
SENTENCES = [
    ("cost_by_cluster_size", {"fabrics": ("fat-tre",)}, "fabrics 'fat-tre' is unknown (did you mean 'fat-tree'?)"),
    ("cost_by_cluster_size", {"tiers": (4,)}, "tiers must be 2 or 3, got 4."),
    ("cost_by_cluster_size", {"nic_gbps": (50.0,)}, "nic_gbps 50 has no price"),
    ("cost_by_cluster_size", {"optical_degree": 0, "electrical_nics": 0}, "electrical_nics must not both be 0."),
    ("cost_by_cluster_size", {"oversubscription": 0.0}, "oversubscription must be finite and above 0, got 0.0."),
    ("cost_by_cluster_size", {"prices": "nowhere.toml"}, "cannot read 'nowhere.toml' (No such file"),
    ("many_demands", {"families": ("gates",)}, "families 'gates' is unknown (did you mean 'gate'?)"),
    ("many_demands", {"families": ("laer",)}, "families 'laer' needs laer, and nothing else is left."),
    ("many_demands", {"policies": ("join",)}, "policies 'join' is unknown (did you mean 'joint'?)"),
    ("many_demands", {"servers": (5,)}, "servers must divide the 16 ranks of 'olmoe', got 5."),
    ("predictor_on_traces", {"servers": (3,)}, RANKS),
    ("predictor_on_traces", {"rule": "print"}, "rule 'print' is unknown (did you mean 'printed'?)"),
    ("predictor_on_traces", {"records": (0, 3)}, "records needs trace, a recording to take them from, got [0, 3]."),
    ("predictor_on_traces", {"predictors": ("uniform", "uniform")}, "predictors must name at least one and none twice"),
    ("predictor_on_traces", {"predictors": ("unifrom",)}, "predictor 'unifrom' is unknown (did you mean 'uniform'?)"),
    ("predictor_on_traces", {"decay": 2.0}, "decay must be at most 1, got 2.0."),
    ("scale_to_32768", {"models": ("llama-moe",), "gpus": (1000,)}, "gpus must be whole replicas of llama-moe"),
    ("scale_up_domains", {"model": "deepseek-v"}, "model.name 'deepseek-v' is unknown (did you mean 'deepseek-v3'?)"),
    ("scale_up_domains", {"gpu": "B100"}, "'B100'"),
    ("scale_up_domains", {"gpu_tbps": (8.0, 0.8)}, "gpu_tbps 0.8 leaves no NVLink beside a NIC of nic_gbps 800"),
    ("scale_up_domains", {"efficiency": (0.5, 0.0)}, "efficiency must be finite and above 0, got [0.5, 0.0]."),
    ("scale_up_domains", {"micro_batches": 0}, "micro_batches"),
]
SWEEPS = "batch_size block_timeline failures iteration_time matrices_and_locality optical_degree pareto"
SWEEPS += " scale_to_32768 testbed traffic_shares training_today"


def module_of(name):
    return importlib.import_module(f"experiments.{name}")


def numbers():
    for name, fields in LEAST.items():
        for field, least in fields.items():
            several = isinstance(getattr(module_of(name).Config, field), tuple)
            value = (least - 1,) if several else least - 1
            yield name, {field: value}, f"{field} must be a whole number of at least {least}, got {least - 1}."


def lists():
    for name, fields in ONCE.items():
        for field in fields:
            for value in ((), 2 * getattr(module_of(name).Config, field)[:1]):
                yield name, {field: value}, f"{field} must name at least one and none twice, got {[*value]}."


def test_a_mistake_is_a_sentence():
    models = [(name, {"models": ("mixtral-8x7",)}, "unknown (did you mean 'mixtral-8x7b'?)") for name in SWEEPS.split()]
    for name, given, sentence in [*SENTENCES, *models, *numbers(), *lists()]:
        with pytest.raises(InputError) as mistake:
            module_of(name).Config(**given)
        assert re.search(re.escape(sentence), str(mistake.value)), (name, given, str(mistake.value))


def test_from_the_shell_it_ends_with_status_2(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    for name, words, sentence in (
        ("cost_by_cluster_size", ["--servers", "128", "--out", str(blocked)], "cannot write into"),
        ("cost_by_cluster_size", ["--servers", "0"], "servers must be a whole number of at least 1"),
        ("reconfiguration_delay", ["--model", "mixtral-8x7"], "model.name 'mixtral-8x7' is unknown"),
        ("predictor_on_traces", ["--trace", str(tmp_path / "nowhere")], "trace must be"),
    ):
        assert module_of(name).SCRIPT.main([*words, *([] if "--out" in words else ["--out", str(tmp_path)])]) == 2
        said = capsys.readouterr()
        assert said.err.startswith(f"{name}: {sentence}")
        assert (said.err.count("\n"), said.out) == (1, "")
