"""CPU milliseconds of a decision on one core, in a batch, beside how good it is: joint, and circuits for scenarios.

python benchmarks/decisions.py
python benchmarks/decisions.py --servers 8 --demands 4
python benchmarks/decisions.py --prototype FOLDER     beside plan() of FOLDER/fast2.py, a library in C++

Joint (one sample) knows the demand and gives its shares too. Sample-average plans circuits for scenarios of a forecast
with errors of sigma 0.6. Quality is the time over the degree bound, with shares for each demand: "known" over the
demands that were planned for, "true" over the true ones. Demands are of all families, drawn and broad.
"""

import argparse
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

SIGMA = 0.6  # of forecasts for which many samples are planned
SHARE_STEPS = 200  # of judging
FAST = {"rounds": 0, "steps": 0, "starts": 1}
BUDGETS: tuple[dict[str, int], ...] = (
    FAST,
    FAST | {"rounds": 4},
    {"rounds": 4, "steps": 50, "starts": 1},
    {"rounds": 12, "steps": 150, "starts": 2},
    {"rounds": 50, "steps": 150, "starts": 2},
)
ROUNDS = (0, 4, 12, 50)  # of the prototype
HEAD = ("servers", "samples", "who", "budget", "compile s", "CPU ms", "known", "true", "p90")


class Demands(NamedTuple):
    """What is planned for [N K S S], and what is then true [N S S]."""

    known: Any
    true: Any
    region: Any


def main() -> None:
    """Prints a line for each number of servers, of samples, each planner and budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--demands", type=int, default=2, help="of each of 13 families")
    parser.add_argument("--prototype", type=Path, default=None, help="folder of fast2.py and its library")
    asked = parser.parse_args()
    _on_one_core()
    print(_line(HEAD), flush=True)
    for servers in asked.servers:
        for samples in asked.samples:
            demands = _drawn(servers, samples, asked.demands)
            for line in (*_ours(demands), *(_prototype(asked.prototype, demands) if asked.prototype else ())):
                print(_line((servers, samples, *line)), flush=True)


def _on_one_core() -> None:
    """Before JAX starts its threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"


def _line(cells: tuple) -> str:
    texts = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells]
    return "".join(text.ljust(28) if at == 3 else text.rjust(10) + "  " for at, text in enumerate(texts))


def _drawn(servers: int, samples: int, each: int) -> Demands:
    import jax
    import jax.numpy as jnp

    from mfabric_jax.apps.learning.judging import Forecast, scenarios_of
    from mfabric_jax.fabric import Region
    from mfabric_jax.traffic.demand_families import BROAD, FAMILIES, draw_demands, draw_family, noisy_forecasts

    region = Region(servers, jnp.float32(1), 6, jnp.float32(2), relay_efficiency=jnp.float32(1))
    keys = jax.random.split(jax.random.key(0), (len(BROAD) + 2, each * len(FAMILIES)))
    true = [draw_family(keys[place, :each], family, servers) for place, family in enumerate(BROAD.values())]
    true.append(draw_demands(keys[-2], jnp.arange(each * len(FAMILIES)) % len(FAMILIES), servers))
    true = jnp.concatenate(true)
    if samples == 1:
        return Demands(true[:, None], true, region)
    noise = jax.random.split(jax.random.key(1), len(true))
    forecast = Forecast("", noisy_forecasts(noise, true, SIGMA), SIGMA, true[0])
    return Demands(scenarios_of(forecast, samples), true, region)


def _ours(demands: Demands) -> Iterator[tuple]:
    """Who, budget, seconds to compile, CPU milliseconds and quality."""
    import jax

    from mfabric_jax import policies

    one = demands.known.shape[1] == 1
    seen = demands.known[:, 0] if one else demands.known
    for budget in BUDGETS:
        if one:
            changed = {"samples" if name == "starts" else name: value for name, value in budget.items()}
            policy = policies.get("joint", **changed)
        else:
            policy = policies.get("sample-average", share_steps=0, **budget)
        batch = jax.jit(jax.vmap(lambda demand, policy=policy: policy(demand, demands.region)))
        began = time.process_time()
        compiled = batch.lower(seen).compile()
        compile_s = time.process_time() - began
        plans, spent = _timed(lambda compiled=compiled: jax.block_until_ready(compiled(seen)))
        words = f"{budget['rounds']} rounds, {budget['steps']} steps"
        who = "joint" if one else "average"
        yield who, words, compile_s, 1000 * spent / len(seen), *_quality(demands, plans.circuits)


def _prototype(folder: Path, demands: Demands) -> Iterator[tuple]:
    """The same for the library, one decision after the other."""
    import jax
    import numpy as np

    from mfabric_jax.fabric import Circuits

    spec = importlib.util.spec_from_file_location("fast2", folder / "fast2.py")
    if spec is None or spec.loader is None or not (folder / "libfast2.so").is_file():
        raise SystemExit(f"prototype must be a folder with fast2.py and libfast2.so, got {folder}.")
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    known = np.asarray(demands.known)
    for rounds in ROUNDS:
        chosen, spent = _timed(lambda rounds=rounds: [library.plan(one, rounds=rounds)[0] for one in known])
        circuits = jax.vmap(Circuits)(np.stack(chosen))
        yield "C++", f"{rounds} rounds", 0.0, 1000 * spent / len(known), *_quality(demands, circuits)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and CPU seconds of this process."""
    began = time.process_time()
    found = work()
    return found, time.process_time() - began


def _quality(demands: Demands, circuits: Any) -> tuple[float, float, float]:
    """Mean time over the degree bound over what was planned for; over the true demands, and their 90th percentile."""
    import jax
    import numpy as np

    from mfabric_jax.apps.learning.judging import over_bound

    def times(several):
        def each(given):
            return jax.vmap(lambda one: over_bound(demands.region, given[0], one, "relay", SHARE_STEPS))(given[1])

        return np.asarray(jax.lax.map(each, (circuits, several)))

    true = times(demands.true[:, None])
    known = true if demands.known.shape[1] == 1 else times(demands.known)
    return float(known.mean()), float(true.mean()), float(np.quantile(true, 0.9))


if __name__ == "__main__":
    main()
