"""Recordings: the five-axis array, the gate trace, and everything that can be wrong with a file."""

import io
import json
import lzma

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.traffic import recorded
from mfabric_jax.workload import get

from .jobs import job

TWO_RANKS = job(ep=2, experts=2)  # 2 layers, 16 selections a row


def some_counts(shape=(3, 2, 2, 2, 4)):
    return np.random.default_rng(0).integers(1, 9, shape)


def write_gate_trace(folder, counts, numbers, packed):
    """`counts` [layer expert iteration rank micro_batch]."""
    buffer = io.BytesIO()
    np.save(buffer, counts)
    name = "counts_layer_expert_iter_rank_mb.npy"
    if packed:
        (folder / f"{name}.xz").write_bytes(lzma.compress(buffer.getvalue()))
    else:
        (folder / name).write_bytes(buffer.getvalue())
    (folder / "iterations.txt").write_text("\n".join(map(str, numbers)) + "\n")


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_an_array_is_folded_and_scaled(tmp_path, suffix):
    counts, path = some_counts(), tmp_path / f"run.{suffix}"
    np.save(path, counts) if suffix == "npy" else np.savez(path, tokens=counts)
    got = recorded(path, TWO_RANKS).count
    assert got.shape == (3, 2, 2, 2, 2)
    for index in np.ndindex(3, 2, 2, 2):
        row = [int(c) for c in counts[index]]
        expected = [(row[0] + row[1]) * 16 / sum(row), (row[2] + row[3]) * 16 / sum(row)]
        np.testing.assert_allclose(got[index], expected)


def test_iterations_read_the_records_cyclically_and_layers_the_recorded_ones(tmp_path):
    np.save(tmp_path / "run.npy", some_counts())
    everything = recorded(tmp_path / "run.npy", TWO_RANKS).count
    got = recorded(tmp_path / "run.npy", job(ep=2, experts=2, layers=5), records=(1, 2), iterations=5).count
    for iteration, record in enumerate([1, 2, 1, 2, 1]):
        for layer, recorded_layer in enumerate([0, 1, 0, 1, 0]):
            np.testing.assert_array_equal(got[iteration, layer], everything[record, recorded_layer])
    fewer = recorded(tmp_path / "run.npy", job(ep=2, experts=2, layers=1), records=(1, 9), iterations=1)
    np.testing.assert_array_equal(fewer.count, everything[1:2, :1])
    assert fewer.source.endswith("records 1 to 1, the first 1 of 2 layers")


@pytest.mark.parametrize("packed", [True, False])
def test_gate_trace_axes_and_record_numbers(tmp_path, packed):
    counts = some_counts((2, 4, 3, 2, 2)).astype(np.int16)
    write_gate_trace(tmp_path, counts, [1, 11, 21], packed)
    got = recorded(tmp_path, TWO_RANKS, records=(5, 21)).count
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
    tokens = recorded(folder, get("qwen-moe-ep16"))
    assert tokens.count.shape == (300, 24, 4, 16, 32)  # iterations 2011, 2021, ..., 5001
    np.testing.assert_allclose(tokens.count.sum(axis=-1), 4 * 8 * 4096)
    # 4096 selections a row in the trace, 131072 in the model. Iteration 1 + 10 k is record k: 2011 is 201.
    np.testing.assert_allclose(tokens.count[0], counts[:, :, 201].transpose(0, 3, 2, 1) * 32.0)
    np.testing.assert_allclose(tokens.count[299], counts[:, :, 500].transpose(0, 3, 2, 1) * 32.0)
    published = json.loads((shared_data / "trace_statistics.json").read_text())["smartmoe_gate_trace"]
    load = np.quantile(tokens.rank_load_over_mean(16), [0.1, 0.5, 0.9])
    np.testing.assert_allclose(load, published["iter_2011_5001"]["EP16_dst_rank_max_over_mean"], rtol=2e-3)


def test_llama_adds_experts_2k_and_2k_plus_1_and_wraps_the_layers(gate_trace):
    folder, counts = gate_trace
    got = recorded(folder, get("llama-moe"), records=(11, 21), iterations=3).count
    assert got.shape == (3, 32, 4, 16, 16)
    for iteration, record in enumerate([1, 2, 1]):
        for layer in (0, 23, 24, 31):
            for expert in (0, 7, 15):
                both = counts[layer % 24, [2 * expert, 2 * expert + 1], record].sum(axis=0, dtype=int)  # [rank batch]
                np.testing.assert_allclose(got[iteration, layer, :, :, expert], both.T * 16.0)


def test_neighbouring_source_ranks_are_added_up(tmp_path):
    counts = np.arange(1.0, 17).reshape(1, 1, 1, 4, 4)
    np.savez(tmp_path / "run.npz", tokens=counts)
    found = recorded(tmp_path / "run.npz", TWO_RANKS)
    together = counts[0, 0, 0].reshape(2, 2, 2, 2).sum(axis=(1, 3))  # two ranks, two experts
    want = together / together.sum(axis=1, keepdims=True)
    got = found.count[0, 0, 0]
    np.testing.assert_allclose(got / got.sum(axis=1, keepdims=True), want)
    assert found.source.endswith("2 neighbouring source ranks added up, layer l reads recorded layer l mod 1")


def test_source_ranks_must_fit_the_model(gate_trace):
    with pytest.raises(InputError, match=r"ep of the workload must divide the 16 source ranks of .*, got 32"):
        recorded(gate_trace[0], get("qwen-moe"))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"counts": np.ones(3)}, "must have the key 'tokens', got counts"),
        ({"tokens": np.ones((3, 2))}, r"must have the axes .* got shape \(3, 2\)"),
        ({"tokens": -some_counts()}, "finite and not negative"),
        ({"tokens": np.full((1, 1, 1, 2, 4), np.nan)}, "finite and not negative, got nan"),
        ({"tokens": np.ones((1, 1, 1, 3, 4))}, "must divide the 3 source ranks of .*, got 2"),
        ({"tokens": np.ones((1, 1, 1, 2, 5))}, "must hold a multiple of the 2 experts of .*, got 5"),
        ({"tokens": np.array([[[[[None]]]]])}, "must be a readable NumPy file, but it holds Python objects; save"),
        ({"tokens": np.full((1, 1, 1, 2, 4), "x")}, "integers or reals"),
    ],
)
def test_wrong_arrays_are_named(tmp_path, arrays, words):
    np.savez(tmp_path / "run.npz", **arrays)
    with pytest.raises(InputError, match=words) as caught:
        recorded(tmp_path / "run.npz", TWO_RANKS)
    assert "\n" not in str(caught.value)


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"must be an existing file or folder, got .*run\.csv; formats: \.npy or"):
        recorded(tmp_path / "run.csv", TWO_RANKS)
    with pytest.raises(InputError, match=r"must be an existing file or folder, got .*run\.npy"):
        recorded(tmp_path / "run.npy", TWO_RANKS)
    with pytest.raises(InputError, match=r"trace folder must hold .* and iterations\.txt"):
        recorded(tmp_path, TWO_RANKS)
    for name in ("run.npy", "run.npz"):
        (tmp_path / name).write_text("not an array")
        with pytest.raises(InputError, match="must be a readable NumPy file"):
            recorded(tmp_path / name, TWO_RANKS)


def test_wrong_gate_traces_are_named(tmp_path):
    write_gate_trace(tmp_path, some_counts((2, 4, 3, 2, 2)), [1, 11], packed=False)
    with pytest.raises(InputError, match=r"2 iterations, as iterations\.txt says, got shape \(2, 4, 3, 2, 2\)"):
        recorded(tmp_path, TWO_RANKS)
    (tmp_path / "iterations.txt").write_text("1 11 last")
    with pytest.raises(InputError, match="one whole number per record"):
        recorded(tmp_path, TWO_RANKS)
    (tmp_path / "counts_layer_expert_iter_rank_mb.npy").unlink()
    (tmp_path / "counts_layer_expert_iter_rank_mb.npy.xz").write_bytes(b"torn")
    with pytest.raises(InputError, match="must be a readable NumPy file, but it is cut off or of another kind"):
        recorded(tmp_path, TWO_RANKS)


def test_an_empty_range_of_records_is_named(tmp_path):
    write_gate_trace(tmp_path, some_counts((2, 4, 3, 2, 2)), [1, 11, 21], packed=True)
    with pytest.raises(InputError, match=r"records must overlap what .* holds, 1 to 21, got 2011 to 5001"):
        recorded(tmp_path, TWO_RANKS)
    with pytest.raises(InputError, match=r"records must be a pair \(first, last\), got \(1,\)"):
        recorded(tmp_path, TWO_RANKS, records=(1,))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="iterations must be a whole number of at least 1, got 0"):
        recorded(tmp_path, TWO_RANKS, records=(1, 11), iterations=0)


def test_a_recording_of_zeros_is_refused_and_gaps_are_named(tmp_path):
    counts = np.ones((2, 2, 1, 4, 4))
    counts[1] = 0
    np.save(tmp_path / "run.npy", counts)
    four = job(ep=4, experts=4, layers=2)
    assert recorded(tmp_path / "run.npy", four).source.endswith("records 0 to 1, 2 of 4 all-to-alls without tokens")
    assert recorded(tmp_path / "run.npy", four, (0, 0)).source.endswith("records 0 to 0")
    with pytest.raises(InputError, match=r"tokens of .*run\.npy must not all be 0, got no others in records 1 to 1\."):
        recorded(tmp_path / "run.npy", four, (1, 1))


def test_layers_that_are_not_read_hide_no_gap(tmp_path):
    counts = np.ones((1, 3, 1, 4, 4))
    counts[:, 2] = 0
    np.save(tmp_path / "run.npy", counts)
    read = recorded(tmp_path / "run.npy", job(ep=4, experts=4, layers=2))
    assert read.source.endswith("records 0 to 0, the first 2 of 3 layers")
    np.save(tmp_path / "run.npy", counts[:, ::-1] * np.asarray([0, 0, 1])[:, None, None, None])
    with pytest.raises(InputError, match="must not all be 0"):
        recorded(tmp_path / "run.npy", job(ep=4, experts=4, layers=2))


def test_axes_that_look_swapped_are_named(tmp_path):
    to_experts = np.array([[8, 4, 2, 2]] * 4) + np.eye(4, dtype=int)  # every rank sends as much
    swapped = "experts receive alike and source ranks do not send alike: are these two axes swapped?"
    for counts, said in ((to_experts, False), (to_experts.T, True), (np.ones((4, 4)), False)):
        np.save(tmp_path / "run.npy", counts[None, None, None])
        assert recorded(tmp_path / "run.npy", job(ep=4, experts=4, layers=1)).source.endswith(swapped) == said
