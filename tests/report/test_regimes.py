"""The table and the picture of gaps by regime."""

import pytest

from mfabric_jax.report.figures.regimes import build_gaps, draw_gaps
from mfabric_jax.report.regimes import BEST, gaps_by_regime, gaps_table

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
}
POLICIES = ("uniform", "greedy always", "greedy pays", "renewal", "learned", "mine.py:keep_hot", "next 4 known")


def rows_of(**changes):
    return [
        REGIME
        | changes
        | {"policy": policy, "learned": policy == "learned", "delay_s": delay, "gap": 10.0 * at + delay}
        for delay in (0.0, 1e-4, 1e-2)
        for at, policy in enumerate(reversed((*POLICIES, "clairvoyant")))
    ]


def test_policies_of_an_all_to_all_are_one_line_and_others_have_their_own():
    ((name, gaps),) = gaps_by_regime(rows_of()).items()
    assert name == "8 servers, 4 + 1, pairs 2"
    assert list(gaps) == [BEST, "renewal", "learned", "next 4 known", "mine.py:keep_hot"]
    assert gaps[BEST][0.0] == min(
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
    (name,) = gaps_by_regime(rows_of(**changes))
    assert name.endswith(words)


def test_the_table_has_a_column_for_each_delay():
    text = gaps_table(rows_of())
    assert "100 us" in text
    assert "10 ms" in text
    assert "mine.py:keep_hot" in text


def test_the_picture_has_a_panel_for_each_policy(tmp_path):
    figure = build_gaps(rows_of() + rows_of(memory=None, pairs=None, skew=None, demand="recorded"))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert len([title for title in titles if title]) == 5
    assert draw_gaps(rows_of(), tmp_path / "gaps.png").stat().st_size > 1000
