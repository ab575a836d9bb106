"""Flow level against packet level: predict the completion of recorded runs and say how far off that is.

Prediction: the exact fluid completion of the run's flows. A link carries payload at line rate x payload / (payload +
header). A flow crosses its two host ports; in a leaf-spine also the pooled uplinks and downlinks of its ToRs; and where
the file tells the flow's path, every link of that path instead. Latency, acknowledgements and queues are not in it.

Beside it stands the same corrected by what the run's transport takes and adds (`stepwise`): only queues are left
out of that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric.transport import NONE, TRANSPORTS, Transport, get_transport
from mfabric_jax.flows import FlowProblem, Outcome, completion_times
from mfabric_jax.simulation.scenario import DTYPES
from mfabric_jax.validation.packet_runs import MIB, PacketRun
from mfabric_jax.validation.stepwise import RateHistory, corrected, rate_history

GROUPS = ("spraying", "one-path", "unknown-path", "leaf-spine", "incast")
NAMED = "named"  # the transport that a run names; none where that is no transport of ours
QUANTILES = (5, 25, 50, 75, 95)
LARGE = MIB  # smaller flows are bound by latency, which is not in the prediction
_FLOWS, _LINKS, _HOPS = 64, 256, 6  # shapes are multiples of these, so that few programs are compiled

_completion = eqx.filter_jit(completion_times)


@dataclass(frozen=True)
class Prediction:
    """When the flows of a run end [F] seconds, at flow level: plain fluid, and `corrected` by a transport."""

    run: PacketRun
    finish: np.ndarray
    corrected: np.ndarray
    transport: Transport
    dtype: str

    @property
    def collective_s(self) -> float:
        """When the last flow ends."""
        return float(self.finish.max())

    @property
    def corrected_s(self) -> float:
        """When the last flow ends, its transport counted."""
        return float(self.corrected.max())

    @property
    def error(self) -> float:
        """Of the collective time: predicted / measured - 1."""
        return self.collective_s / self.run.collective_s - 1

    @property
    def corrected_error(self) -> float:
        """Of the collective time: corrected / measured - 1."""
        return self.corrected_s / self.run.collective_s - 1

    @property
    def large_flow_errors(self) -> np.ndarray:
        """Of the duration of every flow of at least 1 MiB: predicted / measured - 1."""
        return _large_flow_errors(self.run, self.finish)

    @property
    def corrected_flow_errors(self) -> np.ndarray:
        """Of the duration of every flow of at least 1 MiB: corrected / measured - 1."""
        return _large_flow_errors(self.run, self.corrected)


def _large_flow_errors(run: PacketRun, finish: np.ndarray) -> np.ndarray:
    return ((finish - run.start) / (run.finish - run.start) - 1)[run.size >= LARGE]


def predict(run: PacketRun, dtype: str = "float64", transport: str | Transport = NAMED) -> Prediction:
    """The exact fluid completion of a run, and the same corrected.

    - `transport`: as `get_transport` takes it, or named: the one that the run names. Bytes of a packet are the run's.
    """
    one_of("dtype", dtype, DTYPES)
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise InputError("dtype float64 needs jax.config.update('jax_enable_x64', True) before the first computation.")
    problem, flows = network(run, dtype), len(run.size)
    padding = (0, len(problem.weight) - flows)
    size, start = (np.pad(values, padding).astype(dtype) for values in (run.size, run.start))
    end = _completion(problem, jnp.asarray(size), jnp.asarray(start))
    if end.outcome != Outcome.solved:
        raise InputError(f"{run.name} cannot be predicted: {Outcome[end.outcome]}")
    finish, used = np.asarray(end.finish, np.float64)[:flows], transport_of(run, transport)
    return Prediction(run, finish, finish if used == NONE else _corrected(run, used, dtype), used, dtype)


def transport_of(run: PacketRun, transport: str | Transport = NAMED) -> Transport:
    """The transport that a run is corrected by."""
    if transport == NAMED:
        return TRANSPORTS.get(run.transport, NONE)
    return get_transport(transport)


def _corrected(run: PacketRun, transport: Transport, dtype: str) -> np.ndarray:
    """When the sender of each flow knows that it has arrived [F] s."""
    used = replace(transport, payload_bytes=run.payload, header_bytes=run.header)
    problem = network(run, dtype, used.pacing)
    padding = (0, len(problem.weight) - len(run.size))
    size, start = np.pad(run.size, padding), np.pad(run.start, padding, "edge")
    history = rate_history(problem, size, start, _ports_back(run, problem), used.acks)
    sent = RateHistory(*(values[: len(run.size)] for values in history))
    return corrected(used, sent, run.links, run.link_delay_s, run.link_Bps)


def network(run: PacketRun, dtype: str, pacing: float = 1.0) -> FlowProblem:
    """The links that the flows of a run share, padded: links that nobody crosses, flows of weight 0.

    The first link of a flow is its port up, the last its port down, which runs at the receiver's pace.
    """
    crossed = [_links(run, flow) for flow in range(len(run.size))]
    parallel = {link: count for links in crossed for link, count in links.items()}
    index = {link: number for number, link in enumerate(parallel)}
    capacity = np.ones(_padded(len(index), _LINKS))
    capacity[: len(index)] = np.array([*parallel.values()]) * run.goodput_Bps
    hops = np.full((_padded(len(crossed), _FLOWS), _padded(max(map(len, crossed)), _HOPS)), -1, np.int32)
    share = np.ones(hops.shape)
    for flow, links in enumerate(crossed):
        hops[flow, : len(links)] = [index[link] for link in links]
        share[flow, len(links) - 1] = 1 / pacing
    return FlowProblem(jnp.asarray(capacity, dtype), hops, share, weight=np.arange(len(hops)) < len(crossed))


def _ports_back(run: PacketRun, problem: FlowProblem) -> np.ndarray:
    """The ports that acknowledgements of every flow cross [F 2]: up from its receiver, down to its sender."""
    hops, nobody = np.asarray(problem.hops), problem.capacity.size
    last = (hops >= 0).sum(axis=1) - 1
    flows = range(len(run.size))
    up = {run.src[flow]: hops[flow, 0] for flow in flows}
    down = {run.dst[flow]: hops[flow, last[flow]] for flow in flows}
    back = np.full((len(hops), 2), nobody, np.int32)
    back[: len(run.size)] = [(up.get(run.dst[f], nobody), down.get(run.src[f], nobody)) for f in flows]
    return back


def _links(run: PacketRun, flow: int) -> dict[tuple, int]:
    """What a flow crosses, in order: every directed link or pool of links, and how many parallel links it pools."""
    src, dst = run.src[flow], run.dst[flow]
    if run.paths is not None:
        return dict.fromkeys(pairwise((*run.paths[flow], f"DST{dst}")), 1)
    up, down = {("from host", src): 1}, {("to host", dst): 1}
    if run.leaves is None or src // run.leaves.hosts == dst // run.leaves.hosts:
        return up | down
    spine = [("from ToR", src // run.leaves.hosts), ("to ToR", dst // run.leaves.hosts)]
    return up | dict.fromkeys(spine, run.leaves.uplinks) | down


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
        "corrected_by": prediction.transport.name,
        "corrected_s": prediction.corrected_s,
        "corrected_error": prediction.corrected_error,
        "stated_fluid_s": run.stated_s,
        "large_flows": len(errors),
        **_sizes("flow_error", errors),
        **_sizes("corrected_flow_error", prediction.corrected_flow_errors),
        **{f"flow_error_q{q:02}": float(np.percentile(errors, q)) if errors.size else None for q in QUANTILES},
        "dtype": prediction.dtype,
    }


def _sizes(name: str, errors: np.ndarray) -> dict[str, float | None]:
    """Median and 90th percentile of the size of errors of large flows, None without any."""
    median, p90 = np.percentile(np.abs(errors), (50, 90)).tolist() if errors.size else (None, None)
    return {f"{name}_median": median, f"{name}_p90": p90}


def packet_groups(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """A line for every group and transport that occurs: errors of the collective time over runs, plain and corrected,
    and of large flows over all their flows.

    `worst_pattern` is that of the run with the largest error; the other columns include it.
    """
    lines = []
    for group in GROUPS:
        own = [p for p in predictions if p.run.group == group]
        for transport in dict.fromkeys(p.run.transport for p in own):
            members = [p for p in own if p.run.transport == transport]
            line = {"group": group, "transport": transport, "runs": len(members)}
            line |= _over_runs("", members, [p.error for p in members])
            line |= _over_runs("corrected_", members, [p.corrected_error for p in members])
            plain = np.concatenate([p.large_flow_errors for p in members])
            corrected = np.concatenate([p.corrected_flow_errors for p in members])
            line |= {"large_flows": len(plain)} | _sizes("flow_error", plain)
            lines.append(line | _sizes("corrected_flow_error", corrected))
    return lines


def _over_runs(name: str, members: Sequence[Prediction], errors: Sequence[float]) -> dict[str, Any]:
    """Mean, median and 90th percentile of the size of errors, and the worst with its pattern."""
    sizes = np.abs(errors)
    worst = int(np.argmax(sizes))
    line: dict[str, Any] = {"error_mean": float(sizes.mean()), "error_median": float(np.median(sizes))}
    line |= {"error_p90": float(np.percentile(sizes, 90)), "worst_error": errors[worst]}
    line |= {"worst_pattern": members[worst].run.pattern}
    return {f"{name}{key}": value for key, value in line.items()}
