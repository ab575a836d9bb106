"""Results of a replay as rows: ranks, links, the critical path, and the gain from more of each resource."""

import dataclasses
from collections.abc import Collection
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import units
from mfabric_jax.apps.graphs.replay.reconfigurations import RECONFIGURATION, SHOWN
from mfabric_jax.apps.graphs.replay.replay_paths import DTYPE
from mfabric_jax.apps.graphs.replay.run import Replayed
from mfabric_jax.apps.graphs.tasks.critical import CriticalPath, critical_path, union_s
from mfabric_jax.evaluate.whole_cluster import use_of_links
from mfabric_jax.routing.transfers import INSIDE, link_bytes

PER_CENT = 0.01
STEP_GBPS = 100.0
COMPUTATION, LATENCY, LAG, START, SWITCH = "computation", "latency", "lag", "start", "reconfiguration"
BEFORE = "configuration before"  # the time for which the previous configuration of a schedule lasts
OF_SWITCHES = {RECONFIGURATION: SWITCH, SHOWN: BEFORE}
NOISE = 1e3  # in units of the precision: smaller shares of the makespan are rounding errors


class Spent(NamedTuple):
    """Seconds in which each rank [R] computes, only sends or receives, or does neither; they sum to the makespan."""

    compute_s: np.ndarray
    exposed_comm_s: np.ndarray
    idle_s: np.ndarray


class UnderWay(NamedTuple):
    """N intervals in which messages are under way, including their latency but not the lags of tasks.

    - `flow` [N]: the message's flow, or the marker of a latency after it. `src`, `dst` [N]: ranks.
    - `begin`, `end` [N] s. `latency` [N] s: the latency at the beginning of the interval.
    """

    flow: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    begin: np.ndarray
    latency: np.ndarray
    end: np.ndarray


def under_way(done: Replayed) -> UnderWay:
    flows = done.prepared.flows
    moves = np.flatnonzero(flows.transfers & (flows.src != flows.dst))
    sent, arrival = flows.arrivals.T
    flow, of = np.concatenate([moves, arrival]), np.concatenate([moves, sent])
    latency = flows.latency[flow]
    return UnderWay(flow, flows.src[of], flows.dst[of], done.begin[flow] - latency, latency, done.finish[flow])


def time_spent(done: Replayed) -> Spent:
    flows, ranks, sent = done.prepared.flows, done.prepared.graph.ranks, under_way(done)
    computes = (flows.seconds > 0) & (flows.dst < 0)
    begin = np.concatenate([done.begin[computes], np.tile(sent.begin, 2)])
    end = np.concatenate([done.finish[computes], np.tile(sent.end, 2)])
    owner = np.concatenate([flows.src[computes], sent.src, sent.dst])
    count = int(computes.sum())
    compute_s = union_s(begin[:count], end[:count], owner[:count], ranks)
    busy_s = union_s(begin, end, owner, ranks)
    return Spent(compute_s, busy_s - compute_s, done.makespan_s - busy_s)


class Gains(NamedTuple):
    """Derivatives of the makespan [s]: by the capacity of links [L], and by the size, lag and start of flows [F]."""

    capacity: np.ndarray
    size: np.ndarray
    lag: np.ndarray
    start: np.ndarray


def gains(done: Replayed) -> Gains:
    """Return the derivatives of the makespan.

    Scaling all times scales the makespan. So the sums of `size * Gains.size` over flows (or of
    `-capacity * Gains.capacity` over links), `lag * Gains.lag` and `start * Gains.start` add up to the makespan.
    """
    prepared = done.prepared
    problem = prepared.problem()

    def makespan(capacity, size, lag, start):
        changed = eqx.tree_at(lambda p: p.capacity, problem, capacity)
        return prepared.completion(changed, size=size, lag=lag, start=start).finish.max()

    inputs = (jnp.asarray(x, DTYPE) for x in (prepared.flows.size, prepared.flows.lag, prepared.flows.start))
    slopes = jax.grad(makespan, argnums=(0, 1, 2, 3))(problem.capacity, *inputs)
    return Gains(*(np.asarray(part, float) for part in slopes))


def gain_rows(done: Replayed, slopes: Gains) -> list[dict[str, Any]]:
    """Return a row for each resource that limits the makespan, with the gain from more of it.

    Resources are the kinds of links, computation, latency, lags of tasks, the switch and starts. Both directions of a
    kind of link share a row if both limit the makespan, since that is often a tie.

    - `holds_s`: seconds of the makespan that the resource accounts for; they add up to the makespan.
    - `saved_per_percent_s`: seconds saved if all such links had 1 % more capacity, or computation or latency took 1 %
      less.
    - `saved_per_100_gbps_s`: seconds saved, to first order, if every NIC, and with it these links, had 100 Gbps more
      (inside servers: every GPU; on a user's network graph: every such link).
    """
    prepared = done.prepared
    network = prepared.network
    kinds = network.kind_of_links()
    held = -network.capacity * slopes.capacity
    rows: list[dict[str, Any]] = []
    for kind, (name, count) in enumerate(network.links):
        mine = kinds == kind
        own_Bps = network.capacity[mine]
        if prepared.nic_gbps is not None and not name.startswith(INSIDE):
            own_Bps = np.full(count, units.gbps(prepared.nic_gbps))
        saved = float(np.sum(held[mine] * units.gbps(STEP_GBPS) / np.where(own_Bps > 0, own_Bps, np.inf)))
        rows.append({"what": name, "links": count} | _gain(float(held[mine].sum())) | {"saved_per_100_gbps_s": saved})
    rows = _both_ways_together([row for row in rows if abs(row["holds_s"]) > _noise_s(done)])
    beside = {name: amount * getattr(slopes, of) for name, (of, amount) in _amounts(done).items()}
    rows += [{"what": name, "links": None} | _gain(float(part.sum())) for name, part in beside.items()]
    return [row for row in rows if abs(row["holds_s"]) > _noise_s(done)]


def _both_ways_together(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    together: dict[str, dict[str, Any]] = {}
    for row in rows:
        stem = _both_ways(row["what"])
        if (first := together.get(stem)) is not None:
            row = {"what": f"{stem} up and down"} | {name: first[name] + row[name] for name in row if name != "what"}
        together[stem] = row
    return list(together.values())


def _amounts(done: Replayed) -> dict[str, tuple[str, np.ndarray]]:
    flows = done.prepared.flows
    own = flows.lag - flows.latency
    of = {name: np.where(flows.task == task, own, 0) for task, name in OF_SWITCHES.items()}
    return {
        COMPUTATION: ("size", flows.seconds),
        LATENCY: ("lag", flows.latency),
        LAG: ("lag", np.where(flows.task < 0, 0, own)),
        **{name: ("lag", amount) for name, amount in of.items()},
        START: ("start", flows.start),
    }


def _gain(seconds: float) -> dict[str, float]:
    return {"holds_s": seconds, "saved_per_percent_s": seconds * PER_CENT}


def _noise_s(done: Replayed) -> float:
    return NOISE * float(np.finfo(DTYPE).eps) * done.makespan_s


def at_a_tie(done: Replayed, rows: list[dict[str, Any]]) -> bool:
    """Return whether a resource accounts for a negative share of the makespan, or for more than all of it."""
    most = done.makespan_s + _noise_s(done)
    return any(row["holds_s"] < 0 or row["holds_s"] > most for row in rows)


def savings_rows(done: Replayed, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `gain_rows` with `saved_at_1_percent_s`, measured by running the graph again.

    This is the time saved by 1 % more of the resource (links in both directions); negative if the run takes longer.
    """
    return [row | {"saved_at_1_percent_s": _measure_saving(done, row["what"])} for row in rows]


def _both_ways(kind: str) -> str:
    return kind.removesuffix(" up and down").removesuffix(" up").removesuffix(" down")


def _measure_saving(done: Replayed, what: str) -> float:
    prepared, amounts, terms = done.prepared, _amounts(done), {}
    network, flows = prepared.network, prepared.flows
    if what in amounts:
        of, amount = amounts[what]
        terms[of] = {"size": prepared.flows.size, "lag": flows.lag, "start": flows.start}[of] - PER_CENT * amount
    else:
        mine = np.array([_both_ways(name) == _both_ways(what) for name, _ in network.links])[network.kind_of_links()]
        network = dataclasses.replace(network, capacity=np.where(mine, 1 + PER_CENT, 1) * network.capacity)
        prepared = prepared._replace(network=network)
    saved = done.makespan_s - float(prepared.completion(prepared.problem(), **terms).finish.max())
    return saved if abs(saved) > _noise_s(done) else 0.0


def path_of(done: Replayed) -> CriticalPath:
    """Return the critical path: the flows that determine the makespan, in order of time."""
    flows = done.prepared.flows
    return critical_path(flows.after, flows.start, done.begin, done.finish)


def path_rows(done: Replayed) -> list[dict[str, Any]]:
    """Return a row for each step of the critical path that takes time: its task, its times, and what limits it."""
    path, flows = path_of(done), done.prepared.flows
    rows = []
    for step in np.flatnonzero(path.finish > path.released).tolist():
        flow = int(path.flow[step])
        row = {"flow": flow, "task": int(flows.task[flow]), "name": _name(done, flow), "rank": int(flows.src[flow])}
        row |= {"to": int(flows.dst[flow]) if flows.transfers[flow] else None}
        row |= {f"{name}_s": float(getattr(path, name)[step]) for name in ("released", "begin", "finish")}
        rows.append(row | {"held_by": _holder(done, flow)})
    return rows


def _name(done: Replayed, flow: int) -> str:
    task = int(done.prepared.flows.task[flow])
    return OF_SWITCHES[task] if task < 0 else done.prepared.graph.name[task]


def _holder(done: Replayed, flow: int) -> str:
    flows, link = done.prepared.flows, int(done.holder[flow])
    if link >= 0:
        return done.prepared.network.link_name(link)
    if flows.task[flow] < 0:
        return OF_SWITCHES[int(flows.task[flow])]
    if flows.seconds[flow] > 0 and not flows.transfers[flow]:
        return COMPUTATION
    return LATENCY if 2 * flows.latency[flow] >= flows.lag[flow] else LAG


def rank_rows(done: Replayed) -> list[dict[str, Any]]:
    """Return a row for each rank: its GPU, how it spends the makespan, and the bytes it sends and receives."""
    prepared, parts = done.prepared, time_spent(done)
    flows, ranks = prepared.flows, prepared.graph.ranks
    moves = flows.transfers & (flows.src != flows.dst)
    sent, received = (np.bincount(end[moves], flows.bytes[moves], minlength=ranks) for end in (flows.src, flows.dst))
    columns = {"rank": np.arange(ranks), "gpu": prepared.gpu} | parts._asdict()
    columns |= {"sent_bytes": sent, "received_bytes": received}
    return [dict(zip(columns, row, strict=True)) for row in zip(*(x.tolist() for x in columns.values()), strict=True)]


def link_use_rows(done: Replayed, slopes: Gains | None = None) -> list[dict[str, Any]]:
    """Return a row for each link with traffic: nodes, capacity, bytes, utilisation, and seconds of the makespan."""
    prepared = done.prepared
    network = prepared.network
    carried = link_bytes(network, prepared.routed.routes, prepared.flows.bytes)
    used = np.flatnonzero(carried)
    part = np.zeros(len(carried))
    part[used] = carried[used] / network.capacity[used] / done.makespan_s
    rows = use_of_links(network, used.tolist(), carried, part)
    if slopes is None:
        return rows
    held_s = -network.capacity[used] * slopes.capacity[used]
    held_s = np.where(np.abs(held_s) > _noise_s(done), held_s, 0.0).tolist()
    return [row | {"holds_s": seconds} for row, seconds in zip(rows, held_s, strict=True)]


def replay_row(done: Replayed, slopes: Gains | None = None) -> dict[str, Any]:
    """Return the row of a replay: the makespan, how ranks spend it on average, and what accounts for most of it."""
    prepared, parts = done.prepared, time_spent(done)
    flows = prepared.flows
    return {
        "fabric": prepared.fabric,
        **({} if prepared.file is None else {"graph": prepared.file}),
        "nic_gbps": prepared.nic_gbps,
        "ranks": prepared.graph.ranks,
        "servers": None if prepared.cluster is None else prepared.cluster.servers,
        "gpus": None if prepared.cluster is None else prepared.cluster.gpus,
        "tasks": prepared.graph.tasks,
        "flows": flows.flows,
        "bytes": float(flows.bytes[flows.transfers].sum()),
        "makespan_s": done.makespan_s,
        **{name: float(seconds.mean()) for name, seconds in parts._asdict().items()},
        **({} if slopes is None else _most_held(done, slopes)),
        "events": done.events,
        "build_s": done.build_s,
        "solve_s": done.solve_s,
    }


def _most_held(done: Replayed, slopes: Gains) -> dict[str, Any]:
    most = max(gain_rows(done, slopes), key=lambda row: row["holds_s"], default=None)
    if most is None:
        return {"held_by": None, "held_share": None}
    return {"held_by": most["what"], "held_share": most["holds_s"] / done.makespan_s}


def spans(done: Replayed, ranks: Collection[int] | None = None) -> list[dict[str, Any]]:
    """Return the spans of `ranks` (None: all) and of the critical path for `report.write_task_trace`."""
    flows, bars = done.prepared.flows, []
    own = np.full(done.prepared.graph.ranks, ranks is None)
    own[[*(ranks or ())]] = True
    for flow in np.flatnonzero((done.finish > done.begin) & ~flows.transfers & own[flows.src]).tolist():
        when = {"begin_s": float(done.begin[flow]), "end_s": float(done.finish[flow])}
        name = _name(done, flow) or COMPUTATION
        bars.append({"rank": int(flows.src[flow]), "track": "compute", "name": name} | when)
    sent = under_way(done)
    there = own[sent.src] | own[sent.dst]
    for entry in zip(*(column[there].tolist() for column in sent), strict=True):
        bars += [row for row in _message_spans(done, *entry) if own[row["rank"]]]
    bars.sort(key=lambda entry: entry["begin_s"])
    return bars + path_spans(done)


def path_spans(done: Replayed) -> list[dict[str, Any]]:
    return [_step_span(row) for row in path_rows(done)]


def _message_spans(done: Replayed, flow, src, dst, begin_s, latency_s, end_s) -> list[dict[str, Any]]:
    if end_s <= begin_s:
        return []
    flows = done.prepared.flows
    name = _name(done, flow) if flows.transfers[flow] else f"{_name(done, flow)} {LATENCY}"
    common = {"begin_s": begin_s, "end_s": end_s, "latency_s": latency_s}
    common["args"] = {"bytes": float(flows.bytes[flow]), "task": int(flows.task[flow]), "latency_s": latency_s}
    ends = (src, "send", f"to {dst}"), (dst, "receive", f"from {src}")
    return [{"rank": own, "track": track, "name": f"{name} {other}".strip()} | common for own, track, other in ends]


def _step_span(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: row[name] for name in ("rank", "to", "held_by")}
    when = {"begin_s": row["released_s"], "end_s": row["finish_s"]}
    return {"rank": -1, "track": "critical path", "name": row["name"] or row["held_by"], "args": shown} | when
