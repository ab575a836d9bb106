"""What came out of a replay, as rows: of ranks, links, the critical path, and what more of everything would bring."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import units
from mfabric_jax.routing.carried import INSIDE
from mfabric_jax.routing.transfers import link_bytes
from mfabric_jax.study._replay import Replayed
from mfabric_jax.study._turns import TURN
from mfabric_jax.tasks.busy_time import covered_s
from mfabric_jax.tasks.critical import CriticalPath, critical_path

PER_CENT = 0.01
STEP_GBPS = 100.0
COMPUTATION, LATENCY, START, SWITCH = "computation", "latency", "start", "reconfiguration"


class Spent(NamedTuple):
    """Seconds of every rank [R]; together the makespan.

    - `compute_s`: it computes.   - `exposed_comm_s`: it does not, and sends or receives.   - `idle_s`: neither.
    """

    compute_s: np.ndarray
    exposed_comm_s: np.ndarray
    idle_s: np.ndarray


def spent(done: Replayed) -> Spent:
    """What every rank spends the makespan on; a message is under way from its release, latency included."""
    flows, ranks = done.prepared.flows, done.prepared.graph.ranks
    computes, moves = (flows.seconds > 0) & (flows.dst < 0), flows.transfers & (flows.src != flows.dst)
    lag = flows.lag[moves]
    begin = np.concatenate([done.begin[computes], np.tile(done.begin[moves] - lag, 2)])
    end = np.concatenate([done.finish[computes], np.tile(done.finish[moves], 2)])
    owner = np.concatenate([flows.src[computes], flows.src[moves], flows.dst[moves]])
    count = int(computes.sum())
    compute_s = covered_s(begin[:count], end[:count], owner[:count], ranks)
    busy_s = covered_s(begin, end, owner, ranks)
    return Spent(compute_s, busy_s - compute_s, done.makespan_s - busy_s)


class Gains(NamedTuple):
    """The derivative of the makespan [s] with respect to the capacity of links [L], and the size, lag and start of
    flows [F]."""

    capacity: np.ndarray
    size: np.ndarray
    lag: np.ndarray
    start: np.ndarray


def gains(done: Replayed) -> Gains:
    """What the makespan depends on. Times are as long as bytes over capacities, computations, lags and starts are, so
    `size * Gains.size` of all flows (or `-capacity * Gains.capacity` of links for those of bytes), `lag * Gains.lag`
    and `start * Gains.start` add up to it."""
    prepared = done.prepared
    problem = prepared.problem()

    def makespan(capacity, size, lag, start):
        return prepared.completion(eqx.tree_at(lambda p: p.capacity, problem, capacity), size, lag, start).finish.max()

    given = (jnp.asarray(x, prepared.dtype) for x in (prepared.size, prepared.flows.lag, prepared.flows.start))
    found = jax.grad(makespan, argnums=(0, 1, 2, 3))(problem.capacity, *given)
    return Gains(*(np.asarray(part, float) for part in found))


def gain_rows(done: Replayed, found: Gains) -> list[dict[str, Any]]:
    """What holds the makespan, and what more of it would bring: a row for every kind of link, for computation, latency
    and starts.

    - `holds_s`: seconds of the makespan that are in proportion to it; they add up to the makespan.
    - `saved_per_percent_s`: if all such links had 1 % more capacity (computations, latency: took 1 % less).
    - `saved_per_100_gbps_s`: if every NIC, and with it such links, had 100 Gbps more (inside servers: every GPU; on a
      user's graph every such link), to first order.
    """
    prepared = done.prepared
    network, flows = prepared.network, prepared.flows
    kinds = network.kind_of_links()
    held = -network.capacity * found.capacity
    rows = []
    for kind, (name, count) in enumerate(network.links):
        mine = kinds == kind
        own_Bps = network.capacity[mine]
        if prepared.nic_gbps is not None and not name.startswith(INSIDE):
            own_Bps = np.full(count, units.gbps(prepared.nic_gbps))
        saved = float(np.sum(held[mine] * units.gbps(STEP_GBPS) / np.where(own_Bps > 0, own_Bps, np.inf)))
        rows.append({"what": name, "links": count} | _gain(float(held[mine].sum())) | {"saved_per_100_gbps_s": saved})
    beside = {
        COMPUTATION: (prepared.size * found.size)[~flows.transfers],
        LATENCY: (flows.lag * found.lag)[flows.task != TURN],
        SWITCH: (flows.lag * found.lag)[flows.task == TURN],
        START: flows.start * found.start,
    }
    rows += [{"what": name, "links": None} | _gain(float(part.sum())) for name, part in beside.items()]
    return [row for row in rows if row["holds_s"]]


def _gain(seconds: float) -> dict[str, float]:
    return {"holds_s": seconds, "saved_per_percent_s": seconds * PER_CENT}


def path_of(done: Replayed) -> CriticalPath:
    """The flows that the makespan waited for, one after the other."""
    flows = done.prepared.flows
    return critical_path(flows.after, flows.start, done.begin, done.finish)


def path_rows(done: Replayed) -> list[dict[str, Any]]:
    """A row for every step of the critical path that takes time: what it is, from when to when, what holds it."""
    path, flows = path_of(done), done.prepared.flows
    rows = []
    for step in np.flatnonzero(path.finish > path.released).tolist():
        flow = int(path.flow[step])
        row = {"flow": flow, "task": int(flows.task[flow]), "name": _name(done, flow), "rank": int(flows.src[flow])}
        row |= {"to": int(flows.dst[flow]) if flows.transfers[flow] else None}
        row |= {f"{name}_s": float(getattr(path, name)[step]) for name in ("released", "begin", "finish")}
        rows.append(row | {"held_by": _held_by(done, flow)})
    return rows


def _name(done: Replayed, flow: int) -> str:
    """Of the task that a flow is a part of."""
    task = int(done.prepared.flows.task[flow])
    return SWITCH if task == TURN else done.prepared.graph.name[task]


def _held_by(done: Replayed, flow: int) -> str:
    """What keeps a flow from being through earlier."""
    flows, link = done.prepared.flows, int(done.holder[flow])
    if link >= 0:
        return done.prepared.network.link_name(link)
    if flows.task[flow] == TURN:
        return SWITCH
    return COMPUTATION if flows.seconds[flow] > 0 and not flows.transfers[flow] else LATENCY


def rank_rows(done: Replayed) -> list[dict[str, Any]]:
    """A row for every rank: its GPU, what it spends the makespan on, what it sends and receives."""
    prepared, parts = done.prepared, spent(done)
    flows, ranks = prepared.flows, prepared.graph.ranks
    moves = flows.transfers & (flows.src != flows.dst)
    sent, received = (np.bincount(end[moves], flows.bytes[moves], minlength=ranks) for end in (flows.src, flows.dst))
    columns = {"rank": np.arange(ranks), "gpu": prepared.gpu} | parts._asdict()
    columns |= {"sent_bytes": sent, "received_bytes": received}
    return [dict(zip(columns, row, strict=True)) for row in zip(*(x.tolist() for x in columns.values()), strict=True)]


def carried_rows(done: Replayed, found: Gains | None = None) -> list[dict[str, Any]]:
    """A row for every link that carries something: its ends, capacity, bytes, use until the job ends, and what the
    makespan owes it."""
    prepared = done.prepared
    network = prepared.network
    carried = link_bytes(network, prepared.routes, np.where(prepared.flows.transfers, prepared.size, 0))
    kinds = [kind for kind, count in network.links for _ in range(count)]
    rows = []
    for link in np.flatnonzero(carried).tolist():
        row = {"link": link, "kind": kinds[link], "from": network.node_name(int(network.tail[link]))}
        row |= {"to": network.node_name(int(network.head[link])), "capacity_bytes_per_s": float(network.capacity[link])}
        row |= {"bytes": float(carried[link])}
        row |= {"utilisation": float(carried[link] / network.capacity[link] / done.makespan_s)}
        if found is not None:
            row |= {"holds_s": float(-network.capacity[link] * found.capacity[link])}
        rows.append(row)
    return rows


def replay_row(done: Replayed, found: Gains | None = None) -> dict[str, Any]:
    """One row of what came out: the makespan, what ranks spend it on, on average, and what holds most of it."""
    prepared, parts = done.prepared, spent(done)
    flows = prepared.flows
    return {
        "fabric": prepared.fabric,
        "nic_gbps": prepared.nic_gbps,
        "ranks": prepared.graph.ranks,
        "servers": None if prepared.cluster is None else prepared.cluster.servers,
        "gpus": None if prepared.cluster is None else prepared.cluster.gpus,
        "tasks": prepared.graph.tasks,
        "flows": flows.flows,
        "bytes": float(flows.bytes[flows.transfers].sum()),
        "makespan_s": done.makespan_s,
        **{name: float(seconds.mean()) for name, seconds in parts._asdict().items()},
        **({} if found is None else _most_held(done, found)),
        "events": done.events,
        "build_s": done.build_s,
        "solve_s": done.solve_s,
    }


def _most_held(done: Replayed, found: Gains) -> dict[str, Any]:
    most = max(gain_rows(done, found), key=lambda row: row["holds_s"], default=None)
    if most is None:
        return {"held_by": None, "held_share": None}
    return {"held_by": most["what"], "held_share": most["holds_s"] / done.makespan_s}


def spans(done: Replayed) -> list[dict[str, Any]]:
    """Everything that takes time, by rank and track, and the critical path; see `report.write_task_trace`."""
    prepared = done.prepared
    flows, found = prepared.flows, []
    for flow in np.flatnonzero(done.finish > done.begin).tolist():
        rank, to, name = int(flows.src[flow]), int(flows.dst[flow]), _name(done, flow)
        when = {"begin_s": float(done.begin[flow]), "end_s": float(done.finish[flow])}
        if to < 0:
            found.append({"rank": rank, "track": "compute", "name": name or COMPUTATION} | when)
            continue
        args = {"bytes": float(flows.bytes[flow]), "task": int(flows.task[flow])}
        for own, track, other in ((rank, "send", f"to {to}"), (to, "receive", f"from {rank}")):
            found.append({"rank": own, "track": track, "name": f"{name} {other}".strip(), "args": args} | when)
    return found + [_step_span(row) for row in path_rows(done)]


def _step_span(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: row[name] for name in ("rank", "to", "held_by")}
    when = {"begin_s": row["released_s"], "end_s": row["finish_s"]}
    return {"rank": -1, "track": "critical path", "name": row["name"] or row["held_by"], "args": shown} | when
