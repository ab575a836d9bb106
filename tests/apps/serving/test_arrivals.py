"""Traces of requests: read in every public format; broken ones are answered with a sentence."""

import json
import math
import random

import numpy as np
import pytest

from mfabric_jax.apps.serving.arrivals import poisson, read_arrivals, stretch_to_rate
from mfabric_jax.checks import InputError
from tests.mistakes import refused

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:48.5000000,879,55
2023-11-16 18:15:51.2225670,91,0
"""
IMAGES = """TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2024-10-15 23:59:59.500000+00:00,1,2000,18
2024-10-16 02:00:00.250000+02:00,0,30,7
"""
BURST = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,,1.2,ChatGPT,472,18,490,Conversation log
45.5,,,GPT-4,1087,0,1087,Conversation log
118,a,3,ChatGPT,417,276,693,API log
"""
MOONCAKE = "".join(
    json.dumps({"timestamp": when, "input_length": prompt, "output_length": answer, "hash_ids": blocks}) + "\n"
    for when, prompt, answer, blocks in (
        (0, 1100, 52, [0, 1, 2]),
        (3052, 1500, 10, [0, 1, 7]),
        (3100, 1024, 3, [0, 1]),
        (3100, 600, 3, [7, 1]),
    )
)


def lines_of(*requests, **further):
    """JSON lines of (timestamp, tokens of the prompt, blocks), each with the further fields."""
    names = "timestamp", "input_length", "hash_ids"
    every = ({**dict(zip(names, each, strict=True)), "output_length": 20, **further} for each in requests)
    return "".join(json.dumps(each) + "\n" for each in every)


def blocks_of(size, tokens, first):
    """Names of a prompt's blocks, the last one included where it is not full."""
    return [first + at for at in range(-(-tokens // size))]


SHARED = [0, 1, 2]
CHATS = lines_of(  # blocks of 16 tokens, of which the second prompt shares three
    *((0.0, 520, SHARED + blocks_of(16, 520 - 48, 100)), (20.5, 400, SHARED + blocks_of(16, 400 - 48, 200))),
    **{"chat_id": 4, "parent_chat_id": -1, "type": "text", "turn": 1},
)
PLAIN = "Timestamp,Request tokens,Response tokens\n"


def read(folder, name, text, most=100, **asked):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_arrivals(path, most, **asked)


def test_azure_times_are_dates_and_requests_without_an_answer_are_left_out(tmp_path):
    found = read(tmp_path, "azure.csv", AZURE)
    np.testing.assert_allclose(found.arrival_s, [0, 1.81941, 4.314579], atol=1e-6)
    assert found.prompt.tolist() == found.fresh.tolist() == [374, 879, 396]
    assert found.answer.tolist() == [44, 55, 109]
    assert found.left_out == 1


def test_azure_of_2025_has_zones_and_images(tmp_path):
    found = read(tmp_path, "images.csv", IMAGES)
    np.testing.assert_allclose(found.arrival_s, [0, 0.75], atol=1e-6)
    assert found.prompt.tolist() == [2000, 30]


def test_burstgpt_names_its_columns_in_any_order(tmp_path):
    found = read(tmp_path, "burst.csv", BURST)
    assert found.arrival_s.tolist() == [0, 113]
    assert (found.prompt.tolist(), found.answer.tolist(), found.left_out) == ([472, 417], [18, 276], 1)


def test_mooncake_blocks_that_an_earlier_prompt_began_with_are_cached(tmp_path):
    found = read(tmp_path, "mooncake.jsonl", MOONCAKE)
    np.testing.assert_allclose(found.arrival_s, [0, 3.052, 3.1, 3.1])
    # the second repeats two blocks, the third is known to its end but for one token, the fourth repeats both of its own
    assert found.fresh.tolist() == [1100, 1500 - 1024, 1, 1]
    assert read(tmp_path, "mooncake.jsonl", MOONCAKE, most=2).prompt.tolist() == [1100, 1500]


def test_qwen_bailian_counts_seconds_and_blocks_of_16_tokens(tmp_path):
    found = read(tmp_path, "chats.jsonl", CHATS)
    assert found.arrival_s.tolist() == [0, 20.5]
    assert found.fresh.tolist() == [520, 400 - 48]


@pytest.mark.parametrize(("unit", "second"), [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)])
def test_a_stated_unit_is_that_of_every_log_that_counts(tmp_path, unit, second):
    found = read(tmp_path, "chats.jsonl", CHATS, unit=unit)
    np.testing.assert_allclose(found.arrival_s, [0, 20.5 * second])
    found = read(tmp_path, "mooncake.jsonl", MOONCAKE, unit=unit)
    np.testing.assert_allclose(found.arrival_s, np.array([0, 3052, 3100, 3100]) * second)
    found = read(tmp_path, "burst.csv", BURST, unit=unit)
    np.testing.assert_allclose(found.arrival_s, [0, 113 * second])


@pytest.mark.parametrize("size", [16, 64, 128, 512, 1024])
def test_the_size_of_blocks_is_the_one_that_their_numbers_agree_with(tmp_path, size):
    prompts = [3000, 3700, 4400]
    requests = [
        (4000 * at, prompt, [0, 1, *blocks_of(size, prompt, 1000 * at)[2:]]) for at, prompt in enumerate(prompts)
    ]
    for asked in ({}, {"block": size}):
        found = read(tmp_path, "log.jsonl", lines_of(*requests), **asked)
        assert found.fresh.tolist() == [3000, 3700 - 2 * size, 4400 - 2 * size]
    sentence = refused(read, tmp_path, "log.jsonl", lines_of(*requests), block=48)
    assert "line 1: 3000 tokens have" in sentence
    assert "48" in sentence


def test_whole_blocks_alone_may_be_named(tmp_path):
    prompts = [3000, 3900, 4800]
    requests = [
        (4000 * at, prompt, [0, 1, *range(100 * at + 2, 100 * at + prompt // 512)]) for at, prompt in enumerate(prompts)
    ]
    assert read(tmp_path, "log.jsonl", lines_of(*requests)).fresh.tolist() == [3000, 3900 - 1024, 4800 - 1024]


OTHER = {  # logs that may be in either of two units: with the unit, requests a second in one and in the other
    "seconds.jsonl": (lines_of((0, 600, [1, 2]), (10, 600, [3, 4]), (20, 600, [5, 6])), ("ms", "100"), ("s", "0.1")),
    "fractions.jsonl": (lines_of((0.0, 9, []), (200.5, 9, []), (450.25, 9, [])), ("ms", "4.44"), ("s", "0.00444")),
    "epoch_s.jsonl": (lines_of((1_700_000_000, 9, []), (1_700_000_900, 9, [])), ("ms", "1.11"), ("s", "0.00111")),
    "epoch_us.jsonl": (
        lines_of((1_700_000_000_000_000, 9, []), (1_700_000_000_100_000, 9, [])),
        ("ms", "0.01"),
        ("us", "10"),
    ),
    "milliseconds.csv": (PLAIN + "0,20,3\n1500,20,3\n3000,20,3\n", ("s", "0.000667"), ("ms", "0.667")),
    "epoch_ms.csv": (PLAIN + "1700000000000,20,3\n1700000000100,20,3\n", ("s", "0.01"), ("ms", "10")),
    "chats.jsonl": (
        lines_of((0, 9, []), (2000, 9, []), chat_id=1, turn=1, parent_chat_id=-1),
        ("s", "0.0005"),
        ("ms", "0.5"),
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_two_possible_units_are_both_named_and_a_stated_one_is_taken(tmp_path, name):
    text, *readings = OTHER[name]
    sentence = refused(read, tmp_path, name, text)
    for unit, rate in readings:
        assert f"in {unit} ({rate} requests/s)" in sentence
        assert read(tmp_path, name, text, unit=unit).rate == pytest.approx(float(rate), rel=6e-3)
    assert "state serving.load.unit" in sentence


def test_two_possible_sizes_of_blocks_are_both_named(tmp_path):
    text = lines_of((0, 1200, [0, 1]), (4000, 1300, [0, 1]))  # 512, with the last block left out, or 1024
    assert {"512", "1,024"} <= set(refused(read, tmp_path, "log.jsonl", text).replace(";", " ").split())
    assert read(tmp_path, "log.jsonl", text, block=512).fresh.tolist() == [1200, 1300 - 1024]
    assert read(tmp_path, "log.jsonl", text, block=1024).fresh.tolist() == [1200, 1]


def test_epoch_milliseconds_are_read_however_many_requests_arrive(tmp_path):
    text = lines_of(*((1_700_000_000_000 + 2 * at, 9, []) for at in range(5)))
    assert read(tmp_path, "log.jsonl", text).rate == pytest.approx(500)


def test_a_setting_that_a_log_does_not_need_is_refused(tmp_path):
    assert "leave out serving.load.unit, got 'ms'" in refused(read, tmp_path, "a.csv", AZURE, unit="ms")
    assert "leave out serving.load.block, got 16" in refused(read, tmp_path, "b.csv", BURST, block=16)
    assert "leave out serving.load.block, got 16" in refused(read, tmp_path, "c.jsonl", lines_of((0, 9, [])), block=16)


def test_drawn_gaps_scale_with_the_rate_and_times_of_a_trace_stretch(tmp_path):
    slow, fast = (poisson(rate, 500, 100, 80, 10, seed=3) for rate in (2.0, 8.0))
    np.testing.assert_allclose(slow.arrival_s, 4 * fast.arrival_s)
    assert slow.rate == pytest.approx(2, rel=0.15)
    assert (slow.prompt[0], slow.fresh[0], slow.answer[0]) == (100, 80, 10)
    trace = read(tmp_path, "azure.csv", AZURE)
    assert stretch_to_rate(trace, 50.0).rate == pytest.approx(50)


REFUSED = {
    "times.csv": (AZURE.replace("18:15:50", "6 pm"), "line 3: timestamp", "a date and a time"),
    "tokens.csv": (BURST.replace("1087,0", "-4,0"), "line 3: request tokens", "at least 0", "got -4"),
    "short.csv": ("Timestamp,Request tokens,Response tokens\n1,2\n", "line 2", "got 2"),
    "strange.csv": ("a,b\n1,2\n", "strange.csv' begins with 'a,b'"),
    "empty.csv": ("", "empty.csv' begins with ''"),
    "failed.csv": ("Timestamp,Request tokens,Response tokens\n1,2,0\n", "no answered request"),
    "list.jsonl": (MOONCAKE + "[1]\n", "line 5", "must be an object with timestamp"),
    "blocks.jsonl": (MOONCAKE.replace("[0, 1, 7]", "7"), "line 2: hash_ids", "got 7"),
    "late.jsonl": (MOONCAKE.replace("3052", "NaN"), "line 2: timestamp"),
    "odd.jsonl": (MOONCAKE.replace("[0, 1, 7]", "[0, 7]"), "line 1: 1100 tokens have 3 hash_ids", "line 2: 1500"),
    "two.jsonl": (MOONCAKE + CHATS, "line 5", "chat_id", "two logs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_line_is_named(tmp_path, name):
    text, *words = REFUSED[name]
    sentence = refused(read, tmp_path, name, text)
    assert [word for word in words if word not in sentence] == [], sentence


def test_a_missing_file_and_a_trace_of_one_moment_are_refused(tmp_path):
    assert "cannot read" in refused(read_arrivals, tmp_path / "none.csv", 5)
    assert "cannot read" in refused(read_arrivals, "a\0b.csv", 5)
    once = read(tmp_path, "once.csv", "\n".join(AZURE.splitlines()[:2]))
    assert "at two or more times" in refused(stretch_to_rate, once, 4.0)


@pytest.mark.filterwarnings("ignore::mfabric_jax.support.unread.Unread")
@pytest.mark.parametrize("text", [AZURE, IMAGES, BURST, MOONCAKE, CHATS])
def test_broken_files_get_a_sentence_or_numbers(tmp_path, text):
    draw, sentences, path = random.Random(7), [], tmp_path / "broken"
    for _ in range(200):
        data = bytearray(text.encode())
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(max(1, len(data)))
            match draw.randrange(4):
                case 0:
                    data[place : place + 1] = [draw.randrange(256)]
                case 1:
                    del data[place : place + draw.randint(1, 20)]
                case 2:
                    data[place:place] = draw.choice(
                        [b'"', b"\0", b"-", b"1e999", b"[", b"}", b",", b"\n", b"nan", b"9" * 30]
                    )
                case 3:
                    data = data[: place + 1]
        path.write_bytes(data)
        try:
            found = read_arrivals(path, 100)
        except InputError as mistake:
            sentences.append(str(mistake))
        else:
            assert all(map(math.isfinite, found.arrival_s))
            assert (np.diff(found.arrival_s) >= 0).all()
            assert (found.answer > 0).all()
            assert (found.fresh <= found.prompt).all()
    assert len(sentences) > 60
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)
