"""Flow level against packet level: by hand on small runs, then on recorded ones."""

import json

import jax
import numpy as np
import pytest

from mfabric_jax import cli, study
from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared
from mfabric_jax.report import read_rows
from mfabric_jax.study import validate
from mfabric_jax.study.packet_runs import Leaves, read_run
from tests.study.small import configured

MB = 10**6
TREE = "fat-tree, 8 hosts, non-blocking"
LEAF_SPINE = "leaf-spine, 4 hosts, 2 ToR with 2 host ports and 1 uplinks"


@pytest.fixture(autouse=True)
def double_precision():
    with configured(jax_enable_x64=True):
        yield


def flow(src, dst, size, fct_s=0.01, **more):
    return {"src": src, "dst": dst, "bytes": size, "start": 0.0, "fct_s": fct_s, **more}


def told(flows, **changed):
    """A run at 1 GB/s, of which headers take a quarter."""
    return {
        "name": "hand-made",
        "topology": TREE,
        "transport": "ndp",
        "routing": "per-packet spraying",
        "link_bps": 8e9,
        "payload_per_packet": 3,
        "header_per_packet": 1,
        "collective_s": max((f["fct_s"] for f in flows), default=0.01),
        "flows": flows,
    } | changed


def written(folder, run, name="run.json"):
    file = folder / name
    file.write_text(run if isinstance(run, str) else json.dumps(run), encoding="utf-8")
    return file


def predicted(folder, flows, **changed):
    return study.predict(read_run(written(folder, told(flows, **changed))))


def test_two_flows_into_one_host_by_hand(tmp_path):
    # 0.75 GB/s of payload, halved until the small flow has its 1.5 MB: 4 ms. Then 3 MB alone: 4 ms more.
    got = predicted(tmp_path, [flow(0, 2, 1.5 * MB, 0.005), flow(1, 2, 4.5 * MB, 0.010)])
    np.testing.assert_allclose(got.finish, [0.004, 0.008], rtol=1e-12)
    assert got.collective_s == got.finish.max()
    assert got.error == pytest.approx(-0.2, rel=1e-12)
    np.testing.assert_allclose(got.large_flow_errors, [-0.2, -0.2], rtol=1e-12)


def test_one_host_sends_to_two(tmp_path):
    got = predicted(tmp_path, [flow(0, 1, 1.5 * MB), flow(0, 2, 1.5 * MB)])
    np.testing.assert_allclose(got.finish, [0.004, 0.004], rtol=1e-12)


def test_both_directions_of_a_host_are_apart(tmp_path):
    got = predicted(tmp_path, [flow(0, 1, 1.5 * MB), flow(1, 0, 1.5 * MB)])
    np.testing.assert_allclose(got.finish, [0.002, 0.002], rtol=1e-12)


def test_a_later_flow_starts_late_and_its_error_counts_from_there(tmp_path):
    # Alone for 1 ms, then shared: flow 0 has 0.75 MB left at half rate, 2 ms; flow 1 has 1.5 - 0.75 MB left, 1 ms.
    late = flow(1, 2, 1.5 * MB, 0.007) | {"start": 0.001}
    got = predicted(tmp_path, [flow(0, 2, 1.5 * MB, 0.006), late])
    np.testing.assert_allclose(got.finish, [0.003, 0.004], rtol=1e-12)
    np.testing.assert_allclose(got.large_flow_errors, [-0.5, -0.5], rtol=1e-12)


def test_a_link_on_two_paths_is_shared(tmp_path):
    one, two = flow(0, 2, 1.5 * MB, path="SRC0>T0>A0>T1"), flow(1, 3, 1.5 * MB, path="SRC1>T0>A0>T1")
    both = predicted(tmp_path, [one, two], routing="per-flow ECMP")
    np.testing.assert_allclose(both.finish, [0.004, 0.004], rtol=1e-12)
    apart = predicted(tmp_path, [one, two | {"path": "SRC1>T0>A1>T1"}], routing="per-flow ECMP")
    np.testing.assert_allclose(apart.finish, [0.002, 0.002], rtol=1e-12)


def test_the_last_link_of_a_path_goes_to_its_destination(tmp_path):
    one, two = flow(0, 3, 1.5 * MB, path="SRC0>T0"), flow(1, 3, 1.5 * MB, path="SRC1>T0")
    np.testing.assert_allclose(predicted(tmp_path, [one, two]).finish, [0.004, 0.004], rtol=1e-12)


def test_leaves_share_their_uplinks_but_not_for_neighbours(tmp_path):
    # 0 -> 2 and 1 -> 3 leave leaf 0 over one uplink; 2 -> 3 stays below leaf 1, but shares the port of 3.
    flows = [flow(0, 2, 1.5 * MB), flow(1, 3, 1.5 * MB)]
    near = flow(2, 3, 0.75 * MB)
    got = predicted(tmp_path, [*flows, near], topology=LEAF_SPINE)
    np.testing.assert_allclose(got.finish, [0.004, 0.004, 0.002], rtol=1e-12)
    wide = LEAF_SPINE.replace("1 uplinks", "2 uplinks")
    np.testing.assert_allclose(predicted(tmp_path, flows, topology=wide).finish, [0.002, 0.002], rtol=1e-12)


def test_float32(tmp_path):
    file = written(tmp_path, told([flow(0, 2, 1.5 * MB), flow(1, 2, 4.5 * MB)]))
    got = study.predict(read_run(file), "float32")
    np.testing.assert_allclose(got.finish, [0.004, 0.008], rtol=1e-6)  # a few sums and quotients of 24 bits
    with pytest.raises(InputError, match="dtype 'float16' is unknown"):
        study.predict(read_run(file), "float16")
    with configured(jax_enable_x64=False), pytest.raises(InputError, match="jax_enable_x64"):
        study.predict(read_run(file), "float64")


@pytest.mark.parametrize(
    ("flows", "changed", "group"),
    [
        ([flow(0, 2, 1), flow(1, 2, 1)], {}, "incast"),
        ([flow(0, 2, 1)], {}, "spraying"),
        ([flow(0, 2, 1), flow(2, 0, 1)], {}, "spraying"),
        ([flow(0, 2, 1, path="SRC0>T0"), flow(2, 0, 1, path="SRC2>T0")], {"routing": "ECMP"}, "one-path"),
        ([flow(0, 2, 1), flow(2, 0, 1)], {"routing": "ECMP"}, "unknown-path"),
        ([flow(0, 2, 1), flow(1, 2, 1)], {"topology": LEAF_SPINE}, "leaf-spine"),
    ],
)
def test_groups(tmp_path, flows, changed, group):
    assert read_run(written(tmp_path, told(flows, **changed))).group == group


def test_facts_of_a_run(tmp_path):
    stated = {"fluid_collective_s": 0.5, "fluid_ecmp_collective_s": 0.25}
    run = read_run(written(tmp_path, told([flow(0, 2, 3)], topology=LEAF_SPINE, **stated)))
    assert (run.name, run.pattern, run.leaves, run.goodput_Bps) == ("run", "hand-made", Leaves(2, 1), 0.75e9)
    assert (run.paths, run.stated_s) == (None, 0.5)
    run = read_run(written(tmp_path, told([flow(0, 2, 3, path="SRC0>T0")], **stated)))
    assert (run.paths, run.stated_s, run.leaves) == ((("SRC0", "T0"),), 0.25, None)


FLOW = flow(0, 1, 1)


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ("{", "run.json is not JSON"),
        ("[]", "run.json must be a JSON object"),
        ({"topology": TREE}, "run.json: the field 'flows' is missing."),
        (told([]), "run.json: flows must not be empty."),
        (told([FLOW]) | {"flows": {}}, "run.json: flows must be a list, got {}."),
        (told([FLOW]) | {"flows": [3]}, "run.json, flow 0 must be a JSON object with named fields, got 3."),
        (told([FLOW], topology="ring of 8 hosts"), "run.json: topology must say 'N hosts'"),
        (told([FLOW], topology=LEAF_SPINE.replace("4 hosts", "5 hosts")), "run.json: topology must have hosts ="),
        (told([FLOW], link_bps=0), "run.json: link_bps must be finite and above 0, got 0."),
        (told([FLOW], link_bps="fast"), "run.json: link_bps must be a number, got 'fast'."),
        (told([FLOW], link_bps=True), "run.json: link_bps must be a number, got True."),
        (told([FLOW], header_per_packet=-1), "run.json: header_per_packet must be finite and not negative"),
        (told([FLOW], collective_s=None), "run.json: collective_s must be a number, got None."),
        (told([FLOW], transport=1), "run.json: transport must be text, got 1."),
        (told([FLOW, flow(0, 8, 1)]), "run.json, flow 1: dst must lie in 0..7, got 8."),
        (told([flow(0, 1.5, 1)]), "run.json, flow 0: dst must be a whole number, got 1.5."),
        (told([flow(0, 1, 0)]), "run.json, flow 0: bytes must be finite and above 0, got 0."),
        (told([FLOW | {"start": 1.0}]), "run.json, flow 0: fct_s must come after start."),
        (told([flow(0, 1, 1, path="SRC0>T0"), FLOW]), "run.json: path must be given for every flow or none"),
        (told([flow(0, 1, 1, path="SRC1>T0")]), "run.json, flow 0: path must be different nodes"),
        (told([flow(0, 1, 1, path="SRC0>T0>A>T0")]), "run.json, flow 0: path must be different nodes"),
    ],
)
def test_mistakes_in_a_run(tmp_path, run, sentence):
    with pytest.raises(InputError) as mistake:
        read_run(written(tmp_path, run))
    assert str(mistake.value).startswith(sentence)


def test_folders(tmp_path):
    with pytest.raises(InputError, match=r"no \.json file in"):
        study.read_runs(tmp_path)
    with pytest.raises(InputError, match="must be a folder"):
        study.read_runs(tmp_path / "nowhere")
    for name in ("b.json", "a.json", "notes.txt"):
        written(tmp_path, told([FLOW]), name)
    assert [run.name for run in study.read_runs(tmp_path)] == ["a", "b"]
    (tmp_path / "c.json").mkdir()
    with pytest.raises(InputError, match=r"c\.json cannot be read"):
        study.read_runs(tmp_path)


def test_rows_and_groups(tmp_path):
    small = predicted(tmp_path, [flow(0, 2, 1000), flow(2, 0, 1000)])
    incast = predicted(tmp_path, [flow(0, 2, 1.5 * MB, 0.005), flow(1, 2, 4.5 * MB, 0.016)])
    rows, groups = study.packet_rows([incast, small]), study.packet_groups([incast, small])
    assert [row["group"] for row in rows] == [line["group"] for line in groups] == ["spraying", "incast"]
    assert (rows[0]["large_flows"], rows[0]["flow_error_median"], rows[0]["flow_error_q50"]) == (0, None, None)
    assert rows[1]["error"] == groups[1]["worst_error"] == pytest.approx(-0.5)
    assert rows[1]["flow_error_median"] == groups[1]["flow_error_median"] == pytest.approx(0.35)
    assert rows[1]["flow_error_q50"] == pytest.approx(-0.35)
    assert rows[1]["mean_pair_mib"] == pytest.approx(3 * MB / 2**20)


def test_runs_of_like_size_share_a_program(tmp_path):
    shapes = set()
    for count in (1, 2, 64):
        for more in ({}, {"path": "SRC0>A>B>C>D>E"}):
            run = read_run(written(tmp_path, told([flow(0, 1, 1000, **more)] * count)))
            shapes.add(tuple(leaf.shape for leaf in jax.tree.leaves(validate.network(run, "float64"))))
    assert len(shapes) == 1


# ------------------------------------------------------------------------------------------------------ command line
@pytest.fixture
def process_is_left_alone(monkeypatch):
    pytest.importorskip("tyro")
    pytest.importorskip("tqdm")
    monkeypatch.setattr(shared, "start_jax", lambda dtype, device: None)


@pytest.mark.usefixtures("process_is_left_alone")
def test_the_command_prints_and_writes(tmp_path, capsys):
    runs = tmp_path / "runs"
    runs.mkdir()
    written(runs, told([flow(0, 2, 1.5 * MB, 0.005), flow(1, 2, 4.5 * MB, 0.010)], fluid_collective_s=0.008))
    assert cli.main(["validate", "packet", "--runs", str(runs), "--out", str(tmp_path / "rows.csv")]) == 0
    said = capsys.readouterr().out
    assert "incast on a non-blocking tree" in said
    assert "-20.0%" in said
    assert "1 of 1 files state a fluid time" in said
    rows, config = read_rows(tmp_path / "rows.csv")
    assert rows == study.packet_rows([study.predict(run) for run in study.read_runs(runs)])
    assert (config["runs"], config["dtype"]) == (str(runs), "float64")


@pytest.mark.usefixtures("process_is_left_alone")
def test_the_command_draws(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    written(tmp_path, told([flow(0, 2, 1.5 * MB)]))
    assert cli.main(["validate", "packet", "--runs", str(tmp_path), "--figures", str(tmp_path / "figures")]) == 0
    assert [file.name for file in (tmp_path / "figures").iterdir()] == ["packet_validation.png"]


@pytest.mark.usefixtures("process_is_left_alone")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "mfabric: validate needs to know what first; allowed: packet."),
        (["--runs", "x"], "mfabric: validate needs to know what first; allowed: packet."),
        (["packets"], "mfabric: validation 'packets' is unknown (did you mean 'packet'?); allowed: packet."),
        (["packet"], "mfabric: validate packet needs --runs, a folder of packet-level runs."),
        (["packet", "--runs", "nowhere at all"], "mfabric: runs must be a folder of packet-level runs (.json)"),
    ],
)
def test_mistakes_in_the_command(capsys, words, sentence):
    assert cli.main(["validate", *words]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.startswith(sentence)
    assert said.count("\n") == 1


# -------------------------------------------------------------------------------------------------------- recordings
@pytest.fixture(scope="module")
def recorded(shared_data):
    with configured(jax_enable_x64=True):
        return [study.predict(run) for run in study.read_runs(shared_data / "packet")]


def of(recorded, group):
    chosen = [p for p in recorded if p.run.group == group]
    assert chosen
    return chosen


def test_spraying_is_predicted_within_3_percent_and_4_at_1_mib(recorded):
    for prediction in of(recorded, "spraying"):
        limit = 0.03 if validate.mean_pair_mib(prediction.run) > 3.5 else 0.04
        assert -limit < prediction.error <= 0, prediction.run.name


def test_one_path_per_flow_is_predicted_within_7_percent(recorded):
    judged = [p for p in of(recorded, "one-path") if "row_n8" not in p.run.name]  # one congested flow there: -17 %
    assert len(judged) == 8
    for prediction in judged:
        assert -0.07 < prediction.error <= 0, prediction.run.name


def test_incast_is_predicted_within_2_percent(recorded):
    for prediction in of(recorded, "incast"):
        assert abs(prediction.error) < 0.02, prediction.run.name


def test_predictions_are_what_the_files_state(recorded, shared_data):
    for prediction in recorded:
        assert prediction.collective_s == pytest.approx(prediction.run.stated_s, rel=1e-9), prediction.run.name
        flows = json.loads((shared_data / "packet" / f"{prediction.run.name}.json").read_text())["flows"]
        stated = [f.get("fluid_ecmp_fct_s", f["fluid_fct_s"]) for f in flows]
        np.testing.assert_allclose(prediction.finish, stated, rtol=0, atol=0.51e-9)  # written to the nanosecond


def test_nothing_arrives_before_its_payload_fits_through_a_port(recorded):
    for prediction in recorded:
        run = prediction.run
        assert np.all(prediction.finish * run.goodput_Bps >= run.size * (1 - 1e-12))
