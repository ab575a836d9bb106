"""Collectives beside ASTRA-sim's two analytical network models, on its ring, switch and fully connected network.

    python benchmarks/analytical_simulators.py TIMES.json [--every]

TIMES.json: what ASTRA-sim 2 (congestion unaware and aware) reported, as `runs` and `chunk_pipelining_runs` with `coll`,
`topo`, `impl`, `n`, `MiB`, `splits`, `active`, `mode`, `bw_GBps`, `lat_ns`, `endpoint_ns` and `ns_max`. Ours runs the
same algorithm, exact max-min sharing, latency of each hop in front of a message. Its GB/s are 2^30 bytes/s. Beside the
network it charges 10 ns at the end of each message and 3 bytes of memory traffic for each byte that is reduced, at
1,600 GB/s (`local-mem-bw`), but nothing for the first halving; "with charges" adds both (reductions where there is one
chunk at a time). Chunks one at a time (`active` 1) are collectives of a part of
the bytes, one after the other; `active` = `splits` are chunks of one collective.
Prints a table of the runs (of each mode one column); `--every` also those that agree to 0.1 %.
"""

import argparse
import json
import pathlib
import sys
from typing import NamedTuple

import jax
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks
from mfabric_jax.apps.graphs.tasks.lowering import lower_tasks
from mfabric_jax.flows.completion import completion_times
from mfabric_jax.flows.flows import Flows
from mfabric_jax.flows.problem import FlowProblem

GIB, MIB = 2**30, 2**20
LATENCY_NS, BANDWIDTH = 500, 50 * GIB  # of a hop, of a link
MODES = ("unaware", "aware")
MEMORY = 1600e9  # bytes/s, `local-mem-bw`: decimal
TRAFFIC = 3  # bytes read and written for a byte that is reduced
OPS = {"all_reduce": Op.ALL_REDUCE, "all_to_all": Op.ALL_TO_ALL, "all_gather": Op.ALL_GATHER}
ALGORITHM = {"ring": "ring", "direct": "direct", "halvingDoubling": "halving-doubling"}


class Network(NamedTuple):
    """`hops` [n n H]: the links from each to each, -1 pads; as many `links`."""

    hops: np.ndarray
    links: int

    @property
    def crossed(self) -> np.ndarray:
        """[n n] how many links."""
        return (self.hops >= 0).sum(axis=2)


def ring(n: int) -> Network:
    """Both ways round; the shorter one, of two as short the one that ascends. Link i: i to i + 1; n + i: i + 1 to i."""
    src, far = np.arange(n)[:, None, None], (np.arange(n) - np.arange(n)[:, None])[:, :, None] % n
    hop = np.arange(n // 2)
    up, down = (src + hop) % n, n + (src - 1 - hop) % n
    return Network(np.where(2 * far <= n, np.where(hop < far, up, -1), np.where(hop < n - far, down, -1)), 2 * n)


def switch(n: int) -> Network:
    """A link up and a link down for everyone."""
    src, dst = np.indices((n, n))
    return Network(np.where((src != dst)[:, :, None], np.stack([src, n + dst], axis=2), -1), 2 * n)


def fully_connected(n: int) -> Network:
    """A link from each to each."""
    link = np.arange(n * n).reshape(n, n, 1)
    return Network(np.where(np.eye(n, dtype=bool)[:, :, None], -1, link), n * n)


NETWORKS = {"Ring": ring, "Switch": switch, "FullyConnected": fully_connected}


def collective(run: dict, network: Network, charged: bool) -> Flows:
    """What ASTRA-sim ran: everyone's part of it, in as many collectives as it has chunks one at a time."""
    n, op = run["n"], OPS[run["coll"]]
    size = run["MiB"] * MIB * (n if op is Op.ALL_GATHER else 1)  # its all-gather counts a rank's own part
    turns = run["splits"] // run["active"]
    tasks = Tasks(n, groups=(tuple(range(n)),))
    before: list[int] = []
    for match in range(turns):
        what = {"op": op, "group": 0, "bytes": size / turns, "match": match}
        before = [tasks.add(TaskKind.COLLECTIVE, rank, after=before[rank : rank + 1], **what) for rank in range(n)]
    seconds = network.crossed * LATENCY_NS * 1e-9 + charged * run["endpoint_ns"] * 1e-9
    word = f"{run['coll'].replace('_', '-')}={ALGORITHM[run['impl']]}*{run['active']}"
    flows = lower_tasks(tasks.graph(), algorithms=word, alpha_s=lambda src, dst: seconds[src, dst])
    if charged and op is Op.ALL_REDUCE and run["active"] == 1:
        charge_reductions(flows, run, turns)
    return flows


def charge_reductions(flows: Flows, run: dict, turns: int) -> None:
    """What waits for a message that is reduced begins later."""
    first, n = 2 * run["n"] * turns, run["n"]  # behind the tasks and their begins: the messages of turn after turn
    number = (np.arange(flows.flows) - first) % ((flows.flows - first) // turns)
    phase = n * (n - 1) if run["impl"] == "ring" else int(np.argmin(flows.transfers[first:]))  # the first marker
    reduced = flows.transfers & (number < phase) & (number >= n * (run["impl"] == "halvingDoubling"))
    before, then = flows.after[reduced[flows.after[:, 0]] & (flows.after[:, 1] >= first)].T
    receives = (flows.dst[before] == flows.src[then]) | ~flows.transfers[then]
    later = np.zeros(flows.flows)
    np.maximum.at(later, then[receives], TRAFFIC * flows.bytes[before[receives]] / MEMORY)
    flows.lag[:] += later


def sends(run: dict, network: Network, lanes: str) -> Flows:
    """The messages of a run; each rank sends one at a time (`lanes` ordered), as it does, or all at once (free)."""
    tasks = Tasks(run["n"])
    for match, (src, dst, size) in enumerate(run["msgs"]):
        tasks.add(TaskKind.SEND, src, peer=dst, bytes=size, match=match, lane=0)
        tasks.add(TaskKind.RECV, dst, peer=src, match=match)
    seconds = network.crossed * LATENCY_NS * 1e-9
    return lower_tasks(tasks.graph(), alpha_s=lambda src, dst: seconds[src, dst], lanes=lanes)


def finishes(flows: Flows, network: Network) -> np.ndarray:
    """[F] nanoseconds."""
    hops = np.where(flows.transfers[:, None], network.hops[flows.src, flows.dst], -1)
    compute = (flows.src >= 0) & ~flows.transfers
    problem = FlowProblem(np.full(network.links, BANDWIDTH, float), hops, cap=np.where(compute, 1, np.inf))
    size = np.where(compute, flows.seconds, flows.bytes)
    return 1e9 * np.asarray(completion_times(problem, size, flows.start, flows.after, flows.lag).finish)


def rows(data: dict):
    """A collective run with both modes, ours, ours with charges; in the order of the file."""
    same = ("coll", "topo", "impl", "n", "MiB", "splits", "active")
    found: dict[tuple, dict] = {}
    for run in data["runs"] + data["chunk_pipelining_runs"]:
        row = found.setdefault(tuple(run[name] for name in same), {name: run[name] for name in same} | {"run": run})
        row[run["mode"].lower()] = run["ns_max"]
    for row in found.values():
        run = row.pop("run")
        network = NETWORKS[run["topo"]](run["n"])
        yield row | {
            name: finishes(collective(run, network, charged), network).max()
            for name, charged in (("ours", False), ("charged", True))
        }


def messages(data: dict):
    """A run of sends with both modes, ours with all at once and with one at a time."""
    for run in data["p2p_send_recv_runs"]:
        if isinstance(run["msgs"], list):
            network = NETWORKS[run["topo"]](run["n"])
            row = {name: run[name] for name in ("case", "topo", "n")} | run["makespan"]
            for name, lanes in (("all at once", "free"), ("one at a time", "ordered")):
                row[name] = finishes(sends(run, network, lanes), network).max()
            yield row


def shown(value: object) -> str:
    """Nanoseconds whole, ratios with four digits."""
    return str(value) if not isinstance(value, float) else f"{value:.0f}" if value > 100 else f"{value:.4f}"


def table(rows: list[dict]) -> str:
    """Markdown."""
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[shown(value) for value in row.values()] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=pathlib.Path)
    parser.add_argument("--every", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    data = json.loads(options.times.read_text())
    compared = [row | {mode + " / charged": row[mode] / row["charged"] for mode in MODES} for row in rows(data)]
    apart = [row for row in compared if any(abs(row[mode] - row["charged"]) > row["charged"] / 1000 for mode in MODES)]
    print(f"{len(compared)} runs in both modes, {len(compared) - len(apart)} of them within 0.1 % in both\n")
    print(table(compared if options.every else apart))
    print()
    print(table(list(messages(data))))


if __name__ == "__main__":
    main()
