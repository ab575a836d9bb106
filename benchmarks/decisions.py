"""CPU milliseconds of a decision on one core, in a batch, beside how good it is: joint, and circuits for scenarios.

python benchmarks/decisions.py
python benchmarks/decisions.py --servers 8 --demands 4
python benchmarks/decisions.py --prototype FOLDER     beside plan() of FOLDER/fast2.py, a library in C++
python benchmarks/decisions.py --trace FOLDER --servers 16     single decisions from earlier plans of a recording
python benchmarks/decisions.py --drift 4              split and unsplit routing, demands of Drift with 4 seeds

Joint (one sample) knows the demand and gives its shares too. Sample-average plans circuits for scenarios of a forecast
with errors of sigma 0.6. Quality is the time over the degree bound, with shares for each demand: "known" over the
demands that were planned for, "true" over the true ones. Demands are of all families, drawn and broad.

With --trace, the held-out records of a recording are planned, 4 + 1 NICs: by joint alone, by joint from the circuits
that joint chose for the same layer 1, 10 and 40 records earlier, and record after record from plans kept by layer. Wall
milliseconds are of one compiled decision, median and mean; quality is by the plans' own shares.
`--drift` plans for 64 independent demands of `Drift` (pairs 2, 8 servers, 4 + 1 NICs), and for 32 of them one by one:
mean time over each demand's degree bound; "relaxed" before rounding, and rounded once, are those of `relaxed`.
"""

import argparse
import functools
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
BACK = (1, 10, 40)  # records
LAST, COLUMNS = 30, 16  # most held-out records; of the layers and micro-batches, those kept by layer
QUICK = {"steps": 20, "rounds": 3}
STARTS: tuple[dict[str, Any], ...] = ({}, {"enough": 0.005}, {"enough": 0.005, "rounds": 2})
OF_TRACE = ("servers", "records back", "who", "budget", "ms", "mean ms", "mean", "p90", "most", "over joint")
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
    parser.add_argument("--trace", default=None, help="a recording; its held-out records are planned")
    parser.add_argument("--decisions", type=int, default=64, help="of the recording, each alone")
    parser.add_argument("--prototype", type=Path, default=None, help="folder of fast2.py and its library")
    parser.add_argument("--drift", type=int, default=0, help="number of seeds; only split and unsplit routing")
    parser.add_argument("--seconds", type=float, default=5.0, help="limit of exact for each demand of --drift; 0: none")
    asked = parser.parse_args()
    _on_one_core()
    if asked.trace is not None:
        print(_line(OF_TRACE), flush=True)
        for servers in asked.servers:
            for line in _from_earlier(asked.trace, servers, asked.decisions):
                print(_line((servers, *line)), flush=True)
        return
    if asked.drift:
        return _compare_on_drift(asked.drift, asked.seconds)
    print(_line(HEAD), flush=True)
    for servers in asked.servers:
        for samples in asked.samples:
            demands = _drawn(servers, samples, asked.demands)
            for line in (*_ours(demands), *(_prototype(asked.prototype, demands) if asked.prototype else ())):
                print(_line((servers, samples, *line)), flush=True)


def _compare_on_drift(seeds: int, exact_seconds: float) -> None:
    import jax
    import jax.numpy as jnp

    from mfabric_jax import policies
    from mfabric_jax.apps.learning import Drift
    from mfabric_jax.fabric import Circuits, Region
    from mfabric_jax.policies.paced import split_latest, unsplit_latest
    from mfabric_jax.policies.relaxed import first_logits, relax_paced, round_circuits
    from mfabric_jax.policies.samples import samples_of
    from mfabric_jax.routing import degree_bound, fluid_lower_bound

    region, source = Region(8, jnp.float32(400), 4, jnp.float32(1)), Drift(pairs=2.0, skew=1.0, memory=0.98)
    every = [
        jax.vmap(lambda key: source.first(key, 8, jnp.float32)[1])(jax.random.split(jax.random.key(seed), 64))
        for seed in range(seeds)
    ]

    def measure(who, number, function, score):
        """Print seconds to compile, CPU ms a decision and the score of each seed."""
        began = time.process_time()
        inputs = [demand[:number] for demand in every]
        compiled = jax.jit(function).lower(inputs[0]).compile()
        compile_s = time.process_time() - began
        compiled(inputs[0])
        outputs, spent = _timed(lambda: [jax.block_until_ready(compiled(demand)) for demand in inputs])
        scores = [float(score(result, demand)) for result, demand in zip(outputs, inputs, strict=True)]
        decisions = seeds * (1 if number == 64 else number)
        cells = number, f"{compile_s:.1f}", f"{1000 * spent / decisions:.1f}", f"{sum(scores) / seeds:.4f}"
        print(f"{who:34}", *(cell.rjust(9) for cell in map(str, cells)), *(f"{x:8.4f}" for x in scores), flush=True)

    print(f"{'who':34}", *(cell.rjust(9) for cell in ("demands", "compile s", "CPU ms", "mean")), "   each seed")
    for routing in ("split", "unsplit"):
        latest = split_latest if routing == "split" else unsplit_latest

        def time_of(count, demand, routing=routing):
            return fluid_lower_bound(region, Circuits(count), demand, routing=routing) / degree_bound(region, demand)

        def one_set(count, demand, time_of=time_of):
            return jax.vmap(lambda matrix: time_of(count, matrix))(demand).mean()

        def each(count, demand, time_of=time_of):
            return jax.vmap(time_of)(count, demand).mean()

        def relax(demand, number=1, routing=routing):
            samples = samples_of(demand, region)
            return samples, relax_paced(samples, first_logits(samples.mean, jax.random.key(0), number), 150, routing)

        def soft_time(demand, latest=latest):
            samples, soft = relax(demand)
            return latest(samples, soft[0], jnp.float32(1e-3)).mean()

        def round_once(demand):
            samples, soft = relax(demand)
            return round_circuits(soft[0], samples.degrees)

        for starts in (1, 2, 4):
            policy = policies.get("sample-average", routing=routing, starts=starts)
            measure(
                f"{routing}: sample-average, {starts} starts",
                64,
                lambda demand, policy=policy: policy(demand, region).circuits.count,
                one_set,
            )
        measure(f"{routing}: relaxed, not rounded", 64, soft_time, lambda result, _: result)
        measure(f"{routing}: relaxed, rounded once", 64, round_once, one_set)
        measure(
            f"{routing}: relaxed, not rounded",
            32,
            lambda demand, soft_time=soft_time: jax.lax.map(lambda matrix: soft_time(matrix[None]), demand).mean(),
            lambda result, _: result,
        )
        measure(
            f"{routing}: relaxed, rounded once",
            32,
            lambda demand, round_once=round_once: jax.lax.map(lambda matrix: round_once(matrix[None]), demand),
            each,
        )
        rows = [("relaxed", {"rounds": 0}), ("relaxed", {}), ("local-search", {}), ("sample-average", {})]
        if exact_seconds:
            rows.append(("exact", {"seconds": exact_seconds}))
        for name, settings in rows:
            policy = policies.get(name, routing=routing, **settings)
            words = "".join(f", {key} {value:g}" for key, value in settings.items())
            measure(
                f"{routing}: {name}{words}",
                32,
                lambda demand, policy=policy: jax.lax.map(lambda one: policy(one, region).circuits.count, demand),
                each,
            )


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


def _from_earlier(trace: str, servers: int, many: int) -> Iterator[tuple]:
    """How many records back a plan begins, who, budget, milliseconds, quality and time over that of joint."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from mfabric_jax import policies
    from mfabric_jax.fabric import Circuits, Region
    from mfabric_jax.routing import Plan, degree_bound, fluid_lower_bound
    from mfabric_jax.traffic.demand_families import fold_to_servers, gate_trace
    from mfabric_jax.traffic.samplers import split_records

    region, count = Region(servers, jnp.float32(400), 4, jnp.float32(1)), gate_trace(trace, None).count
    every = jnp.asarray(fold_to_servers(count, servers)).reshape(len(count), -1, servers, servers)
    held = range(len(every))[split_records(len(every), "test")][:LAST]
    random = np.random.default_rng(0)
    record, column = random.choice(held, many), random.integers(every.shape[1], size=many)
    true = every[record, column]

    def over_bound(plan, demand):
        return fluid_lower_bound(region, plan, demand, routing="relay") / degree_bound(region, demand)

    times = jax.jit(jax.vmap(over_bound))

    def one_by_one(decide, *given):
        spent, plans = [], []
        jax.block_until_ready(decide(*(x[0] for x in given)))
        for number in range(many):
            began = time.perf_counter()
            plans.append(jax.block_until_ready(decide(*(x[number] for x in given))))
            spent.append(1000 * (time.perf_counter() - began))
        plans = jax.tree.map(lambda *x: jnp.stack(x), *plans)
        return plans.circuits.count, np.array(spent), np.asarray(times(plans, given[0]))

    def line(back, who, budget, spent, late, joint):
        ratio = f"{np.mean(late / joint):.5f}" if joint is not None else ""
        quality = float(late.mean()), float(np.quantile(late, 0.9)), float(late.max())
        return back, who, budget, float(np.median(spent)), float(np.mean(spent)), *map("{:.5f}".format, quality), ratio

    def again(demand, before, policy):
        return policy(demand, region, previous=Plan(Circuits(before)))

    def words(settings):
        return ", ".join(f"{name} {value}" for name, value in settings.items())

    whole = jax.jit(lambda demand: policies.get("joint")(demand, region))
    quick = jax.jit(lambda demand: policies.get("joint", **QUICK)(demand, region))
    _, spent, joint = one_by_one(whole, true)
    yield line("", "joint", "", spent, joint, joint)
    yield line("", "joint", words(QUICK), *one_by_one(quick, true)[1:], joint)
    earlier = {back: one_by_one(whole, every[record - back, column])[0] for back in BACK}
    for settings in STARTS:
        decide = jax.jit(functools.partial(again, policy=policies.get("joint", start="previous", **settings)))
        for back, before in earlier.items():
            yield line(back, "from earlier", words(settings), *one_by_one(decide, true, before)[1:], joint)
    yield line("kept", *_kept_by_layer(region, every[held[0] : held[-1] + 1, :COLUMNS], over_bound), None)


def _kept_by_layer(region: Any, demands: Any, over_bound: Callable) -> tuple:
    """Who, budget, milliseconds and quality of all records but the first, whose plans come from uniform circuits."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from mfabric_jax.policies import LayerPlans, get

    policy, (records, layers) = get("joint", start="previous", enough=0.005), demands.shape[:2]

    def step(kept, now):
        plan, kept = kept.plan_layer(policy, *now, region)
        return kept, over_bound(plan, now[1])

    @jax.jit
    def run(kept, demands):
        order = jnp.tile(jnp.arange(layers, dtype=jnp.int32), len(demands))
        return jax.lax.scan(step, kept, (order, demands.reshape(-1, *demands.shape[2:])))

    kept, _ = run(LayerPlans.first(region, layers), demands[:1])
    jax.block_until_ready(run(kept, demands[1:]))
    began = time.perf_counter()
    _, late = jax.block_until_ready(run(kept, demands[1:]))
    each = 1000 * (time.perf_counter() - began) / len(late)
    return "kept by layer", f"enough 0.005, {records} records", np.array([each]), np.asarray(late)


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
