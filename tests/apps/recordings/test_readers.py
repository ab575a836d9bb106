"""Every format that a recording may have, by hand and by loops; what is told of mistakes stands in `refusals`."""

import dataclasses
import gzip
import itertools
import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfabric_jax.apps.recordings import save_weight_matrix
from mfabric_jax.apps.recordings.arrays import arrange_axes
from mfabric_jax.support.unread import Unread
from mfabric_jax.traffic import Tokens, open_trace, recorded_tokens, save_tokens
from mfabric_jax.traffic.recording import AXES, Sources, Targets, axes_of
from mfabric_jax.workload import RankLayout, get
from tests.mistakes import refused
from tests.traffic.jobs import Tensor, job, laer_rows, line, unread, write_laer, write_lines, write_torch

FULL = np.random.default_rng(0).integers(1, 99, (3, 2, 2, 4, 8))  # in the order of AXES
TWO_RANKS = job(ep=2, experts=4)  # 2 layers, 16 selections a row
EXPERTS = 8


def only(path, **options):
    (recording,) = open_trace(path, **options)
    return recording


# ------------------------------------------------------------------------------------------------- arrays and tables
@given(st.permutations(AXES), st.sets(st.sampled_from(AXES[:-1])))
def test_every_order_of_any_axes(order, left_out):
    names = [name for name in order if name not in left_out]
    count = FULL[tuple(0 if name in left_out else slice(None) for name in AXES)]
    kept = [name for name in AXES if name not in left_out]
    shuffled = np.einsum(count, [*map(kept.index, kept)], [*map(kept.index, names)])
    want = count[tuple(np.newaxis if name in left_out else slice(None) for name in AXES)]
    np.testing.assert_array_equal(arrange_axes("run", shuffled, axes_of(",".join(names))), want)


def test_axes_are_named_by_the_caller_or_in_the_file(tmp_path):
    words = "layer,expert,iteration,source_rank,micro_batch"
    shuffled = FULL.transpose(1, 4, 0, 3, 2)
    np.save(tmp_path / "run.npy", shuffled)
    np.savez(tmp_path / "run.npz", counts=shuffled, axes=words.split(","))
    (tmp_path / "run.json").write_text(json.dumps({"axes": words.split(","), "counts": shuffled.tolist()}))
    write_torch(tmp_path / "run.pt", {"tokens": Tensor(shuffled)})
    for name, options in (("run.npy", {"axes": words}), ("run.npz", {}), ("run.json", {}), ("run.pt", {"axes": words})):
        found = only(tmp_path / name, **options)
        np.testing.assert_array_equal(found.count, FULL)
        assert (found.sources, found.targets, found.experts) == (Sources.RANKS, Targets.EXPERTS, 8)
    np.testing.assert_array_equal(
        recorded_tokens(job(ep=4, experts=8), tmp_path / "run.npz").count.shape, (3, 2, 2, 4, 8)
    )
    # What stands in the file gives way to what is asked for.
    other = only(tmp_path / "run.npz", axes="iteration,source,layer,expert,micro-batch")
    np.testing.assert_array_equal(other.count, shuffled.transpose(0, 2, 4, 1, 3))
    np.save(tmp_path / "run.npy", FULL[0, :, 0, :, :4])
    assert only(tmp_path / "run.npy", axes="layer,source,destination").targets is Targets.RANKS


def test_two_axes_are_layers_and_experts(tmp_path):
    for name, write in (("run.npy", np.save), ("run.json", lambda path, x: path.write_text(json.dumps(x.tolist())))):
        write(tmp_path / name, FULL[0, :, 0, 0])
        found = only(tmp_path / name)
        np.testing.assert_array_equal(found.count[0, :, 0, 0], FULL[0, :, 0, 0])
        axes = {"iteration": 1, "layer": 2, "micro-batch": 1, "expert": 8}
        assert (found.sources, found.axes) == (Sources.UNKNOWN, axes)


def long_form(count, columns="iteration,layer,micro_batch,source,expert,tokens"):
    """Lines of a table, in no order, of what is not 0."""
    lines = [
        ",".join(map(str, (10 * place[0], *place[1:], count[place])))
        for place in np.ndindex(count.shape)
        if count[place]
    ]
    np.random.default_rng(1).shuffle(lines)
    return "\n".join([columns, *lines]) + "\n"


def test_tables_of_all_columns_and_of_few(tmp_path):
    from pyarrow import csv as arrow
    from pyarrow import parquet

    sparse = FULL * (FULL > 30)
    sparse[0, 0, 0, 0, 7] = 5  # the last expert occurs
    (tmp_path / "run.csv").write_text(long_form(sparse))
    (tmp_path / "run.csv.gz").write_bytes(gzip.compress(long_form(sparse).encode()))
    parquet.write_table(arrow.read_csv(tmp_path / "run.csv"), tmp_path / "run.parquet")
    for name in ("run.csv", "run.csv.gz", "run.parquet"):
        found = only(tmp_path / name)
        np.testing.assert_array_equal(found.count, sparse)
        assert (found.number.tolist(), found.sources, found.experts) == ([0, 10, 20], Sources.RANKS, None)
    (tmp_path / "few.csv").write_text("layer_id,expert_id,count\n3,0,1.5\n3,2,2\n7,1,4\n")
    found = only(tmp_path / "few.csv")
    assert found.count[0, :, 0, 0].tolist() == [[1.5, 0, 2], [0, 4, 0]]
    assert found.sources is Sources.UNKNOWN
    assert recorded_tokens(job(ep=2, experts=4), tmp_path / "few.csv").count[0, 0, 0, 0].tolist() == pytest.approx(
        [16 * 1.5 / 3.5, 0, 16 * 2 / 3.5, 0]  # expert 3 was never chosen
    )


def test_what_stands_beside_the_counts_is_named(tmp_path):
    counts = np.array([[3, 5], [2, 8]])
    np.savez(tmp_path / "two.npz", tokens=counts, counts=2 * counts, words=np.array("of a run"))
    with pytest.warns(Unread, match="two.npz': entries beside tokens are not read, .* a number: counts, words"):
        (recording,) = open_trace(tmp_path / "two.npz")
    assert recording.count.sum() == 18
    (tmp_path / "scaled.json").write_text(json.dumps({"weight": counts.tolist(), "scale": 4, "about": "a run"}))
    with pytest.warns(Unread, match="scaled.json': entries beside weight are not read, .*: about, scale"):
        open_trace(tmp_path / "scaled.json")


def test_slices_of_a_tp_group_are_added_up(tmp_path):
    slices = np.arange(2 * 2 * 4).reshape(2, 2, 4) ** 2  # [tp ep expert], all different
    file, bare = tmp_path / "run.npz", tmp_path / "num_global_tokens_per_expert_iter3.npy"
    np.savez(file, num_global_tokens_per_expert=slices)
    np.save(bare, slices)
    for path in (file, bare):
        found = only(path)
        assert found.axes == {"iteration": 1, "layer": 1, "micro-batch": 1, "source rank": 2, "expert": 4}
        want = [[0 + 64, 1 + 81, 4 + 100, 9 + 121], [16 + 144, 25 + 169, 36 + 196, 49 + 225]]
        assert found.count[0, 0, 0].tolist() == want
        fitted = recorded_tokens(TWO_RANKS, path).count
        np.testing.assert_allclose(fitted[0, 1, 0, 0], np.array([64, 82, 104, 130]) * 16 / 380, rtol=1e-12)
    np.savez(file, num_global_tokens_per_expert=np.tile(slices[:1], (3, 1, 1)))  # equal slices are copies
    np.testing.assert_array_equal(only(file).count[0, 0, 0], slices[0])
    many = np.random.default_rng(0).integers(0, 9, (3, 2, 2, 2, 4))  # layers and iterations may stand before
    np.savez(file, num_global_tokens_per_expert=many)
    np.testing.assert_array_equal(only(file).count[:, :, 0], many.sum(axis=2))
    np.savez(file, num_global_tokens_per_expert=many[0])
    np.testing.assert_array_equal(only(file).count[0, :, 0], many[0].sum(axis=1))


def test_expert_counts_are_spread_over_all_sources(tmp_path):
    count, file = np.random.default_rng(1).integers(1, 9, (3, 2, 8)), tmp_path / "dump.npz"
    np.savez(file, logical_count=count)
    assert only(file).axes == {"iteration": 3, "layer": 2, "micro-batch": 1, "expert": 8}
    assert only(file).sources is Sources.UNKNOWN
    got = recorded_tokens(job(ep=4, experts=4), file, records=(1, 2))
    assert got.count.shape == (2, 2, 1, 4, 4)
    for iteration, layer, rank in np.ndindex(2, 2, 4):
        load = count[iteration + 1, layer].reshape(4, 2).sum(axis=1)
        np.testing.assert_allclose(got.count[iteration, layer, 0, rank], load * 16 / load.sum(), rtol=1e-12)
    said = "dump.npz, records 1 to 2, sources not recorded: spread equally over source ranks (all rows of a demand are "
    said += "equal, so it cannot judge circuits), "
    assert got.source.endswith(f"{said}2 neighbouring experts added up")
    weight = np.array([[1.0, 3.0], [4.0, 4.0], [0.0, 2.0]])
    np.savez(tmp_path / "weight.npz", weight=weight)
    np.save(tmp_path / "eplb_weight.npy", weight)
    for name in ("weight.npz", "eplb_weight.npy"):
        assert only(tmp_path / name).axes == {"iteration": 1, "layer": 3, "micro-batch": 1, "expert": 2}
        got = recorded_tokens(job(ep=2, experts=2, layers=3), tmp_path / name).count
        assert got[0, :, 0, 1].tolist() == [[4, 12], [8, 8], [0, 16]]


def test_buffers_that_are_not_full_and_layers_without_experts(tmp_path):
    count = np.zeros((5, 3, 4), int)
    count[:2, 1:] = np.arange(1, 17).reshape(2, 2, 4)
    np.savez(tmp_path / "dump.npz", logical_count=count)
    found = only(tmp_path / "dump.npz")
    np.testing.assert_array_equal(found.count[:, :, 0, 0], count[:2, 1:])
    assert found.words.endswith("(3 empty passes and 1 empty layers left out), records 0 to 1")


def test_copies_of_an_expert_are_added_up(tmp_path):
    window = np.arange(1, 13).reshape(2, 2, 3)  # three physical experts, two logical ones
    np.savez(tmp_path / "vllm.npz", expert_load_window=window, physical_to_logical_map=[[0, 1, 0], [1, 1, 0]])
    found = only(tmp_path / "vllm.npz")
    assert found.count[:, :, 0, 0].tolist() == [[[1 + 3, 2], [6, 4 + 5]], [[7 + 9, 8], [12, 10 + 11]]]
    assert found.format == "vLLM expert load"


def test_passes_of_every_rank_are_added_up(tmp_path):
    def dump(rank, passes):
        counts = [Tensor(np.full((2, 3), 10 * rank + number, np.int64)) for number in passes]
        records = [
            {"forward_pass_id": number, "rank": rank, "gatherer_key": "primary", "global_physical_count": count}
            for number, count in zip(passes, counts, strict=True)
        ]
        of = Tensor(np.array([[0, 1, 0], [0, 1, 2]], np.int64))
        return write_torch(tmp_path / f"rank{rank}.pt", {"records": records, "last_physical_to_logical_map": of})

    first, _ = dump(1, (3, 5)), dump(2, (5, 3))
    found = only(tmp_path)
    assert found.count[:, :, 0, 0].tolist() == [[[72, 36, 0], [36, 36, 36]], [[80, 40, 0], [40, 40, 40]]]
    assert only(first).count[0, 0, 0, 0].tolist() == [26, 13, 0]
    write_torch(first, {"records": [{"rank": 0, "topk_ids_of_layer": [[0]]}]})
    assert "must have forward_pass_id and global_physical_count" in unread(first)
    write_torch(first, {"weight": Tensor(np.ones((2, 3), np.int64))})
    assert "must hold one recording; name one of its .pt files." in unread(tmp_path)


def test_a_torch_dump_is_read_without_torch(tmp_path):
    count, file = np.arange(1, 9).reshape(1, 2, 4), tmp_path / "dump.pt"
    content = {"rank": 0, "logical_count": Tensor(count.astype(np.int32)), "average_utilization_rate_over_window": None}
    write_torch(file, content)
    np.testing.assert_array_equal(only(file).count[:, :, 0, 0], count)
    write_torch(tmp_path / "weight.pt", Tensor(count[0].astype(np.float32).T, transposed=True))
    np.testing.assert_array_equal(only(tmp_path / "weight.pt").count[0, :, 0, 0], count[0])
    write_torch(file, {"logical_count": Tensor(count.astype(np.int64)), "args": complex(1, 2)})  # a class is left out
    with pytest.warns(Unread, match="entries beside logical_count are not read, .* a number: args"):
        np.testing.assert_array_equal(only(file).count[:, :, 0, 0], count)
    write_torch(file, {"logical_count": Tensor(count.astype(np.int64), offset=1)})
    assert "must be a readable file of torch.save (since torch 1.6), got ValueError." in unread(file)


def test_deep_nesting_and_junk(tmp_path):
    deep, junk = "[" * 100_000 + "]" * 100_000, np.random.default_rng(0).bytes(4096)
    for name in ("run.json", "run.txt", "run.jsonl"):
        (tmp_path / name).write_text(deep)
        assert unread(tmp_path / name)
    for end in ("npy", "npz", "pt", "json", "txt", "jsonl", "csv", "parquet", "npy.xz"):
        name = f"run.{end}"
        for head in (b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\xfd7zXZ\x00", b"PAR1", b"\x1f\x8b"):
            (tmp_path / name).write_bytes(head + junk)
            assert unread(tmp_path / name)
    for text in ("7", '"words"', "null", "{}", '{"axes": 3, "counts": {}}', "[]", "[[]]", '{"counts": [[1, 2], [3]]}'):
        (tmp_path / "run.json").write_text(text)
        assert unread(tmp_path / "run.json")
    np.savez(tmp_path / "meta.npz", tokens=FULL, meta=np.array("[" * 100_000))
    assert "must be the JSON that save_tokens wrote" in unread(tmp_path / "meta.npz")


# -------------------------------------------------------------------------------------------------------- our own files
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
        fitted = recorded_tokens(TWO_RANKS, path)
        np.testing.assert_array_equal(fitted.count, tokens.scale_to(TWO_RANKS).count)
        assert fitted.source == f"recorded {path} (made up, seed 2), records 0 to 2"
        with np.load(path) as arrays:
            assert json.loads(str(arrays["meta"])) == META
    write_matrix(tmp_path / "m.txt", [[1, 3], [4, 0]])
    np.savez(tmp_path / "l.npz", logical_count=np.ones((2, 2, 8)))
    for name in ("m.txt", "l.npz"):
        found = only(tmp_path / name)
        back = only(save_tokens(found, tmp_path / "saved.npz"))
        np.testing.assert_array_equal(back.count, found.count)
        assert (back.sources, back.targets, back.experts) == (found.sources, found.targets, found.experts)
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


# ----------------------------------------------------------------------------------------------- published recordings
def write_matrix(path, rows):
    path.write_text(json.dumps(rows) + "\n")
    return path


def test_a_weight_matrix_is_spread_over_the_experts_of_each_rank(tmp_path):
    file = write_matrix(tmp_path / "weight_matrix.txt", [[8192, 24576], [32768, 0]])
    found = only(file)
    assert (found.targets, found.axes["source rank"], found.axes["destination rank"]) == (Targets.RANKS, 2, 2)
    got = recorded_tokens(TWO_RANKS, file)
    assert got.count.shape == (1, 2, 1, 2, 4)
    for layer in (0, 1):
        assert got.count[0, layer, 0].tolist() == [[2, 2, 6, 6], [8, 8, 0, 0]]
    assert recorded_tokens(job(ep=2, experts=2), file).count[0, 0, 0].tolist() == [[4, 12], [16, 0]]


def test_what_is_written_is_read_the_same(tmp_path):
    count = np.random.default_rng(0).integers(1, 1000, (2, 3, 2, 4, 8))
    path = save_weight_matrix(Tokens(count, "drawn"), tmp_path / "w.txt")
    (read,) = open_trace(path)
    sent = count.sum(axis=(0, 1, 2)).reshape(4, 4, 2).sum(axis=2)
    assert (read.count.sum(axis=-1) == 32768).all()
    np.testing.assert_allclose(read.count[0, 0, 0] / 32768, sent / sent.sum(axis=1, keepdims=True), atol=1 / 32768)
    save_weight_matrix(read, tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_text() == path.read_text()


def test_remainders_go_to_the_largest(tmp_path):
    # a third is 10922.67: two of three are rounded up; a half of a quarter is whole
    count = np.array([[1, 1, 1], [2, 1, 1], [0, 0, 5]]).reshape(1, 1, 1, 3, 3)
    save_weight_matrix(Tokens(count, "by hand"), tmp_path / "w.txt")
    wanted = [[10923, 10923, 10922], [16384, 8192, 8192], [0, 0, 32768]]
    assert json.loads((tmp_path / "w.txt").read_text()) == wanted


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
    got = recorded_tokens(job(ep=4, experts=4, layers=4), tmp_path)  # mistral, of as many experts
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
        np.testing.assert_allclose(recorded_tokens(TWO_RANKS, path).count[0, 0, 0, 0], row * 16 / row.sum(), rtol=1e-12)
    assert recorded_tokens(job(ep=2, experts=8), tmp_path).source.count(" olmoe, ") == 1
    said = unread(tmp_path, job(ep=2, experts=2))  # either would do
    assert said == (
        f"trace {tmp_path} holds several recordings; name one for 2 experts, got: {tmp_path / 'olmoe'} (8 experts), "
        f"{tmp_path / 'mistral'} (4 experts)."
    )
    assert "did you mean 'mistral'?" in unread(tmp_path / "mistrl")


def test_laer_tokens_are_of_positions_in_groups_of_4(tmp_path):
    for suffix in (".csv", ".csv.gz"):
        (tmp_path / suffix).mkdir()
        file = write_laer(tmp_path / suffix / f"token_analysis{suffix}", laer_rows())
        found = only(tmp_path / suffix)
        assert found.axes == {"iteration": 3, "layer": 2, "micro-batch": 2, "destination rank": 4}
        assert (found.name, found.experts) == ("m-e8k2", 8)
        for iteration, layer, rank in np.ndindex(3, 2, 8):
            assert found.count[iteration, layer, rank // 4, 0, rank % 4] == 100 * iteration + 10 * layer + rank
    got = recorded_tokens(job(ep=2, experts=8), file, records=(2, 2)).count  # a position has experts 2k, 2k + 1
    assert got.shape == (1, 2, 2, 2, 8)
    row = np.repeat([214, 215, 216, 217], 2) * 16 / (2 * 862)
    np.testing.assert_allclose(got[0, 1, 1], [row, row], rtol=1e-12)
    np.testing.assert_allclose(recorded_tokens(TWO_RANKS, file).count[0, 0, 0, 0], [0, 16 / 6, 32 / 6, 8], rtol=1e-12)


def test_laer_of_several_models(tmp_path):
    file = write_laer(tmp_path / "token_analysis.csv", laer_rows("a-e16k4") + laer_rows("b-e8k2"))
    assert [found.name for found in open_trace(tmp_path)] == ["a-e16k4", "b-e8k2"]
    assert " b-e8k2, records 0 to 2, sources not recorded" in recorded_tokens(job(ep=2, experts=8), tmp_path).source
    assert only(tmp_path / "a-e16k4").experts == 16
    write_laer(file, laer_rows("nameless"))  # of unknown experts
    assert recorded_tokens(job(ep=2, experts=8), file).count.shape == (3, 2, 2, 2, 8)


def test_the_published_folders_fit_models(shared_data):
    olmoe = recorded_tokens(get("mixtral-8x7b"), shared_data / "olmoe_routing")
    assert olmoe.count.shape[3:] == (8, 8)
    assert "mistral" in olmoe.source
    laer = recorded_tokens(get("mixtral-8x7b"), shared_data / "laer_moe", iterations=2)
    assert laer.count.shape == (2, 32, 8, 8, 8)
    assert "mixtral-8x7b-e8k2" in laer.source
    for tokens in (olmoe, laer):
        np.testing.assert_allclose(tokens.count.sum(axis=-1), get("mixtral-8x7b").selections, rtol=1e-12)


# -------------------------------------------------------------------------------------------------------- router traces
def write_job(folder, degrees, chosen, order="tp-ep-dp-pp", layers=(0, 1)):
    """A file for every global rank, each with `chosen(layer, tp, ep, dp, pp)` tokens; its own count of the ranks."""
    outermost_first = order.replace("cp-", "").split("-")[::-1]
    for rank, index in enumerate(itertools.product(*(range(degrees.get(name, 1)) for name in outermost_first))):
        place = dict(zip(outermost_first, index, strict=True))
        lines = [line(0, layer, rank, chosen(layer, **place)) for layer in layers]
        write_lines(folder / f"router_trace_rank{rank}.jsonl", *lines)
    return folder


def of(degrees, experts=EXPERTS, layers=2, **more):
    """A job of these degrees on one server for each pipeline stage."""
    whole = dict.fromkeys(("tp", "ep", "dp", "pp"), 1) | degrees
    gpus = int(np.prod([*whole.values()]))
    workload = job(ep=1, experts=experts, layers=layers)
    return dataclasses.replace(workload, **whole, gpus=gpus, gpus_per_server=gpus // whole["pp"], **more)


@pytest.mark.parametrize("order", ["tp-ep-dp-pp", "tp-cp-ep-dp-pp", "ep-tp-pp-dp", "pp-dp-ep-tp"])
def test_every_degree_is_read_in_its_order(tmp_path, order):
    """An oracle by loops: TP slices added up, replicas as micro-batches, layers by stage."""
    degrees = {"tp": 2, "ep": 4, "dp": 3, "pp": 2}
    drawn = np.random.default_rng(0).integers(0, EXPERTS, (2, 2, 4, 3, 2, 5))  # stage, tp, ep, dp, layer, token
    write_job(tmp_path, degrees, lambda layer, tp, ep, dp, pp: drawn[pp, tp, ep, dp, layer][:, None].tolist(), order)
    layout = RankLayout(**degrees, order=order, experts=EXPERTS)
    (found,) = open_trace(tmp_path, layout)
    want = np.zeros((1, 4, 3, 4, EXPERTS))
    for pp, tp, ep, dp, layer, token in np.ndindex(drawn.shape):
        want[0, 2 * pp + layer, dp, ep, drawn[pp, tp, ep, dp, layer, token]] += 1
    np.testing.assert_array_equal(found.count, want)
    assert found.words == f"recorded {tmp_path} (tp 2, ep 4, dp 3, pp 2), records 0 to 0"
    if order == "tp-ep-dp-pp":  # as a job of these degrees has it: 16 selections a row
        np.testing.assert_allclose(recorded_tokens(of(degrees, layers=4), tmp_path).count, want * 16 / 10, rtol=1e-12)


def test_a_server_of_8_gpus_holds_the_ranks_that_the_layout_leaves_it():
    for degrees, order, want in (
        ({"tp": 4, "ep": 8}, "tp-ep-dp-pp", 2),
        ({"tp": 16, "ep": 8}, "tp-ep-dp-pp", 1),
        ({"tp": 4, "ep": 16}, "ep-tp-dp-pp", 8),
        ({"tp": 2, "ep": 2, "dp": 4}, "tp-ep-dp-pp", 2),
        ({"dp": 4, "ep": 8}, "dp-ep-tp-pp", 2),
    ):
        assert RankLayout(**degrees, order=order).ranks_per_server(8) == want, (degrees, order)


def test_layers_count_from_the_first_of_the_model_or_of_the_stage(tmp_path):
    degrees = {"pp": 2}
    counts = []
    for folder, first in (("model", 2), ("stage", 0)):
        (tmp_path / folder).mkdir()
        for rank in (0, 1):
            lines = [line(0, first * rank + layer, rank, [[2 * rank + layer]]) for layer in (0, 1)]
            write_lines(tmp_path / folder / f"{rank}.jsonl", *lines)
        counts.append(open_trace(tmp_path / folder, RankLayout(pp=2))[0].count[0, :, 0, 0])
    np.testing.assert_array_equal(counts, [np.eye(4)] * 2)
    assert recorded_tokens(of(degrees, layers=4), tmp_path / "stage").count.shape == (1, 4, 1, 1, EXPERTS)
    # Two chunks on each stage: layers 0 and 2 on the first, 1 and 3 on the second.
    (tmp_path / "chunks").mkdir()
    lines = [line(0, layer, layer % 2, [[layer]]) for layer in range(4)]
    file = write_lines(tmp_path / "chunks" / "all.jsonl", *lines)
    np.testing.assert_array_equal(open_trace(file, RankLayout(pp=2, chunks=2))[0].count[0, :, 0, 0], np.eye(4))


def test_one_group_of_a_larger_job_is_enough(tmp_path):
    write_job(tmp_path, {"ep": 4}, lambda layer, tp, ep, dp, pp: [[ep]] * EXPERTS)
    alone = recorded_tokens(of({"ep": 4, "dp": 4}), tmp_path)
    np.testing.assert_array_equal(alone.count[0, 0, 0, :, :4], 16 * np.eye(4))


def test_lines_of_one_place_are_micro_batches_in_order(tmp_path):
    # Two files, steps 3 and 7, layers 1 and 4; the order of the lines says nothing but for micro-batches.
    for rank in (1, 0):
        lines = [line(s, i, rank, [[0, 1], [i, rank + m]]) for m in (1, 0) for s in (7, 3) for i in (4, 1)]
        write_lines(tmp_path / f"router_trace_rank{rank}.jsonl", *lines)
    (tmp_path / "logits_rank0.bin").write_bytes(b"\0\1")
    (found,) = open_trace(tmp_path, RankLayout(ep=2))
    assert found.axes == {"iteration": 2, "layer": 2, "micro-batch": 2, "source rank": 2, "expert": 6}  # 5 are named
    assert (found.format, found.number.tolist()) == ("Megatron router trace", [3, 7])
    assert found.count[1, 0, 0].tolist() == [[1, 3, 0, 0, 0, 0], [1, 2, 1, 0, 0, 0]]  # layer 1, the first micro-batch
    assert found.count[0, 1, 1].tolist() == [[2, 1, 0, 0, 1, 0], [1, 2, 0, 0, 1, 0]]  # layer 4, the second


def test_other_blocks_and_stages_and_empty_lines_are_skipped(tmp_path):
    file = write_lines(
        tmp_path / "run.jsonl",
        line(0, 0, 0, [[0]], block="mtp", mtp_idx=0),
        line(0, 0, 0, [[1]]),
        line(0, 0, 0, [[2]], stage="post_dispatch"),
        {name: value for name, value in line(1, 0, 0, [[3]]).items() if name not in ("block", "stage")},
    )
    file.write_text(file.read_text() + "\n\n")
    assert open_trace(file)[0].count[:, 0, 0, 0].tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]
