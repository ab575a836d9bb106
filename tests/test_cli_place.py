"""`mfabric traces place`: from loads to a placement, and from one form to the next."""

import json

import numpy as np
import pytest

from mfabric_jax.traffic.placement import SlotLayout, hierarchical
from tests.command_line import mistake, status

COUNT = np.random.default_rng(0).integers(0, 999, (3, 2, 8))  # [pass, layer, expert]


@pytest.fixture
def loads(command_line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loads.json").write_text(json.dumps({"logical_count": COUNT.tolist()}))


def test_recorded_loads_become_a_placement_in_every_form(loads, capsys, tmp_path):
    words = ["traces", "place", "loads.json", "map.json", "--ranks", "4", "--ranks-per-server", "2", "--slots", "12"]
    assert status(*words) == 0
    assert "2 layers, 8 experts in 12 slots of 4 ranks: map" in capsys.readouterr().out
    slots = json.loads((tmp_path / "map.json").read_text())["physical_to_logical_map"]
    layout = SlotLayout(ranks=4, ranks_per_server=2, slots=12, groups=8)
    assert slots == [hierarchical(COUNT[:, layer].sum(axis=0, keepdims=True), layout).tolist() for layer in (0, 1)]
    assert status(*["traces", "place", "map.json", "ascend.json", "--form", "ascend", "--ranks", "4"]) == 0
    assert status(*["traces", "place", "ascend.json", "eplb.json", "--form", "eplb"]) == 0
    assert status(*["traces", "place", "eplb.json", "again.json"]) == 0
    assert (tmp_path / "again.json").read_text() == (tmp_path / "map.json").read_text()
    capsys.readouterr()
    assert "slots applies only to recordings" in mistake(
        capsys, *["traces", "place", "map.json", "a.json", "--slots", "12"]
    )
    assert "has 4 ranks; leave out --ranks, got 2." in mistake(
        capsys, *["traces", "place", "ascend.json", "a.json", "--ranks", "2"]
    )


EPLB = [[90, 132, 40, 61, 104, 165, 39, 4], [20, 107, 104, 64, 19, 197, 187, 157]]  # [layer, expert]


def test_one_reader_of_loads_for_every_command(loads, capsys, tmp_path):
    """A bare array of JSON is placed as the same array of NumPy, and as a mapping with it."""
    np.save(tmp_path / "bare.npy", np.array(EPLB))
    (tmp_path / "bare.json").write_text(json.dumps(EPLB))
    (tmp_path / "weight.json").write_text(json.dumps({"weight": EPLB}))
    (tmp_path / "turned.json").write_text(json.dumps(np.transpose(EPLB).tolist()))
    words = ["--ranks", "4", "--ranks-per-server", "2", "--slots", "12", "--groups", "4"]
    files = {"bare.npy": [], "bare.json": [], "weight.json": [], "turned.json": ["--axes", "expert,layer"]}
    for file, axes in files.items():
        assert status("traces", "info", file, *axes) == 0
        assert status("traces", "place", file, f"{file}.placed.json", *words, *axes) == 0
    placed = {(tmp_path / f"{file}.placed.json").read_text() for file in files}
    assert len(placed) == 1
    capsys.readouterr()
    assert "axes applies only to recordings" in mistake(
        capsys, "traces", "place", "bare.json.placed.json", "x.json", "--axes", "expert"
    )


@pytest.mark.parametrize("value", [-1, float("nan")])
def test_loads_that_are_no_counts_are_placed_by_no_command(loads, capsys, tmp_path, value):
    np.save(tmp_path / "wrong.npy", np.array([[value, 2.0, 3.0, 4.0]]))
    for words in (["info", "wrong.npy"], ["place", "wrong.npy", "x.json", "--ranks", "2"]):
        assert "tokens must be finite and not negative" in mistake(capsys, "traces", *words)


def test_what_is_not_read_is_one_line_on_standard_error(loads, capsys, tmp_path):
    (tmp_path / "scaled.json").write_text(json.dumps({"weight": EPLB, "scale": 4}))
    assert status("traces", "info", "scaled.json") == 0
    (told,) = capsys.readouterr().err.splitlines()
    assert (
        told == "mfabric: 'scaled.json': entries beside weight are not read, though they could change a number: scale."
    )
