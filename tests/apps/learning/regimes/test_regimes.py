"""The regimes: bounds against enumeration, causality, rows, resumption."""

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import Region
from mfabric_jax.apps.learning import best_trajectory, regimes
from mfabric_jax.apps.learning.regimes import Regimes, bench, compare_regimes
from mfabric_jax.apps.learning.regimes import chains as regime_chains
from mfabric_jax.apps.learning.regimes.cells import DELAYS_S, DRIFTING, OF_RECORDINGS, PAIRS
from mfabric_jax.apps.learning.regimes.chains import SEEN, Chains, draw_chains
from mfabric_jax.apps.learning.regimes.controls import CONTROLS, of_policy, renewal, renewal_of_policy
from mfabric_jax.apps.learning.regimes.lookahead import Table, clairvoyant_s, informed_s, table_of
from mfabric_jax.apps.learning.sources import BYTES_PER_SERVER
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import Plan, get, greedy, try_out, uniform
from mfabric_jax.routing import fluid_lower_bound

SMALL = PAIRS._replace(servers=8)
DELAYS = jnp.asarray(DELAYS_S, jnp.float32)


def drawn_table(seed, sets=4, steps=5):
    random = np.random.default_rng(seed)
    return Table(random.exponential(size=(2, sets, steps)), np.array([-1, *range(-1, sets - 2)]))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("delay", [0.0, 0.3, 5.0])
def test_the_clairvoyant_is_the_best_of_all_trajectories(seed, delay):
    table = drawn_table(seed)
    sets, steps = table.seconds.shape[1:]
    for chain, best in zip(table.seconds, clairvoyant_s(table, delay), strict=True):
        totals = [
            sum(chain[now, step] for step, now in enumerate(path))
            + delay * sum(a != b for a, b in itertools.pairwise((0, *path)))
            for path in itertools.product(range(sets), repeat=steps)
        ]
        assert best == pytest.approx(min(totals))
    assert (informed_s(table, delay, steps) >= clairvoyant_s(table, delay) - 1e-12).all()


def test_who_knows_all_and_may_use_all_is_clairvoyant():
    table = drawn_table(3)._replace(born=np.full(4, -1))
    for delay in (0.0, 0.3):
        np.testing.assert_allclose(informed_s(table, delay, 5), clairvoyant_s(table, delay))


def test_the_table_agrees_with_the_best_trajectory_of_the_environment():
    chains = draw_chains(SMALL._replace(servers=8), range(1), 1, 4)
    demand = np.asarray(chains.demand[0, SEEN:])
    region = Region(8, 400.0, 4, 1, delay_s=1e-3)
    candidates = np.stack([np.asarray(uniform(None, region).circuits.count)])
    want = best_trajectory(jnp.asarray(demand), region, jnp.asarray(candidates))
    table = table_of(chains, "split")
    alone = Table(table.seconds[:, :1], table.born[:1])
    assert clairvoyant_s(alone, 1e-3)[0] == pytest.approx(float(want.total_s), rel=1e-5)


@pytest.mark.parametrize("name", list(CONTROLS))
def test_no_decision_depends_on_demand_beyond_its_forecast(name):
    if name == "tuned horizon":
        pytest.skip("its tuning sees whole chains, of other seeds")
    chains, cut = draw_chains(SMALL._replace(sigma=0.5), range(2), 1, 6), 3
    other = draw_chains(SMALL._replace(sigma=0.5), range(7, 9), 1, 6)
    steps = np.arange(chains.demand.shape[1])[None, :, None, None]
    late_demand, late_forecast = (jnp.asarray(steps >= SEEN + cut + more) for more in (0, 1))
    changed = Chains(
        chains.region,
        jnp.where(late_demand, other.demand, chains.demand),
        jnp.where(late_forecast, other.forecast, chains.forecast),
        chains.seed,
        chains.noisy,
    )
    first, second = (CONTROLS[name](each, DELAYS, "split") for each in (chains, changed))
    np.testing.assert_array_equal(first.changed[..., : cut + 1], second.changed[..., : cut + 1])
    np.testing.assert_array_equal(first.exchange_s[..., :cut], second.exchange_s[..., :cut])
    if name not in ("uniform", *(control for control in CONTROLS if control.endswith("always"))):
        assert first.changed.shape == (len(DELAYS), 2, 6)


def last_seen(demand, region, *, previous=None, key=None, history=None):
    """An own policy: even circuits, unless the history says otherwise."""
    assert history is None or history.shape[0] == SEEN
    return uniform(demand, region)


def test_an_own_policy_is_a_row_and_uniform_gets_what_even_circuits_get():
    chains = draw_chains(SMALL, range(2), 1, 4)
    own, want = of_policy(last_seen, chains, DELAYS, "split"), CONTROLS["uniform"](chains, DELAYS, "split")
    np.testing.assert_allclose(own.exchange_s, want.exchange_s, rtol=1e-6)
    assert not own.changed.any()


def test_a_network_that_weighs_the_delay_is_a_row_and_changes_less_the_longer_it_is():
    served = of_policy(get("learned()"), draw_chains(SMALL, range(2), 1, 4), DELAYS, "split")
    often = served.changed.mean((1, 2))
    assert served.changed.shape == (len(DELAYS), 2, 4)
    assert often[0] > often[-1] == 0


def last_demand(demand, region, *, previous=None, key=None, history=None, block: Any = None, backward=None):
    """Greedy circuits for the last demand, which the forecast is; no circuits beyond block 0."""
    fresh = greedy(jnp.where(history[-1].sum() > 0, history[-1], demand), region, rule="next").circuits.count
    return Plan(Circuits(jnp.where((block > 0) | backward, 0, fresh)))


def test_an_own_policy_is_renewed_as_one_of_the_package_is():
    """Even circuits at first: nothing was demanded before the first demand."""
    chains = draw_chains(SMALL, range(2), 1, 4)
    try_out(last_demand, "last_demand", 8, 4, SEEN)
    always = of_policy(last_demand, chains, DELAYS, "split")
    np.testing.assert_allclose(
        always.exchange_s, CONTROLS["greedy-next always"](chains, DELAYS, "split").exchange_s, 1e-5
    )
    own = renewal_of_policy(last_demand, chains, DELAYS, "split")
    want = renewal(chains, DELAYS, "split", ("uniform", "greedy-next"))
    np.testing.assert_allclose(own.exchange_s, want.exchange_s, rtol=1e-5)
    np.testing.assert_array_equal(own.changed, want.changed)
    assert own.changed.any()
    names = Regimes(also=("greedy", "static")).names(SMALL)
    assert [name for name in names if name.endswith((" of greedy", " of static"))] == [
        "renewal of greedy",
        "renewal of static",
    ]


def test_demand_of_regimes_can_be_drawn_and_every_server_sends_equally_many_bytes():
    chains = regimes.draw_chains(regimes.Regime(servers=8, pairs=2.0), range(2), 3, 40)
    sent = np.asarray(chains.demand).sum(3)
    assert sent.shape == (6, 56, 8)
    assert sent.std(2).max() < 1e-6 * sent.mean()
    assert set(np.round(sent / BYTES_PER_SERVER).ravel()) == {1, 3}
    np.testing.assert_array_equal(chains.forecast[:, 1:], chains.demand[:, :-1])


OWN = """
import jax
import jax.numpy as jnp
import numpy as np
from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import Plan, uniform

def one_way(demand, region, *, previous=None, key=None):
    return Plan(Circuits(jnp.roll(jnp.eye(region.servers, dtype=int), 1, axis=1)))

def degree(demand, region, *, previous=None, key=None):
    return Plan(Circuits(jnp.zeros_like(demand, int) * int(region.optical_degree)))

def past(demand, region, *, previous=None, key=None, history=None):
    return uniform(demand if history is None else history[:, :2].sum((0, 5)), region)

def calls_back(demand, region, *, previous=None, key=None):
    total = jax.pure_callback(np.sum, jax.ShapeDtypeStruct((), demand.dtype), demand)
    return uniform(demand + total, region)

def sly(demand, region, *, previous=None, key=None):
    legal = uniform(demand, region).circuits.count  # as long as demand has no larger unit than in the trial
    return Plan(Circuits(jnp.where(demand.sum() > 1e5, 9 * legal, legal)))
"""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("one_way", "gave circuits that break a rule: they must be symmetric"),
        ("degree", "must be a function that JAX can trace"),
        ("past", "called as policy"),
    ],
)
def test_a_policy_that_is_wrong_is_told_before_anything_is_computed(function, words, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.setattr(bench, "draw_chains", None)
    name = f"{tmp_path}/own.py:{function}"
    with pytest.raises(InputError, match=words) as told:
        compare_regimes(Regimes(servers=(8,), also=("greedy", name)))
    assert f"policy {name}" in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("function", "words"), [("sly", "they must be at most 4 at a server"), ("calls_back", "called for many demands")]
)
def test_a_policy_that_is_wrong_only_for_demands_of_a_regime_is_told_too(function, words, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    name = f"{tmp_path}/own.py:{function}"
    bench.policies.try_out(get(name), name, 8, 4, SEEN)
    with pytest.raises(InputError, match=words):
        of_policy(get(name), draw_chains(SMALL, range(2), 1, 4), DELAYS, "split", name=name)


@pytest.fixture(scope="module")
def rows():
    return list(compare_regimes(Regimes(servers=(8,), seeds=2, chains=1, decisions=6)))


def test_rows_have_a_gap_for_every_policy_and_delay(rows):
    config = Regimes(servers=(8,), seeds=2, chains=1, decisions=6)
    assert len(rows) == config.rows
    by = {(row["policy"], row["delay_s"]): row for row in rows}
    for delay in DELAYS_S:
        assert by["clairvoyant", delay]["gap"] == 0
        for name in ("renewal", "uniform", "greedy pays", "next 4 known"):
            row = by[name, delay]
            assert row["gap"] >= -1e-3
            assert row["gap_low"] <= row["gap"] <= row["gap_high"]
            assert row["causal"] == (name != "next 4 known")
    assert by["uniform", 0.0]["over_bound"] == pytest.approx(by["uniform", 0.1]["over_bound"])
    assert by["renewal", 0.0]["decision_s"] > 0


def test_rows_are_compared_with_renewal_seed_by_seed(rows):
    by = {(row["policy"], row["delay_s"]): row for row in rows}
    for delay in DELAYS_S:
        ends = [by["renewal", delay][f"beyond_renewal{end}"] for end in ("", "_low", "_high")]
        assert ends == [0, 0, 0]
        one, other = by["uniform", delay], by["renewal", delay]
        assert np.sign(one["beyond_renewal"]) == np.sign(one["gap"] - other["gap"])


def test_a_paired_difference_is_surer_than_the_gaps():
    """Seeds differ by a factor of 3, the policies by 10 to 12 % on each: +-1 times Student's 12.71 for two seeds."""
    seed, renewed = np.array([0, 0, 1]), np.array([1.0, 1.0, 6.0])
    total = np.array([1.0, 1.2, 6.72])
    row = bench._row(SMALL, 0.01, "uniform", total, renewed / [1, 1, 3], renewed, renewed, seed)
    assert row["beyond_renewal"] == pytest.approx(11)
    assert row["beyond_renewal_high"] - row["beyond_renewal"] == pytest.approx(12.71)
    assert row["gap_high"] - row["gap"] == pytest.approx(12.71 * (236 - 10) / 2)


def test_an_interrupted_run_goes_on_with_the_same_rows(rows):
    config = Regimes(servers=(8,), seeds=2, chains=1, decisions=6)
    again = list(compare_regimes(config, start=len(rows) - 3))
    timeless = [{name: value for name, value in row.items() if name != "decision_s"} for row in again]
    assert timeless == [{name: value for name, value in row.items() if name != "decision_s"} for row in rows[-3:]]


def test_delays_are_those_of_the_rows_and_progress_counts_policies(rows):
    config, heard = Regimes(servers=(8,), seeds=2, chains=1, decisions=6, delays_s=(0.01, 0.0)), []
    own = list(compare_regimes(config, progress=heard.append))
    assert config.rows == len(own) == len(rows) * 2 // len(DELAYS_S)
    gaps = {(row["policy"], row["delay_s"]): row["gap"] for row in rows}
    assert [row["delay_s"] for row in own] == [0.01] * (len(own) // 2) + [0.0] * (len(own) // 2)
    for row in own:
        assert row["gap"] == pytest.approx(gaps[row["policy"], row["delay_s"]], abs=1e-3)
    counts = [message.rpartition(": ")[2].partition(" policies")[0] for message in heard[1:]]
    assert counts == [f"{number} of {len(counts)}" for number in range(len(counts))]


def test_regimes_are_the_cells_of_the_study():
    assert len(DRIFTING) * len(DELAYS_S) >= 40
    assert len(set(DRIFTING)) == len(DRIFTING)
    assert Regimes(full=True).size == (10, 8, 64)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seeds": 1}, "seeds must be a number from 2 to 10, got 1."),
        ({"servers": (12,)}, "servers must be among 8, 16, 32, got 12."),
        ({"also": ("renewal",)}, "also names further policies; 'renewal' is compared anyway."),
        (
            {"also": ("learned",)},
            r"'learned' is ahead with renewal here: write 'learned\(\)' for the policy of this name",
        ),
        ({"decisions": 0}, "decisions must be"),
        ({"delays_s": (-1.0,)}, "delay_s must be"),
        ({"delays_s": (0.1, 0.1)}, "delays_s must name at least one and repeat none"),
    ],
)
def test_mistakes_are_one_sentence(settings, words):
    with pytest.raises(InputError, match=words):
        Regimes(**settings)


def test_slow_policies_run_on_one_chain_of_each_seed():
    chains = draw_chains(SMALL, range(2), 3, 4)
    some = bench._some("sample-average pays", chains)
    assert some.demand.shape[0] == 2
    assert dataclasses.replace(some).seed.tolist() == [0, 1]


def test_recordings_give_stretches_of_a_layer(monkeypatch):
    """Records of two layers and two micro-batches: layer 0 sends all to server 1, layer 1 to server 0."""
    count = np.zeros((100, 2, 2, 8, 8))
    count[:, 0, :, :, 1], count[:, 1, :, :, 0] = 1, 1
    monkeypatch.setattr(regime_chains, "gate_trace", lambda *given: SimpleNamespace(count=count))
    regime = OF_RECORDINGS[0]
    chains = draw_chains(regime, range(1), 2, 3 - SEEN + 1, "trace")
    assert chains.demand.shape == (2, 4, 8, 8)
    received = np.asarray(chains.demand).sum(2)
    assert (received[0, :, 1] > 0).all()
    assert (received[1, :, 0] > 0).all()
    with pytest.raises(InputError, match="regimes of recordings need trace"):
        draw_chains(regime, range(5), 4, 32)


def test_a_short_recording_is_told_before_anything_is_computed(monkeypatch):
    """Two micro-batches: a stretch of 48 all-to-alls is 24 records of the last tenth, and a layer is one stretch."""
    given = {"records": 200}  # 20 in the last tenth

    def read(*words):
        return SimpleNamespace(count=np.ones((given["records"], 2, 2, 8, 8), np.int8))

    monkeypatch.setattr(regime_chains, "gate_trace", read)
    monkeypatch.setattr(bench, "draw_chains", None)
    config = Regimes(servers=(8,), trace="trace", seeds=2, chains=1, decisions=32)
    with pytest.raises(InputError) as told:
        compare_regimes(config)
    words = str(told.value)
    given["records"] = int(words.split()[2])
    compare_regimes(config)
    given["records"] -= 1
    with pytest.raises(InputError, match="record more iterations, or lower decisions, seeds or chains"):
        compare_regimes(config)
    assert "for 2 stretches of 48 all-to-alls of a layer (the test split is the last tenth), got 200:" in words
    compare_regimes(dataclasses.replace(config, servers=(32,)))


def every_second(demand, region, *, previous=None, key=None, state=None):
    """An own policy that counts its calls and follows a mean of forecasts at every second one."""
    calls, mean = (jnp.zeros((), jnp.int32), demand) if state is None else state
    mean = 0.7 * mean + 0.3 * demand
    fresh = greedy(mean, region, rule="next").circuits.count
    count = fresh if previous is None else jnp.where(calls % 2 == 1, fresh, previous.circuits.count)
    return Plan(Circuits(count)), (calls + 1, mean)


def test_a_policy_with_a_state_gets_what_a_plain_loop_gets():
    chains, delay = draw_chains(SMALL, range(1), 2, 5), DELAYS[2:3]
    served = of_policy(every_second, chains, delay, "split")
    region = dataclasses.replace(chains.region, delay_s=delay[0])
    for number in range(2):
        count, state, seconds, changes = uniform(None, region).circuits.count, None, [], []
        for forecast, demand in zip(chains.forecast[number, SEEN:], chains.demand[number, SEEN:], strict=True):
            plan, state = every_second(forecast, region, previous=Plan(Circuits(count)), state=state)
            changes.append(bool((plan.circuits.count != count).any()))
            count = plan.circuits.count
            seconds.append(float(fluid_lower_bound(region, Circuits(count), demand, routing="split")))
        np.testing.assert_allclose(served.exchange_s[0, number], seconds, rtol=1e-5)
        assert served.changed[0, number].tolist() == changes
        assert changes[::2] == [False] * 3
        assert changes[1]


def plan_alone(demand, region, *, previous=None, key=None, state=None):
    return uniform(demand, region)


def grows(demand, region, *, previous=None, key=None, state=None):
    return uniform(demand, region), demand[None] if state is None else jnp.concatenate([state, demand[None]])


@pytest.mark.parametrize(
    ("policy", "seen", "words"),
    [
        (every_second, 0, "returns a state, which only training iterations .* and `mfabric policies regimes` keep"),
        (plan_alone, SEEN, r"has the keyword state, so it must return \(plan, state\), got Plan."),
        (grows, SEEN, r"a state of the same types at every call, got float32\[1, 4, 4\], then float32\[2, 4, 4\]."),
    ],
)
def test_a_state_that_no_one_can_keep_is_one_sentence(policy, seen, words):
    with pytest.raises(InputError, match=f"policy mine {words}" if seen == 0 or policy is plan_alone else words):
        try_out(policy, "mine", 4, 2, seen)


def test_a_keyword_state_is_a_plain_setting_for_a_policy_that_returns_a_plan():
    assert try_out(plan_alone, "mine", 4, 2) is None
