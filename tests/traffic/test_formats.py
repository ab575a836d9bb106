"""Every format that a recording may have, by hand, and every mistake in a file."""

import gzip
import json
import os

import numpy as np

from mfabric_jax.traffic import Tokens, open_trace, recorded, save_tokens
from mfabric_jax.traffic.recording import Sources, Targets
from mfabric_jax.workload import get
from tests.mistakes import refused

from .jobs import Tensor, job, line, unread, write_lines, write_torch

TWO_RANKS = job(ep=2, experts=4)  # 2 layers, 16 selections a row


def only(path):
    (recording,) = open_trace(path)
    return recording


# ------------------------------------------------------------------------------------------------- tokens per expert
def test_slices_of_a_tp_group_are_added_up(tmp_path):
    slices = np.arange(2 * 2 * 4).reshape(2, 2, 4) ** 2  # [tp ep expert], all different
    file, bare = tmp_path / "run.npz", tmp_path / "num_global_tokens_per_expert_iter3.npy"
    np.savez(file, num_global_tokens_per_expert=slices, other=np.zeros(3))
    np.save(bare, slices)
    for path in (file, bare):
        found = only(path)
        assert found.axes == {"iteration": 1, "layer": 1, "micro-batch": 1, "source rank": 2, "expert": 4}
        want = [[0 + 64, 1 + 81, 4 + 100, 9 + 121], [16 + 144, 25 + 169, 36 + 196, 49 + 225]]
        assert found.count[0, 0, 0].tolist() == want
        fitted = recorded(TWO_RANKS, path).count
        np.testing.assert_allclose(fitted[0, 1, 0, 0], np.array([64, 82, 104, 130]) * 16 / 380, rtol=1e-12)
    np.savez(file, num_global_tokens_per_expert=np.tile(slices[:1], (3, 1, 1)))  # equal slices are copies
    np.testing.assert_array_equal(only(file).count[0, 0, 0], slices[0])
    many = np.random.default_rng(0).integers(0, 9, (3, 2, 2, 2, 4))  # layers and iterations may stand before
    np.savez(file, num_global_tokens_per_expert=many)
    np.testing.assert_array_equal(only(file).count[:, :, 0], many.sum(axis=2))
    np.savez(file, num_global_tokens_per_expert=many[0])
    np.testing.assert_array_equal(only(file).count[0, :, 0], many[0].sum(axis=1))
    np.savez(file, num_global_tokens_per_expert=many[0, 0, 0])
    assert "must have the axes [tp, ep, expert] or [layer, tp, ep, expert] or [iter" in unread(file)


# ------------------------------------------------------------------------------------------------ expert loads alone
def test_expert_counts_are_spread_over_all_sources(tmp_path):
    count, file = np.random.default_rng(1).integers(1, 9, (3, 2, 8)), tmp_path / "dump.npz"
    np.savez(file, logical_count=count)
    assert only(file).axes == {"iteration": 3, "layer": 2, "micro-batch": 1, "expert": 8}
    assert only(file).sources is Sources.UNKNOWN
    got = recorded(job(ep=4, experts=4), file, records=(1, 2))
    assert got.count.shape == (2, 2, 1, 4, 4)
    for iteration, layer, rank in np.ndindex(2, 2, 4):
        load = count[iteration + 1, layer].reshape(4, 2).sum(axis=1)
        np.testing.assert_allclose(got.count[iteration, layer, 0, rank], load * 16 / load.sum(), rtol=1e-12)
    said = "dump.npz, records 1 to 2, sources not recorded: spread equally over source ranks (all rows of a demand are "
    said += "alike, so circuits cannot be judged by it), "
    assert got.source.endswith(f"{said}2 neighbouring experts added up")
    weight = np.array([[1.0, 3.0], [4.0, 4.0], [0.0, 2.0]])
    np.savez(tmp_path / "weight.npz", weight=weight)
    np.save(tmp_path / "eplb_weight.npy", weight)
    for name in ("weight.npz", "eplb_weight.npy"):
        assert only(tmp_path / name).axes == {"iteration": 1, "layer": 3, "micro-batch": 1, "expert": 2}
        got = recorded(job(ep=2, experts=2, layers=3), tmp_path / name).count
        assert got[0, :, 0, 1].tolist() == [[4, 12], [8, 8], [0, 16]]


def test_wrong_arrays_are_named(tmp_path):
    file = tmp_path / "run.npz"
    for arrays, words in (
        ({"logical_count": np.ones(4)}, "[layer, expert] or [iteration, layer, expert], none empty, got shape (4,)"),
        ({"weight": np.ones((1, 2, 4))}, "must have the axes [layer, expert], none empty, got shape (1, 2, 4)"),
        (
            {"tokens": np.ones(3)},
            "has shape (3,), which may be 2 to 5 of iteration, layer, micro-batch, source, expert;",
        ),
        ({"a": np.ones(3), "b": np.ones(3)}, "got a, b; also read: num_global_tokens_per_expert, logical_count, physi"),
        ({}, "must have the key 'tokens', got none;"),
        ({"tokens": np.array([[[[[None]]]]])}, "must be a readable NumPy file, but it holds Python objects; save"),
    ):
        np.savez(file, **arrays)
        assert words in unread(file)
    for arrays, words in (
        ({"logical_count": -np.ones((1, 1, 4))}, "finite and not negative"),
        ({"tokens": np.full((1, 1, 1, 2, 4), "x")}, "integers or reals"),
        ({"tokens": np.ones((1, 1, 1, 3, 4))}, "must divide the 3 source ranks of "),
        ({"tokens": np.ones((1, 1, 1, 2, 5))}, "must hold a multiple of the 4 experts of tiny, got 5"),
    ):
        np.savez(file, **arrays)
        assert words in unread(file, TWO_RANKS)


# -------------------------------------------------------------------------------------------------------------- torch
def test_a_torch_dump_is_read_without_torch(tmp_path):
    count, file = np.arange(1, 9).reshape(1, 2, 4), tmp_path / "dump.pt"
    content = {"rank": 0, "logical_count": Tensor(count.astype(np.int32)), "average_utilization_rate_over_window": None}
    write_torch(file, content)
    np.testing.assert_array_equal(only(file).count[:, :, 0, 0], count)
    write_torch(tmp_path / "weight.pt", Tensor(count[0].astype(np.float32).T, transposed=True))
    np.testing.assert_array_equal(only(tmp_path / "weight.pt").count[0, :, 0, 0], count[0])
    write_torch(file, {"logical_count": Tensor(count.astype(np.int64)), "args": complex(1, 2)})  # a class is left out
    np.testing.assert_array_equal(only(file).count[:, :, 0, 0], count)
    write_torch(file, {"logical_count": Tensor(count.astype(np.int64), offset=1)})
    assert "must be a file of torch.save (since torch 1.6), got ValueError; or save its arrays" in unread(file)
    file.write_bytes(b"\x80\x02}q\x00.")
    assert "must be a file of torch.save (since torch 1.6), got BadZipFile" in unread(file)


# ------------------------------------------------------------------------------------------------------ weight matrix
def write_matrix(path, rows):
    path.write_text(json.dumps(rows) + "\n")
    return path


def test_a_weight_matrix_is_spread_over_the_experts_of_each_rank(tmp_path):
    file = write_matrix(tmp_path / "weight_matrix.txt", [[8192, 24576], [32768, 0]])
    found = only(file)
    assert (found.targets, found.axes["source rank"], found.axes["destination rank"]) == (Targets.RANKS, 2, 2)
    got = recorded(TWO_RANKS, file)
    assert got.count.shape == (1, 2, 1, 2, 4)
    for layer in (0, 1):
        assert got.count[0, layer, 0].tolist() == [[2, 2, 6, 6], [8, 8, 0, 0]]
    assert recorded(job(ep=2, experts=2), file).count[0, 0, 0].tolist() == [[4, 12], [16, 0]]
    said = unread(file, job(ep=4, experts=4))
    assert said == f"ep of the workload must divide the 2 source ranks of {file}, got 4."


def test_wrong_matrices_are_named(tmp_path):
    for text, words in (
        ("[[1, 2], [3, 1]]", "must have equal sums above 0, got 3 (row 0) and 4 (row 1)."),
        ("[[0, 0], [0, 0]]", "must have equal sums above 0, got 0"),
        ("[[1, 2], [-1, 4]]", "must be [ep][ep] whole numbers of at least 0"),
        ("[[1, 2], [3, 0]]\n[[1, 2], [3, 0]]", "must be one nested list of whole numbers."),
    ):
        (tmp_path / "m.txt").write_text(text)
        assert words in unread(tmp_path / "m.txt")


# ----------------------------------------------------------------------------------------------------------- our own
def some_tokens(dtype=np.int32):
    return Tokens(np.random.default_rng(2).integers(1, 9, (3, 2, 2, 2, 4)).astype(dtype), "made up, seed 2")


META = {"schema_version": 1, "source": "made up, seed 2", "records": [0, 1, 2]}
META |= {"sources": "source rank", "targets": "expert", "experts": 4}


def test_what_is_saved_is_read_back(tmp_path):
    for dtype in (np.int32, np.float64):
        tokens = some_tokens(dtype)
        path = save_tokens(tokens, tmp_path / "new" / "run.npz")
        found = only(path)
        np.testing.assert_array_equal(found.count, tokens.count)
        assert (found.count.dtype, found.origin) == (dtype, tokens.source)
        assert os.listdir(tmp_path / "new") == ["run.npz"]
        fitted = recorded(TWO_RANKS, path)
        np.testing.assert_array_equal(fitted.count, tokens.scaled_to(TWO_RANKS).count)
        assert fitted.source == f"recorded {path} (made up, seed 2), records 0 to 2"
        with np.load(path) as arrays:
            assert json.loads(str(arrays["meta"])) == META


def test_a_saved_recording_keeps_what_it_is(tmp_path):
    write_matrix(tmp_path / "m.txt", [[1, 3], [4, 0]])
    write_lines(tmp_path / "r.jsonl", *[line(step, 0, 0, [[0, 2]]) for step in (4, 9)])
    np.savez(tmp_path / "l.npz", logical_count=np.ones((2, 2, 8)))
    for name in ("m.txt", "r.jsonl", "l.npz"):
        found = only(tmp_path / name)
        back = only(save_tokens(found, tmp_path / "saved.npz"))
        np.testing.assert_array_equal(back.count, found.count)
        assert back.number.tolist() == found.number.tolist()
        for field in ("sources", "targets", "experts"):
            assert getattr(back, field) == getattr(found, field)
        assert back.origin == f"{found.format}: {found.words}"


def test_an_interrupted_or_refused_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = save_tokens(some_tokens(), tmp_path / "run.npz")
    before = path.read_bytes()

    def full(*args, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    assert "run.npz' (No space left on device)" in refused(save_tokens, some_tokens(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.npz"]
    assert "a trace is saved as .npz, got '" in refused(save_tokens, some_tokens(), tmp_path / "run.npy")


def test_wrong_meta_is_named(tmp_path):
    path, wrong = tmp_path / "run.npz", "meta of trace {} must be the JSON that save_tokens wrote"
    for meta, words in (
        (META | {"schema_version": 2}, "schema_version of trace {} must be at most 1, got 2."),
        (META | {"records": [0, 1]}, "records of trace {} must be one number for each of 3 iterations."),
        (META | {"sources": "moon"}, wrong),
    ):
        np.savez(path, tokens=some_tokens().count, meta=np.array(json.dumps(meta)))
        assert words.format(path) in unread(path)
    twice = json.dumps(META).replace("{", '{"experts": 4, ', 1)
    np.savez(path, tokens=some_tokens().count, meta=np.array(twice))
    assert wrong.format(path) in unread(path)


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
    got = recorded(job(ep=4, experts=4, layers=4), tmp_path)  # mistral, of as many experts
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
        np.testing.assert_allclose(recorded(TWO_RANKS, path).count[0, 0, 0, 0], row * 16 / row.sum(), rtol=1e-12)
    assert recorded(job(ep=2, experts=8), tmp_path).source.count(" olmoe, ") == 1
    said = unread(tmp_path, job(ep=2, experts=2))  # either would do
    assert said == (
        f"trace {tmp_path} holds several recordings; name one for 2 experts, got: {tmp_path / 'olmoe'} (8 experts), "
        f"{tmp_path / 'mistral'} (4 experts)."
    )
    assert "did you mean 'mistral'?" in unread(tmp_path / "mistrl")
    np.savez(tmp_path / "olmoe_mixtral_expert_counts.npz", olmoe_topk=np.ones((2, 3)))
    assert "must have the axes [domain, layer, expert]" in unread(tmp_path)


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


def test_laer_tokens_are_of_positions_in_groups_of_4(tmp_path):
    for suffix in (".csv", ".csv.gz"):
        (tmp_path / suffix).mkdir()
        file = write_laer(tmp_path / suffix / f"token_analysis{suffix}", laer_rows())
        found = only(tmp_path / suffix)
        assert found.axes == {"iteration": 3, "layer": 2, "micro-batch": 2, "destination rank": 4}
        assert (found.name, found.experts) == ("m-e8k2", 8)
        for iteration, layer, rank in np.ndindex(3, 2, 8):
            assert found.count[iteration, layer, rank // 4, 0, rank % 4] == 100 * iteration + 10 * layer + rank
    got = recorded(job(ep=2, experts=8), file, records=(2, 2)).count  # a position has experts 2k, 2k + 1
    assert got.shape == (1, 2, 2, 2, 8)
    row = np.repeat([214, 215, 216, 217], 2) * 16 / (2 * 862)
    np.testing.assert_allclose(got[0, 1, 1], [row, row], rtol=1e-12)
    np.testing.assert_allclose(recorded(TWO_RANKS, file).count[0, 0, 0, 0], [0, 16 / 6, 32 / 6, 8], rtol=1e-12)


def test_laer_of_several_models(tmp_path):
    file = write_laer(tmp_path / "token_analysis.csv", laer_rows("a-e16k4") + laer_rows("b-e8k2"))
    assert [found.name for found in open_trace(tmp_path)] == ["a-e16k4", "b-e8k2"]
    assert " b-e8k2, records 0 to 2, sources not recorded" in recorded(job(ep=2, experts=8), tmp_path).source
    assert only(tmp_path / "a-e16k4").experts == 16
    assert recorded(job(ep=2, experts=8), tmp_path / "a-e16k4").count.shape == (3, 2, 2, 2, 8)
    write_laer(file, laer_rows("nameless"))  # of unknown experts
    assert only(file).experts is None
    assert recorded(job(ep=2, experts=8), file).count.shape == (3, 2, 2, 2, 8)
    said = unread(file, job(ep=2, experts=6))
    assert said == f"experts of the workload must be a multiple of the 4 destination ranks of {file}, got 6."


def test_wrong_token_analyses_are_named(tmp_path):
    for rows, head, words in (
        (laer_rows(methods=("FLEX",)), LAER_HEAD, "must have rows of method FSDP, got none."),
        (laer_rows()[1:], LAER_HEAD, "must have one row for every rank, layer and iteration of m-e8k2"),
        ([*laer_rows(), laer_rows()[0]], LAER_HEAD, "got 49 rows for 3 x 2 x 8 (iterations, layers, ranks)"),
        (laer_rows(ranks=6), LAER_HEAD, "in groups of 4 ranks"),
        ([*laer_rows(), "0,FSDP,m-e8k2,0,x,5"], LAER_HEAD, "line 98 of trace {} must hold whole numbers, got ['0', '"),
        (laer_rows(), "rank,method\n", "must have the columns rank, method, model_name, layer, iter, token_num, none"),
    ):
        file = write_laer(tmp_path / "token_analysis.csv.gz", rows, head)
        assert words.format(file) in unread(tmp_path)
    file.write_bytes(b"not gzip")
    assert "must be a readable .csv[.gz] file, got BadGzipFile" in unread(tmp_path)


def test_what_is_none_of_the_formats(tmp_path):
    formats = "; .jsonl of a Megatron router trace, or a folder of them; .txt of an mFabric weight matrix; a folder of"
    (tmp_path / "rows.doc").write_text("a,b\n")
    for path in ("rows.doc", "nothing.npz", "nothing", "no/such/folder", "run.csv"):
        assert formats in unread(tmp_path / path)
    assert "trace folder must hold *.jsonl of a Megatron router trace, *expert_counts*.npz" in unread(tmp_path)
    for name in ("run.npy", "run.npz"):
        (tmp_path / name).write_text("not an array")
        assert "must be a readable NumPy file, but it" in unread(tmp_path / name)


def test_the_published_folders_fit_models(shared_data):
    olmoe = recorded(get("mixtral-8x7b"), shared_data / "olmoe_routing")
    assert olmoe.count.shape[3:] == (8, 8)
    assert "mistral" in olmoe.source
    laer = recorded(get("mixtral-8x7b"), shared_data / "laer_moe", iterations=2)
    assert laer.count.shape == (2, 32, 8, 8, 8)
    assert "mixtral-8x7b-e8k2" in laer.source
    for tokens in (olmoe, laer):
        np.testing.assert_allclose(tokens.count.sum(axis=-1), get("mixtral-8x7b").selections, rtol=1e-12)
