"""GPUs to compile for without one: public figures in the form that XLA's compiler reads."""

from typing import Any

_FORM = """
gpu_device_info {{
  threads_per_block_limit: 1024  threads_per_warp: 32
  shared_memory_per_block: 49152  shared_memory_per_core: {shared_core}  shared_memory_per_block_optin: {shared_block}
  threads_per_core_limit: 2048  core_count: {processors}  fpus_per_core: {lanes}
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: {memory_Bps}  l2_cache_size: {l2}  clock_rate_ghz: {clock_ghz}
  device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} }}
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  device_vendor: "NVIDIA Corporation"  name: "{name}"
  driver_version: "12.9.0"  runtime_version: "12.9.0"  compile_time_toolkit_version: "12.9.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{name}"
"""
# NVIDIA H100 and A100 data sheets and architecture white papers.
FIGURES: dict[str, dict[str, Any]] = {
    "H100": {
        "name": "NVIDIA H100 80GB HBM3",
        "major": 9,
        "processors": 132,
        "lanes": 128,
        "clock_ghz": 1.98,
        "memory_Bps": 3352320000000,
        "memory": 84942979072,
        "l2": 52428800,
        "shared_core": 233472,
        "shared_block": 232448,
    },
    "A100": {
        "name": "NVIDIA A100-SXM4-80GB",
        "major": 8,
        "processors": 108,
        "lanes": 64,
        "clock_ghz": 1.41,
        "memory_Bps": 2039000000000,
        "memory": 84987740160,
        "l2": 41943040,
        "shared_core": 167936,
        "shared_block": 166912,
    },
}
ARCHITECTURE = {"H100": "sm_90a", "A100": "sm_80"}


def device(name: str) -> Any:
    """A device that programs can be compiled for, and that is not there."""
    from jax.experimental import topologies

    text = _FORM.format(**FIGURES[name])
    return topologies.get_topology_desc(platform="cuda", target_config=text, topology="1x1x1").devices[0]
