"""Flow level against packet level: predict the completion of recorded runs and say how far off that is.

Prediction: the exact fluid completion of the run's flows. A link carries payload at line rate x payload / (payload +
header). A flow crosses its two host ports; in a leaf-spine also the pooled uplinks and downlinks of its ToRs; and where
the file tells the flow's path, every link of that path instead. Latency, acknowledgements and queues are not in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.flows import FlowProblem, Outcome, completion_times
from mfabric_jax.study.settings import DTYPES
from mfabric_jax.validation.packet_runs import MIB, PacketRun

GROUPS = ("spraying", "one-path", "unknown-path", "leaf-spine", "incast")
QUANTILES = (5, 25, 50, 75, 95)
LARGE = MIB  # smaller flows are bound by latency, which is not in the prediction
_FLOWS, _LINKS, _HOPS = 64, 256, 6  # shapes are multiples of these, so that few programs are compiled

_completion = eqx.filter_jit(completion_times)


@dataclass(frozen=True)
class Prediction:
    """When the flows of a run end [F] seconds, at flow level."""

    run: PacketRun
    finish: np.ndarray
    dtype: str

    @property
    def collective_s(self) -> float:
        """When the last flow ends."""
        return float(self.finish.max())

    @property
    def error(self) -> float:
        """Of the collective time: predicted / measured - 1."""
        return self.collective_s / self.run.collective_s - 1

    @property
    def large_flow_errors(self) -> np.ndarray:
        """Of the duration of every flow of at least 1 MiB: predicted / measured - 1."""
        run = self.run
        return ((self.finish - run.start) / (run.finish - run.start) - 1)[run.size >= LARGE]


def predict(run: PacketRun, dtype: str = "float64") -> Prediction:
    """The exact fluid completion of a run."""
    one_of("dtype", dtype, DTYPES)
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise InputError("dtype float64 needs jax.config.update('jax_enable_x64', True) before the first computation.")
    problem, flows = network(run, dtype), len(run.size)
    padding = (0, len(problem.weight) - flows)
    size, start = (jnp.asarray(np.pad(values, padding), dtype) for values in (run.size, run.start))
    end = _completion(problem, size, start)
    if end.outcome != Outcome.solved:
        raise InputError(f"{run.name} cannot be predicted: {Outcome[end.outcome]}")
    return Prediction(run, np.asarray(end.finish, np.float64)[:flows], dtype)


def network(run: PacketRun, dtype: str) -> FlowProblem:
    """The links that the flows of a run share, padded: links that nobody crosses, flows of weight 0."""
    crossed = [_links(run, flow) for flow in range(len(run.size))]
    parallel = {link: count for links in crossed for link, count in links.items()}
    index = {link: number for number, link in enumerate(parallel)}
    capacity = np.ones(_padded(len(index), _LINKS))
    capacity[: len(index)] = np.array([*parallel.values()]) * run.goodput_Bps
    hops = np.full((_padded(len(crossed), _FLOWS), _padded(max(map(len, crossed)), _HOPS)), -1, np.int32)
    for flow, links in enumerate(crossed):
        hops[flow, : len(links)] = [index[link] for link in links]
    return FlowProblem(jnp.asarray(capacity, dtype), hops, weight=np.arange(len(hops)) < len(crossed))


def _links(run: PacketRun, flow: int) -> dict[tuple, int]:
    """What a flow crosses: every directed link or pool of links, and how many parallel links it pools."""
    src, dst = run.src[flow], run.dst[flow]
    if run.paths is not None:
        return dict.fromkeys(pairwise((*run.paths[flow], f"DST{dst}")), 1)
    ports = {("from host", src): 1, ("to host", dst): 1}
    if run.leaves is None or src // run.leaves.hosts == dst // run.leaves.hosts:
        return ports
    spine = [("from ToR", src // run.leaves.hosts), ("to ToR", dst // run.leaves.hosts)]
    return ports | dict.fromkeys(spine, run.leaves.uplinks)


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def packet_rows(predictions: Iterable[Prediction]) -> list[dict[str, Any]]:
    """A row for every run, groups together: its facts, predicted and measured time, and how far off its flows are."""
    ordered = sorted(predictions, key=lambda p: (GROUPS.index(p.run.group), p.run.topology))
    return [_row(prediction) for prediction in ordered]


def _row(prediction: Prediction) -> dict[str, Any]:
    run, errors = prediction.run, prediction.large_flow_errors
    return {
        "run": run.name,
        "group": run.group,
        "topology": run.topology,
        "pattern": run.pattern,
        "transport": run.transport,
        "routing": run.routing,
        "paths_known": run.paths is not None,
        "link_gbps": float(units.to_gbps(run.link_Bps)),
        "payload_per_packet": run.payload,
        "header_per_packet": run.header,
        "flows": len(run.size),
        "mean_pair_mib": run.mean_pair_mib,
        "measured_s": run.collective_s,
        "predicted_s": prediction.collective_s,
        "error": prediction.error,
        "stated_fluid_s": run.stated_s,
        **_of_flows(errors),
        **{f"flow_error_q{q:02}": float(np.percentile(errors, q)) if errors.size else None for q in QUANTILES},
        "dtype": prediction.dtype,
    }


def _of_flows(errors: np.ndarray) -> dict[str, float | None]:
    """How many large flows there are; median and 90th percentile of the size of their errors, None without any."""
    median, p90 = np.percentile(np.abs(errors), (50, 90)).tolist() if errors.size else (None, None)
    return {"large_flows": len(errors), "flow_error_median": median, "flow_error_p90": p90}


def packet_groups(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """A line for every group that occurs: errors of the collective time over runs, of large flows over all their flows.

    `worst_run` is the run with the largest error; the other columns include it.
    """
    lines = []
    for group in GROUPS:
        members = [p for p in predictions if p.run.group == group]
        if members:
            worst = max(members, key=lambda p: abs(p.error))
            line = {
                "group": group,
                "runs": len(members),
                "error_median": float(np.median([abs(p.error) for p in members])),
                "worst_error": worst.error,
                "worst_pattern": worst.run.pattern,
                "worst_transport": worst.run.transport,
            }
            lines.append(line | _of_flows(np.concatenate([p.large_flow_errors for p in members])))
    return lines
