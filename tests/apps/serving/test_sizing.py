"""Groups for a load: the fewest that keep requests in time, and what they cost."""

import numpy as np
import pytest

from mfabric_jax.apps.serving import cheapest, fastest, rows_within_limits, search, serve
from mfabric_jax.apps.serving.arrivals import Requests, repeat_requests
from mfabric_jax.apps.serving.pools import sizes_of
from mfabric_jax.case import Case, cases

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


def test_open_prefill_is_searched_where_the_size_of_a_decoding_group_is_stated():
    open_case = CASE.with_(
        {"serving.prefill.ep": None, "serving.prefill.tokens": None, "serving.ep": 64, "serving.load.rate": 100.0}
    )
    (found,) = serve(open_case)
    assert found == next(search(cases(open_case), start=sizes_of(open_case).index(64)))
    whole = next(serve(open_case.with_({"serving.prefill.ep": 64, "serving.prefill.tokens": 8192})))
    gpus, all_gpus = (row["load_decode_gpus"] + row["load_prefill_gpus"] for row in (found, whole))
    assert gpus < all_gpus
    assert (whole["prefill_ep"], whole["prefill_tokens"]) == (64, 8192)


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


def test_runs_of_a_log_follow_each_other():
    once = Requests(*np.array([[0, 9, 9, 2], [3, 5, 1, 4], [4, 5, 5, 4]], float).T, left_out=1)
    twice = repeat_requests(once, 2)
    assert twice.arrival_s.tolist() == [0, 3, 4, 6, 9, 10]
    assert twice.fresh.tolist() == [9, 1, 5, 9, 1, 5]
    assert (twice.rate, twice.left_out) == (once.rate, 2)
    assert repeat_requests(once, 1) is once
