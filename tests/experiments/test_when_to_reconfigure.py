"""Rules over time on recorded traces: the rows against plain sums; how the figure looks was judged by eye."""

import numpy as np
import pytest

from experiments.recording import MODEL
from experiments.when_to_reconfigure import FLOOR, PICTURE, RULES, SCRIPT, Config, run, traces
from mfabric_jax import workload
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.policies import uniform
from mfabric_jax.report import style
from tests.rows import column

RANKS, EXPERTS, SERVERS, DEGREE = 16, 32, 4, 1
DELAYS = (1e-5, 1e-4, 0.1)
SMALL = {"policy": "greedy", "servers": SERVERS, "optical_degree": DEGREE, "electrical_nics": 1, "delays_s": DELAYS}
SMALL |= {"samples": 2, "steps": 15, "blocks": (2,), "routings": ("unsplit",)}
RUN = ("always", "never", "predicted")
EVEN = np.asarray(uniform(None, Region(SERVERS, 400.0, DEGREE)).circuits.count)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Six records, four layers, two micro-batches: servers send most to one other, in each to another one."""
    rng = np.random.default_rng(0)
    share = rng.dirichlet(np.full(EXPERTS, 0.5), (6, 4, 2, RANKS))
    partner = np.arange(RANKS) // 4 ^ rng.integers(1, SERVERS, (6, 4, 2, 1))
    share = 0.3 * share + 0.7 * (np.arange(EXPERTS) // 8 == partner[..., None]) / 8
    path = tmp_path_factory.mktemp("trace") / "tokens.npy"
    np.save(path, np.round(4096 * share))
    return path


@pytest.fixture(scope="module")
def rows(trace):
    return list(run(Config(str(trace), **SMALL, rules=RUN)))


def test_a_row_for_each_trace_rule_and_delay(rows):
    assert len(rows) == 2 * len(RUN) * len(DELAYS)
    for row in rows:
        assert row["over_best"] == pytest.approx(row["time_s"] / row["best_s"], rel=1e-12)
        assert row["over_bound"] == pytest.approx(row["time_s"] / row["bound_s"], rel=1e-12)
        assert row["over_best"] >= 1 - 1e-12
        assert row["best_s"] >= row["bound_s"]
    best = column(rows, "best_s", rule="never", sample=0)
    assert best.tolist() == sorted(best)  # with the delay
    assert best[0] < best[-1]


def test_what_never_changes_is_the_sum_of_its_steps(trace, rows):
    config, job = Config(str(trace), **SMALL), workload.get(MODEL)
    count = np.load(trace)
    count = np.concatenate([count] * 6, axis=1)  # 24 layers out of 4
    for sample, tokens in enumerate(traces(config, count, 2)):
        ranks = (tokens / tokens.sum(2, keepdims=True)).reshape(-1, RANKS, RANKS, 2).sum(3) * job.selections
        demand = ranks.reshape(-1, SERVERS, 4, SERVERS, 4).sum((2, 4)) * job.dispatch_bytes_per_selection
        pairs = demand * (1 - np.eye(SERVERS))
        own, rest = np.where(EVEN, pairs / np.maximum(EVEN, 1), 0), np.where(EVEN, 0, pairs)
        slowest = np.stack([own.max((1, 2)), rest.sum(1).max(1), rest.sum(2).max(1)])
        want = slowest.max(0).sum() / 50e9  # circuits and ports of 50 GB/s
        np.testing.assert_allclose(column(rows, "time_s", rule="never", sample=sample), want, rtol=1e-6)
        bound = np.maximum(pairs.sum(1).max(1), pairs.sum(2).max(1)).sum() / 50e9 / (DEGREE + 1)
        assert rows[sample * len(RUN) * len(DELAYS)]["bound_s"] == pytest.approx(bound, rel=1e-6)


def test_what_always_changes_pays_every_delay_and_what_sees_only_the_past_waits_for_it(rows):
    for sample in range(2):
        least, more, most = column(rows, "time_s", rule="always", sample=sample)
        (changes,) = set(column(rows, "changes", rule="always", sample=sample))
        assert changes * 15 == pytest.approx(round(changes * 15))
        for time, delay in ((most, DELAYS[2]), (more, DELAYS[1])):
            assert time - least == pytest.approx(changes * 15 * (delay - DELAYS[0]), rel=1e-6)
    never, predicted = (column(rows, "time_s", rule=rule, delay_s=0.1) for rule in ("never", "predicted"))
    np.testing.assert_allclose(predicted, never, rtol=1e-12)


def test_traces_are_blocks_in_turn():
    records, layers, micro_batches = np.ogrid[:6, :4, :2]
    label = 100 * records + 10 * layers + micro_batches
    count = np.broadcast_to(label[..., None, None], (6, 4, 2, 1, 1))
    found = traces(Config("x", **SMALL | {"samples": 20}), count, 2)[..., 0, 0]
    assert found.shape == (20, 15)
    for one in found:
        record, layer = one[0] // 100, one[0] // 10 % 10
        steps = [(record + t // 4, layer + t % 2, t // 2 % 2) for t in range(15)]
        assert one.tolist() == [100 * r + 10 * block + m for r, block, m in steps]
        assert layer in (0, 2)
    assert len({one[0] for one in found}) > 3
    with pytest.raises(InputError, match=r"steps must be at most 24 for 2 blocks in 6 records, got 25\."):
        traces(Config("x", **SMALL | {"steps": 25}), count, 2)
    with pytest.raises(InputError, match=r"blocks must be at most the 4 layers of the recording, got 5\."):
        traces(Config("x", **SMALL), count, 5)


def test_verdicts_and_figure_are_means_over_the_traces(rows):
    with style.look():
        (panel,) = PICTURE.build(rows).axes
    assert panel.get_title(loc="left") == "unsplit, 2 blocks in turn"
    assert len(SCRIPT.table(rows).splitlines()) == 2 + 2 + len(DELAYS)
    for verdict, line, rule in zip(SCRIPT.verdicts(rows), panel.get_lines(), RUN, strict=False):
        over = [column(rows, "over_best", rule=rule, delay_s=at).mean() for at in DELAYS]
        assert verdict.claim == f"over the offline optimum, {rule}, unsplit (recorded)"
        assert {f"{min(over):.2f}", f"{max(over):.2f}"} == set(verdict.found.split(" to "))
        assert line.get_color() == RULES[rule].colour
        np.testing.assert_allclose(line.get_ydata(), np.maximum(np.subtract(over, 1), FLOOR), rtol=1e-9)


@pytest.mark.slow
def test_the_recording(shared_data):
    # Recorded columns are nearly alike: greedy leaves nobody without circuits, so no rule is far from the best.
    config = {"delays_s": (1e-6, 0.025), "samples": 1, "blocks": (1,), "rules": ("always", "rent-or-buy")}
    config |= {"optical_degree": 2}
    found = list(run(Config(str(shared_data / "smartmoe_gate_trace"), **SMALL | config)))
    over = [row["over_best"] for row in found]
    assert 1 <= min(over) <= max(over) < 1.01
