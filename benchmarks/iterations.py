"""How long does it take to simulate many iterations, tokens to seconds, circuits chosen for every block?

python benchmarks/iterations.py [--model mixtral-8x7b] [--iterations 1000]
"""

import argparse
import resource
import time

import jax

from mfabric_jax import Case, load, resolve
from mfabric_jax.evaluate.problem import problem_of
from mfabric_jax.evaluate.solving import solve, times_of


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="mixtral-8x7b")
    options.add_argument("--iterations", type=int, default=1000)
    options.add_argument("--reconfigure", default="on-demand")
    asked = options.parse_args()
    given = {"model.name": asked.model, "run.iterations": asked.iterations, "circuits.reconfigure": asked.reconfigure}
    case = load(preset="paper", changes=given)
    assert isinstance(case, Case)
    start = time.perf_counter()
    one = problem_of(resolve(case), (case.network.nic_gbps,))
    where = f"{jax.devices()[0].platform}, {case.run.dtype}"
    print(f"{where}, {asked.iterations} iterations of {asked.model}, greedy, {asked.reconfigure}")
    print(f"draw the traffic {time.perf_counter() - start:.2f} s")
    for name in ("with compiling", "again"):
        start = time.perf_counter()
        solved = solve(one)
        middle = time.perf_counter()
        timed = jax.block_until_ready(times_of(one, solved))
        end = time.perf_counter()
        count = solved.load.size
        parts = f"circuits and {count:,} all-to-alls {middle - start:.2f} s, timelines {end - middle:.2f} s"
        print(f"{name}: {end - start:.2f} s; {parts}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"mean iteration {timed.iteration_s.mean():.4f} s, peak memory {peak:.0f} MB")


if __name__ == "__main__":
    main()
