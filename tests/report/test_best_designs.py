"""Which design a page recommends, against what its rows say."""

import itertools

import pytest

from mfabric_jax.report.best_designs import priced_designs, recommended, token_prices
from mfabric_jax.report.html.panels import _GLYPHS
from mfabric_jax.report.style import FABRICS

MILLION = 1e6


def row(fabric, ocs, gbps, degree, usd, seconds, **more):
    return {
        "configuration": 0,
        "model": "m",
        "fabric": fabric,
        "ocs": ocs,
        "fits": True,
        "nic_gbps": gbps,
        "optical_degree": degree,
        "iteration_s": seconds,
        "cluster_cost_usd": 20 * MILLION,
        "cluster_kw": 700.0,
        "perf_per_dollar": 1 / seconds,
        "usd_per_million_tokens": usd,
        "joules_per_million_tokens": 2 * MILLION,
        "circuit_changes": 5.0,
        "turns_over_allowed": None,
    } | more


ROWS = [
    row("fat-tree", "none", 400.0, None, 0.5, 20.0, circuit_changes=None),
    row("fat-tree", "none", 800.0, None, 0.6, 9.0, circuit_changes=None),
    row("mfabric", "polatis", 400.0, 4, 0.4, 11.0, circuit_changes=0),
    row("mfabric", "polatis", 400.0, 6, 0.402, 10.0),
    row("mfabric", "calient", 400.0, 6, 0.3, 10.0, turns_over_allowed=5.0),
    row("mfabric", "calient", 400.0, 4, 0.45, 11.0),
    row("mfabric", "rotornet", 400.0, 6, None, 8.0),
    row("torus", "none", 400.0, None, 0.2, 30.0, fits=False),
]


def test_the_cheapest_tokens_win_and_what_cannot_be_is_not_counted():
    (own,) = priced_designs(ROWS, {}).values()
    assert [one.mean["usd_per_million_tokens"] for one in own[:-1]] == [0.4, 0.402, 0.45, 0.5, 0.6]
    (_, said), *left_out = recommended(ROWS, {})
    assert said == (
        "the cheapest tokens come from mfabric with polatis (400 Gbps, optical_degree 4): 0.400 $ and 2000 kJ a "
        "million tokens, 11.00 s an iteration; 20.0 M$ and 700 kW for the whole cluster. Its circuits never "
        "change: links wired once do the same, no switch is needed. Nearly as cheap: mfabric with polatis (400 "
        "Gbps, optical_degree 6), +0.5% a token. The best of other fabrics: fat-tree (400 Gbps), +25.0% a token. "
        "The fastest, fat-tree (800 Gbps), takes 9.000 s an iteration, +50.0% a token. By dollars of the network "
        "alone fat-tree (800 Gbps) would lead, +50.0% a token. Without a price, the fastest of each: mfabric with "
        "rotornet (400 Gbps, optical_degree 6), 8.000 s."
    )
    assert [why for _, why in left_out] == [
        "1 rows that do not fit the memory of their GPUs.",
        "1 rows that turn a switch more often than it may.",
    ]
    (panel,) = token_prices(ROWS, {}).panels
    assert panel.names == ["mfabric with polatis", "mfabric with calient", "fat-tree"]
    assert [bar.end for bar in panel.bars] == [0.4, 0.45, 0.5]


def test_repeats_of_a_design_are_averaged():
    rows = [ROWS[0] | {"sample": s, "usd_per_million_tokens": 0.4 + 0.1 * s} for s in (0, 1)]
    (own,) = priced_designs([*rows, *(one | {"sample": 0} for one in ROWS[1:3])], {}).values()
    assert sorted(one.mean["usd_per_million_tokens"] for one in own) == pytest.approx([0.4, 0.45, 0.6])


def test_designs_above_the_peak_are_not_taken():
    slow = [one | {"achieved_over_peak": 0.5} for one in ROWS[1:]]
    fast = [ROWS[0] | {"achieved_over_peak": 1.2, "usd_per_million_tokens": None}]
    ((_, text), *rest) = recommended(fast + slow, {})
    assert "fat-tree (400 Gbps" not in text
    assert ("Not counted", "1 rows that compute above the peak of the GPU that would be paid for.") in rest


@pytest.mark.parametrize("lacking", ["usd_per_million_tokens", "iteration_s", "model"])
def test_rows_without_prices_or_times_give_no_answer(lacking):
    rows = [{name: value for name, value in one.items() if name != lacking} for one in ROWS]
    assert recommended(rows, {}) == []
    assert recommended([one | {lacking: None} for one in ROWS], {}) == []
    assert token_prices(rows, {}) is None


def test_several_set_ups_of_a_model_are_ranked():
    more = [
        one | {"model": "m:ep=8", "usd_per_million_tokens": (one["usd_per_million_tokens"] or 1) / 2} for one in ROWS
    ]
    *_, (what, said), _, _ = recommended([*ROWS, *more], {})
    assert what == "m, of 2 set-ups"
    assert said.startswith(
        ":ep=8 has the cheapest tokens, from mfabric with polatis (400 Gbps, optical_degree 4); then"
    )
    assert said.endswith(" m, +100.0% a token.")


def test_what_was_chosen_is_named_not_what_follows_from_it():
    rows = [
        {"model": "m", "fabric": "mfabric", "memory_gb": 1.5 * s, "sequence": s, "micro_batch": b}
        | {"iteration_s": 1.0 * b, "usd_per_million_tokens": 0.1 * s + b, "cluster_cost_usd": 1e6}
        for s in (1024, 4096)
        for b in (1, 2)
    ]
    (own,) = priced_designs(rows, {}).values()
    assert [one.choice for one in own[:2]] == ["sequence 1024, micro_batch 1", "sequence 1024, micro_batch 2"]


def test_one_design_is_no_choice():
    assert recommended(ROWS[:1], {}) == []


def test_every_marker_of_a_fabric_has_its_sign_on_a_page():
    signs = [_GLYPHS[look.marker][look.hollow] for look in FABRICS.values()]
    assert all(a != b for a, b in itertools.combinations(signs, 2))
