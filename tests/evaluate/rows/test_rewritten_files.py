"""A file that is rewritten while a process runs is read again: every kind of file, of the same size and time."""

import importlib.resources
import json
import os

import numpy as np
import pytest

from mfabric_jax import policies
from mfabric_jax.case import Case
from mfabric_jax.case.paths import Leaf, file_settings, settings
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.evaluate.rows.costs import bill_of
from mfabric_jax.evaluate.solving import solve_efficiency
from mfabric_jax.fabric.graph import graph_text
from mfabric_jax.fabric.graph_file import GraphFile, load_graph
from mfabric_jax.fabric.graphs.made import GraphNumbers, make_graph
from mfabric_jax.policies.own import load_function
from mfabric_jax.support.text_files import HASHED, digest, stamp
from tests.small import model_file, scenario, small

HERE = {"gpu.name": "H100-SXM", "run.iterations": 1}


def price(usd):
    return f"[gpus.H100-SXM]\nusd = {usd}\n"


def kernels(share):
    """The package's rates of A100, with another usual share of its peak in products."""
    text = importlib.resources.files("mfabric_jax.workload").joinpath("kernels.toml").read_text(encoding="utf-8")
    assert text.count("bf16 = [0.72, 0.80, 0.868]") == 2
    return text.replace("bf16 = [0.72, 0.80, 0.868]", f"bf16 = [0.60, {share}, 0.868]")


def graph(radix):
    return graph_text(make_graph("leaf-spine", GraphNumbers(gpus=16, radix=radix)))


def placement(first):
    """One layer of 8 experts on 4 ranks, two of which change places."""
    return json.dumps({"physical_to_logical_map": [[*first, 2, 3, 4, 5, 6, 7]]})


def policy(name):
    call = f"def own(demand, region, **rest):\n    return {name}(demand, region)\n"
    return f"from mfabric_jax.policies import {name}\n\n\n{call}"


def cluster_usd(path):
    found = resolve(small(HERE | {"network.prices": str(path)}))
    return bill_of(found, found.job, 400.0).cluster_usd


def attention_s(path):
    found = resolve(small(HERE | {"gpu.name": "A100-80GB-SXM", "compute.kernels.table": str(path)}))
    return found.block_seconds(found.job).attention_s


def achieved(path):
    said = {"network.fabric": "fat-tree", "compute.measured.fabric": "fat-tree", "compute.measured.iteration_s": 10.0}
    return solve_efficiency(resolve(small(HERE | said | {"network.transport": str(path)})).case)


def longest_path(path):
    found = resolve(Case().with_({"network.fabric": "graph", "network.graph": str(path), "job.parallel.gpus": 16}))
    return found.fabric.paths(found.site).links


KINDS = {  # the name of a file, two contents, and what a public call says of it
    "prices": ("p.toml", price(20000), price(40000), cluster_usd),
    "GPU": (
        "gpu.toml",
        'like = "H100-SXM"\nwatts = 500\n',
        'like = "H100-SXM"\nwatts = 700\n',
        lambda path: resolve(small({"gpu.name": str(path)})).gpu.watts,
    ),
    "measured kernels": ("kernels.toml", kernels("0.70"), kernels("0.75"), attention_s),
    "transport": (
        "t.toml",
        "payload_bytes = 1024\nheader_bytes = 64\n",
        "payload_bytes = 4096\nheader_bytes = 64\n",
        achieved,
    ),
    "graph": ("graph.json", graph(8), graph(32), longest_path),
    "knobs": (
        "knobs.json",
        '{"skew": 0.1}',
        '{"skew": 0.9}',
        lambda path: scenario(small(HERE | {"traffic.knobs": str(path)})).tokens.count.max(),
    ),
    "placement": (
        "placement.json",
        placement([0, 1]),
        placement([1, 0]),
        lambda path: scenario(small(HERE | {"placement.file": str(path)})).tokens.slots.ravel().tolist(),
    ),
    "policy of one's own": (
        "mine.py",
        policy("uniform"),
        policy("greedy"),
        lambda path: policies.get(f"{path}:own").__globals__.keys() & {"uniform", "greedy"},
    ),
    "scheduler of one's own": (
        "mine.py",
        "def own(*_, **__):\n    return 1\n",
        "def own(*_, **__):\n    return 2\n",
        lambda path: load_function(f"{path}:own", "scheduler")(),
    ),
    "digest": ("any.txt", "one", "two", digest),
}


def rewrite(path, text):
    """The file with a text, of the size and time that it had."""
    seen = path.stat() if path.exists() else None
    path.write_text(text if seen is None else text.ljust(seen.st_size))
    if seen is not None:
        assert path.stat().st_size == seen.st_size
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def read_again(path, first, second, read):
    """What is read of the file is what it says, and once it says the first again, what it said then."""
    found = []
    for text in (first, second, first):
        rewrite(path, text)
        found.append(read(path))
    assert found[0] != found[1], found
    assert found[0] == found[2], found


@pytest.mark.parametrize("kind", KINDS)
def test_a_rewritten_file_is_read_again(kind, tmp_path):
    name, *rest = KINDS[kind]
    read_again(tmp_path / name, *rest)


def test_a_model_is_read_again(tmp_path):
    file = tmp_path / "own.toml"
    case = Case().with_({"model.name": str(file), "job.parallel.gpus": 8})
    for hidden in (64, 96, 64):
        model_file(file, hidden=hidden)
        assert resolve(case).job.architecture.hidden == hidden


def test_ranks_are_read_again(tmp_path):
    (tmp_path / "graph.json").write_text(graph(8))
    ranks = tmp_path / "ranks.json"
    given = {"network.fabric": "graph", "network.graph": str(tmp_path / "graph.json"), "job.parallel.gpus": 16}
    case = Case().with_(given | {"network.on-graph.ranks": str(ranks)})
    order = [*range(16)]
    found = []
    for some in (order, order[::-1], order):
        rewrite(ranks, json.dumps({"gpus": some}))
        found.append(load_graph(GraphFile.of(resolve(case).case.network)).nodes.tolist())
    assert found[0] == found[2] == found[1][::-1] != found[1]


@pytest.mark.parametrize("folder", [False, True])
def test_a_trace_is_read_again_from_its_file_and_from_its_folder(folder, tmp_path):
    file = tmp_path / "counts_layer_expert_iter_rank_mb.npy"
    (tmp_path / "iterations.txt").write_text("2011\n")
    case = small(HERE | {"traffic.trace.path": str(tmp_path if folder else file)})
    case = case if folder else case.with_({"traffic.trace.axes": "layer,expert,iteration,source,micro-batch"})
    most = []
    for busy in (1, 2, 1):
        count = np.ones((32, 8, 1, 8, 1), np.int64)
        count[:, 0] = busy
        np.save(file, count)
        tokens = scenario(case).tokens.count
        most.append(tokens.max() / tokens.mean())
    assert most[0] == most[2] != most[1]


def test_a_stamp_tells_content_from_content(tmp_path):
    small_file, folder = tmp_path / "small.txt", tmp_path / "folder"
    stamps = []
    for text in ("one", "two", "one"):
        rewrite(small_file, text)
        stamps.append(stamp(small_file))
    assert stamps[0] == stamps[2] != stamps[1]
    folder.mkdir()
    empty = stamp(folder)
    (folder / "a").write_text("x")
    one = stamp(folder)
    (folder / "a").write_text("yy")
    assert len({empty, one, stamp(folder)}) == 3
    large = tmp_path / "large"
    large.write_bytes(b"0" * (HASHED + 1))
    before = stamp(large)
    large.write_bytes(b"0" * (HASHED + 2))
    assert stamp(large) != before
    assert stamp(tmp_path / "nothing") == stamp("a\0b") == ()


def test_every_setting_whose_text_speaks_of_a_file_is_marked():
    spoken = {
        path for path, one in settings().items() if isinstance(one, Leaf) and ("file" in one.doc or ".py" in one.doc)
    }
    other = {"job.batch.sequence", "job.batch.micro_batch", "network.link_delay_s"}  # what a named file says
    assert spoken - other <= file_settings()
    assert {"serving.kernels", "serving.prefill.kernels", "serving.load.arrivals"} <= file_settings()
