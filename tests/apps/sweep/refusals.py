"""Mistakes in design spaces: of cases, of single all-to-alls, and of how they are run."""

from mfabric_jax.apps.sweep import Sweep, read_sweep, sweep
from mfabric_jax.case.layers import layers_of, merge_layers


def cases(**file):
    """A file of cases."""
    return lambda: merge_layers(layers_of({"preset": "paper"} | file, "space.toml", typed=True))


def random(**axes):
    """A file of cases with random axes; two underscores of a name stand for a dot."""
    return cases(random={name.replace("__", "."): axis for name, axis in axes.items()})


def space(**tables):
    """A file of all-to-alls."""
    return lambda: Sweep(**tables)


def run(**options):
    return lambda: sweep(Sweep(), "nowhere", **options)


MANY = [1.0 + at for at in range(9000)]
REFUSED = [
    (cases(network={"nic_gbp": [100]}), "network.nic_gbp is unknown (did you mean network.nic_gbps?)"),
    (cases(network={"nic_gbps": []}), "network.nic_gbps must have at least one value"),
    (cases(network={"nic_gbps": [100, 100.0]}), "network.nic_gbps must not repeat a value"),
    (cases(network={"nic_gbps": MANY}, circuits={"delay_s": MANY}), "at most 67,108,864 cases"),
    (random(network__nic_gbps=[100, 200]), "random.network.nic_gbps must be { of = [...] } or { low"),
    (random(network__nic_gbps={"low": 400, "high": 100}), "low must be at most high (100.0), got 400.0"),
    (random(circuits__delay_s={"low": 0, "high": 1, "scale": "log"}), "delay_s.low must be above 0 and at most high"),
    (random(circuits__delay_s={"low": 1, "high": 2, "scale": "cubic"}), "delay_s.scale 'cubic' is unknown"),
    (random(circuits__delay_s={"low": 1, "high": 2, "whole": 3}), "delay_s.whole must be true or false, got 3"),
    (random(circuits__delay_s={"low": 1.5, "high": 2, "whole": True}), "must be whole numbers below 2^31"),
    (random(model__name={"low": "a", "high": "b"}), "random.model.name.low must be a number"),
    (random(network__nic_gbps={"of": [100, 100]}), "network.nic_gbps must not repeat a value"),
    (cases(sweep={"draws": 3}), "sweep.draws is the number of draws of [random], but there is no [random]"),
    (cases(sweep={"impossible": "skip"}), "sweep.impossible 'skip' is unknown"),
    (cases(sweep={"shards": 3}), "setting of [sweep] 'shards' is unknown"),
    (space(evaluate="all-to-alls"), "evaluate 'all-to-alls' is unknown (did you mean 'all-to-all'?)"),
    (space(grid={"nic_gbp": [100]}), "setting of [grid] 'nic_gbp' is unknown (did you mean 'nic_gbps'?)"),
    (space(grid={"nic_gbps": 100}), "grid.nic_gbps must be a list of at least one value, got 100"),
    (space(grid={"nic_gbps": [100, 100.0]}), "grid.nic_gbps must not repeat a value"),
    (space(grid={"nic_gbps": ["fast"]}), "grid.nic_gbps must be a number, got 'fast'"),
    (space(grid={"sigma": [0.1, float("nan")]}), "grid.sigma must be finite, got nan"),
    (space(grid={"seed": [5, 2**32 + 5]}), "grid.seed must be below 2^31, got 4294967301"),
    (space(fixed={"sigma": 1.0}, grid={"sigma": [1.0]}), "'sigma' must be in one of [fixed],", "got it twice"),
    (space(list={"seed": [1, 2], "sample": [3]}), "side by side and must be equally long, got seed 2, sample 1"),
    (space(random={"sigma": [0, 1]}), "random.sigma must be { of = [...] } or { low"),
    (space(random={"optical_degree": {"of": [2**63]}}), "random.optical_degree must be below 2^31, got 922337"),
    (space(fixed={"servers": 5000}), "servers of one region must be at most 4,096, got 5,000"),
    (space(fixed={"policy": "static"}), "policy 'static' cannot be swept on all-to-alls"),
    (space(fixed={"demand": "recorded"}), "demand 'recorded' needs trace"),
    (space(grid={"records": [[1, 2]]}), "records selects records of a trace"),
    (space(draws=3), "draws is the number of draws of [random], but there is no [random]"),
    (lambda: read_sweep("nowhere.toml"), "cannot read 'nowhere.toml' (No such file"),
    (run(shard=(3, 2)), "shard must be i/n with i from 1 to n, got 3/2"),
    (run(engine="dask"), "engine 'dask' is unknown; allowed: local, ray"),
]
