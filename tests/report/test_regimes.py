"""The table and the picture of gaps by regime."""

import numpy as np
import pytest

from mfabric_jax.report.figures.regimes import build_gaps, draw_gaps
from mfabric_jax.report.regimes import BEST, Load, gap_words, gaps_table, rows_by_regime

REGIME = {
    "demand": "drift",
    "servers": 8,
    "optical": 4,
    "electrical": 1,
    "memory": 0.98,
    "pairs": 2.0,
    "skew": 1.0,
    "sigma": "previous",
    "routing": "split",
    "nic_gbps": 400.0,
}
SENT = Load(1e9)
POLICIES = ("uniform", "greedy always", "greedy pays", "renewal", "learned", "mine.py:keep_hot", "next 4 known")


def rows_of(**changes):
    return [
        REGIME
        | changes
        | {"policy": policy, "learned": policy == "learned", "delay_s": delay, "gap": 10.0 * at + delay}
        | {"bound_s": 0.01, "gap_low": 10.0 * at - 3 * at, "gap_high": 10.0 * at + 5 * at}
        for delay in (0.0, 1e-4, 1e-2)
        for at, policy in enumerate(reversed((*POLICIES, "clairvoyant")))
    ]


def test_policies_of_an_all_to_all_are_one_line_and_others_have_their_own():
    ((name, by),) = rows_by_regime(rows_of()).items()
    assert name == "8 servers, 4 + 1, pairs 2"
    assert list(by) == ["greedy always", BEST, "renewal", "learned", "next 4 known", "mine.py:keep_hot"]
    assert by[BEST][0.0]["gap"] == min(
        row["gap"] for row in rows_of()[:8] if row["policy"] in ("uniform", "greedy always", "greedy pays")
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sigma": 0.0}, "known"),
        ({"sigma": "0.0"}, "known"),
        ({"sigma": 1.0}, "sigma 1.0"),
        ({"routing": "unsplit"}, "unsplit"),
    ],
)
def test_what_is_unusual_is_named(changes, words):
    (name,) = rows_by_regime(rows_of(**changes))
    assert name.endswith(words)


def test_the_table_has_a_column_for_each_delay():
    text = gaps_table(rows_of(), SENT)
    assert "100 us" in text
    assert "10 ms" in text
    assert "mine.py:keep_hot" in text
    assert "8 servers, 4 + 1, pairs 2: gap [%]" in text


def test_the_best_policies_of_an_all_to_all_are_named_below_their_table():
    late = [row | ({"gap": 1.0} if (row["policy"], row["delay_s"]) == ("uniform", 1e-2) else {}) for row in rows_of()]
    text = gaps_table(late + rows_of(routing="unsplit"), SENT)
    first, second = (line for line in text.splitlines() if line.startswith(f"{BEST}:"))
    assert first == f"{BEST}: greedy pays at 0, 100 us; uniform at 10 ms."
    assert second == f"{BEST}: greedy pays at 0, 100 us, 10 ms."


def test_the_table_says_what_renewal_knows_beyond_an_own_policy():
    flat = "".join(gaps_table(rows_of(), SENT).split())  # lines break within all-to-alls, too
    for words in ("`Renewal` pools losses over all chains of the regime", "knows how many all-to-alls are left"):
        assert words.replace(" ", "") in flat
    assert "pools" not in gaps_table([row for row in rows_of() if row["policy"] != "renewal"], SENT)


def test_the_table_says_what_an_all_to_all_takes_so_that_delays_can_be_judged():
    """1 GB on 5 NICs of 50 GB/s takes 4 ms, on 8 NICs 2.5 ms; the bound of rows is 10 ms."""
    text = " ".join(gaps_table(rows_of() + rows_of(optical=6, electrical=2), Load(1e9, 0.05, 3.0)).split())
    assert "A server sends 1 GB in an all-to-all, 3 times that in 5% of them where demand drifts. On 4 + 1" in text
    for nics, even in (("4 + 1", "4"), ("6 + 2", "2.5")):
        end = "evenly spread; the busiest server's bytes take 10 ms on average."
        assert f"On {nics} NICs it takes {even} ms {end}" in text
    assert "3 times" not in gaps_table(rows_of(demand="recorded"), Load(1e9, 0.05, 3.0))


def test_policies_without_a_line_are_named():
    hidden = "3 more policies: clairvoyant, uniform, greedy pays."
    flat = lambda text: " ".join(text.split())  # noqa: E731
    rows = [row for row in rows_of() if row["policy"] != "learned"]
    assert f"mine.csv holds {hidden}" in flat(gaps_table(rows, SENT, "mine.csv")).replace(
        "greedy pays, uniform", "uniform, greedy pays"
    )
    assert "--out FILE writes 3 more policies: " in flat(gaps_table(rows, SENT))


def test_a_published_policy_that_is_far_off_leaves_the_picture_to_others():
    ends = dict.fromkeys(("gap", "gap_low", "gap_high"), 1e5)
    far = [row | (ends if row["policy"] == "greedy always" else {}) for row in rows_of()]
    (axes,) = build_gaps(far).axes
    assert 70 < axes.get_ylim()[1] < 1000


def test_cells_have_half_of_the_interval_and_no_negative_zero():
    (line,) = [line for line in gaps_table(rows_of(), SENT).splitlines() if line.startswith("mine.py:keep_hot")]
    assert line.split()[1:] == ["20.0+-8.0", "20.0+-8.0", "20.0+-8.0"]  # from 20 - 3 x 2 to 20 + 5 x 2
    (line,) = [line for line in gaps_table(rows_of(), SENT).splitlines() if line.startswith("renewal")]
    assert line.split()[1:] == ["40.0+-16"] * 3
    assert gap_words(-0.02) == "0.0"
    assert gap_words(-0.06) == "-0.1"
    sure = [row | {"gap_low": row["gap"] - 0.04, "gap_high": row["gap"] + 0.04} for row in rows_of()]
    assert "+-" not in gaps_table(sure, SENT).rpartition("\n\n")[0]


def test_a_regime_fits_a_screen_and_says_which_network_learned_is():
    text = gaps_table(rows_of() + rows_of(routing="unsplit"), SENT)
    assert max(map(len, text.splitlines())) <= 80
    assert "learned: network `ahead` with rule `renewal`; the policy `learned` is another." in text
    assert "`ahead`" not in gaps_table([row for row in rows_of() if row["policy"] != "learned"], SENT)


def test_the_picture_of_many_regimes_has_a_panel_for_each_policy():
    every = [row for memory in (0.1, 0.2, 0.3, 0.4) for row in rows_of(memory=memory)]
    titles = [axes.get_title(loc="left") for axes in build_gaps(every).axes]
    assert len([title for title in titles if title]) == 6


def test_the_picture_of_few_regimes_has_a_panel_for_each_with_a_line_for_each_policy(tmp_path):
    recorded = {"memory": None, "pairs": None, "skew": None, "demand": "recorded"}
    figure = build_gaps(rows_of() + rows_of(**recorded))
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(rows_by_regime(rows_of() + rows_of(**recorded)))
    drawn = {bars.get_label(): bars for bars in figure.axes[0].containers}
    assert list(drawn) == ["greedy always", BEST, "renewal", "learned", "next 4 known", "mine.py:keep_hot"]
    line, _, (intervals,) = drawn["mine.py:keep_hot"]
    assert line.get_ydata() == pytest.approx([20, 20 + 1e-4, 20 + 1e-2])
    assert [end[1] for end in intervals.get_segments()[0]] == pytest.approx([14, 30])
    assert line.get_linewidth() > drawn["renewal"][0].get_linewidth()
    aside = np.concatenate([bars[0].get_xdata() - range(3) for bars in drawn.values()])
    assert 0 < np.abs(aside).max() <= 0.1
    (key,) = figure.legends
    assert [words.get_text() for words in key.get_texts()] == list(drawn)
    assert draw_gaps(rows_of(), tmp_path / "gaps.png").stat().st_size > 1000
