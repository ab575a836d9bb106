"""Recorded all-to-alls routed: the rows say what direct calls say; how the figure looks was judged by eye."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.relay_on_traces import GROUP, PICTURE, SCRIPT, Config, run, summary
from mfabric_jax import all_to_all_time
from mfabric_jax.fabric import Region
from mfabric_jax.policies import Plan, greedy
from mfabric_jax.report import style
from mfabric_jax.routing import best_relay_shares, degree_bound
from tests.experiments.recorded import EXPERTS, RANKS, between, over
from tests.experiments.recorded import trace as trace
from tests.mistakes import check_refused
from tests.rows import only

SMALL = {"samples": 3, "servers": (4,), "efficiencies": (1.0, 0.5), "steps": 100}
SMALL |= {"optical_degree": 2, "electrical_nics": 1}


@pytest.fixture(scope="module")
def rows(trace):
    return list(run(Config(str(trace), **SMALL)))


def test_a_row_for_each_all_to_all_and_routing(trace, rows):
    kinds = {tuple(row[field] for field in GROUP[1:]) for row in rows}
    assert len(kinds) == 3 + 2 * 4
    assert len(rows) == 3 * len(kinds)
    places = {(row["record"], row["layer"], row["micro_batch"]) for row in rows}
    assert places == {tuple(place) for place in Config(str(trace), samples=3).drawn((2, 24, 1))}
    assert len(places) == 3


seconds = eqx.filter_jit(all_to_all_time)
chosen = eqx.filter_jit(lambda demand, where: greedy(demand, where).circuits)


def test_rows_equal_direct_calls(trace, rows):
    recorded = np.load(trace)
    for row in rows:
        where = Region(4, 400.0, 2, 1, relay_efficiency=jnp.asarray(row["efficiency"] or 1.0))
        demand = between(recorded[row["record"], row["layer"] % 2, row["micro_batch"]], 4)
        circuits, bound = chosen(demand, where), degree_bound(where, demand)
        if row["routing"] != "relay":
            time = seconds(where, circuits, demand, routing=row["routing"])
        elif row["shares"] == "best":
            shares, time = best_relay_shares(where, circuits, demand)
            if row["flows"] == "max-min":
                time = seconds(where, Plan(circuits, jnp.asarray(shares)), demand, routing="relay")
        else:
            continue
        np.testing.assert_allclose(row["over_bound"], time / bound, rtol=1e-6)
        np.testing.assert_allclose(row["over_bound"], row["time_s"] / row["bound_s"], rtol=1e-12)


def test_no_routing_beats_the_better_one(rows):
    split = over(rows, routing="split")
    for worse in ("unsplit", "best-path"):
        assert (split <= over(rows, routing=worse) * (1 + 1e-9)).all()
    for efficiency in SMALL["efficiencies"]:
        relay = {"routing": "relay", "efficiency": efficiency}
        best, steps = (over(rows, **relay, shares=shares, flows="paced") for shares in ("best", "steps"))
        assert (best >= 1 - 1e-9).all()
        assert (best <= steps * (1 + 1e-9)).all()
        assert (steps <= split * (1 + 1e-6)).all()
        assert np.mean(steps / best) < 1.003
        for shares, paced in (("best", best), ("steps", steps)):
            assert (over(rows, **relay, shares=shares, flows="max-min") >= paced * (1 - 1e-6)).all()
    free = over(rows, efficiency=1.0, shares="best", flows="paced")
    assert (free <= best * (1 + 1e-9)).all()
    assert np.mean(split / free) > 1.01


def test_the_draw_is_seeded_and_takes_nothing_twice_and_nothing_to_route_is_named(tmp_path):
    for first in ((0, 0, 0), (2, 1, 0)):
        shape = (7, 3, 4)
        one, again, other = (Config("x", samples=20, seed=seed).drawn(shape, first) for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert not np.array_equal(one, other)
        assert len({tuple(place) for place in one}) == 20
        assert ((one >= first) & (one < shape)).all()
        assert len(Config("x", samples=100).drawn(shape, first)) == np.prod(np.subtract(shape, first))
    tokens = np.zeros((1, 1, 1, RANKS, EXPERTS))
    tokens[..., np.arange(RANKS), 2 * np.arange(RANKS)] = 10  # every rank keeps to its own expert
    np.save(tmp_path / "local.npy", tokens)
    assert list(run(Config(str(tmp_path / "local.npy"), **SMALL))) == []
    check_refused("there are none", SCRIPT.draw, [], tmp_path / "a.png")


def test_the_summary_and_the_figure_show_medians(rows):
    more = [row | {"servers": 8, "over_bound": row["over_bound"] + 1} for row in rows]
    with style.look():
        left, right = PICTURE.build([*rows, *more]).axes
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["4 servers", "8 servers"]
    names = [label.get_text() for label in left.get_yticklabels()]
    place = names.index("Relay at efficiency 0.5: gradient steps, max-min")
    group = {"efficiency": 0.5, "shares": "steps", "flows": "max-min"}
    want = over(rows, **group)
    for axes, values in ((left, want), (right, want + 1)):
        assert axes.texts[place].get_text() == f"{np.median(values):.2f}"
    line = only(summary(rows), **group)
    assert (line["mean"], line["median"]) == (pytest.approx(np.mean(want)), pytest.approx(np.median(want)))
    assert line["samples"] == 3


@pytest.mark.slow
def test_the_recording(shared_data):
    # Circuits and ports that unsplit routing leaves idle can relay for the hot server.
    rows = list(run(Config(str(shared_data / "smartmoe_gate_trace"), samples=4, servers=(8,), efficiencies=(1.0,))))
    assert len(rows) == 4 * 7
    unsplit = over(rows, routing="unsplit")
    best, steps = (over(rows, shares=shares, flows="paced") for shares in ("best", "steps"))
    assert (steps / best).max() < 1.01
    assert (unsplit / best).max() > 1.1
    assert unsplit.min() > 1.1
