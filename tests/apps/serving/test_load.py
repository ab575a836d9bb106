"""Requests through pools: worked out by hand, by queueing theory, by exact fluids; and the columns of a case's load."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest

from mfabric_jax.apps.serving import queueing, request_load
from mfabric_jax.apps.serving.arrivals import Requests, poisson
from mfabric_jax.apps.serving.columns import LOADED
from mfabric_jax.apps.serving.queueing import DecodePool, LookupTable, PrefillPool, Wire, simulate
from mfabric_jax.apps.serving.rows import cached_deployment, serve
from mfabric_jax.apps.serving.transfers import KvTransfers
from mfabric_jax.case import Case
from tests.oracles.max_min import max_min


def requests_at(*rows):
    """Of (arrival, prompt, fresh, answer)."""
    return Requests(*np.array(rows, float).T)


def plain_pools(prefill_groups=1, units=2, most=2, room=1000.0, step_tokens=1.0):
    """A pass takes 1 s and 0.01 s a token of its busiest unit, a step 0.1 s and 0.1 s a request of a unit."""
    prefill = PrefillPool(prefill_groups, units, 100.0, lambda tokens, prompt: 1 + tokens / 100)
    step = lambda held, context: 0.1 + held / 10  # noqa: E731
    return (
        prefill,
        DecodePool(1, units, most, room, lambda tokens: tokens, step, step_tokens),
        Wire(100.0, 100.0, lambda tokens: tokens),
    )


def test_three_requests_by_hand():
    """Request 0 has a pass for itself (to 1.5 s); 1 and 2 wait for the next, a unit each, the busier with 95 tokens (to
    3.45 s). Caches travel in 0.5, 0.95 and 0.4 s. Request 0 steps alone from 2 s on, 0.15 s each: 13 steps until 2 has
    come (3.95 s), two steps of 0.2 s with it, one alone until 1 has come (4.5 s), two with it, and 12 alone."""
    asked = requests_at((0, 50, 50, 30), (0.5, 95, 95, 2), (1, 40, 40, 2))
    times = simulate(asked, *plain_pools())
    np.testing.assert_allclose(times.begun_s, [0, 1.5, 1.5])
    np.testing.assert_allclose(times.prefilled_s, [1.5, 3.45, 3.45])
    assert times.sender.tolist() == [0, 0, 1]
    assert times.receiver.tolist() == [0, 1, 0]
    np.testing.assert_allclose(times.landed_s, [2, 4.4, 3.85])
    np.testing.assert_allclose(times.first_s, [2.15, 4.7, 4.15])
    np.testing.assert_allclose(times.end_s, [6.7, 4.9, 4.35])


def test_a_pass_waits_for_its_busiest_unit_and_a_long_prompt_goes_on_in_the_next():
    asked = requests_at((0, 250, 250, 1), (0, 60, 60, 1), (0.1, 70, 70, 1))
    times = simulate(asked, *plain_pools())
    # three passes for the first prompt: 100 tokens beside 60, 100 beside 70, and the last 50
    np.testing.assert_allclose(times.begun_s, [0, 0, 2])
    np.testing.assert_allclose(times.prefilled_s, [5.5, 2, 4])
    assert times.sender.tolist() == [0, 1, 1]


def test_requests_wait_for_room_in_memory_and_never_exceed_it():
    asked = requests_at(*((0, 40, 40, 60) for _ in range(7)))
    prefill, decode, wire = plain_pools(most=9, room=200.0)
    times = simulate(asked, prefill, decode, wire)
    assert (times.sent_s > times.prefilled_s).sum() >= 3
    for moment in times.sent_s:
        held = (times.sent_s <= moment) & (moment < times.end_s)
        assert (np.bincount(times.receiver[held], minlength=2) <= 2).all()


def test_waits_of_one_group_are_those_of_a_queue_with_equal_service():
    """M/D/1 (Pollaczek-Khinchine): a mean wait of rho D / (2 (1 - rho))."""
    service, rho, count, parts = 0.5, 0.7, 60000, 30
    asked = poisson(rho / service, count, 10, 10, 1, seed=5)
    prefill = PrefillPool(1, 1, 10.0, lambda tokens, prompt: service)
    decode = DecodePool(1, 1, count, 1e9, lambda tokens: tokens, lambda held, context: 1e-3)
    times = simulate(asked, prefill, decode, Wire(1e9, 1e9, lambda tokens: tokens))
    waits = (times.begun_s - asked.arrival_s).reshape(parts, -1).mean(1)
    error = waits.std() / np.sqrt(parts - 1)
    assert waits.mean() == pytest.approx(rho * service / (2 * (1 - rho)), abs=4 * error)
    assert error < 0.05 * waits.mean()


def test_every_request_ends_and_all_tokens_are_counted():
    draw = np.random.default_rng(1)
    prompt, answer = draw.integers(1, 400, 300), draw.integers(1, 40, 300)
    fresh = np.ceil(prompt * draw.uniform(0.1, 1, 300))
    asked = Requests(np.sort(draw.uniform(0, 300, 300)), *(each.astype(float) for each in (prompt, fresh, answer)))
    prefill, decode, wire = plain_pools(prefill_groups=2, units=1, most=20, room=5000.0)
    tokens = []
    prefill = prefill._replace(pass_s=lambda busiest, prompt: tokens.append(busiest) or 0.2 + busiest / 1000)
    times = simulate(asked, prefill, decode, wire)
    moments = np.stack([asked.arrival_s, *times[:6]])
    assert (np.diff(moments, axis=0) >= -1e-12).all()
    assert sum(tokens) == times.passes[:, 2].sum() == fresh.sum()
    assert times.steps[:, 2].sum() == answer.sum()
    drafted = simulate(asked, prefill, decode._replace(step_tokens=1.8), wire)
    assert drafted.steps[:, 2].sum() == np.ceil(answer / 1.8).sum()


@pytest.mark.parametrize("speeds", [(7, 7), (3, 7), (7, 4)])
def test_transfers_are_max_min_fair_at_every_moment(speeds):
    draw = np.random.default_rng(2)
    start = np.sort(draw.integers(0, 40, 60)) / 4
    sender, receiver = draw.integers(0, 4, 60), draw.integers(0, 5, 60)
    size = draw.integers(1, 30, 60)
    got = _ends(speeds, start, sender, receiver, size)
    np.testing.assert_allclose(got, _plainly(speeds, start, sender, receiver, size), rtol=1e-9)


def _ends(speeds, start, sender, receiver, size):
    transfers, ends, begun = KvTransfers(*map(float, speeds)), np.zeros(len(start)), 0
    while (done := transfers.next_end_s()) < np.inf or begun < len(start):
        now = min(done, start[begun] if begun < len(start) else np.inf)
        ends[transfers.take_finished(now)] = now
        while begun < len(start) and start[begun] <= now:
            transfers.begin(now, begun, sender[begun], receiver[begun], size[begun])
            begun += 1
        transfers.settle(now)
    return ends


def _plainly(speeds, start, sender, receiver, size):
    """In fractions, all rates anew at every change."""
    left, now, ends = [Fraction(int(each)) for each in size], Fraction(0), [None] * len(size)
    start = [Fraction(float(each)) for each in start]
    while None in ends:
        flows = [i for i in range(len(size)) if ends[i] is None and start[i] <= now]
        paths = [[(int(sender[i]), 1), (4 + int(receiver[i]), 1)] for i in flows]
        rates = max_min([speeds[0]] * 4 + [speeds[1]] * 5, paths, [1] * len(flows), [float("inf")] * len(flows))
        moments = [now + left[i] / rate for i, rate in zip(flows, rates, strict=True)]
        then = min([*moments, *(each for each in start if each > now)])
        for i, rate in zip(flows, rates, strict=True):
            left[i] -= rate * (then - now)
            if not left[i]:
                ends[i] = then
        now = then
    return [float(each) for each in ends]


def test_a_table_is_exact_at_its_points_and_linear_between():
    table = LookupTable(np.array([1.0, 2, 4]), np.array([10.0, 20]), np.array([[1.0, 2], [3, 5], [4, 8]]))
    assert [table(1, 10), table(4, 20), table(2, 20)] == [1, 8, 5]
    assert table(3, 15) == pytest.approx((3 + 5 + 4 + 8) / 4)
    assert (table(0, 0), table(9, 99)) == (1, 8)


# --------------------------------------------------------------------------------------------------------------- a case
CASE = Case().with_(
    {
        "model.name": "deepseek-v3",
        "network.fabric": "fat-tree",
        "serving.batch": 40.0,
        "serving.answer": 200,
        "serving.load.rate": 40.0,
        "serving.load.requests": 2000,
    }
)


def test_tables_follow_the_steps_that_they_stand_for():
    deployed = cached_deployment(CASE)
    asked = request_load.requests_of(deployed)
    decode, prefill = request_load.decode_pool(deployed, asked), request_load.prefill_pool(deployed, asked)
    for held, context in itertools.product((0.4, 3.3, 27.7, 79.0), (4100.0, 4250.0)):
        numbers = deployed.numbers._replace(batch=np.array(held / 2), context=context)
        assert decode.step_s(held, context) == pytest.approx(float(deployed.decoding(numbers).tpot_s), rel=0.005)
    assert prefill.pass_s(deployed.pass_tokens, 4096) == pytest.approx(deployed.prefilling(400.0).step_s)


def test_a_light_load_sees_what_an_empty_deployment_gives():
    row = next(serve(CASE.with_({"serving.load.rate": 0.05, "serving.load.requests": 200})))
    deployed = cached_deployment(CASE)
    passes, one = deployed.prefilling(400.0).step_s / 4, deployed.numbers._replace(batch=np.array(1 / 64))
    step = float(deployed.decoding(one).tpot_s)
    assert row["load_tpot_p50_s"] == pytest.approx(step, rel=0.01)
    assert row["load_ttft_p50_s"] == pytest.approx(passes + row["kv_transfer_s"] + step, rel=0.05)
    assert row["load_kv_p50_s"] == pytest.approx(row["kv_transfer_s"])
    assert row["prefill_queue"] == pytest.approx(0, abs=0.01)


def test_more_requests_a_second_are_never_faster_and_the_same_seed_gives_the_same():
    case = CASE.with_({"serving.load.prefill_groups": 2})
    rows = [next(serve(case.with_({"serving.load.rate": rate}))) for rate in (5.0, 20.0, 80.0, 320.0)]
    for name in ("load_ttft_p50_s", "load_tpot_p50_s", "prefill_queue"):
        assert (np.diff([row[name] for row in rows]) >= 0).all(), name
    assert next(serve(case.with_({"serving.load.rate": 80.0}))) == rows[2]
    assert next(serve(case.with_({"serving.load.rate": 80.0, "run.seed": 1}))) != rows[2]
    assert rows[0]["requests_per_s"] == pytest.approx(5, rel=0.1)


def test_open_groups_that_prefill_keep_up_with_what_arrives_or_with_what_decodes():
    def groups(rate):
        return next(serve(CASE.with_({"serving.load.rate": rate})))["load_prefill_gpus"] / 32

    most = next(serve(CASE))["prefill_gpus"] / 0.8  # of full groups that decode
    assert groups(10_000.0) == pytest.approx(most, abs=1)
    each_s = 32 * next(serve(CASE))["prefill_tokens_per_s_per_gpu"] / 4096
    arriving = request_load.requests_of(cached_deployment(CASE.with_({"serving.load.rate": 90.0}))).rate
    assert groups(90.0) == np.ceil(arriving / (0.8 * each_s))
    assert groups(5.0) == 1


def test_a_log_is_read_with_the_stated_unit_and_size_of_blocks(tmp_path):
    trace = tmp_path / "trace.jsonl"
    line = '{{"timestamp": {}, "input_length": 48, "output_length": 9, "hash_ids": [0, 1, {}]}}\n'
    trace.write_text("".join(line.format(at, 2 + at) for at in range(3)), encoding="utf-8")
    log = {"arrivals": str(trace), "rate": None, "unit": "s", "block": 16}
    asked = request_load.requests_of(
        cached_deployment(CASE.with_({f"serving.load.{name}": value for name, value in log.items()}))
    )
    assert asked.arrival_s.tolist() == [0, 1, 2]
    assert asked.fresh.tolist() == [48, 16, 16]


def test_goodput_counts_requests_within_both_limits():
    free = next(serve(CASE))
    assert (free["in_slo"], free["goodput_per_s"], free["refused"], free["left_out"]) == (None, None, 0, 0)
    wide = next(serve(CASE.with_({"serving.load.ttft_ms": 1e9})))
    assert wide["in_slo"] == 1.0
    most = next(serve(CASE.with_({"serving.load.ttft_ms": free["load_ttft_p90_s"] * 1000})))
    assert most["in_slo"] == pytest.approx(0.9, abs=0.01)
    assert most["goodput_per_s"] == pytest.approx(0.9 * wide["goodput_per_s"], rel=0.15)  # of the ends in a window
    assert next(serve(CASE.with_({"serving.load.tpot_ms": 1.0})))["goodput_per_s"] == 0


def test_requests_that_no_gpu_holds_are_refused_and_without_room_there_are_no_columns(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "Timestamp,Request tokens,Response tokens\n"
        + "".join(f"{i},{900 if i % 4 else 10_000_000},20\n" for i in range(40)),
        encoding="utf-8",
    )
    row = next(serve(CASE.with_({"serving.load.arrivals": str(trace), "serving.load.rate": None})))
    assert (row["load_requests"], row["refused"]) == (30, 10)
    full = next(serve(CASE.with_({"serving.reserved_gigabytes": 70.0})))
    assert {full[name] for name in LOADED} == {None}
    assert not full["fits"]


def test_hot_pairs_are_those_between_which_most_bytes_travel():
    asked = requests_at((0, 50, 50, 1), (1, 10, 10, 1), (9, 30, 30, 1), (20, 35, 35, 1))
    pools = plain_pools()
    timeline = simulate(asked, *pools)
    outcome = request_load.LoadOutcome(asked, *pools, timeline, 0, 0)
    total = {}
    for sender, receiver, size in zip(timeline.sender, timeline.receiver, asked.prompt, strict=True):
        total[sender, receiver] = total.get((sender, receiver), 0) + size
    pair = max(total, key=lambda pair: (total[pair], -pair[0], -pair[1]))
    assert request_load.hot_pairs(outcome)[0] == (*pair, total[pair])


def test_only_a_case_with_a_load_has_its_columns():
    without = CASE.with_({"serving.load.rate": None})
    assert not set(LOADED) & set(next(serve(without)))
    assert request_load.columns(cached_deployment(without)) == dict.fromkeys(LOADED)
    grouped = dataclasses.replace(cached_deployment(CASE), case=CASE.with_({"serving.load.decode_groups": 2}))
    assert request_load.columns(grouped)["load_decode_gpus"] == 64


def test_what_is_done_in_time_is_part_of_what_is_done_in_the_same_window():
    """A short load: of the requests that arrive few are done before the last one comes."""
    changes = {"serving.load.requests": 300, "serving.load.ttft_ms": 1e9}
    row = next(serve(CASE.with_(changes)))
    assert row["in_slo"] == 1
    assert row["goodput_per_s"] == row["requests_per_s"] < 0.5 * row["load_requests_per_s"]
    assert row["load_window_s"] < 2 * row["load_e2e_p50_s"]


def test_what_ends_the_places_to_decode_is_named():
    assert next(serve(CASE))["decode_limit"] == "batch"
    assert next(serve(CASE.with_({"serving.batch": 4000.0})))["decode_limit"] == "memory"


def test_many_requests_are_told_as_they_end(monkeypatch):
    """Where the loop of events takes long, both of all requests and of those that prefill alone."""
    told = []

    class Bar:
        n = 0

        def update(self, count):
            self.n += count

        def close(self):
            told.append(self.n)

    monkeypatch.setattr(queueing, "bar", lambda what, unit, total, **form: told.append((what, total)) or Bar())
    requests = poisson(100.0, 1000, 512, 512, 8, 1)
    prefill = PrefillPool(1, 8, 4096.0, lambda tokens, prompt: 0.1)
    decode = DecodePool(1, 8, 64, 1e12, lambda tokens: tokens, lambda held, context: 0.01)
    simulate(requests, prefill, decode, Wire(1e9, 1e9, lambda tokens: tokens))
    queueing.prefill_end_s(requests, prefill)
    assert told == [("requests through both pools", 1000), 1000, ("requests through prefill", 1000), 1000]


def test_capacity_counts_the_requests_that_memory_holds_and_their_shorter_steps():
    """Of a batch too large for the memory, as of the batch that fits it: the same requests, the same step."""
    stated = Case().with_({"serving.batch": 4096, "serving.context": 64000, "serving.answer": 64})
    deployed = cached_deployment(stated)
    requests = poisson(1.0, 3, 64000, 64000, 64, seed=0)
    fits = float(deployed.most_requests(request_load.mean_context(requests)))
    held = cached_deployment(stated.with_({"serving.batch": float(deployed.batch_of(fits))}))
    assert float(deployed.decoding(deployed.numbers).requests) > fits
    assert request_load.capacity(deployed, requests) == pytest.approx(request_load.capacity(held, requests), rel=1e-6)
