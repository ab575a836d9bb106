"""Arrays and tables of one's own: every order of named axes, every file, every mistake in them."""

import dataclasses
import gzip
import itertools
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfabric_jax.traffic import open_trace, recorded, save_tokens
from mfabric_jax.traffic.array_files import AXES, arranged, axes_of
from mfabric_jax.traffic.recording import Sources, Targets
from mfabric_jax.workload import RankLayout
from tests.mistakes import refused

from .jobs import Tensor, job, line, unread, write_lines, write_torch

FULL = np.random.default_rng(0).integers(1, 99, (3, 2, 2, 4, 8))  # in the order of AXES


def only(path, **options):
    (recording,) = open_trace(path, **options)
    return recording


# ---------------------------------------------------------------------------------------------------------- axes
@given(st.permutations(AXES), st.sets(st.sampled_from(AXES[:-1])))
def test_every_order_of_any_axes(order, left_out):
    names = [name for name in order if name not in left_out]
    count = FULL[tuple(0 if name in left_out else slice(None) for name in AXES)]
    kept = [name for name in AXES if name not in left_out]
    shuffled = np.einsum(count, [*map(kept.index, kept)], [*map(kept.index, names)])
    want = count[tuple(np.newaxis if name in left_out else slice(None) for name in AXES)]
    np.testing.assert_array_equal(arranged("run", shuffled, axes_of(",".join(names))), want)


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
    np.testing.assert_array_equal(recorded(job(ep=4, experts=8), tmp_path / "run.npz").count.shape, (3, 2, 2, 4, 8))
    # What stands in the file gives way to what is asked for.
    other = only(tmp_path / "run.npz", axes="iteration,source,layer,expert,micro-batch")
    np.testing.assert_array_equal(other.count, shuffled.transpose(0, 2, 4, 1, 3))
    np.save(tmp_path / "run.npy", FULL[0, :, 0, :, :4])
    assert only(tmp_path / "run.npy", axes="layer,source,destination").targets is Targets.RANKS


def test_two_axes_are_layers_and_experts_and_three_are_asked_about(tmp_path):
    for name, write in (("run.npy", np.save), ("run.json", lambda path, x: path.write_text(json.dumps(x.tolist())))):
        file = tmp_path / name
        write(file, FULL[0, :, 0, 0])
        found = only(file)
        np.testing.assert_array_equal(found.count[0, :, 0, 0], FULL[0, :, 0, 0])
        assert (found.sources, found.axes) == (
            Sources.UNKNOWN,
            {"iteration": 1, "layer": 2, "micro-batch": 1, "expert": 8},
        )
        write(file, FULL[:, :, 0, 0])
        assert unread(file) == (
            f"trace {file} has shape (3, 2, 8), which may be [iteration, layer, expert] or [layer, source, expert]; "
            f"name its axes, such as --axes iteration,layer,expert, or by an entry 'axes' beside the array."
        )
        np.testing.assert_array_equal(only(file, axes="iteration,layer,expert").count[:, :, 0, 0], FULL[:, :, 0, 0])
        write(file, FULL[:, :, 0])
        assert "may be [iteration, layer, source, expert] or [layer, micro-batch, source, expert]; name" in unread(file)


def test_wrong_axes_are_named(tmp_path):
    np.save(tmp_path / "run.npy", FULL[0, 0, 0])
    for axes, words in (
        ("layer,exprt", "axis 'exprt' is unknown (did you mean 'expert'?); allowed: iteration, layer, micro-batch,"),
        ("expert,expert", "axes must name expert (or destination), and none twice, got expert, expert."),
        ("iteration,layer,expert", "must have the axes [iteration, layer, expert], none empty, got shape [4, 8]."),
    ):
        assert words in refused(open_trace, tmp_path / "run.npy", axes=axes)
    write_lines(tmp_path / "r.jsonl", line(0, 0, 0, [[0]]))
    assert "axes are for a file that is one array" in refused(open_trace, tmp_path / "r.jsonl", axes="layer,expert")


# -------------------------------------------------------------------------------------------------------- tables
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
    assert recorded(job(ep=2, experts=4), tmp_path / "few.csv").count[0, 0, 0, 0].tolist() == pytest.approx(
        [16 * 1.5 / 3.5, 0, 16 * 2 / 3.5, 0]  # expert 3 was never chosen
    )


def test_wrong_tables_are_named(tmp_path):
    file = tmp_path / "run.csv"
    for text, words in (
        ("layer,tokens\n1,2\n", "must have the columns iteration, layer, micro-batch, source, expert, tokens, none tw"),
        ("layer,expert,tokens,gpu\n1,1,2,3\n", "none twice, got layer, expert, tokens, gpu."),
        ("layer,expert,tokens\n0,0,1\n0,1\n", "line 3 of trace {} must have 3 cells, got 2."),
        ("layer,expert,tokens\n0,0,1\n0,0,2\n", "line 3 of trace {} must be the only one for its layer, expert"),
        ("layer,expert,tokens\n0,-1,1\n", "column expert of trace {} must hold whole numbers of at least 0, got '-1'"),
        ("layer,expert,tokens\n0,99999999,1\n", "expert of trace {} must be below 65536, got 99999999."),
        ("layer,expert,tokens\n0,1,many\n", "column tokens of trace {} must hold numbers, got 'many' (line 2)."),
        (f"layer,expert,tokens\n0,{'9' * 200_000},1\n", "must be a readable .csv[.gz] file, got Error."),
    ):
        file.write_text(text)
        assert words.format(file) in unread(file)
    file.write_bytes(b"\xff\xfe\x00binary")
    assert "must be a readable .csv[.gz] file, got UnicodeDecodeError." in unread(file)
    (tmp_path / "run.parquet").write_bytes(b"PAR1 and no more")
    assert "must be a readable .parquet file" in unread(tmp_path / "run.parquet")


# ------------------------------------------------------------------------------------------------- serving engines
def test_buffers_that_are_not_full_and_layers_without_experts(tmp_path):
    count = np.zeros((5, 3, 4), int)
    count[:2, 1:] = np.arange(1, 17).reshape(2, 2, 4)
    np.savez(tmp_path / "dump.npz", logical_count=count)
    found = only(tmp_path / "dump.npz")
    np.testing.assert_array_equal(found.count[:, :, 0, 0], count[:2, 1:])
    assert found.words.endswith("(3 empty passes and 1 empty layers left out), records 0 to 1")
    np.savez(tmp_path / "dump.npz", logical_count=0 * count)
    assert unread(tmp_path / "dump.npz") == f"tokens of trace {tmp_path / 'dump.npz'} must not all be 0."


def test_copies_of_an_expert_are_added_up(tmp_path):
    window = np.arange(1, 13).reshape(2, 2, 3)  # three physical experts, two logical ones
    np.savez(tmp_path / "vllm.npz", expert_load_window=window, physical_to_logical_map=[[0, 1, 0], [1, 1, 0]])
    found = only(tmp_path / "vllm.npz")
    assert found.count[:, :, 0, 0].tolist() == [[[1 + 3, 2], [6, 4 + 5]], [[7 + 9, 8], [12, 10 + 11]]]
    assert found.format == "vLLM expert load"
    np.savez(tmp_path / "vllm.npz", expert_load_window=window, physical_to_logical_map=[[0, 1], [1, 1]])
    assert "physical_to_logical_map of trace" in unread(tmp_path / "vllm.npz")


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
    assert "must each have forward_pass_id and global_physical_count" in unread(first)
    write_torch(first, {"weight": Tensor(np.ones((2, 3), np.int64))})
    assert "must hold one recording; name one of its .pt files." in unread(tmp_path)


# --------------------------------------------------------------------------------------------------------- mistakes
@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf, 1j, True])
def test_what_is_no_count_is_not_converted(tmp_path, wrong):
    np.savez(tmp_path / "run.npz", tokens=np.full((1, 2, 1, 2, 4), wrong))
    np.savez(tmp_path / "load.npz", logical_count=np.full((1, 2, 4), wrong))
    for name in ("run.npz", "load.npz"):
        said = refused(lambda path: save_tokens(only(path), tmp_path / "out.npz"), tmp_path / name)
        assert "integers or reals" in said or "finite and not negative" in said
    assert not (tmp_path / "out.npz").exists()


def test_sums_that_are_infinite_are_refused(tmp_path):
    np.savez(tmp_path / "run.npz", tokens=np.full((1, 2, 1, 2, 4), 1e308))
    assert "must have sums of at most 1e+100" in unread(tmp_path / "run.npz", job(ep=2, experts=4))
    np.savez(tmp_path / "half.npz", tokens=np.full((1, 2, 1, 2, 4), 6e4, np.float16))  # sums beyond its range
    assert recorded(job(ep=2, experts=2), tmp_path / "half.npz").count.sum() == pytest.approx(2 * 2 * 16)


def test_an_archive_with_something_else_in_it(tmp_path):
    file = tmp_path / "run.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tokens", b"words")
    assert unread(file) == f"tokens of trace {file} must be an array of numbers, got bytes."
    header = str({"descr": "<f8", "fortran_order": False, "shape": (1, 1, 1, 50_000_000, 50_000)}).ljust(117) + "\n"
    huge = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tokens.npy", huge)
    assert f"trace {file} must be a readable NumPy file, but it " in unread(file)  # 20 TB
    (tmp_path / "run.npy").write_bytes(huge)
    assert "must be a readable NumPy file, but it " in unread(tmp_path / "run.npy")


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
    (tmp_path / "run.json").write_text('{"counts": [[1, 2], [3]]}')
    assert "must hold lists of equal lengths, got others." in unread(tmp_path / "run.json")
    for text in ("7", '"words"', "null", "{}", '{"axes": 3, "counts": {}}', "[]", "[[]]"):
        (tmp_path / "run.json").write_text(text)
        assert unread(tmp_path / "run.json")
    write_lines(tmp_path / "big.jsonl", line(0, 0, 0, [[10**12]]))
    assert "must be below 65536, got 1000000000000." in unread(tmp_path / "big.jsonl")
    np.savez(tmp_path / "meta.npz", tokens=FULL, meta=np.array("[" * 100_000))
    assert "must be the JSON that save_tokens wrote" in unread(tmp_path / "meta.npz")


EXPERTS = 8


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


def own_expert(layer, tp, ep, dp, pp):
    return [[ep]] * EXPERTS


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
        np.testing.assert_allclose(recorded(of(degrees, layers=4), tmp_path).count, want * 16 / 10, rtol=1e-12)


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
    assert recorded(of(degrees, layers=4), tmp_path / "stage").count.shape == (1, 4, 1, 1, EXPERTS)
    # Two chunks on each stage: layers 0 and 2 on the first, 1 and 3 on the second.
    (tmp_path / "chunks").mkdir()
    lines = [line(0, layer, layer % 2, [[layer]]) for layer in range(4)]
    file = write_lines(tmp_path / "chunks" / "all.jsonl", *lines)
    np.testing.assert_array_equal(open_trace(file, RankLayout(pp=2, chunks=2))[0].count[0, :, 0, 0], np.eye(4))
    assert unread(tmp_path / "stage", layout=RankLayout(pp=2, chunks=2)) == (
        f"layers of router trace {tmp_path / 'stage'} must be numbered over the whole model where a stage has 2 "
        "chunks, got layer 0 on stages 0 and 1: its chunk cannot be told."
    )


def test_what_does_not_fit_the_job_is_refused(tmp_path):
    write_job(tmp_path, {"dp": 2, "ep": 4}, own_expert)
    hint = "name the degrees of its job (mfabric traces convert: --model, or --tp, --ep, --dp, --pp, --order)."
    ranks = f"global ranks of router trace {tmp_path} must be below tp x ep x dp x pp = "
    assert unread(tmp_path) == f"{ranks}1 x 1 x 1 x 1 = 1, got 7; {hint}"
    assert unread(tmp_path, of({"ep": 4})) == f"{ranks}1 x 4 x 1 x 1 = 4, got 7; {hint}"
    some = (
        f"router trace {tmp_path} must hold whole pipeline stages, or one expert-parallel group of tp x ep x dp x pp "
    )
    assert unread(tmp_path, of({"ep": 4, "dp": 4})) == f"{some}= 1 x 4 x 4 x 1 = 16 ranks, but has no rank 8; {hint}"
    (tmp_path / "router_trace_rank5.jsonl").unlink()
    assert unread(tmp_path, of({"ep": 4, "dp": 2})) == f"{some}= 1 x 4 x 2 x 1 = 8 ranks, but has no rank 5; {hint}"
    for rank in (4, 6, 7):
        (tmp_path / f"router_trace_rank{rank}.jsonl").unlink()
    alone = recorded(of({"ep": 4, "dp": 4}), tmp_path)  # one group of a larger job
    np.testing.assert_array_equal(alone.count[0, 0, 0, :, :4], 16 * np.eye(4))
    assert unread(tmp_path, of({"ep": 2, "dp": 2}, experts=2)) == (
        f"experts of router trace {tmp_path} must be below the 2 of the model, got expert 3; read it with its own "
        "number of experts first (mfabric traces convert: --experts)."
    )
    for wrong, sentence in {
        "order must name tp, ep, dp and pp once each, like tp-ep-dp-pp, got 'tp-ep-dp'.": {"order": "tp-ep-dp"},
        "experts must be a multiple of ep = 4, got 6.": {"ep": 4, "experts": 6},
        "tp must be a whole number of at least 1, got 0.": {"tp": 0},
    }.items():
        assert refused(RankLayout, **sentence) == wrong


# ---------------------------------------------------------------------------------------------------------------- lines
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


def test_a_router_trace_fitted(tmp_path):
    nothing = {"num_tokens": 0, "top_indices": []}
    lines = [line(step, 5, rank, [[0], [0], [0], [step]]) for step in (1, 2) for rank in (0, 1)]
    file = write_lines(
        tmp_path / "run.jsonl", *lines, *[line(3, 5, r, [[0, 3]]) | (nothing if r else {}) for r in (0, 1)]
    )
    got = recorded(job(ep=2, experts=8), file, records=(2, 9), iterations=3)  # 8 experts: nobody chose 4..7
    assert got.count.shape == (3, 2, 1, 2, 8)
    for iteration, row in ((0, [12, 0, 4, 0]), (1, [8, 0, 0, 8]), (2, [12, 0, 4, 0])):
        np.testing.assert_array_equal(got.count[iteration, :, 0, 0], [row + [0] * 4] * 2)
        np.testing.assert_array_equal(got.count[iteration, :, 0, 1], [[0] * 8 if iteration == 1 else row + [0] * 4] * 2)
    assert got.source == (
        f"recorded {file} (tp 1, ep 2, dp 1, pp 1), records 2 to 3, read cyclically for 3 iterations, layer l reads "
        "recorded layer l mod 1"
    )


def test_wrong_lines_are_named(tmp_path):
    good, rows = (
        line(0, 0, 0, [[0, 1], [2, 3]]),
        "top_indices in {} must be 2 rows (num_tokens) of 2 expert numbers (topk)",
    )
    for bad, sentence in (
        (good | {"num_tokens": 3}, "top_indices in {} must be 3 rows (num_tokens) of 2 expert"),
        (good | {"topk": 3}, "top_indices in {} must be 2 rows (num_tokens) of 3 expert"),
        *(
            (good | {"top_indices": wrong}, rows)
            for wrong in ([[0, 1], [2]], [[0, 1], [2, -1]], [[0, 1], [2, 0.5]], None)
        ),
        ({name: value for name, value in good.items() if name != "top_indices"}, rows),
        (good | {"step": -1}, "step in {} must be a whole number of at least 0 and below 2^31, got -1."),
        (good | {"layer": True}, "layer in {} must be a whole number of at least 0 and below 2^31, got True."),
        (good | {"rank": "0"}, "rank in {} must be a whole number of at least 0 and below 2^31, got '0'."),
        ({}, "step in {} must be a whole number of at least 0 and below 2^31, got None."),
        ([1, 2], "{} must be a JSON object, got '[1, 2]'."),
    ):
        file = write_lines(tmp_path / "run.jsonl", good, bad)
        assert unread(file).startswith(sentence.format(f"line 2 of router trace {file}"))
    write_lines(file, good, good)
    file.write_text(file.read_text()[:-20])
    assert unread(tmp_path).startswith(f"line 2 of router trace {file} must be a JSON object")
    assert "the file ends inside it" in unread(file)
    for text, why in (('{"step": 0, "step": 1}', "it says 'step' twice"), ("[" * 10**5, "it is nested too deeply")):
        file.write_text(text + "\n")
        assert unread(file) == f"line 1 of router trace {file} must be a JSON object, but {why}."
    file.write_text("{\n" + json.dumps(good) + "\n")
    assert "the file ends inside it" not in unread(file)


def test_ragged_router_traces_are_named(tmp_path):
    places = [(s, i, r) for s in (0, 1) for i in (0, 1) for r in (0, 1)]
    file = write_lines(tmp_path / "run.jsonl", *[line(*place, [[0]]) for place in places[:-1]])
    assert unread(file, layout=RankLayout(ep=2)) == (
        f"router trace {file} must have as many micro-batches of every step, layer and rank; step 1, layer 1, rank 1 "
        "has 0, another one 1."
    )
    write_lines(file, *[line(*place, [[0]]) for place in [*places, places[0]]])
    assert "step 0, layer 0, rank 1 has 1, another one 2" in unread(file, layout=RankLayout(ep=2))
    write_lines(file, line(0, 0, 0, [[0]], block="mtp"))
    assert unread(file).endswith("must have lines of block 'decoder' and stage 'pre_dispatch', got none.")
    file.write_bytes(b"\xff\xfe")
    assert "must be a readable text file, got UnicodeDecodeError" in unread(file)
