"""Megatron's router trace: global ranks of every degree of parallelism, micro-batches, and mistakes in a line."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from mfabric_jax.traffic import open_trace, recorded
from mfabric_jax.workload import RankLayout
from tests.mistakes import refused

from .jobs import job, line, unread, write_lines

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
