"""`mfabric show`: a case as TOML that makes it again, every value with where it comes from; help that fits a screen."""

import importlib
import tomllib

import pytest

from mfabric_jax.case import Cases, presets
from mfabric_jax.case.grid import fabric_reads
from mfabric_jax.case.layers import file_layers, merge_layers
from mfabric_jax.case.paths import Leaf, flat, settings
from mfabric_jax.commands import OF_CASES, compare, help, show
from mfabric_jax.commands.words import read
from mfabric_jax.evaluate import resolve
from tests.command_line import mistake, status
from tests.mistakes import refused

WORDS = {
    "plain": "",
    "one": "--model qwen-moe --gpus 512 --fabric fat-tree --nic-gbps 800",
    "axes": "--fabric fat-tree,mfabric --nic-gbps 100,400 --set circuits.delay_s=1ms,25ms",
    "choices": "--set circuits.reconfigure=on-demand,predict --set circuits.predict.sigma=0.1,0.3 "
    "--set compute.measured=5",
    "lists": "--set failures.kinds=gpu,link --trace run.npz --set traffic.trace.records=3-9",
    "order": "--nic-gbps 400,100 --fabric mfabric,fat-tree --policy joint,greedy",
    **{name: f"--preset {name}" for name in presets()},
    "narrowed": "--preset usual --fabric mfabric,fat-tree --model llama-moe",
}
WORDS["choices"] = WORDS["choices"].replace("compute.measured=5", "compute.measured.iteration_s=5")


def cases_of(words):
    return read("show", words.split(), show.Options)[0]


def read_by(found: Cases):
    """What each case reads, in order."""
    every = [flat(case) for case in found]
    return [{path: value for path, value in one.items() if fabric_reads(path, one)} for one in every]


def in_the_end(found: Cases):
    """What is computed of each block of cases."""
    every = [flat(resolve(block.case).case) for block in found.blocks]
    return [{path: value for path, value in one.items() if fabric_reads(path, one)} for one in every]


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("words", WORDS)
def test_what_is_shown_makes_the_same_cases(words, changed, tmp_path):
    found, file = cases_of(WORDS[words]), tmp_path / "shown.toml"
    text = "\n".join(show.as_toml(found, changed=changed))
    tomllib.loads(text)
    file.write_text(text)
    again = merge_layers(file_layers(file))
    assert [block.variant for block in again.blocks] == [block.variant for block in found.blocks]
    assert len(again) == len(found)
    if changed:
        assert read_by(again) == read_by(found)
    else:
        assert in_the_end(again) == in_the_end(found)
    file.write_text("\n".join(show.as_toml(again, changed=changed)))
    assert read_by(merge_layers(file_layers(file))) == read_by(again)


def test_what_is_drawn_is_drawn_again(tmp_path):
    file = tmp_path / "case.toml"
    file.write_text('[random]\ncircuits.delay_s = {low = "1 ms", high = 0.1, scale = "log"}\n[sweep]\ndraws = 3\n')
    found = merge_layers(file_layers(file))
    file.write_text("\n".join(show.as_toml(found)))
    again = merge_layers(file_layers(file))
    assert len(found) == 3
    assert [flat(case).get("circuits.delay_s") for case in again] == [
        flat(case).get("circuits.delay_s") for case in found
    ]
    assert again.rules == found.rules


def test_a_recipe_that_was_worked_out_stands_when_it_is_fed_back(tmp_path):
    text = "\n".join(show.as_toml(cases_of("--preset deepseek-v3")))
    assert 'job.per-server.node_limit = "model"' in text
    assert "# auto: recipe makers (arXiv 2412.19437)" in text


def test_every_value_says_where_it_comes_from(tmp_path, capsys):
    file = tmp_path / "case.toml"
    file.write_text('preset = "paper"\nnetwork.tiers = 2\n')
    assert status("show", file, "--nic-gbps", "400,800", "--changed") == 0
    lines = capsys.readouterr().out.splitlines()
    said = {line.split(" =")[0]: line.partition("# ")[2] for line in lines if " = " in line}
    assert said["network.nic_gbps"] == "flag"
    assert said["network.tiers"] == "case.toml"
    assert said["gpu.name"] == said["compute.rate"] == "preset paper"
    assert "run.seed" not in said
    assert "# not read by any case here (mfabric): network.rail-optimized.pxn, network.topoopt.wiring" in lines
    assert status("show", "--presets") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*presets()]


def test_help_is_one_screen_and_leads_to_every_setting(capsys):
    assert status("show", "--help") == 0
    screen = capsys.readouterr().out
    assert screen.count("\n") <= 40
    assert max(map(len, screen.splitlines())) <= 120
    for word in ("--nic-gbps", "--global-batch", "--set PATH=VALUE", "--preset", "network", "circuits", "--changed"):
        assert word in screen
    assert status("show", "--help", "all") == 0
    everything = capsys.readouterr().out
    assert [path for path in settings() if f"{path} = " not in everything] == []
    assert max(map(len, everything.splitlines())) <= 120
    assert status("show", "--help", "network") == 0
    group = capsys.readouterr().out
    assert "network.topoopt.wiring = totient-perms" in group
    assert "run.seed" not in group
    assert status("show", "--help", "circuits.predict.sigma") == 0
    assert "belongs to circuits.reconfigure = predict; stating it chooses predict" in capsys.readouterr().out
    assert mistake(capsys, "show", "--help", "circuits.predict.sgma").startswith(
        "circuits.predict.sgma is unknown (did you mean circuits.predict.sigma?)"
    )


def test_a_quoted_text_is_one_value():
    def prices(text):
        return read("compare", ["--set", f"network.prices={text}"], compare.Options)[0].stated["network.prices"]

    assert prices("'a, b.toml'") == prices('"a, b.toml"') == "a, b.toml"
    assert prices("a, b.toml") == prices("a,b.toml") == ["a", "b.toml"]
    assert prices("'a','b'") == ["'a'", "'b'"]


@pytest.mark.parametrize("command", sorted(OF_CASES))
def test_help_has_the_whole_description_of_a_command(command, monkeypatch):
    options = importlib.import_module(f"mfabric_jax.commands.{command.replace(' ', '_')}").Options
    monkeypatch.setattr(options, "__doc__", f"{options.__doc__} {'One more sentence. ' * 20}The end.")
    assert "".join(options.__doc__.split()) in "".join(help.of_cases(command, options).split())


@pytest.mark.parametrize("path", sorted(settings()))
def test_help_of_a_setting_says_all_of_it(path):
    said = help.of_cases("show", show.Options, path)
    setting = settings()[path]
    assert setting.doc in said
    assert ("one compiled program" in said) == setting.traced
    assert (isinstance(setting, Leaf) and bool(setting.choice)) == ("belongs to" in said)


def test_one_flag_may_have_two_spellings():
    assert cases_of("--models llama-moe --fabrics fat-tree --seq 1024 --nic-gbps=200") == cases_of(
        "--model=llama-moe --fabric fat-tree --sequence 1024 --nic-gbps 200"
    )
    assert cases_of("--trace a.npz --set traffic.trace.axes=layer,expert").blocks[0].case.traffic.source.axes == (
        "layer,expert"
    )
    assert refused(cases_of, "--set model=llama-moe --model qwen-moe").startswith("model.name is stated twice")


def test_a_default_that_variants_replace_says_so(tmp_path):
    file = tmp_path / "case.toml"
    words = "network.fabric = 'torus'\n"
    words += "".join(
        f"[[variants]]\nname = '{name}'\nmodel.name = '{name}'\n" for name in ("deepseek-v3", "mixtral-8x22b")
    )
    file.write_text(words)
    said = {line.partition(" = ")[0]: line.partition(" # ")[2] for line in show.as_toml(cases_of(str(file)))}
    assert said["network.fabric"] != "default"
    lines = [line for line in show.as_toml(cases_of(str(file))) if line.startswith("model.name")]
    assert lines[0].endswith("# default, which variants replace")
