"""Groups for a load: the fewest that keep requests in time, and what they cost."""

import importlib

import numpy as np
import pytest

from mfabric_jax.apps.serving import cheapest, fastest, rows_within_limits, search, serve
from mfabric_jax.apps.serving import headroom as headroom_module
from mfabric_jax.apps.serving.arrivals import Requests, repeat_requests
from mfabric_jax.apps.serving.headroom import case_of_row, growth, headroom
from mfabric_jax.case import Case, cases

searching = importlib.import_module("mfabric_jax.apps.serving.search")  # whose name in the package is a function
CASE = Case().with_(
    {
        **{"model.name": "deepseek-v3", "network.fabric": "fat-tree", "gpu.name": "H200-SXM", "serving.ep": 16},
        **{
            "serving.prefill.ep": 8,
            "serving.prefill.tokens": 8192,
            "serving.tpot_ms": 40.0,
            "serving.answer": 100,
            "serving.context": 2048.0,
        },
        **{"serving.load.rate": 400.0, "serving.load.requests": 4000},
    }
)


def row_of(**load):
    return next(serve(CASE.with_({f"serving.load.{name}": value for name, value in load.items()})))


def groups_of(row):
    return row["load_decode_gpus"] // 16, row["load_prefill_gpus"] // 8


def test_groups_are_the_fewest_that_hold_the_load():
    row = row_of()
    decode, prefill = groups_of(row)
    assert decode > 1
    assert row["in_slo"] >= row["in_slo_limit"] == 0.99
    assert row["decode_load"] <= 1
    assert row["decode_load"] * decode > decode - 1 or row_of(decode_groups=decode - 1)["in_slo"] < 0.99
    assert row_of(decode_groups=decode, prefill_groups=prefill) == row


def test_open_prefill_is_searched_where_the_size_of_a_decoding_group_is_stated(monkeypatch):
    open_case = CASE.with_(
        {"serving.prefill.ep": None, "serving.prefill.tokens": None, "serving.ep": 64, "serving.load.rate": 100.0}
    )
    (found,) = serve(open_case)
    with monkeypatch.context() as alone:
        alone.setattr(searching, "sizes_of", lambda case: (64,))
        assert found == next(search(cases(open_case)))
    whole = next(serve(open_case.with_({"serving.prefill.ep": 64, "serving.prefill.tokens": 8192})))
    gpus, all_gpus = (row["load_decode_gpus"] + row["load_prefill_gpus"] for row in (found, whole))
    assert gpus < all_gpus
    assert (whole["prefill_ep"], whole["prefill_tokens"]) == (64, 8192)


SMALL = CASE.with_({"serving.load.rate": 20.0, "serving.load.requests": 400, "serving.prefill.ep": 8})


def test_a_search_simulates_no_size_that_costs_more_than_the_best_and_finds_the_same(monkeypatch):
    monkeypatch.setattr(searching, "sizes_of", lambda case: (8, 16, 32, 64, 128))
    several = cases(SMALL, {"gpu.name": ["H200-SXM", "B200-HGX"]})
    quick = list(search(several))
    assert list(search(several, start=7)) == quick[7:]
    monkeypatch.setattr(searching, "_better", lambda best, rows: best)
    whole = list(search(several))
    assert [row["ep"] for row in quick] == [row["ep"] for row in whole] == 2 * [8, 16, 32, 64, 128]
    for own, every in ((quick[:5], whole[:5]), (quick[5:], whole[5:])):
        good = rows_within_limits(every)
        left = [row["ep"] for row in own if row["unsimulated"]]
        assert left
        assert cheapest(rows_within_limits(own)) == cheapest(good)
        assert fastest(rows_within_limits(own)) == fastest(good)
        least = cheapest(good)["load_usd_per_million_tokens"]
        assert all(row["load_usd_per_million_tokens"] > least for row in good if row["ep"] in left)
    assert not any(row["unsimulated"] for row in whole)


def test_headroom_ends_between_a_rate_in_time_and_one_that_is_late():
    several = cases(SMALL.with_({"serving.load.ttft_ms": 2000.0}))
    (row,) = serve(several)
    case = case_of_row(row, several)
    now, more = headroom(case, row), growth(case, row)
    step = (now.full - 20.0) / 2**5
    assert 20.0 < now.in_time < now.full < more.in_time

    def in_slo(rate):
        return next(serve(case.with_({"serving.load.rate": rate})))["in_slo"]

    assert in_slo(now.in_time) >= 0.99 > in_slo(now.in_time + step)
    loads = {"decode": row["decode_load"], "prefill": row["prefill_load"]}
    assert now.full == pytest.approx(20.0 / max(loads.values()))
    each = [headroom_module._growth_of(pool, case, row).in_time for pool in loads]
    assert more.in_time == max(each) > min(each)
    before, after = (row["load_decode_gpus"] + row["load_prefill_gpus"] + added for added in (0, more.gpus))
    assert more.price == pytest.approx(after / before, rel=0.1)  # a GPU's share of its network depends on its group
    assert case_of_row(row | {"fabric": "torus"}, several) is None


def test_the_pool_that_makes_requests_late_grows():
    usual, prompt = row_of(), row_of(ttft_ms=1000.0)
    assert usual["load_ttft_p99_s"] > 1.0
    assert prompt["in_slo"] >= 0.99
    assert groups_of(prompt)[1] > groups_of(usual)[1]
    assert groups_of(prompt)[0] == groups_of(usual)[0]
    fixed = row_of(ttft_ms=1000.0, prefill_groups=groups_of(usual)[1])
    assert fixed["in_slo"] < 0.99
    assert rows_within_limits([fixed]) == []
    assert rows_within_limits([prompt]) == [prompt]


def test_dollars_at_a_load_are_of_all_gpus_over_what_they_serve():
    few, many = row_of(), row_of(decode_groups=30)
    for row in (few, many):
        gpus = row["load_decode_gpus"] + row["load_prefill_gpus"]
        full = row["usd_per_million_tokens"] * row["tokens_per_s_per_gpu"] / (1 + row["prefill_gpus"])
        assert row["load_usd_per_million_tokens"] == pytest.approx(full * gpus / row["load_tokens_per_s"])
    assert few["usd_per_million_tokens"] == many["usd_per_million_tokens"]
    assert cheapest([many, few]) is fastest([many, few]) is few


def test_dollars_of_pools_that_do_not_keep_up_count_only_what_they_finish():
    """Two groups that decode and one that prefills, whatever arrives: more requests never make tokens cheaper."""
    fixed = {"decode_groups": 2, "prefill_groups": 1}
    calm, crowded = row_of(rate=20.0, **fixed), row_of(rate=400.0, **fixed)
    assert max(calm["decode_load"], calm["prefill_load"]) < 1 < crowded["prefill_load"]
    usd_per_s = calm["load_usd_per_million_tokens"] * calm["load_tokens_per_s"]  # of the same GPUs in both rows
    finished = crowded["requests_per_s"] * CASE.serving.answer
    assert finished < 0.5 * crowded["load_tokens_per_s"]
    assert crowded["load_usd_per_million_tokens"] == pytest.approx(usd_per_s / finished)


def test_without_a_finished_request_there_are_no_dollars():
    row = row_of(rate=4000.0, requests=200, decode_groups=1, prefill_groups=1)
    assert row["requests_per_s"] == 0
    assert row["load_usd_per_million_tokens"] is None


def test_runs_of_a_log_follow_each_other():
    once = Requests(*np.array([[0, 9, 9, 2], [3, 5, 1, 4], [4, 5, 5, 4]], float).T, left_out=1)
    twice = repeat_requests(once, 2)
    assert twice.arrival_s.tolist() == [0, 3, 4, 6, 9, 10]
    assert twice.fresh.tolist() == [9, 1, 5, 9, 1, 5]
    assert (twice.rate, twice.left_out) == (once.rate, 2)
    assert repeat_requests(once, 1) is once
