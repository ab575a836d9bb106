"""Iterations under better circuits and routes: ratios are those of direct runs; what is asked for is checked first."""

import pytest

from mfabric_jax.study import compare
from tests.study.small import as_a_user

pytest.importorskip("matplotlib")
pytest.importorskip("tyro")
from experiments.policies_end_to_end import BASE, WAYS, Config, draw, main, run, table

WAY = "threshold, unsplit"
SMALL = {"models": ("llama-moe",), "traffic": ("skewed",), "ways": (BASE, WAY), "nic_gbps": (100.0, 400.0)}


@pytest.fixture(scope="module")
def rows():
    with as_a_user():
        return list(run(Config(**SMALL)))


def test_ratios_are_those_of_direct_runs(rows):
    assert [(row["way"], row["nic_gbps"]) for row in rows] == [(BASE, 100), (BASE, 400), (WAY, 100), (WAY, 400)]
    with as_a_user():
        direct = {way: list(compare(Config(**SMALL).setting("llama-moe", "skewed", way))) for way in (BASE, WAY)}
    seconds = {(way, row["fabric"], row["nic_gbps"]): row["iteration_s"] for way in direct for row in direct[way]}
    for row in rows:
        own = seconds[row["way"], "mfabric", row["nic_gbps"]]
        assert row["iteration_s"] == pytest.approx(own, rel=1e-6)
        assert row["over_greedy"] == pytest.approx(own / seconds[BASE, "mfabric", row["nic_gbps"]], rel=1e-6)
        assert row["over_fat_tree"] == pytest.approx(own / seconds[BASE, "fat-tree", row["nic_gbps"]], rel=1e-6)


def test_what_a_way_sets():
    config = Config(trace="x")
    assert config.kinds() == ("measured", "skewed", "recorded")
    for way, settings in WAYS.items():
        setting = config.setting("qwen-moe", "recorded", way)
        assert (setting.models, setting.trace) == (("qwen-moe-ep16",), "x")
        assert all(getattr(setting, field) == value for field, value in settings.items())


def test_the_table_and_the_figure(rows, tmp_path):
    text = table(rows)
    assert f"iteration time over that of {BASE}" in text
    assert f"{rows[2]['over_greedy']:.3f}" in text
    assert draw(rows, tmp_path / "picture.png").stat().st_size > 5000


@pytest.mark.parametrize(("words", "sentence"), [
    (["--ways", WAY], f"ways must begin with '{BASE}', got '{WAY}'"),
    (["--traffic", "recorded"], "traffic 'recorded' needs trace"),
    (["--models", "mixtral"], "models 'mixtral' is unknown"),
])  # fmt: skip
def test_mistakes_are_sentences(words, sentence, tmp_path, capsys):
    assert main([*words, "--out", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
