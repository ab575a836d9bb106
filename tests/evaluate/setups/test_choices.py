"""Found set-ups beside drawn ones, and with more memory, bandwidth and choice."""

import itertools

import numpy as np
import pytest

from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.resolving.resolve import SEARCHED
from tests.evaluate.setups.spaces import SMALL, TIGHT, every, laid_out, search_of

HEURISTIC = 1.01  # set-ups whose coarse time is this much above the best are not timed
CASES, PICKED = 16, 4


def drawn(rng):
    """A small job."""
    pick = lambda *values: values[int(rng.integers(len(values)))]  # noqa: E731
    changes = {
        "model.blocks": pick(3, 4, 6, 8),
        "network.fabric": pick("fat-tree", "mfabric", "rail-optimized"),
        "job.frameworks": pick("any", "megatron-core"),
        "job.batch.sequence": pick(2048, 4096, 8192),
        "job.batch.global_batch": pick(8, 16, 32),
        "gpu.memory_gigabytes": pick(22.0, 30.0, 80.0),
        "network.nic_gbps": pick(100.0, 400.0),
        "traffic.generated.skew": pick(0.0, 1.0),
    }
    dense = {"model.dense_blocks": 1, "model.dense_hidden": 8192} if pick(True, False) else {}
    return SMALL | changes | dense | {"traffic.source": "generated"}


def picks(search, rng):
    """Drawn set-ups that fit and run under the frameworks of the case, with their seconds."""
    each = [one for kind in every(search.job) for one in laid_out(search, kind)]
    count = 0
    for number in rng.permutation(len(each)).tolist():
        for level in search.levels(each[number]):
            one = each[number]._replace(recompute=level)
            if search._is_allowed(one) and (time_s := search._time(one)) < float("inf"):
                yield one, time_s
                count += 1
                break
        if count == PICKED:
            return


@pytest.mark.slow
def test_nothing_drawn_is_quicker_than_what_is_found():
    rng, ratios, narrower = np.random.default_rng(7), [], []
    path_of = {field: path for path, field in SEARCHED.items()}
    while len(narrower) < CASES:
        settings = drawn(rng)
        search = search_of(settings)
        try:
            found = search.find()
        except Misfit:  # nothing fits the smaller memories
            continue
        some = [*picks(search, rng)]
        ratios += [found.seconds / time_s for _, time_s in some]
        one, time_s = some[0]
        names = ("tp", "etp", "ep") if rng.integers(2) else ("pp", "dispatcher", "dispatch")
        stated = {path_of[name]: getattr(one, name) for name in names}
        kept = search_of(settings | stated).find()
        assert all(getattr(kept.best, name) == getattr(one, name) for name in names), stated
        narrower.append(found.seconds / kept.seconds)
        ratios.append(kept.seconds / time_s)
    print(f"found over drawn: {len(ratios)}, at most {max(ratios):.4f}; open over stated at most {max(narrower):.4f}")
    assert len(ratios) >= 50
    assert max(ratios) <= HEURISTIC
    assert max(narrower) <= HEURISTIC


@pytest.mark.slow
@pytest.mark.parametrize("fabric", ["fat-tree", "mfabric"])
def test_more_memory_bandwidth_or_choice_never_takes_longer(fabric):
    base = TIGHT | {"network.fabric": fabric, "job.batch.micro_batch": 2}
    rows = {
        "gpu.memory_gigabytes": [22.0 * times for times in (1.0, 1.3, 2.0)],
        "network.nic_gbps": [100.0, 200.0, 400.0],
        "job.frameworks": ["megatron-core", "any"],
    }
    for path, values in rows.items():
        seconds = [search_of(base | {path: value}).find().seconds for value in values]
        worst = max(later / before for before, later in itertools.pairwise(seconds))
        print(f"{fabric}, {path}: {seconds}, at most {worst:.4f}")
        assert worst <= HEURISTIC, path
