"""Tokens, and recordings fitted to a workload: five-axis arrays, the gate trace, and what does not fit."""

import dataclasses
import io
import json
import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from mfabric_jax.traffic import Tokens, open_trace, recorded_tokens
from mfabric_jax.workload import get

from .jobs import job, unread

TWO_RANKS = job(ep=2, experts=2)  # 2 layers, 16 selections a row


# ------------------------------------------------------------------------------------------------------------- tokens
def tokens(rows):
    """[source, expert] as one iteration, layer and micro-batch."""
    return Tokens(np.asarray(rows)[None, None, None], "test")


def test_tokens_are_folded_and_scaled():
    six = tokens([[1, 2, 3, 4, 5, 6]])
    np.testing.assert_array_equal(six.fold_experts(2).count[0, 0, 0], [[6, 15]])
    np.testing.assert_array_equal(six.fold_experts(3).count[0, 0, 0], [[3, 7, 11]])
    assert tokens(np.array([[100, 100]], np.int8)).fold_experts(1).count.max() == 200
    scaled = tokens([[1, 3], [0, 0], [2, 2]]).scale_to(job(ep=2, experts=2, top_k=2))
    np.testing.assert_allclose(scaled.count[0, 0, 0], [[8, 24], [0, 0], [16, 16]])
    # Two ranks of two experts: rank 0 receives 1+2+5+0 = 8, rank 1 receives 3+0+0+1 = 4; mean 6.
    np.testing.assert_allclose(tokens([[1, 2, 3, 0], [5, 0, 0, 1]]).rank_load_over_mean(2), [[[8 / 6]]])
    np.testing.assert_allclose(tokens([[0, 0, 0, 0]]).rank_load_over_mean(2), [[[1]]])


@given(count=nps.arrays(np.int64, (2, 1, 2, 3, 4), elements=st.integers(0, 50)))
def test_load_is_between_balanced_and_all_on_one(count):
    load = Tokens(count, "drawn").rank_load_over_mean(4)
    assert np.all((load >= 1 - 1e-12) & (load <= 4 + 1e-12))
    np.testing.assert_array_equal(Tokens(count, "drawn").rank_load_over_mean(1), 1)


# -------------------------------------------------------------------------------------------------------------- fitted
def some_counts(shape=(3, 2, 2, 2, 4)):
    return np.random.default_rng(0).integers(1, 9, shape)


def write_gate_trace(folder, counts, numbers, packed):
    """`counts` [layer expert iteration rank micro_batch]."""
    buffer = io.BytesIO()
    np.save(buffer, counts)
    data, suffix = (lzma.compress(buffer.getvalue()), ".xz") if packed else (buffer.getvalue(), "")
    (folder / f"counts_layer_expert_iter_rank_mb.npy{suffix}").write_bytes(data)
    (folder / "iterations.txt").write_text("\n".join(map(str, numbers)) + "\n")


def test_an_array_is_folded_and_scaled(tmp_path):
    counts = some_counts()
    np.save(tmp_path / "run.npy", counts)
    np.savez(tmp_path / "run.npz", tokens=counts)
    expected = counts.reshape(3, 2, 2, 2, 2, 2).sum(axis=-1) * 16 / counts.sum(axis=-1, keepdims=True)
    for name in ("run.npy", "run.npz"):
        np.testing.assert_allclose(recorded_tokens(TWO_RANKS, tmp_path / name).count, expected)


def test_iterations_read_the_records_cyclically_and_layers_the_recorded_ones(tmp_path):
    np.save(tmp_path / "run.npy", some_counts())
    everything = recorded_tokens(TWO_RANKS, tmp_path / "run.npy").count
    got = recorded_tokens(job(ep=2, experts=2, layers=5), tmp_path / "run.npy", records=(1, 2), iterations=5)
    np.testing.assert_array_equal(got.count, everything[[1, 2, 1, 2, 1]][:, [0, 1, 0, 1, 0]])
    assert got.source.endswith(
        "records 1 to 2, 2 neighbouring experts added up, read cyclically for 5 iterations, "
        "layer l reads recorded layer l mod 2"
    )
    fewer = recorded_tokens(job(ep=2, experts=2, layers=1), tmp_path / "run.npy", records=(1, 9), iterations=1)
    np.testing.assert_array_equal(fewer.count, everything[1:2, :1])
    assert fewer.source.endswith("records 1 to 1, 2 neighbouring experts added up, the first 1 of 2 layers")


def test_a_dump_of_all_blocks_is_read_where_they_have_experts(tmp_path):
    counts = some_counts()
    np.save(tmp_path / "run.npy", np.concatenate([0 * counts[:, :1], counts], axis=1))
    mixed = job(ep=2, experts=2, layers=3)
    mixed = dataclasses.replace(
        mixed, architecture=dataclasses.replace(mixed.architecture, dense_blocks=1, dense_hidden=8)
    )
    got = recorded_tokens(mixed, tmp_path / "run.npy")
    np.save(tmp_path / "some.npy", counts)
    np.testing.assert_array_equal(got.count, recorded_tokens(TWO_RANKS, tmp_path / "some.npy").count)
    assert got.source.endswith("blocks with experts, 2 of 3 layers")


def test_gate_trace_axes_and_record_numbers(tmp_path):
    counts = some_counts((2, 4, 3, 2, 2)).astype(np.int16)
    for packed in (True, False):
        (tmp_path / str(packed)).mkdir()
        write_gate_trace(tmp_path / str(packed), counts, [1, 11, 21], packed)
        got = recorded_tokens(TWO_RANKS, tmp_path / str(packed), records=(5, 21)).count
        assert got.shape == (2, 2, 2, 2, 2)
        for record, layer, batch, rank in np.ndindex(2, 2, 2, 2):
            row = [int(counts[layer, expert, record + 1, rank, batch]) for expert in range(4)]
            expected = [sum(row[:2]) * 16 / sum(row), sum(row[2:]) * 16 / sum(row)]
            np.testing.assert_allclose(got[record, layer, batch, rank], expected)


@pytest.fixture(scope="module")
def gate_trace(shared_data):
    folder = shared_data / "smartmoe_gate_trace"
    with lzma.open(folder / "counts_layer_expert_iter_rank_mb.npy.xz") as opened:
        return folder, np.load(io.BytesIO(opened.read()))


def test_steady_records_of_the_real_trace(gate_trace, shared_data):
    folder, counts = gate_trace
    found = recorded_tokens(get("qwen-moe-ep16"), folder)
    assert found.count.shape == (300, 24, 4, 16, 32)  # iterations 2011, 2021, ..., 5001
    np.testing.assert_allclose(found.count.sum(axis=-1), 4 * 8 * 4096)
    # 4096 selections a row in the trace, 131072 in the model. Iteration 1 + 10 k is record k: 2011 is 201.
    np.testing.assert_allclose(found.count[0], counts[:, :, 201].transpose(0, 3, 2, 1) * 32.0)
    np.testing.assert_allclose(found.count[299], counts[:, :, 500].transpose(0, 3, 2, 1) * 32.0)
    published = json.loads((shared_data / "trace_statistics.json").read_text())["smartmoe_gate_trace"]
    load = np.quantile(found.rank_load_over_mean(16), [0.1, 0.5, 0.9])
    np.testing.assert_allclose(load, published["iter_2011_5001"]["EP16_dst_rank_max_over_mean"], rtol=2e-3)


def test_llama_adds_experts_2k_and_2k_plus_1_and_wraps_the_layers(gate_trace):
    folder, counts = gate_trace
    got = recorded_tokens(get("llama-moe"), folder, records=(11, 21), iterations=3).count
    assert got.shape == (3, 32, 4, 16, 16)
    for iteration, record in enumerate([1, 2, 1]):
        for layer in (0, 23, 24, 31):
            for expert in (0, 7, 15):
                both = counts[layer % 24, [2 * expert, 2 * expert + 1], record].sum(axis=0, dtype=int)  # [rank batch]
                np.testing.assert_allclose(got[iteration, layer, :, :, expert], both.T * 16.0)


def test_neighbouring_source_ranks_are_added_up(tmp_path):
    counts = np.arange(1.0, 17).reshape(1, 1, 1, 4, 4)
    np.savez(tmp_path / "run.npz", tokens=counts)
    found = recorded_tokens(TWO_RANKS, tmp_path / "run.npz")
    together = counts[0, 0, 0].reshape(2, 2, 2, 2).sum(axis=(1, 3))  # two ranks, two experts
    np.testing.assert_allclose(found.count[0, 0, 0], 16 * together / together.sum(axis=1, keepdims=True))
    assert found.source.endswith(
        "2 neighbouring source ranks added up, 2 neighbouring experts added up, layer l reads recorded layer l mod 1"
    )


def test_gaps_are_named_and_zeros_refused(tmp_path):
    counts, file, four = np.ones((2, 2, 1, 4, 4)), tmp_path / "run.npy", job(ep=4, experts=4, layers=2)
    counts[1] = 0
    np.save(file, counts)
    assert recorded_tokens(four, file).source.endswith("records 0 to 1, 2 of 4 all-to-alls without tokens")
    assert recorded_tokens(four, file, (0, 0)).source.endswith("records 0 to 0")
    assert "must not all be 0, got only zeros in records 1 to 1." in unread(file, four, records=(1, 1))
    counts = np.ones((1, 3, 1, 4, 4))
    counts[:, 2] = 0
    np.save(file, counts)
    assert recorded_tokens(four, file).source.endswith("records 0 to 0, the first 2 of 3 layers")
    np.save(file, counts[:, ::-1] * np.asarray([0, 0, 1])[:, None, None, None])  # only in a layer that is not read
    assert "must not all be 0, got only zeros in records 0 to 0." in unread(file, four)


def test_axes_that_look_swapped_are_named(tmp_path):
    to_experts = np.array([[8, 4, 2, 2]] * 4) + np.eye(4, dtype=int)  # every rank sends as much
    swapped = "experts receive equally but source ranks send unequally: are these two axes swapped?"
    for counts, said in ((to_experts, False), (to_experts.T, True), (np.ones((4, 4)), False)):
        np.save(tmp_path / "run.npy", counts[None, None, None])
        assert recorded_tokens(job(ep=4, experts=4, layers=1), tmp_path / "run.npy").source.endswith(swapped) == said


def test_a_recording_is_taken_as_its_file_is(tmp_path):
    path = tmp_path / "run.npy"
    np.save(path, np.random.default_rng(0).integers(1, 9, (3, 2, 1, 2, 4)))
    (opened,) = open_trace(path)
    for options in ({}, {"records": (1, 2)}, {"iterations": 2}):
        got, want = (recorded_tokens(TWO_RANKS, trace, **options) for trace in (opened, path))
        np.testing.assert_array_equal(got.count, want.count)
        assert got.source == want.source
