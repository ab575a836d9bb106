"""The flow engine's speed on a CPU, beside SimGrid 4.1 on the same instances, one core each.

    taskset -c 0 python benchmarks/flows.py [--dtype float32] [--sizes 8,16,32,64] [--large] [--peer DIR]
    python benchmarks/flows.py --cores 2 --peer DIR

Regions: Zipf demand, greedy circuits; pairs without a circuit share the electrical star (`star_rates`,
`star_completion`, batched). `--large`: 10,000 flows between 1,024 hosts and 100,000 between 10,000 to completion, and
single solves of 1e4, 1e5 and 1e6 flows; CPU seconds of the process.
The peer is a folder with `peer.py` and `instances.py` (SimGrid's solver behind a file interface) and its binaries in
$FLOW_PEER_BIN; without it the ratios are left out. Our times are the best of several calls after a first;
compilation is timed apart; the peer's are its own CPU seconds, the best of several. Answers are compared first.
`memory_bound_per_s`: simulations a second if main memory had to be read and written once per completion; regions fit
into cache, so this is a yardstick, not a limit.
Prints a table, and JSON lines with `--json`.
"""

import argparse
import importlib
import json
import pathlib
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

PORT = 2 * 12.5e9  # two electrical NICs of 100 Gbps


def zipf_demand(servers: int, seed: int) -> np.ndarray:
    """Popular destinations by a Zipf law, noisy rows, bytes."""
    rng = np.random.default_rng([servers, seed])
    share = rng.permutation(1 / np.arange(1, servers + 1) ** 1.2)
    demand = rng.gamma(2.0, 0.5, (servers, servers)) * share
    np.fill_diagonal(demand, 0)
    return np.round(1e9 * rng.uniform(0.5, 1.5, (servers, 1)) * demand / demand.sum(axis=1, keepdims=True))


def electrical_part(servers: int, seed: int, peer) -> np.ndarray:
    """The bytes [S S] that greedy circuits leave to the electrical star; the peer's own instance where there is one."""
    if peer:
        one = peer.instances.region(servers, seed)
        left = np.zeros((servers, servers))
        hops = np.diff(one.indptr)
        i, j = peer.instances.pairs(servers)
        left[i, j] = np.where(hops == 2, one.size, 0)
        return left
    import jax.numpy as jnp

    from mfabric_jax import Region, greedy

    demand = zipf_demand(servers, seed)
    count = greedy(jnp.asarray(demand), Region(servers, 100.0), rule="next").circuits.count
    return np.where(np.asarray(count) > 0, 0, demand)


class Peer:
    """SimGrid behind its file interface, if it is there."""

    def __init__(self, folder: str):
        sys.path.insert(0, folder)
        self.instances, self.runner = importlib.import_module("instances"), importlib.import_module("peer")

    def solves_per_s(self, one) -> float:
        runs = [self.runner.lmm(one, "solve", args=[str(max(20, 200_000 // one.F))])[1] for _ in range(3)]
        return 1 / min(run["solve_min_s"] for run in runs)

    def completions_on_cores(self, one, cores: int) -> float:
        """Simulations per second of one process per core, all at once (reading the instance left out)."""
        with ThreadPoolExecutor(cores) as pool:
            return sum(pool.map(lambda _: self.completion(one, 2)[1], range(cores)))

    def completion(self, one, repeat: int = 3) -> tuple[np.ndarray, float]:
        """Finish times, and simulations per second."""
        seconds = []
        for _ in range(repeat):
            finish, info = self.runner.lmm(one, "fct", timeout=3600)
            seconds.append(info["loop_cpu_s"])
        return finish, 1 / min(seconds)


def best_of(call, *args, repeat: int = 5, clock=time.perf_counter):
    """Result and best seconds, after a first call."""
    import jax

    result, best = jax.block_until_ready(call(*args)), float("inf")
    for _ in range(repeat):
        start = clock()
        jax.block_until_ready(call(*args))
        best = min(best, clock() - start)
    return result, best


def compiled(function, *args):
    """The program and the seconds its compilation took."""
    import jax

    start = time.perf_counter()
    program = jax.jit(function).lower(*args).compile()
    return program, time.perf_counter() - start


def copying_speed() -> float:
    """Bytes per second that a large copy reads and writes, one core."""
    source, best = np.ones(32_000_000), float("inf")
    target = np.empty_like(source)
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


def on_cores(program, size, port, cores: int) -> float:
    """Best seconds of one batched call split over threads."""
    parts = [(size[core::cores], port[core::cores]) for core in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        return best_of(lambda: list(pool.map(lambda part: program(*part), parts)), repeat=3)[1]


def regions(servers: int, batch: int, dtype, peer, cores: int) -> dict:
    """Batched regions of one size."""
    import jax
    import jax.numpy as jnp

    from mfabric_jax.flows import star_completion, star_rates

    size = jnp.asarray(np.stack([electrical_part(servers, seed, peer) for seed in range(batch)]), dtype)
    port = jnp.full((batch, servers), PORT, dtype)
    rates, compile_rates = compiled(jax.vmap(lambda s, p: star_rates(s, p, p)), size, port)
    ends, compile_ends = compiled(jax.vmap(lambda s, p: star_completion(s, p, p)), size, port)
    _, solve_s = best_of(rates, size, port, repeat=10)
    finish, end_s = best_of(ends, size, port, repeat=3)
    # Every completion has to read what is left of the region's flows and to write it once.
    touched = 2 * servers**2 * np.dtype(dtype).itemsize * float(np.mean(np.sum(np.asarray(size) > 0, axis=(1, 2))))
    row = {
        "case": f"region S={servers}",
        "batch": batch,
        "dtype": str(np.dtype(dtype)),
        "solves_per_s": batch / solve_s,
        "completions_per_s": batch / end_s,
        "compile_s": compile_rates + compile_ends,
        "memory_bound_per_s": copying_speed() / touched,
    }
    if cores > 1:
        half, _ = compiled(jax.vmap(lambda s, p: star_completion(s, p, p)), size[::cores], port[::cores])
        row[f"completions_per_s_{cores}_cores"] = batch / on_cores(half, size, port, cores)
    if peer:
        one = peer.instances.region(servers, 0)
        theirs, per_s = peer.completion(one, 3 if servers < 64 else 2)
        shared = np.diff(one.indptr) == 2
        i, j = peer.instances.pairs(servers)
        row["error"] = float(np.max(np.abs(np.asarray(finish[0])[i, j][shared] / theirs[shared] - 1)))
        row |= {"peer_solves_per_s": peer.solves_per_s(one), "peer_completions_per_s": per_s}
        row["solve_ratio"] = row["solves_per_s"] / row["peer_solves_per_s"]
        row["completion_ratio"] = row["completions_per_s"] / per_s
        if cores > 1:
            together = peer.completions_on_cores(one, cores)
            row[f"completion_ratio_{cores}_cores"] = row[f"completions_per_s_{cores}_cores"] / together
    return row


def hosts(flows: int, dtype, peer, simulate: bool) -> dict:
    """One large instance: host ports of a full-bisection tree, or 100,000 links for 1e6 flows."""
    import jax.numpy as jnp

    from mfabric_jax.flows import FlowProblem, completion_times, max_min_rates

    rng = np.random.default_rng(0)
    ends = 1024 if flows <= 10_000 else min(flows // 10, 50_000)
    source = np.arange(flows) % ends
    to = (source + rng.integers(1, ends, flows)) % ends
    size = np.round(64e6 * rng.lognormal(0, 1.5, flows)) + 1
    problem = FlowProblem(jnp.full(2 * ends, 12.5e9, dtype), np.stack([source, ends + to], 1).astype(np.int32))
    solve, compile_s = compiled(max_min_rates, problem)
    rates, solve_s = best_of(solve, problem, repeat=3, clock=time.process_time)
    row = {
        "case": f"{ends} hosts, {flows} flows",
        "dtype": str(np.dtype(dtype)),
        "solves_per_s": 1 / solve_s,
        "rounds": int(rates.rounds),
        "compile_s": compile_s,
    }
    one = None
    if peer:
        path = 2 * np.arange(flows + 1)
        links = np.stack([source, ends + to], 1).ravel()
        one = peer.instances.Instance(np.full(2 * ends, 12.5e9), path, links, size)
        row["peer_solves_per_s"] = peer.solves_per_s(one)
        row["solve_ratio"] = row["solves_per_s"] / row["peer_solves_per_s"]
    if simulate:
        run, more = compiled(completion_times, problem, jnp.asarray(size, dtype))
        done, end_s = best_of(run, problem, jnp.asarray(size, dtype), repeat=2, clock=time.process_time)
        row |= {"completions_per_s": 1 / end_s, "compile_s": compile_s + more, "events": int(done.events)}
        if one is not None and flows <= 10_000:  # above that the peer takes half an hour
            theirs, per_s = peer.completion(one, 1)
            row["error"] = float(np.max(np.abs(np.asarray(done.finish) / theirs - 1)))
            row |= {"peer_completions_per_s": per_s, "completion_ratio": row["completions_per_s"] / per_s}
    row["peak_MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row


def shown(row: dict) -> str:
    figures = [f"{name} {value:,.4g}" for name, value in row.items() if isinstance(value, float)]
    return f"{row['case']:26} {row['dtype']:8} " + "  ".join(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8,16,32,64")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--batch", type=int, default=0, help="regions in a batch; 0: chosen by size")
    parser.add_argument("--cores", type=int, default=1, help="also: one batched call on so many, and as many peers")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--peer", default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    import jax

    if options.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    peer = Peer(options.peer) if options.peer else None
    if peer is None:
        print("no peer: name its folder with --peer; ratios are left out")
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {options.dtype}")
    rows = []
    for servers in [int(word) for word in options.sizes.split(",") if word]:
        batch = options.batch or (1024 if servers < 32 else 128)
        rows.append(regions(servers, batch, options.dtype, peer, options.cores))
        print(shown(rows[-1]), flush=True)
    for flows in (10_000, 100_000, 1_000_000) if options.large else ():
        rows.append(hosts(flows, options.dtype, peer if flows <= 100_000 else None, simulate=flows <= 100_000))
        print(shown(rows[-1]), flush=True)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
