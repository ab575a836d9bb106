"""The row of a failure: both iterations, the published figure beside it, spares and the loss of a month."""

from typing import Any

import numpy as np

from mfabric_jax.failures._expected_loss import expected_loss
from mfabric_jax.failures.kinds import devices
from mfabric_jax.schedule import Iteration
from mfabric_jax.simulation.money import bill_of, usd_of_gpu
from mfabric_jax.simulation.rows import PARTS, job_columns
from mfabric_jax.simulation.scenario import Scenario

SPARED = ("gpu", "server")  # a spare server takes over
PUBLISHED_ON = "mfabric"
PUBLISHED = {  # (model, failure) -> slow-down at 400 Gbps and 1,024 GPUs, arXiv 2501.03905
    ("deepseek-r1", "electrical-nic"): 0.033,
    ("deepseek-r1", "optical-nic"): 0.033,
    ("mixtral-8x22b", "gpu"): 0.051,
    ("deepseek-r1", "server"): 0.065,
}


def row_of(config: Any, one: Scenario, kind: str, stage: int, before: Iteration, after: Iteration) -> dict:
    """The breakdown is that of the iterations that suffer; `healthy_...` that of the healthy run."""
    settings, job = one.settings, one.workload
    whole_s, hurt_s = before.iteration_s, after.iteration_s
    suffers = np.arange(len(whole_s)) >= config.at
    run = np.where(suffers, hurt_s, whole_s)
    parts = {f"healthy_{name}": float(np.mean(getattr(before, name))) for name in PARTS[1:]}
    parts |= {name: float(np.broadcast_to(getattr(after, name), suffers.shape)[suffers].mean()) for name in PARTS[1:]}
    slow_down = float((hurt_s[suffers] / whole_s[suffers]).mean() - 1)
    as_published = one.bandwidths[0] == 400 and job.gpus == 1024
    return {
        "model": job.model,
        "fabric": one.fabric.name,
        "failure": kind,
        "nic_gbps": one.bandwidths[0],
        "gpus": job.gpus,
        "policy": one.fabric.policy or settings.policy_name,
        "routing": one.fabric.routing or settings.routing,
        "nic_use": one.group.nic_use,
        "stage": stage,
        "server": config.server,
        "at": config.at,
        "iterations": len(whole_s),
        "healthy_s": float(whole_s.mean()),
        "failed_s": float(hurt_s[suffers].mean()),
        "slow_down": slow_down,
        "run_slow_down": float(run.sum() / whole_s.sum() - 1),
        **_expected(config, one, kind, run_s=float(whole_s.mean()), slow_down=slow_down),
        "published": PUBLISHED.get((job.known_as, kind)) if as_published and one.fabric.name == PUBLISHED_ON else None,
        **parts,
        **job_columns(settings, job),
        "dtype": settings.dtype,
    }


def _expected(config: Any, one: Scenario, kind: str, *, run_s: float, slow_down: float) -> dict[str, Any]:
    """What a spare costs, and what the failures of a month do."""
    job, bill = one.workload, bill_of(one.settings, one.fabric, one.workload, one.bandwidths[0])
    usd = {"spare_network_usd": bill.network_usd, "spare_usd": bill.cluster_usd}
    spare = {name: whole / job.servers if kind in SPARED and whole is not None else None for name, whole in usd.items()}
    spare["spare_part_usd"] = _part_usd(config, one, kind)
    there = devices(kind, one, config.radix, config.nvswitches_of(one.fabric))
    stop = config.checkpoint_interval_s, config.restart_s
    return spare | {"devices": there} | expected_loss(config.rate_of().get(kind), there, slow_down, run_s, *stop)


def _part_usd(config: Any, one: Scenario, kind: str) -> float | None:
    """What the part that fails costs new, alone; None where no price is known, and of whole servers."""
    prices, ocs = one.settings.parts.prices, one.settings.parts.ocs

    def at(part: str, count: float) -> float | None:
        each = prices.at(part, one.bandwidths[0])
        return None if each is None else count * each

    if kind == "optical-nic" and getattr(one.group, "own_ports", False):
        return None  # co-packaged
    if kind in ("electrical-nic", "optical-nic"):
        return at("nic", 1)
    if kind == "electrical-nics":
        return at("nic", float(one.group.electrical_nics))
    if kind == "link":
        return _sum(at("transceiver", 2), at("fibre", 1))
    if kind == "switch":
        return at("switch_port", config.radix)
    if kind == "gpu":
        return usd_of_gpu(one.settings)
    if kind == "optical-switch" and one.fabric.optical_regions is not None:
        ports, _ = one.fabric.optical_regions(one.fabric.form(one.settings, one.workload), one.workload)
        return _sum(at("ocs_port", ports), 0.0 if ocs is None else ocs.usd or 0.0)
    return None


def _sum(*dollars: float | None) -> float | None:
    return None if any(one is None for one in dollars) else sum(one for one in dollars if one is not None)
