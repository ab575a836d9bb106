"""Layers and grids: later ones count, what excludes each other is replaced, lists stand side by side."""

import itertools
import json

import pytest

from mfabric_jax import policies
from mfabric_jax.case import Case, cases, load, presets
from mfabric_jax.case.layers import SettingsLayer, file_layers, layers_of, merge_layers, preset_layers
from mfabric_jax.case.paths import flat, read_statement, settings
from mfabric_jax.commands.help import of_cases
from mfabric_jax.commands.show import Options
from mfabric_jax.commands.words import read
from tests.docs_reference import MADE, PART, made_again
from tests.docs_tables import ROOT


def flags_of(given):
    """The layer of a command line."""
    return SettingsLayer("flag", read_statement(given, text=True), typed=True)


def together(*given, flags=None):
    """The cases of mappings, as files have them, and of flags."""
    layers = [layer for at, one in enumerate(given) for layer in layers_of(one, f"{at}.toml", typed=True)]
    return merge_layers([*layers, flags_of(flags or {})])


def values(found, path):
    return [flat(case).get(path) for case in found]


def test_a_preset_is_under_a_file_and_a_file_under_flags():
    found = together({"preset": "paper", "network": {"tiers": 2}}, flags={"gpu.name": "B200-HGX"})
    (case,) = found
    assert (case.network.tiers, case.gpu.name, case.job.recompute) == (2, "B200-HGX", "none")
    assert [found.sources[path] for path in ("network.tiers", "gpu.name", "job.recompute")] == [
        *("0.toml", "flag", "preset paper")
    ]
    assert "run.seed" not in found.sources
    assert together({"preset": "paper"}).blocks == merge_layers(preset_layers("paper")).blocks


def test_a_later_alternative_drops_what_the_earlier_one_had():
    (case,) = together({"circuits": {"predict": {"sigma": 0.5}}}, {"circuits": {"reconfigure": "pays"}})
    assert (flat(case).get("circuits.reconfigure"), flat(case).get("circuits.predict.sigma")) == ("pays", None)
    (case,) = together({"circuits.predict.sigma": 0.5}, {"circuits.predict.scenarios": 3})
    assert (flat(case).get("circuits.predict.sigma"), flat(case).get("circuits.predict.scenarios")) == (0.5, 3)


@pytest.mark.parametrize("later", ["global_batch", "micro_batches", "bubble"])
def test_a_batch_that_is_said_anew_replaces_all_that_was_said_of_it(later):
    (case,) = together({"preset": "paper"}, flags={f"job.batch.{later}": "1"})
    found = {
        name: flat(case).get(f"job.batch.{name}") for name in ("global_batch", "micro_batches", "per_stage", "bubble")
    }
    assert found == dict.fromkeys(found) | {later: 1}
    (case,) = together({"job.parallel.gpus": 64}, {"job.parallel.dp": 2})
    assert (case.job.parallel.gpus, case.job.parallel.dp) == (None, 2)
    (case,) = together({"job.parallel": {"gpus": 64, "dp": 2}})
    assert (case.job.parallel.gpus, case.job.parallel.dp) == (64, 2)


def test_lists_are_axes_and_what_a_fabric_does_not_read_makes_no_more_cases():
    found = together({"network": {"fabric": ["fat-tree", "mfabric"], "nic_gbps": [100, 400]}})
    assert [*zip(values(found, "network.fabric"), values(found, "network.nic_gbps"), strict=True)] == [
        *[("fat-tree", 100), ("fat-tree", 400), ("mfabric", 100), ("mfabric", 400)]
    ]
    assert (len(found.blocks), found.varied) == (2, ("network.fabric", "network.nic_gbps"))
    found = together({"network.fabric": ["fat-tree", "mfabric"]}, flags={"circuits.policy": ["greedy", "joint"]})
    assert len(found) == 3
    found = together({"circuits.reconfigure": ["on-demand", "predict"], "circuits.predict.sigma": [0.1, 0.2, 0.3]})
    assert len(found) == 4
    found = cases(Case(), {"network.nic_gbps": range(100, 800), "circuits.delay_s": [0.1, 0.2]})
    assert (len(found), len(found.blocks)) == (1400, 1)
    assert len(cases(Case(), [{"run.seed": 1}, {"run.seed": 2, "gpu": "B200-HGX"}])) == 2


def test_a_preset_may_state_what_no_case_reads():
    assert len(together({"preset": "released", "network.fabric": "fat-tree"})) == 1


def test_variants_stand_side_by_side_and_later_layers_narrow_them():
    usual = load(preset="usual")
    assert len(usual) == 5 * 4 * 6
    ways = ["own NICs", "pooled NICs", "as set", "as published", "at its best"]
    assert [*dict.fromkeys(block.variant for block in usual.blocks)] == ways
    best = [block.case for block in usual.blocks if block.variant == "at its best"]
    assert {case.model.name: flat(case).get("circuits.reconfigure") for case in best} == {
        **dict.fromkeys(["mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe"], "pays"),
        "deepseek-r1": "span",
    }
    few = merge_layers([*preset_layers("usual"), flags_of({"network.fabric": "mfabric", "model.name": "llama-moe"})])
    assert [block.variant for block in few.blocks] == ["as published", "at its best"]
    policy = flags_of({"network.fabric": ["fat-tree", "mfabric"], "circuits.policy": "matching"})
    found = merge_layers([*preset_layers("usual"), policy])
    assert {flat(case).get("circuits.policy") for case in found if case.network.fabric == "mfabric"} == {"matching"}
    found = merge_layers([*preset_layers("usual"), flags_of({"network.nic_use": "own"})])
    ways = ["as set", "as published", "at its best"]
    assert [*dict.fromkeys(block.variant for block in found.blocks)] == ways
    assert {case.network.nic_use for case in found} == {"own"}
    assert len(together({"variants": [{"name": "a", "run.seed": 1}, {"name": "b", "run.seed": [2, 3]}]})) == 3


@pytest.mark.parametrize("name", presets())
def test_a_preset_begins_with_a_sentence_and_can_be_read(name):
    assert presets()[name].endswith(".")
    assert len(load(preset=name) if not isinstance(load(preset=name), Case) else [1]) >= 1


def test_a_case_may_be_json(tmp_path):
    (tmp_path / "case.json").write_text('{"network": {"nic_gbps": 800}}')
    assert load(tmp_path / "case.json").network.nic_gbps == 800
    assert load(tmp_path / "case.json", changes={"network.nic_gbps": 200}).network.nic_gbps == 200


def test_a_layer_keeps_what_is_no_setting():
    (layer,) = layers_of({"random": {"circuits.delay_s": {"low": 0, "high": 1}}, "sweep": {"draws": 3}}, "a.toml")
    assert isinstance(layer, SettingsLayer)
    assert (dict(layer.sweep), list(layer.random), layer.stated) == ({"draws": 3}, ["circuits.delay_s"], {})
    assert flat(Case())["network.nic_gbps"] == 400


PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}
MARKED = {name: PART.findall(text) for name, text in PAGES.items() if PART.search(text)}


def test_pages_name_all_reference_once():
    assert sorted(itertools.chain(*MARKED.values())) == sorted(MADE)
    assert not any("<!-- made" in made_again(text) for text in PAGES.values())


def test_the_reference_has_every_setting_and_preset():
    made = made_again(PAGES["case"])
    assert [path for path in settings() if f"`{path}`" not in made] == []
    assert [name for name in presets() if f"`{name}`" not in made] == []


def test_values_that_no_variant_of_a_preset_has_are_cases_too():
    asked = {"model.name": "mixtral-8x22b", "network.fabric": "mfabric"}
    asked |= {"circuits.policy": ["greedy", "uniform", "joint"]}
    found = merge_layers([*preset_layers("usual"), flags_of(asked)])
    said = [(block.variant, block.case.circuits.policy, block.case.circuits.routing) for block in found.blocks]
    assert {one for one in said if one[1] == "joint"} == {("as set", "joint", "relay")}  # as its variant says
    assert {one for one in said if one[1] != "joint"} == {
        ("as set", "greedy", "unsplit"),  # as its variant says
        ("as set", "uniform", None),
    }
    both = merge_layers([*preset_layers("usual"), flags_of(asked | {"circuits.routing": ["unsplit", "split"]})])
    assert len({(block.case.circuits.policy, block.case.circuits.routing) for block in both.blocks}) == 6


def test_none_leaves_a_setting_of_a_choice_open():
    case = Case().with_({"job.schedule": "interleaved", "job.interleaved.chunks": 4})
    emptied = case.with_({"job.schedule": None, "job.interleaved.chunks": None})
    assert flat(emptied)["job.schedule"] is None
    assert flat(case.with_({"job.schedule": "zb-v", "job.interleaved.chunks": None}))["job.schedule"] == "zb-v"


def test_files_that_a_case_file_names_lie_beside_it_or_in_the_working_folder(tmp_path, monkeypatch):
    folder, shell = tmp_path / "cases", tmp_path / "shell"
    for place in (folder / "own", shell):
        place.mkdir(parents=True)
    monkeypatch.chdir(shell)
    for file in (folder / "near.toml", folder / "own" / "rates.toml", folder / "code.py", shell / "near.toml"):
        file.write_text("")
    (folder / "qwen-moe").mkdir()  # a name is no file
    stated = {"network.prices": "near.toml", "failures.rates": "own/rates.toml", "traffic.knobs": "far.json"}
    stated |= {"model.name": "qwen-moe", "circuits.schedule": "code.py:own"}
    lists = {"variants": [{"name": "a", "gpu.name": ["near.toml", "H100-SXM"]}]}
    (folder / "case.json").write_text(json.dumps({**stated, **lists}))
    policies.allow_code("code.py")
    (layer,) = file_layers("../cases/case.json")
    beside = {"network.prices": "../cases/near.toml", "failures.rates": "../cases/own/rates.toml"}
    assert layer.stated == stated | beside
    assert layer.variants[0].stated == {"gpu.name": ["../cases/near.toml", "H100-SXM"]}
    monkeypatch.chdir(folder)
    policies.allow_code("code.py")
    assert file_layers("case.json")[0].stated == stated


def test_a_file_that_overrides_another_is_named_once(tmp_path, capsys):
    first, second, third = (tmp_path / f"{name}.toml" for name in "abc")
    first.write_text('model.name = "llama-moe"\nnetwork.nic_gbps = 400\njob.parallel.gpus = 256\n')
    second.write_text('model.name = "qwen-moe"\nnetwork.nic_gbps = 800\njob.parallel.gpus = 256\n')
    third.write_text("run.seed = 3\n")
    read("show", [str(first), str(second), str(third)], Options)
    said = "b.toml overrides a.toml: model.name, network.nic_gbps; files are layers of one case.\n"
    assert capsys.readouterr().err == said
    read("show", [str(first), str(third), "--nic-gbps", "100"], Options)  # flags override, as they are meant to
    assert capsys.readouterr().err == ""
    assert "several files are layers of one case" in of_cases("show", Options)
    assert "mfabric buy" in of_cases("failures", Options, "failures")
