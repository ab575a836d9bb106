"""The catalogue of GPUs, against data sheets, and GPUs of files."""

import json
import pathlib
import re

import numpy as np
import pytest

from mfabric_jax.workload import Gpu, block_seconds, get, get_gpu
from mfabric_jax.workload.gpus import GPUS

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "gpus.md").read_text(encoding="utf-8")
OWN = """
name = "own"
bf16_tflops = 500
nvlink_gigabytes_per_s = 100
memory_gigabytes = 96
gpus_per_server = 4
scale_up_gpus = 16
nics = 2
watts = 650
"""


def test_rates_are_those_of_the_data_sheets(shared_data):
    for name, fact in json.loads((shared_data / "hardware.json").read_text())["gpus"].items():
        gpu = get_gpu(name)
        assert gpu.bf16_flops == pytest.approx(fact["bf16_dense_tflops"] * 1e12)
        assert gpu.nvlink == pytest.approx(fact["nvlink_per_direction_GBps"] * 1e9)


def test_the_catalogue_is_whole():
    """Each fact is known, fp8 is twice bf16 where there is any, servers hold 8 with a NIC each."""
    assert {"H20-SXM", "B300-HGX", "GB300-NVL72", "MI300X", "MI355X"} <= set(GPUS)
    for name, gpu in GPUS.items():
        assert gpu.name == name
        assert gpu.source
        assert None not in (gpu.memory_bytes, gpu.memory_Bps, gpu.watts)
        assert (gpu.gpus_per_server, gpu.scale_up_gpus, gpu.nics) == (8, None, None)
        assert gpu.fp8_flops is None or gpu.fp8_flops == pytest.approx(2 * gpu.bf16_flops, rel=1e-3)
    # 2 x 4096 FLOPs of bf16 a clock and matrix core unit: 304 compute units at 2.1 GHz, 256 at 2.4 GHz.
    assert GPUS["MI300X"].bf16_flops == pytest.approx(304 * 2048 * 2.1e9, rel=1e-3)
    assert GPUS["MI355X"].bf16_flops == pytest.approx(256 * 4096 * 2.4e9, rel=1e-3)
    assert GPUS["H200-SXM"].memory_bytes == 141e9


def test_a_file_is_a_gpu(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(OWN)
    gpu = get_gpu(file)
    known = {"memory_bytes": 96e9, "gpus_per_server": 4, "scale_up_gpus": 16, "nics": 2, "watts": 650.0}
    assert gpu == Gpu("own", 500e12, 100e9, "as given in mine.toml", **known)
    assert get_gpu(gpu) is gpu
    like = tmp_path / "like.json"
    like.write_text(json.dumps({"like": "H100-SXM", "gpus_per_server": 4}))
    gpu, h100 = get_gpu(str(like)), get_gpu("H100-SXM")
    assert (gpu.name, gpu.gpus_per_server, gpu.fp8_flops) == ("like", 4, h100.fp8_flops)


def test_computing_in_fp8_takes_the_other_peak():
    job = get("mixtral-8x7b")
    half = np.asarray(block_seconds(job, get_gpu("MI300X"))[:4]) / 2
    np.testing.assert_allclose(block_seconds(job, get_gpu("MI300X"), precision="fp8")[:4], half, rtol=1e-4)


def test_the_page_lists_the_catalogue():
    rows = re.findall(r"^\| `([\w-]+)` \| (\S+), (\S+) \| (\S+), (\S+) \| (\S+) \| (\S+) \|", PAGE, re.M)
    listed = {name: tuple(None if x == "-" else float(x.replace(",", "")) for x in rest) for name, *rest in rows}
    assert list(listed) == list(GPUS)
    for name, gpu in GPUS.items():
        tera, giga = (gpu.bf16_flops, gpu.fp8_flops), (gpu.memory_bytes, gpu.memory_Bps, gpu.nvlink)
        scaled = [x and x / 1e12 for x in tera] + [x and x / 1e9 for x in giga] + [gpu.watts]
        assert listed[name] == tuple(x and pytest.approx(x) for x in scaled), name
