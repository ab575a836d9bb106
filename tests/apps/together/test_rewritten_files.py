"""A file of an app that is rewritten while a process runs is read again, as those of a case are."""

import json

import pytest

from mfabric_jax.apps.failures.failure_rows import read_rates
from mfabric_jax.apps.graphs.replay import replays
from mfabric_jax.apps.serving.arrivals import read_arrivals
from mfabric_jax.apps.serving.rows import cached_deployment
from mfabric_jax.case import Case
from mfabric_jax.evaluate.resolving.resolve import hardware_of
from tests.evaluate.rows.test_rewritten_files import price, read_again

SERVED = {"gpu.name": "H100-SXM", "network.fabric": "fat-tree", "serving.ep": 8}


def family(alpha_us):
    """Kernels of one's own that serve, with a start-up of so many microseconds."""
    part = f"alpha_us = {alpha_us}\nnic = 0.9\nnvlink = 0.8\n"
    return f'copies = "expert"\n[dispatch]\n{part}[combine]\n{part}'


def task(size):
    tasks = [{"kind": "send", "rank": 0, "peer": 1, "bytes": size}, {"kind": "recv", "rank": 1, "peer": 0}]
    return json.dumps({"format": "mfabric tasks", "version": 1, "ranks": 2, "tasks": tasks})


def served_usd(path):
    case = Case().with_(SERVED | {"network.prices": str(path)})
    return cached_deployment(case).decode.per_gpu(1)[0], hardware_of(case, 1).parts.gpus["H100-SXM"].usd


KINDS = {  # the name of a file, two contents, and what a public call says of it
    "prices of serving": ("p.toml", price(20000), price(40000), served_usd),
    "kernels that serve": (
        "kernels.toml",
        family(6),
        family(9),
        lambda path: (
            cached_deployment(Case().with_(SERVED | {"serving.kernels": str(path)})).decode.family.dispatch.alpha_s
        ),
    ),
    "rates of failures": (
        "rates.toml",
        "gpu = { mtbf_hours = 1000 }\n",
        "gpu = { mtbf_hours = 2000 }\n",
        lambda path: read_rates(str(path))["gpu"].per_hour,
    ),
    "log of requests": (
        "log.csv",
        "Timestamp,Request tokens,Response tokens\n0.0,1500,200\n",
        "Timestamp,Request tokens,Response tokens\n0.0,2500,200\n",
        lambda path: read_arrivals(path, 10).prompt.tolist(),
    ),
    "graph of tasks": ("tasks.json", task(1000), task(2000), lambda path: replays._read(str(path)).bytes.max()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_rewritten_file_is_read_again(kind, tmp_path):
    name, *rest = KINDS[kind]
    read_again(tmp_path / name, *rest)
