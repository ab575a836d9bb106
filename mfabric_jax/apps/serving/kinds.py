"""Two kinds of GPUs: prefill on GPUs or NICs that differ from those that decode.

Prompts need FLOPs and answers need memory bandwidth, so an operator may buy different GPUs for them. The two pools then
differ in GPU, NICs, memory and price. They share the model, its formats and the kind of fabric.
"""

from typing import Any

from msgspec.structs import replace

from mfabric_jax.case import Case
from mfabric_jax.case.job import GpuSettings


def prefill_case(case: Case) -> Case:
    """Return the case of the GPUs that prefill: with the GPU and the NICs of `serving.prefill`, if stated.

    Other settings of `gpu` describe the GPU that decodes; a different GPU that prefills is as on its data sheet.
    """
    gpu, nic_gbps = case.serving.prefill.gpu, case.serving.prefill.nic_gbps
    if gpu is not None and gpu != case.gpu.name:
        case = replace(case, gpu=GpuSettings(name=gpu))
    return case if nic_gbps is None else replace(case, network=replace(case.network, nic_gbps=nic_gbps))


def relative_price(decode: Any, prefill: Any) -> float:
    """Return what a GPU of the pool `prefill` costs a second over one of the pool `decode`.

    It is 1 where GPUs are counted.
    """
    return 1.0 if are_counted(decode, prefill) else prefill.least_usd / decode.least_usd


def are_counted(decode: Any, prefill: Any) -> bool:
    """Return whether the GPUs of two pools count alike: they have equal GPUs and NICs, whatever the sizes of their
    groups, or no prices."""
    kinds = [(pool.group.gpu, pool.nic_gbps) for pool in (decode, prefill)]
    return kinds[0] == kinds[1] or None in (decode.least_usd, prefill.least_usd)
