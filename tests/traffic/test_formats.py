"""Every format that a recording may have, by hand; what is fitted to a workload; and every mistake in a file."""

import gzip
import json
import os
import sys
import types

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.traffic import Tokens, load_tokens, open_trace, recorded, save_tokens
from mfabric_jax.traffic.recording import Sources, Targets
from mfabric_jax.workload import get

from .jobs import job, refused
from .test_router_trace import line, write_lines

TWO_RANKS = job(ep=2, experts=4)  # 2 layers, 16 selections a row


def only(path):
    (one,) = open_trace(path)
    return one


# ------------------------------------------------------------------------------------------------- tokens per expert
def slices():
    """[tp ep expert], all different."""
    return np.arange(2 * 2 * 4).reshape(2, 2, 4) ** 2


@pytest.mark.parametrize("name", ["run.npz", "num_global_tokens_per_expert_iter3.npy"])
def test_slices_of_a_tp_group_are_added_up(tmp_path, name):
    if name.endswith("npz"):
        np.savez(tmp_path / name, num_global_tokens_per_expert=slices(), other=np.zeros(3))
    else:
        np.save(tmp_path / name, slices())
    one = only(tmp_path / name)
    assert one.axes == {"iteration": 1, "layer": 1, "micro-batch": 1, "source rank": 2, "expert": 4}
    assert one.count[0, 0, 0].tolist() == [[0 + 64, 1 + 81, 4 + 100, 9 + 121], [16 + 144, 25 + 169, 36 + 196, 49 + 225]]
    got = recorded(tmp_path / name, TWO_RANKS).count
    np.testing.assert_allclose(got[0, 1, 0, 0], np.array([64, 82, 104, 130]) * 16 / 380, rtol=1e-12)


def test_equal_slices_are_copies(tmp_path):
    np.savez(tmp_path / "run.npz", num_global_tokens_per_expert=np.tile(slices()[:1], (3, 1, 1)))
    np.testing.assert_array_equal(only(tmp_path / "run.npz").count[0, 0, 0], slices()[0])


def test_layers_and_iterations_may_stand_before(tmp_path):
    many = np.random.default_rng(0).integers(0, 9, (3, 2, 2, 2, 4))
    np.savez(tmp_path / "run.npz", num_global_tokens_per_expert=many)
    np.testing.assert_array_equal(only(tmp_path / "run.npz").count[:, :, 0], many.sum(axis=2))
    np.savez(tmp_path / "run.npz", num_global_tokens_per_expert=many[0])
    np.testing.assert_array_equal(only(tmp_path / "run.npz").count[0, :, 0], many[0].sum(axis=1))
    np.savez(tmp_path / "run.npz", num_global_tokens_per_expert=many[0, 0, 0])
    assert "must have the axes [tp, ep, expert] or [layer, tp, ep, expert] or [iter" in refused(tmp_path / "run.npz")


# ------------------------------------------------------------------------------------------------ expert loads alone
def test_expert_counts_are_spread_over_all_sources(tmp_path):
    count = np.random.default_rng(1).integers(1, 9, (3, 2, 8))
    np.savez(tmp_path / "dump.npz", logical_count=count)
    one = only(tmp_path / "dump.npz")
    assert one.axes == {"iteration": 3, "layer": 2, "micro-batch": 1, "expert": 8}
    assert one.sources is Sources.UNKNOWN
    got = recorded(tmp_path / "dump.npz", job(ep=4, experts=4), records=(1, 2))
    assert got.count.shape == (2, 2, 1, 4, 4)
    for iteration, layer, rank in np.ndindex(2, 2, 4):
        load = count[iteration + 1, layer].reshape(4, 2).sum(axis=1)
        np.testing.assert_allclose(got.count[iteration, layer, 0, rank], load * 16 / load.sum(), rtol=1e-12)
    assert got.source.endswith("dump.npz, records 1 to 2, sources not recorded: spread equally over source ranks")


@pytest.mark.parametrize("name", ["weight.npz", "eplb_weight.npy"])
def test_eplb_weights_are_one_iteration(tmp_path, name):
    weight = np.array([[1.0, 3.0], [4.0, 4.0], [0.0, 2.0]])
    np.savez(tmp_path / name, weight=weight) if name.endswith("npz") else np.save(tmp_path / name, weight)
    assert only(tmp_path / name).axes == {"iteration": 1, "layer": 3, "micro-batch": 1, "expert": 2}
    got = recorded(tmp_path / name, job(ep=2, experts=2, layers=3)).count
    assert got[0, :, 0, 1].tolist() == [[4, 12], [8, 8], [0, 16]]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"logical_count": np.ones((2, 4))}, "the axes [iteration, layer, expert], none empty, got shape (2, 4)"),
        ({"weight": np.ones((1, 2, 4))}, "must have the axes [layer, expert], none empty, got shape (1, 2, 4)"),
        ({"weight": np.ones((0, 4))}, "none empty, got shape (0, 4)"),
        ({"counts": np.ones(3)}, "also read: num_global_tokens_per_expert, logical_count, weight."),
        ({}, "got none;"),
    ],
)
def test_wrong_axes_are_named(tmp_path, arrays, words):
    np.savez(tmp_path / "run.npz", **arrays)
    assert words in refused(tmp_path / "run.npz")


def test_counts_below_0_are_named_when_used(tmp_path):
    np.savez(tmp_path / "run.npz", logical_count=-np.ones((1, 1, 4)))
    assert "finite and not negative" in refused(tmp_path / "run.npz", TWO_RANKS)
    with pytest.raises(InputError, match="finite and not negative"):
        only(tmp_path / "run.npz").tokens()


# -------------------------------------------------------------------------------------------------------------- torch
class FakeTensor:
    def __init__(self, array):
        self.array = array

    def numpy(self):
        return self.array


@pytest.fixture
def fake_torch(monkeypatch):
    """Torch's `load`, which hands out what the test puts into `content`."""
    made = types.SimpleNamespace(Tensor=FakeTensor, content=None, asked=None)

    def load(path, map_location, weights_only):
        made.asked = (map_location, weights_only)
        if isinstance(made.content, Exception):
            raise made.content
        return made.content

    made.load = load
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def test_a_torch_dump(tmp_path, fake_torch):
    (tmp_path / "dump.pt").touch()
    count = np.arange(8).reshape(1, 2, 4)
    fake_torch.content = {"logical_count": FakeTensor(count), "rank": 0}
    np.testing.assert_array_equal(only(tmp_path / "dump.pt").count[:, :, 0, 0], count)
    assert fake_torch.asked == ("cpu", True)
    (tmp_path / "weight.pt").touch()
    fake_torch.content = FakeTensor(count[0])
    np.testing.assert_array_equal(only(tmp_path / "weight.pt").count[0, :, 0, 0], count[0])
    fake_torch.content = RuntimeError("magic number")
    assert "must be a readable torch file, got RuntimeError" in refused(tmp_path / "dump.pt")


def test_without_torch_there_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "dump.pt").touch()
    assert refused(tmp_path / "dump.pt") == (
        f"trace {tmp_path / 'dump.pt'} needs torch, which is not installed; or save its arrays with numpy.savez."
    )


# ------------------------------------------------------------------------------------------------------ weight matrix
def write_matrix(path, rows):
    path.write_text(json.dumps(rows) + "\n")
    return path


def test_a_weight_matrix_is_spread_over_the_experts_of_each_rank(tmp_path):
    file = write_matrix(tmp_path / "weight_matrix.txt", [[8192, 24576], [32768, 0]])
    one = only(file)
    assert (one.targets, one.axes["source rank"], one.axes["destination rank"]) == (Targets.RANKS, 2, 2)
    got = recorded(file, TWO_RANKS)
    assert got.count.shape == (1, 2, 1, 2, 4)
    for layer in (0, 1):
        assert got.count[0, layer, 0].tolist() == [[2, 2, 6, 6], [8, 8, 0, 0]]
    assert recorded(file, job(ep=2, experts=2)).count[0, 0, 0].tolist() == [[4, 12], [16, 0]]


def test_a_matrix_of_another_size_than_ep(tmp_path):
    file = write_matrix(tmp_path / "m.txt", np.full((2, 2), 2).tolist())
    said = refused(file, job(ep=4, experts=4))
    assert said == f"ep of the workload must divide the 2 source ranks of {file}, got 4."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[1, 2], [3, 1]]", "must have equal sums above 0, got 3 (row 0) and 4 (row 1)."),
        ("[[0, 0], [0, 0]]", "must have equal sums above 0, got 0"),
        ("[[1, 2, 3], [3, 2, 1]]", "must be [ep][ep] whole numbers of at least 0, got shape [2, 3]"),
        ("[[1, 2], [-1, 4]]", "must be [ep][ep] whole numbers of at least 0"),
        ("[[1.5, 2], [1.5, 2]]", "must be [ep][ep] whole numbers of at least 0"),
        ("[[1, 2], [3]]", "must be one nested list of whole numbers."),
        ("[[1, 2], [3, 0]", "must be one nested list of whole numbers."),
        ("[[1, 2], [3, 0]]\n[[1, 2], [3, 0]]", "must be one nested list of whole numbers."),
        ('"a word"', "must be [ep][ep] whole numbers of at least 0"),
        ("", "must be one nested list of whole numbers."),
    ],
)
def test_wrong_matrices_are_named(tmp_path, text, words):
    (tmp_path / "m.txt").write_text(text)
    assert words in refused(tmp_path / "m.txt")


# ----------------------------------------------------------------------------------------------------------- our own
def some_tokens(dtype=np.int32):
    return Tokens(np.random.default_rng(2).integers(1, 9, (3, 2, 2, 2, 4)).astype(dtype), "made up, seed 2")


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_what_is_saved_is_read_back(tmp_path, dtype):
    tokens = some_tokens(dtype)
    path = save_tokens(tokens, tmp_path / "new" / "run.npz")
    back = load_tokens(path)
    np.testing.assert_array_equal(back.count, tokens.count)
    assert (back.count.dtype, back.source) == (dtype, tokens.source)
    assert os.listdir(tmp_path / "new") == ["run.npz"]
    fitted = recorded(path, TWO_RANKS)
    np.testing.assert_array_equal(fitted.count, tokens.scaled_to(TWO_RANKS).count)
    assert fitted.source == f"recorded {path} (made up, seed 2), records 0 to 2"
    with np.load(path) as arrays:
        meta = json.loads(str(arrays["meta"]))
    assert meta == {
        "schema_version": 1,
        "source": "made up, seed 2",
        "records": [0, 1, 2],
        "sources": "source rank",
        "targets": "expert",
        "experts": 4,
    }
    again = save_tokens(load_tokens(path), tmp_path / "again.npz")
    assert again.read_bytes() == path.read_bytes()


def test_a_saved_recording_keeps_what_it_is(tmp_path):
    write_matrix(tmp_path / "m.txt", [[1, 3], [4, 0]])
    lines = [line(step, 0, 0, [[0, 2]]) for step in (4, 9)]
    write_lines(tmp_path / "r.jsonl", *lines)
    np.savez(tmp_path / "l.npz", logical_count=np.ones((2, 2, 8)))
    for name in ("m.txt", "r.jsonl", "l.npz"):
        one = only(tmp_path / name)
        back = only(save_tokens(one, tmp_path / "saved.npz"))
        np.testing.assert_array_equal(back.count, one.count)
        assert back.number.tolist() == one.number.tolist()
        for field in ("sources", "targets", "experts"):
            assert getattr(back, field) == getattr(one, field)
        assert back.origin == f"{one.format}: {one.words}"


def test_an_interrupted_or_refused_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = save_tokens(some_tokens(), tmp_path / "run.npz")
    before = path.read_bytes()

    def full(*args, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(InputError, match=r"cannot write '.*run\.npz' \(No space left on device\)"):
        save_tokens(some_tokens(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.npz"]
    with pytest.raises(InputError, match=r"a trace is saved as \.npz, got '.*run\.npy'"):
        save_tokens(some_tokens(), tmp_path / "run.npy")


META = {"schema_version": 1, "source": "s", "records": [0, 1, 2], "sources": "source rank", "targets": "expert"}
META = {**META, "experts": 4}


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (META | {"schema_version": 2}, "schema_version of trace {} must be at most 1, got 2."),
        (META | {"records": [0, 1]}, "records of trace {} must be one number for each of 3 iterations."),
        (META | {"sources": "moon"}, "meta of trace {} must be the JSON that save wrote"),
        ({"schema_version": 1}, "meta of trace {} must be the JSON that save wrote"),
        ("words", "meta of trace {} must be the JSON that save wrote"),
    ],
)
def test_wrong_meta_is_named(tmp_path, meta, words):
    path = tmp_path / "run.npz"
    np.savez(path, tokens=some_tokens().count, meta=np.array(json.dumps(meta)))
    assert words.format(path) in refused(path)


# ----------------------------------------------------------------------------------------------------- OLMoE and LAER
def write_olmoe(folder):
    """Two domains, three layers, 4 and 8 experts."""
    rng = np.random.default_rng(3)
    counts = {"olmoe_topk": rng.integers(1, 9, (2, 3, 8)), "mistral_topk": rng.integers(1, 9, (2, 3, 4))}
    np.savez(folder / "olmoe_mixtral_expert_counts.npz", domains=np.array(["a", "b"]), **counts)
    return counts


def test_olmoe_counts_have_a_row_per_domain(tmp_path):
    counts = write_olmoe(tmp_path)
    big, small = open_trace(tmp_path)
    assert (big.name, small.name) == ("olmoe", "mistral")
    assert small.axes == {"iteration": 1, "layer": 3, "micro-batch": 1, "text domain": 2, "expert": 4}
    np.testing.assert_array_equal(big.count[0, 2, 0, 1], counts["olmoe_topk"][1, 2])
    assert open_trace(tmp_path / "olmoe_mixtral_expert_counts.npz")[1].name == "mistral"
    got = recorded(tmp_path, job(ep=4, experts=4, layers=4))  # mistral, of as many experts
    assert got.count.shape == (1, 4, 1, 4, 4)
    for layer, rank in np.ndindex(4, 4):
        row = counts["mistral_topk"][rank % 2, layer % 3]
        np.testing.assert_allclose(got.count[0, layer, 0, rank], row * 16 / row.sum(), rtol=1e-12)
    cycles = "source rank r reads text domain r mod 2, layer l reads recorded layer l mod 3"
    assert got.source.endswith(f"npz mistral, records 0 to 0, {cycles}")


def test_one_of_several_recordings_is_named(tmp_path):
    counts = write_olmoe(tmp_path)
    row = counts["olmoe_topk"][0, 0].reshape(4, 2).sum(axis=1)
    for path in (tmp_path / "olmoe", tmp_path / "olmoe_mixtral_expert_counts.npz" / "olmoe"):
        np.testing.assert_allclose(recorded(path, TWO_RANKS).count[0, 0, 0, 0], row * 16 / row.sum(), rtol=1e-12)
    assert recorded(tmp_path, job(ep=2, experts=8)).source.count(" olmoe, ") == 1
    said = refused(tmp_path, job(ep=2, experts=2))  # either would do
    assert said == (
        f"trace {tmp_path} holds several recordings; name one for 2 experts, got: {tmp_path / 'olmoe'} (8 experts), "
        f"{tmp_path / 'mistral'} (4 experts)."
    )
    assert "did you mean 'mistral'?" in refused(tmp_path / "mistrl")
    np.savez(tmp_path / "olmoe_mixtral_expert_counts.npz", olmoe_topk=np.ones((2, 3)))
    assert "must have the axes [domain, layer, expert]" in refused(tmp_path)


def test_positions_of_unknown_experts_need_a_multiple(tmp_path):
    file = write_laer(tmp_path / "token_analysis.csv", laer_rows("nameless"))
    assert only(file).experts is None
    assert recorded(file, job(ep=2, experts=8)).count.shape == (3, 2, 2, 2, 8)
    said = refused(file, job(ep=2, experts=6))
    assert said == f"experts of the workload must be a multiple of the 4 destination ranks of {file}, got 6."


LAER_HEAD = "rank,method,model_name,layer,iter,token_num\n"


def laer_rows(model="m-e8k2", methods=("FSDP", "LAER"), ranks=8):
    """Rows whose tokens tell where they belong."""
    return [
        f"{rank},{method},{model},{layer},{iteration},{1000 * (method == 'LAER') + 100 * iteration + 10 * layer + rank}"
        for method in methods
        for rank in range(ranks)
        for layer in range(2)
        for iteration in range(3)
    ]


def write_laer(path, rows, head=LAER_HEAD):
    text = (head + "\n".join(rows) + "\n").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_laer_tokens_are_of_positions_in_groups_of_4(tmp_path, suffix):
    file = write_laer(tmp_path / f"token_analysis{suffix}", laer_rows())
    one = only(tmp_path)
    assert one.axes == {"iteration": 3, "layer": 2, "micro-batch": 2, "destination rank": 4}
    assert (one.name, one.experts) == ("m-e8k2", 8)
    for iteration, layer, rank in np.ndindex(3, 2, 8):
        assert one.count[iteration, layer, rank // 4, 0, rank % 4] == 100 * iteration + 10 * layer + rank
    got = recorded(file, job(ep=2, experts=8), records=(2, 2)).count  # a position has experts 2k, 2k + 1
    assert got.shape == (1, 2, 2, 2, 8)
    row = np.repeat([214, 215, 216, 217], 2) * 16 / (2 * 862)
    np.testing.assert_allclose(got[0, 1, 1], [row, row], rtol=1e-12)
    np.testing.assert_allclose(recorded(file, TWO_RANKS).count[0, 0, 0, 0], [0, 16 / 6, 32 / 6, 8], rtol=1e-12)


def test_laer_of_several_models(tmp_path):
    write_laer(tmp_path / "token_analysis.csv", laer_rows("a-e16k4") + laer_rows("b-e8k2"))
    assert [one.name for one in open_trace(tmp_path)] == ["a-e16k4", "b-e8k2"]
    assert " b-e8k2, records 0 to 2, sources not recorded" in recorded(tmp_path, job(ep=2, experts=8)).source
    assert only(tmp_path / "a-e16k4").experts == 16
    assert recorded(tmp_path / "a-e16k4", job(ep=2, experts=8)).count.shape == (3, 2, 2, 2, 8)


@pytest.mark.parametrize(
    ("rows", "head", "words"),
    [
        (laer_rows(methods=("FLEX",)), LAER_HEAD, "must have rows of method FSDP, got none."),
        (laer_rows()[1:], LAER_HEAD, "must have one row for every rank, layer and iteration of m-e8k2"),
        ([*laer_rows(), laer_rows()[0]], LAER_HEAD, "got 49 rows for 3 x 2 x 8 (iterations, layers, ranks)"),
        (laer_rows(ranks=6), LAER_HEAD, "in groups of 4 ranks"),
        ([*laer_rows(), "0,FSDP,m-e8k2,0,x,5"], LAER_HEAD, "line 98 of trace {} must hold whole numbers, got ['0', '"),
        ([*laer_rows(), "0,FSDP"], LAER_HEAD, "line 98 of trace {} must hold whole numbers"),
        (laer_rows(), "rank,method\n", "must have the columns rank, method, model_name, layer, iter, token_num, got"),
    ],
)
def test_wrong_token_analyses_are_named(tmp_path, rows, head, words):
    file = write_laer(tmp_path / "token_analysis.csv.gz", rows, head)
    assert words.format(file) in refused(tmp_path)
    file.write_bytes(b"not gzip")
    assert "must be a readable .csv[.gz] file, got BadGzipFile" in refused(tmp_path)


# ------------------------------------------------------------------------------------------------------- which format
def test_what_is_none_of_the_formats(tmp_path):
    formats = "; .jsonl of a Megatron router trace, or a folder of them; .txt of an mFabric weight matrix; a folder of"
    (tmp_path / "rows.csv").write_text("a,b\n")
    assert formats in refused(tmp_path / "rows.csv")
    assert formats in refused(tmp_path / "nothing.npz")
    assert formats in refused(tmp_path / "nothing")
    assert formats in refused(tmp_path / "no" / "such" / "folder")
    assert "trace folder must hold *.jsonl of a Megatron router trace, *expert_counts*.npz" in refused(tmp_path)


def test_records_are_chosen_by_number(tmp_path):
    file = write_lines(tmp_path / "run.jsonl", *[line(step, 0, 0, [[step]]) for step in (10, 20, 30)])
    assert only(file).chosen((15, 30)).number.tolist() == [20, 30]
    assert only(file).chosen().number.tolist() == [10, 20, 30]
    with pytest.raises(InputError, match=r"records must overlap what .* holds, 10 to 30, got 31 to 40"):
        only(file).chosen((31, 40))


# ------------------------------------------------------------------------------------------------- the published ones
def test_the_published_folders_fit_models(shared_data):
    olmoe = recorded(shared_data / "olmoe_routing", get("mixtral-8x7b"))
    assert olmoe.count.shape[3:] == (8, 8)
    assert "mistral" in olmoe.source
    laer = recorded(shared_data / "laer_moe", get("mixtral-8x7b"), iterations=2)
    assert laer.count.shape == (2, 32, 8, 8, 8)
    assert "mixtral-8x7b-e8k2" in laer.source
    for tokens in (olmoe, laer):
        np.testing.assert_allclose(tokens.count.sum(axis=-1), get("mixtral-8x7b").selections, rtol=1e-12)
