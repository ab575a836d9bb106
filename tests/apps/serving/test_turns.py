"""Further turns of conversations: what continues what in every log, and when turns arrive, by hand."""

import json

import numpy as np
import pytest

from mfabric_jax.apps.serving import serve
from mfabric_jax.apps.serving.arrivals import read_arrivals, repeat_requests, stretch_to_rate
from mfabric_jax.apps.serving.queueing import simulate
from mfabric_jax.apps.serving.turns import Turns, previous_by_blocks
from mfabric_jax.case import Case
from tests.apps.serving.test_load import plain_pools
from tests.mistakes import refused

# Conversations a and b. Their answers took 2 and 5 s; then their users thought for 20 and 0 s.
BURST = """Timestamp,Session ID,Elapsed time,Request tokens,Response tokens
0,a,2,50,2
10,b,5,40,2
15,b,1,100,1
22,a,,60,1
"""
PREVIOUS = [-1, -1, 1, 0]
CHATS = [  # chat, parent, seconds, prompt, answer
    *((7, -1, 0.0, 50, 2), (9, -1, 10.0, 40, 2), (2, 9, 15.0, 100, 1), (4, 7, 22.0, 60, 1)),
]
# Blocks of 512 tokens, of which block 0 is a system prompt. Requests 2 and 4 continue request 0, 3 continues 1; 5 only
# begins like the others, as 7 and 8 do, whose last full block is the system prompt; 6 has the prompt of 1 but no room
# for its answer.
MOONCAKE = [  # ms, prompt, answer, blocks
    (0, 1100, 52, [0, 1, 2]),
    (1000, 1200, 10, [0, 5, 6]),
    (60_000, 1552, 300, [0, 1, 7, 8]),
    (70_000, 1300, 10, [0, 5, 9]),
    (90_000, 2100, 10, [0, 1, 7, 11, 12]),
    (91_000, 1100, 10, [0, 20, 21]),
    (92_000, 1205, 10, [0, 5, 30]),
    (93_000, 700, 10, [0, 40]),
    (94_000, 800, 10, [0, 50]),
]


def chats(rows):
    names = "chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


def mooncake(rows):
    names = "timestamp", "input_length", "output_length", "hash_ids"
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


def read(folder, text, turns="after", **given):
    path = folder / "log"
    path.write_text(text, encoding="utf-8")
    return read_arrivals(path, 100, turns=turns, **given)


def test_a_turn_arrives_when_the_answer_before_has_ended_and_its_user_has_thought(tmp_path):
    """Alone, a request takes a pass of 1 s and 0.01 s a token, 0.01 s a token of transfer, and steps of 0.15 s. Request
    0: 1.5 + 0.5 + 2 * 0.15 = 2.3 s, so its next turn arrives at 22.3 s. Request 1: from 10 to 10 + 1.4 + 0.4 + 0.3 =
    12.1 s, when its next turn arrives at once; that one ends after 2 + 1 + 0.15 s, the other after 1.6 + 0.6 + 0.15."""
    asked = read(tmp_path, BURST)
    assert asked.turns.previous.tolist() == PREVIOUS
    np.testing.assert_allclose(asked.turns.think_s, [0, 0, 0, 20])
    times = simulate(asked, *plain_pools())
    np.testing.assert_allclose(times.arrived_s, [0, 10, 12.1, 22.3])
    np.testing.assert_allclose(times.begun_s, times.arrived_s)
    np.testing.assert_allclose(times.end_s, [2.3, 12.1, 15.25, 24.65])


def test_open_turns_arrive_at_their_logged_times(tmp_path):
    asked = read(tmp_path, BURST, "open")
    assert asked.turns is None
    times = simulate(asked, *plain_pools())
    np.testing.assert_array_equal(times.arrived_s, [0, 10, 15, 22])


def test_a_log_without_times_of_service_leaves_them_in_the_users_time(tmp_path):
    asked = read(tmp_path, chats(CHATS), unit="s")
    assert asked.turns.previous.tolist() == PREVIOUS
    np.testing.assert_allclose(asked.turns.think_s, [0, 0, 5, 22])
    np.testing.assert_allclose(simulate(asked, *plain_pools()).arrived_s, [0, 10, 17.1, 24.3])


def test_mooncake_tells_turns_by_the_blocks_of_prompts(tmp_path):
    asked = read(tmp_path, mooncake(MOONCAKE), unit="ms")
    assert asked.turns.previous.tolist() == [-1, -1, 0, 1, 2, -1, -1, -1, -1]
    np.testing.assert_allclose(asked.turns.think_s, [0, 0, 60, 69, 30, 0, 0, 0, 0])


def test_a_short_turn_in_the_same_block_passes_the_conversation_on():
    blocks, prompt = [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2, 3]], [20, 25, 30, 45]
    assert previous_by_blocks(blocks, prompt, [1] * 4, 10) == [-1, 0, 1, 2]
    assert previous_by_blocks(blocks, [9, 9, 9, 9], [1] * 4, 10) == [-1] * 4


def test_turns_after_a_request_that_is_left_out_continue_the_one_before_it():
    turns = Turns(np.array([-1, 0, 1, 2, -1, 4]), np.array([0.0, 1, 2, 4, 0, 8]))
    kept = turns.select(np.array([True, False, False, True, False, True]))
    assert (kept.previous.tolist(), kept.think_s.tolist()) == ([-1, 0, -1], [0, 7, 0])
    twice = turns.select(np.arange(2)).repeat(2)
    assert (twice.previous.tolist(), twice.think_s.tolist()) == ([-1, 0, -1, 2], [0, 1, 0, 1])


def test_users_think_in_the_time_of_a_stretched_log_and_in_every_run_of_a_repeated_one(tmp_path):
    asked = read(tmp_path, BURST)
    slow = stretch_to_rate(asked, asked.rate / 2)
    np.testing.assert_allclose(slow.turns.think_s, [0, 0, 0, 40])
    runs = repeat_requests(asked, 2)
    assert runs.turns.previous.tolist() == [-1, -1, 1, 0, -1, -1, 5, 4]
    np.testing.assert_allclose(simulate(runs, *plain_pools()).arrived_s[:4], [0, 10, 12.1, 22.3])


CASE = Case().with_(
    {
        **{"model.name": "deepseek-v3", "network.fabric": "fat-tree", "gpu.name": "H200-SXM", "serving.ep": 16},
        **{"serving.prefill.ep": 8, "serving.answer": 100, "serving.context": 2048.0, "serving.load.warmup": 0.0},
    }
)


@pytest.fixture
def busy(tmp_path):
    """A log of 40 conversations of 5 turns that begin together; answers took 4 s, users think for a second."""
    rows = [(f"{5 * turn + 0.01 * chat},{chat},4,{900 + 400 * turn},300") for turn in range(5) for chat in range(40)]
    path = tmp_path / "log.csv"
    path.write_text("Timestamp,Session ID,Elapsed time,Request tokens,Response tokens\n" + "\n".join(rows))
    return CASE.with_({"serving.load.arrivals": str(path), "serving.load.prefill_groups": 1})


def test_a_pool_that_is_too_slow_gets_fewer_requests_a_second_from_users_who_wait(busy):
    slow = busy.with_({"serving.batch": 1.0})
    open_row, after = (next(serve(slow.with_({"serving.load.turns": turns}))) for turns in ("open", "after"))
    assert next(serve(slow)) == open_row
    assert after["load_requests"] == open_row["load_requests"] == 200
    assert (after["load_turns"], open_row["load_turns"]) == (40 * (5 - 1), None)
    assert after["load_requests_per_s"] < open_row["load_requests_per_s"] == pytest.approx(199 / 20.39)
    assert after["load_ttft_p99_s"] < open_row["load_ttft_p99_s"]


def test_the_fewest_groups_for_users_who_wait_keep_requests_in_time(busy):
    limits = {"serving.tpot_ms": 40.0, "serving.load.prefill_groups": None, "serving.load.ttft_ms": 4000.0}
    rows = [next(serve(busy.with_(limits | {"serving.load.turns": turns}))) for turns in ("open", "after")]
    assert all(row["in_slo"] >= 0.99 for row in rows)
    gpus = [row["load_decode_gpus"] + row["load_prefill_gpus"] for row in rows]
    assert gpus[1] <= gpus[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Timestamp,Request tokens,Response tokens\n0,5,5\n9,6,6\n", "does not tell which request continues another"),
        (chats([(1, -1, 0.0, 5, 5), (2, -1, 9.0, 5, 5)]), "continues another; state serving.load.turns open."),
        (chats([(1, -1, 0.0, 5, 5), (2, [1], 9.0, 5, 5)]), "line 2: chat_id must be a number or a name, got [1]."),
        (BURST.replace("b,5", "b,x"), "line 3: elapsed time must be a number of seconds, got 'x'."),
    ],
    ids=lambda case: case[-20:],
)
def test_a_log_that_does_not_tell_turns_is_refused(tmp_path, text, words):
    sentence = refused(lambda: read(tmp_path, text, unit="s"))
    assert words in sentence


def test_turns_need_a_log():
    sentence = refused(lambda: next(serve(CASE.with_({"serving.load.rate": 5.0, "serving.load.turns": "after"}))))
    assert sentence == "serving.load.turns must be open without serving.load.arrivals, a log of requests, got 'after'."
