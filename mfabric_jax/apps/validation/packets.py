"""Predict recorded packet-level runs with the flow-level model, and report the errors.

A run is one JSON file; docs/formats.md lists its fields. A link carries payload at line rate x payload / (payload +
header). A flow crosses the links of its recorded path; without one, its two host ports and, in a leaf-spine, the pooled
uplinks and downlinks of its ToRs. The corrected prediction adds acknowledgements, start-up and recovery of the run's
transport. Neither prediction models queues.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax import units
from mfabric_jax.checks import InputError, not_negative, one_of, positive
from mfabric_jax.evaluate.problem import DTYPES
from mfabric_jax.fabric.transport import NONE, TRANSPORTS, Transport, get_transport
from mfabric_jax.flows import FlowProblem, SolveOutcome, completion_times, max_min_rates
from mfabric_jax.support.text_files import read_mapping
from mfabric_jax.support.unread import name_unread, say_unread

MIB = 2**20
LARGEST = 1 << 30  # largest file in bytes, enough for millions of flows
GROUPS = ("spraying", "one-path", "unknown-path", "leaf-spine", "incast")
NAMED = "named"  # the transport named in the run's file; NONE if the package does not model it
QUANTILES = (5, 25, 50, 75, 95)
LARGE = MIB  # latency, which is not predicted, dominates smaller flows
ROUNDS = 4  # fixed-point iterations; acknowledgements are 1 % of the data, so each adds two digits
DONE = 1e-9  # fraction of a flow's bytes: a flow with less left has ended
_FLOWS, _LINKS, _HOPS = 64, 256, 6  # shapes are rounded up to multiples of these, so that fewer programs are compiled
_HOSTS = re.compile(r"(\d+) hosts\b")
_LEAVES = re.compile(r"(\d+) ToRs? with (\d+) host ports and (\d+) uplinks")
_THREE_TIERS = re.compile(r"\bk=(\d+), 3 tiers\b")
_NON_BLOCKING = re.compile(r"\bnon-blocking\b")

_completion = eqx.filter_jit(completion_times)


class Leaves(NamedTuple):
    """An oversubscribed leaf-spine: `hosts` and `uplinks` per leaf."""

    hosts: int
    uplinks: int


@dataclass(frozen=True)
class PacketRun:
    """One run: its network, its flows [F] and the measurements."""

    name: str
    pattern: str
    topology: str
    transport: str
    routing: str
    link_Bps: float  # line rate of every link
    payload: float  # bytes of a packet
    header: float  # bytes of a packet
    link_delay_s: float  # 0 if the file has none
    leaves: Leaves | None  # None on a non-blocking tree
    radix: int | None  # ports of a switch in a three-tier tree
    src: np.ndarray
    dst: np.ndarray
    size: np.ndarray  # payload bytes
    start: np.ndarray  # seconds
    finish: np.ndarray  # seconds, when the sender knows that the flow has arrived
    paths: tuple[tuple[str, ...], ...] | None  # nodes from the source to the last switch; None: unknown or sprayed
    collective_s: float  # end of the last flow
    stated_s: float | None  # fluid completion time that the file states

    @property
    def goodput_Bps(self) -> float:
        return self.link_Bps * self.payload / (self.payload + self.header)

    @property
    def mean_pair_mib(self) -> float:
        return float(self.size.mean()) / MIB

    @property
    def links(self) -> np.ndarray:
        """The number of links of every flow [F]; without a path, 2 below one switch, 4 or 6 through more tiers."""
        if self.paths is not None:
            return np.array([len(path) for path in self.paths])
        apart = [self.src // hosts != self.dst // hosts for hosts in self._below]
        return 2 + 2 * np.sum(apart, axis=0, dtype=int, initial=0) * np.ones(len(self.src), int)

    @property
    def _below(self) -> list[int]:
        if self.leaves is not None:
            return [self.leaves.hosts]
        return [] if self.radix is None else [self.radix // 2, (self.radix // 2) ** 2]

    @property
    def group(self) -> str:
        """The kind of bottleneck; errors are summarised by it."""
        if self.leaves is not None:
            return "leaf-spine"
        if len(self.dst) > 1 and np.all(self.dst == self.dst[0]):
            return "incast"
        if self.paths is not None:
            return "one-path"
        return "spraying" if "spraying" in self.routing else "unknown-path"


def read_runs(folder: str | Path) -> list[PacketRun]:
    """Read every run in a folder, in the order of file names. Raise InputError for a missing or wrong field."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"runs must be a folder of packet-level runs (.json), got {str(folder)!r}.")
    files = sorted(folder.glob("*.json"))
    if not files:
        raise InputError(f"runs: no .json file in {str(folder)!r}.")
    return [read_run(file) for file in files]


FIELDS = ("name", "topology", "transport", "routing", "link_bps", "payload_per_packet", "header_per_packet", "flows")
FIELDS += ("hop_latency_s", "collective_s", "fluid_ecmp_collective_s", "fluid_collective_s")
OF_FLOW = ("src", "dst", "bytes", "start", "fct_s", "path")
IGNORED = re.compile(
    r"(sim|ratio|tool|fluid)(_.*)?|n_finished|n_flows|mtu|note|pattern|total_bytes"
)  # fields that simulators write and that are ignored


def read_run(file: Path) -> PacketRun:
    """Read one run. Raise InputError, with file and field, if a field is missing or wrong."""
    run = read_mapping(file, "a packet-level run", ".json", LARGEST)
    name_unread(file.name, "fields", [field for field in run if field not in FIELDS and not IGNORED.fullmatch(field)])
    take = functools.partial(_take, file.name, run)
    topology = take("topology", str)
    hosts, leaves = _hosts_and_leaves(file.name, topology)
    flows = {f"{file.name}, flow {i}": flow for i, flow in enumerate(take("flows", list))}
    if not flows:
        raise InputError(f"{file.name}: flows must not be empty.")
    column = {
        field: np.array([_take(where, flow, field, check) for where, flow in flows.items()])
        for field, check in (
            ("src", int),
            ("dst", int),
            ("bytes", positive),
            ("start", not_negative),
            ("fct_s", positive),
        )
    }
    for field in ("src", "dst"):
        for where, host in zip(flows, column[field].tolist(), strict=True):
            if not 0 <= host < hosts:
                raise InputError(f"{where}: {field} must lie in 0..{hosts - 1}, got {host}.")
    if np.any(own := column["src"] == column["dst"]):
        raise InputError(
            f"{file.name}, flow {np.argmax(own)}: dst must be another host than src, {column['src'][own][0]}."
        )
    if np.any(early := column["fct_s"] <= column["start"]):
        raise InputError(f"{file.name}, flow {np.argmax(early)}: fct_s must come after start.")
    known = ["path" in flow for flow in flows.values()]
    if any(known) and not all(known):
        without = known.index(False)
        raise InputError(f"{file.name}: path must be given for every flow or none, but flow {without} has none.")
    of_flows = dict.fromkeys(field for flow in flows.values() for field in flow)
    left = [field for field in of_flows if field not in OF_FLOW and not IGNORED.fullmatch(field)]
    name_unread(file.name, "fields of flows", left)
    named = take("transport", str)
    if named not in TRANSPORTS and difflib.get_close_matches(named.lower(), TRANSPORTS):
        say_unread(f"{file.name}: no constants of the transport {named!r} are known ({', '.join(TRANSPORTS)}).")
    stated = "fluid_ecmp_collective_s" if any(known) else "fluid_collective_s"
    return PacketRun(
        name=file.stem,
        pattern=take("name", str),
        topology=topology,
        transport=take("transport", str),
        routing=take("routing", str),
        link_Bps=take("link_bps", positive) / 8,
        payload=take("payload_per_packet", positive),
        header=take("header_per_packet", not_negative),
        link_delay_s=take("hop_latency_s", not_negative) if "hop_latency_s" in run else 0.0,
        leaves=leaves,
        radix=_radix(topology),
        src=column["src"],
        dst=column["dst"],
        size=column["bytes"],
        start=column["start"],
        finish=column["fct_s"],
        paths=tuple(_path(where, flow) for where, flow in flows.items()) if any(known) else None,
        collective_s=take("collective_s", positive),
        stated_s=take(stated, positive) if run.get(stated) is not None else None,
    )


def _take(where: str, data: Any, field: str, check: Any) -> Any:
    if not isinstance(data, dict):
        raise InputError(f"{where} must be a JSON object with named fields, got {_short(data)}.")
    if field not in data:
        raise InputError(f"{where}: the field {field!r} is missing.")
    value, kinds = data[field], check if isinstance(check, type) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        wanted = {str: "text", int: "a whole number", list: "a list"}.get(check, "a number")
        raise InputError(f"{where}: {field} must be {wanted}, got {_short(value)}.")
    return value if isinstance(check, type) else float(check(f"{where}: {field}", value))


def _path(where: str, flow: dict[str, Any]) -> tuple[str, ...]:
    nodes, first = tuple(_take(where, flow, "path", str).split(">")), f"SRC{flow['src']}"
    if len(nodes) < 2 or nodes[0] != first or not all(nodes) or len(set(nodes)) < len(nodes):
        wanted = f"different nodes joined by '>', the first of them {first}"
        raise InputError(f"{where}: path must be {wanted}, got {_short(flow['path'])}.")
    return nodes


def _hosts_and_leaves(name: str, topology: str) -> tuple[int, Leaves | None]:
    hosts, leaves = _HOSTS.search(topology), _LEAVES.search(topology)
    if not hosts or not (leaves or _NON_BLOCKING.search(topology)):
        wanted = "'N hosts', and 'non-blocking' or 'N ToR with N host ports and N uplinks'"
        raise InputError(f"{name}: topology must say {wanted}, got {topology!r}.")
    if not leaves:
        return int(hosts[1]), None
    tors, below, above = map(int, leaves.groups())
    if min(tors, below, above) < 1 or tors * below != int(hosts[1]):
        raise InputError(f"{name}: topology must have hosts = ToR x host ports, got {topology!r}.")
    return int(hosts[1]), Leaves(below, above)


def _radix(topology: str) -> int | None:
    match = _THREE_TIERS.search(topology)
    return max(2, int(match[1])) if match else None


def _short(value: Any) -> str:
    return text if len(text := repr(value)) <= 60 else text[:57] + "..."


# --------------------------------------------------------------------------------------------------- prediction
@dataclass(frozen=True)
class Prediction:
    """Predicted end of each flow of a run [F] in seconds: plain fluid, and `corrected` for a transport."""

    run: PacketRun
    finish: np.ndarray
    corrected: np.ndarray
    transport: Transport
    dtype: str

    @property
    def collective_s(self) -> float:
        return float(self.finish.max())

    @property
    def corrected_s(self) -> float:
        return float(self.corrected.max())

    @property
    def error(self) -> float:
        """Error of the collective's time: predicted / measured - 1."""
        return self.collective_s / self.run.collective_s - 1

    @property
    def corrected_error(self) -> float:
        """Error of the collective's time: corrected / measured - 1."""
        return self.corrected_s / self.run.collective_s - 1

    @property
    def large_flow_errors(self) -> np.ndarray:
        """Errors of the durations of flows of at least 1 MiB: predicted / measured - 1."""
        return _large_flow_errors(self.run, self.finish)

    @property
    def corrected_flow_errors(self) -> np.ndarray:
        return _large_flow_errors(self.run, self.corrected)


def _large_flow_errors(run: PacketRun, finish: np.ndarray) -> np.ndarray:
    return ((finish - run.start) / (run.finish - run.start) - 1)[run.size >= LARGE]


def predict(run: PacketRun, dtype: str = "float64", transport: str | Transport = NAMED) -> Prediction:
    """Return the exact fluid completion of a run, and the same corrected for a transport.

    `dtype`: "float32", or "float64", which needs `jax_enable_x64`. `transport`: as in `get_transport`, or "named" for
    the transport in the run's file. Packet sizes are the run's. Raise InputError for an unknown dtype or transport, for
    float64 without `jax_enable_x64`, and for a run that cannot be solved.
    """
    one_of("dtype", dtype, DTYPES)
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise InputError("dtype float64 needs jax.config.update('jax_enable_x64', True) before the first computation.")
    problem, flows = network(run, dtype), len(run.size)
    padding = (0, len(problem.weight) - flows)
    size, start = (np.pad(values, padding).astype(dtype) for values in (run.size, run.start))
    end = _completion(problem, jnp.asarray(size), jnp.asarray(start))
    if end.outcome != SolveOutcome.solved:
        raise InputError(f"{run.name} cannot be predicted: {SolveOutcome[end.outcome]}")
    finish, used = np.asarray(end.finish, np.float64)[:flows], transport_of(run, transport)
    return Prediction(run, finish, finish if used == NONE else _correct_run(run, used, dtype), used, dtype)


def transport_of(run: PacketRun, transport: str | Transport = NAMED) -> Transport:
    if transport == NAMED:
        return TRANSPORTS.get(run.transport, NONE)
    return get_transport(transport)


def _correct_run(run: PacketRun, transport: Transport, dtype: str) -> np.ndarray:
    used = replace(transport, payload_bytes=run.payload, header_bytes=run.header)
    problem = network(run, dtype, used.pacing)
    padding = (0, len(problem.weight) - len(run.size))
    size, start = np.pad(run.size, padding), np.pad(run.start, padding, "edge")
    history = rate_history(problem, size, start, ports_back(run, problem), used.acks)
    sent = RateHistory(*(values[: len(run.size)] for values in history))
    return corrected_finish(used, sent, run.links, run.link_delay_s, run.link_Bps)


def network(run: PacketRun, dtype: str, pacing: float = 1.0) -> FlowProblem:
    """Return the links shared by the flows of a run, padded with unused links and flows of weight 0. A flow's first
    link is its sender's port; its last is its receiver's port, slowed by `pacing`."""
    crossed = [_links(run, flow) for flow in range(len(run.size))]
    parallel = {link: count for links in crossed for link, count in links.items()}
    index = {link: number for number, link in enumerate(parallel)}
    capacity = np.ones(_round_up(len(index), _LINKS))
    capacity[: len(index)] = np.array([*parallel.values()]) * run.goodput_Bps
    hops = np.full((_round_up(len(crossed), _FLOWS), _round_up(max(map(len, crossed)), _HOPS)), -1, np.int32)
    share = np.ones(hops.shape)
    for flow, links in enumerate(crossed):
        hops[flow, : len(links)] = [index[link] for link in links]
        share[flow, len(links) - 1] = 1 / pacing
    return FlowProblem(jnp.asarray(capacity, dtype), hops, share, weight=np.arange(len(hops)) < len(crossed))


def ports_back(run: PacketRun, problem: FlowProblem) -> np.ndarray:
    """Return the ports that acknowledgements of each flow cross [F 2]: up from its receiver, down to its sender."""
    hops, nobody = np.asarray(problem.hops), problem.capacity.size
    last = (hops >= 0).sum(axis=1) - 1
    flows = range(len(run.size))
    up = {run.src[flow]: hops[flow, 0] for flow in flows}
    down = {run.dst[flow]: hops[flow, last[flow]] for flow in flows}
    back = np.full((len(hops), 2), nobody, np.int32)
    back[: len(run.size)] = [(up.get(run.dst[f], nobody), down.get(run.src[f], nobody)) for f in flows]
    return back


def _links(run: PacketRun, flow: int) -> dict[tuple, int]:
    src, dst = run.src[flow], run.dst[flow]
    if run.paths is not None:
        return dict.fromkeys(pairwise((*run.paths[flow], f"DST{dst}")), 1)
    up, down = {("from host", src): 1}, {("to host", dst): 1}
    if run.leaves is None or src // run.leaves.hosts == dst // run.leaves.hosts:
        return up | down
    spine = [("from ToR", src // run.leaves.hosts), ("to ToR", dst // run.leaves.hosts)]
    return up | dict.fromkeys(spine, run.leaves.uplinks) | down


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


# --------------------------------------------------------------------------------------------------- correction
class RateHistory(NamedTuple):
    finish: np.ndarray  # when the last byte is sent [s]
    risen: np.ndarray  # sum of squares of all increases of the rate
    last: np.ndarray  # final rate [bytes/s]


def rate_history(
    problem: FlowProblem, size: np.ndarray, start: np.ndarray, back: Int[np.ndarray, "F 2"], acks: float
) -> RateHistory:
    """Simulate flows of `size` [F] bytes that start at `start` [F] seconds, from event to event. Flows start at full
    rate.

    `acks`: bytes of acknowledgements per byte of data. `back`: the two ports that a flow's acknowledgements cross; L
    stands for none.
    """
    flows = len(size)
    left, finish = np.array(size, float), np.array(start, float)
    before, risen, last = np.zeros(flows), np.zeros(flows), np.ones(flows)
    now = start.min()
    while np.any(left > 0):
        active = (left > 0) & (start <= now)
        rate = np.asarray(_rates(problem, active, back, acks, ROUNDS if acks else 1), float)
        risen += np.where(active & (before > 0), np.maximum(rate - before, 0), 0) ** 2
        last = np.where(active, rate, last)
        needed = np.divide(left, rate, out=np.full(flows, np.inf), where=active & (rate > 0))
        then = min(now + needed.min(), start[start > now].min(initial=np.inf))
        if not np.isfinite(then):
            raise InputError("a flow has rate 0, so it never ends.")
        left = np.where(active, left - rate * (then - now), left)
        ended = active & (left <= DONE * size)
        left, finish = np.where(ended, 0, left), np.where(ended, then, finish)
        before, now = np.where(active & ~ended, rate, 0), then
    return RateHistory(finish, risen, last)


@eqx.filter_jit
def _rates(problem: FlowProblem, active, back, acks, rounds: int) -> Float[Array, "F"]:
    running = eqx.tree_at(lambda p: p.weight, problem, jnp.where(active, problem.weight, 0))

    def again(_, rate):
        taken = jnp.zeros_like(problem.capacity).at[back].add((acks * rate)[:, None], mode="drop")
        left = jnp.maximum(problem.capacity - taken, 0)
        return max_min_rates(eqx.tree_at(lambda p: p.capacity, running, left)).rate

    return lax.fori_loop(0, rounds, again, jnp.zeros_like(problem.weight))


def corrected_finish(
    transport: Transport, history: RateHistory, links: Int[np.ndarray, "F"], link_delay_s: float, line_Bps: float
) -> np.ndarray:
    """Return the time at which each sender knows that its flow has arrived [F] in seconds, with round trip, start-up
    and slow recovery. A rate that rises by x at slope `regain` payloads per round trip squared loses x^2 / (2 slope)
    bytes."""
    finish = history.finish + transport.path_s(links, link_delay_s, line_Bps) + links * link_delay_s
    if transport.regain is None:
        return finish
    slope = transport.regain * transport.payload_bytes / transport.round_trip_s(links, link_delay_s, line_Bps) ** 2
    return finish + history.risen / (2 * slope * history.last)


# --------------------------------------------------------------------------------------------------------- rows
def packet_rows(predictions: Iterable[Prediction]) -> list[dict[str, Any]]:
    """Return one row per run, by group: its facts, predicted and measured times, and errors of its flows."""
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
    median, p90 = np.percentile(np.abs(errors), (50, 90)).tolist() if errors.size else (None, None)
    return {f"{name}_median": median, f"{name}_p90": p90}


def packet_groups(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return one row per group and transport: errors of the collective's time over runs, and of all large flows.

    `worst_pattern` is the pattern of the run with the largest error.
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
    sizes = np.abs(errors)
    worst = int(np.argmax(sizes))
    line: dict[str, Any] = {"error_mean": float(sizes.mean()), "error_median": float(np.median(sizes))}
    line |= {"error_p90": float(np.percentile(sizes, 90)), "worst_error": errors[worst]}
    line |= {"worst_pattern": members[worst].run.pattern}
    return {f"{name}{key}": value for key, value in line.items()}
