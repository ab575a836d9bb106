"""Graphs of flows: the engine beside SimGrid 4.1's own (S4U, activities with dependencies) on the same instances.

    taskset -c 0 python benchmarks/graphs.py [--dtype float32] [--tasks 1000,10000,100000] [--batch 64] [--peer PROGRAM]
    taskset -c 0 python benchmarks/graphs.py --answers 100 --tasks "" --peer PROGRAM

PROGRAM is built from benchmarks/graph_peer.cpp as that file says; without it the ratios are left out.
Two kinds of graph. "iteration": micro-batches go through stages of eight servers; in each every server computes, sends
to every other (an all-to-all over a port up and a port down), computes as soon as its own part is there, and sends to
the next stage; the two directions of a 1F1B pipeline are taken as more micro-batches. "random": 64 servers; every task
waits for up to three of the sixty before it.
CPU seconds of one core, best of several, after a first call whose compilation is timed apart; the peer's are those of
its run alone, without reading and building, and for a batch the mean over some of its variants, times the batch.
Answers are compared first. A "task" is a flow: a computation or a transfer.
"""

import argparse
import json
import math
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

PORT = 50e9  # bytes a second: 400 Gbps
SERVERS = 8  # of a stage
BYTES = 8e6  # of a message, the median


@dataclass(frozen=True)
class Graph:
    """Flows with paths [F H], -1 pads; `after` [D 2] lists (before, then). Computations have no path and cap 1."""

    name: str
    capacity: np.ndarray
    hops: np.ndarray
    cap: np.ndarray
    size: np.ndarray
    start: np.ndarray
    lag: np.ndarray
    after: np.ndarray

    @property
    def flows(self) -> int:
        return len(self.size)


class Builder:
    """Collects tasks."""

    def __init__(self, hosts: int, seed: int):
        self.hosts, self.rng = hosts, np.random.default_rng(seed)
        self.hops: list[tuple[int, int]] = []
        self.after: list[tuple[int, int]] = []

    def compute(self, befores) -> int:
        return self._add((-1, -1), befores)

    def send(self, source: int, to: int, befores) -> int:
        return self._add((source, self.hosts + to), befores)

    def _add(self, hops, befores) -> int:
        self.hops.append(hops)
        self.after += [(before, len(self.hops) - 1) for before in befores]
        return len(self.hops) - 1

    def graph(self, name: str) -> Graph:
        hops = np.array(self.hops, np.int32)
        moves = hops[:, 0] >= 0
        nothing = np.zeros(len(hops))
        ports, after = np.full(2 * self.hosts, PORT), np.array(self.after)
        size = drawn_sizes(moves, self.rng)
        return Graph(name, ports, hops, np.where(moves, math.inf, 1.0), size, nothing, nothing, after)


def drawn_sizes(moves: np.ndarray, rng) -> np.ndarray:
    """Whole bytes of transfers, seconds of computations."""
    spread = rng.lognormal(0, 1, len(moves))
    return np.where(moves, np.ceil(BYTES * spread), 2 * BYTES / PORT * spread)


def iteration(tasks: int, seed: int) -> Graph:
    """Micro-batches through a pipeline of mixture-of-experts stages."""
    each = 2 * SERVERS + SERVERS * (SERVERS - 1) + SERVERS
    stages = 4 if tasks < 5_000 else 8
    batches = max(1, round(tasks / each / stages))
    build = Builder(SERVERS * stages, seed)
    free = {}  # the task that holds a server last
    arrived: dict[tuple[int, int], list[int]] = {}
    for batch in range(batches):
        for stage in range(stages):
            hosts = [stage * SERVERS + server for server in range(SERVERS)]
            gate = {}
            for host in hosts:
                before = arrived.get((batch, host), [])
                gate[host] = free[host] = build.compute([*before, *([free[host]] if host in free else [])])
            sent = {(a, b): build.send(a, b, [gate[a]]) for a in hosts for b in hosts if a != b}
            for host in hosts:
                free[host] = build.compute([free[host], *(sent[a, host] for a in hosts if a != host)])
                if stage + 1 < stages:
                    arrived[batch, host + SERVERS] = [build.send(host, host + SERVERS, [free[host]])]
    return build.graph(f"iteration of {len(build.hops)} tasks")


def random_graph(tasks: int, seed: int) -> Graph:
    """Computations and transfers that wait for some of those a little before them."""
    hosts = 64
    build = Builder(hosts, seed)
    for task in range(tasks):
        befores = {task - int(back) for back in build.rng.integers(1, 60, build.rng.integers(1, 4)) if back <= task}
        source = int(build.rng.integers(hosts))
        if build.rng.random() < 0.3:
            build.compute(sorted(befores))
        else:
            build.send(source, (source + int(build.rng.integers(1, hosts))) % hosts, sorted(befores))
    return build.graph(f"random graph of {tasks} tasks")


def small_graph(seed: int) -> Graph:
    """One of the drawn graphs of the tests, as far as S4U knows such: weights and shares are 1, bytes are whole."""
    from tests.flows.graphs import draw

    drawn, whole = draw(seed), 2**20
    hops = np.full((len(drawn.size), 4), -1, np.int32)
    for flow, path in enumerate(drawn.paths):
        hops[flow, : len(path)] = [link for link, _ in path]
    scale = np.where([bool(path) for path in drawn.paths], whole, 1)
    capacity, cap, size, start, lag = (
        np.array([float(value) for value in values])
        for values in (drawn.capacity, drawn.cap, drawn.size, drawn.start, drawn.lag)
    )
    after = np.array(drawn.after, np.int64).reshape(-1, 2)
    return Graph(f"drawn {seed}", capacity * whole, hops, cap * scale, size * scale, start, lag, after)


class Peer:
    """The program built from graph_peer.cpp."""

    def __init__(self, program: str):
        self.program = program

    def run(self, graph: Graph, repeat: int = 1) -> tuple[np.ndarray, float]:
        """Begin and finish [F 2], and the CPU seconds of the best run."""
        with tempfile.TemporaryDirectory() as folder:
            instance, out = pathlib.Path(folder, "instance"), pathlib.Path(folder, "out")
            instance.write_text(as_text(graph))
            seconds = []
            for _ in range(repeat):
                said = subprocess.run([self.program, instance, out], capture_output=True, text=True, check=True)
                seconds.append(json.loads(said.stdout.splitlines()[-1])["run_cpu_s"])
            return np.loadtxt(out, ndmin=2), min(seconds)


def as_text(graph: Graph) -> str:
    """The instance in the peer's format."""
    lines = [f"graph1 {len(graph.capacity)} {graph.flows} {len(graph.after)}"]
    lines += [f"{capacity:.17g}" for capacity in graph.capacity]
    caps = np.where(np.isfinite(graph.cap), graph.cap, -1)
    for hops, *numbers in zip(graph.hops.tolist(), graph.size, graph.start, graph.lag, caps, strict=True):
        links = [link for link in hops if link >= 0]
        lines.append(" ".join([*(f"{number:.17g}" for number in numbers), str(len(links)), *map(str, links)]))
    lines += [f"{before} {then}" for before, then in graph.after.tolist()]
    return "\n".join(lines) + "\n"


def engine(graph: Graph, dtype):
    """size [F] -> `Completion` of the graph."""
    import jax.numpy as jnp

    from mfabric_jax.flows import FlowProblem, completion_times

    problem = FlowProblem(jnp.asarray(graph.capacity, dtype), graph.hops, cap=jnp.asarray(graph.cap, dtype))
    start, lag = jnp.asarray(graph.start, dtype), jnp.asarray(graph.lag, dtype)
    return lambda size: completion_times(problem, size, start, graph.after, lag)


def timed(call, size, repeat: int):
    """Result, seconds of the first call, best CPU and wall seconds of later ones."""
    import jax

    first = time.perf_counter()
    result = jax.block_until_ready(call(size))
    first, cpu, wall = time.perf_counter() - first, math.inf, math.inf
    for _ in range(repeat):
        cpu_before, wall_before = time.process_time(), time.perf_counter()
        jax.block_until_ready(call(size))
        cpu, wall = min(cpu, time.process_time() - cpu_before), min(wall, time.perf_counter() - wall_before)
    return result, first, cpu, wall


def error(ours, theirs: np.ndarray) -> float:
    """Largest difference of begins and ends, over the end of the last; infinite where only one of both ends."""
    pairs = np.stack([np.asarray(ours.begin), np.asarray(ours.finish)], 1)
    known = ~np.isnan(theirs)  # the peer does not know when a flow that never ends begins
    if np.any(np.isinf(pairs[known]) != np.isinf(theirs[known])):
        return math.inf
    settled = known & np.isfinite(theirs)
    return float(np.abs(pairs[settled] - theirs[settled]).max(initial=0) / theirs[settled].max(initial=1e-300))


def speed(graph: Graph, dtype, batch: int, peer: Peer | None, repeat: int) -> dict:
    """One graph, and a batch of it with other sizes."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(1)
    moves = graph.hops[:, 0] >= 0
    sizes = np.stack([graph.size, *(drawn_sizes(moves, rng) for _ in range(batch - 1))])
    one = jax.jit(engine(graph, dtype))
    done, first, cpu, wall = timed(one, jnp.asarray(graph.size, dtype), repeat)
    row = {
        "graph": graph.name,
        "dtype": str(np.dtype(dtype)),
        "events": int(done.events),
        "tasks_per_s": graph.flows / cpu,
        "events_per_s": int(done.events) / cpu,
        "cpu_s": cpu,
        "wall_s": wall,
        "compile_s": first - wall,
    }
    if batch > 1:
        many, first, cpu, wall = timed(jax.jit(jax.vmap(engine(graph, dtype))), jnp.asarray(sizes, dtype), repeat)
        row |= {"batch": batch, "batch_tasks_per_s": batch * graph.flows / cpu, "batch_cpu_s": cpu}
        row |= {"batch_wall_s": wall, "batch_compile_s": first - wall}
    if peer:
        theirs, seconds = peer.run(graph, repeat)
        row |= {"error": error(done, theirs), "peer_tasks_per_s": graph.flows / seconds, "peer_cpu_s": seconds}
        row["ratio"] = row["tasks_per_s"] / row["peer_tasks_per_s"]
        if batch > 1:
            others = [peer.run(replace(graph, size=size)) for size in sizes[1 : 1 + repeat]]
            row["batch_error"] = max(
                error(jax.tree.map(lambda part, at=at: part[at], many), answer)
                for at, (answer, _) in enumerate(others, 1)
            )
            mean = np.mean([seconds for _, seconds in others])
            row |= {"batch_peer_cpu_s": batch * mean, "batch_ratio": batch * mean / row["batch_cpu_s"]}
    row["peak_MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row


def answers(count: int, dtype, peer: Peer) -> dict:
    """The drawn graphs of the tests: the largest difference, and where."""
    import jax.numpy as jnp

    errors = {}
    for seed in range(count):
        graph = small_graph(seed)
        errors[seed] = error(engine(graph, dtype)(jnp.asarray(graph.size, dtype)), peer.run(graph)[0])
    worst = max(errors, key=errors.__getitem__)
    return {"graphs": count, "dtype": str(np.dtype(dtype)), "largest error": errors[worst], "seed": worst}


def shown(row: dict) -> str:
    return "  ".join(
        f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="1000,10000,100000")
    parser.add_argument("--kinds", default="iteration,random")
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--answers", type=int, default=0, help="compare answers on so many small drawn graphs")
    parser.add_argument("--peer", default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    import jax

    if options.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    peer = Peer(options.peer) if options.peer else None
    if peer is None:
        print("no peer: name its program with --peer; ratios are left out")
    rows = [answers(options.answers, options.dtype, peer)] if peer and options.answers else []
    for row in rows:
        print(shown(row), flush=True)
    kinds = {"iteration": iteration, "random": random_graph}
    for tasks in [int(word) for word in options.tasks.split(",") if word]:
        for kind in options.kinds.split(","):
            rows.append(speed(kinds[kind](tasks, 0), options.dtype, options.batch, peer, options.repeat))
            print(shown(rows[-1]), flush=True)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
