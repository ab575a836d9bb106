"""Arriving requests: drawn, or read from a log in a public format.

Formats are Azure (Azure/AzurePublicDataset, LLM inference of 2023 and 2024, LMM of 2025), BurstGPT (HPMLL/BurstGPT),
Mooncake (kvcache-ai/Mooncake, FAST25 traces) and Qwen-Bailian (alibaba-edu/qwen-bailian-usagetraces-anon). The last two
give every block of tokens a hash of its content and of all blocks before it. The leading blocks of a prompt count as
cached if an earlier prompt began with them; the cache never evicts.
"""

import csv
import dataclasses
import datetime
import itertools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mfabric_jax import units
from mfabric_jax.apps.serving.turns import Turns, previous_by_blocks, previous_by_name, turns_of
from mfabric_jax.checks import InputError, not_negative, one_of, whole
from mfabric_jax.support.text_files import parse_json, unreadable
from mfabric_jax.support.unread import name_unread

GIVE = (
    "give a log of requests that begins with TIMESTAMP,ContextTokens,GeneratedTokens (Azure: date and time, tokens of "
    "prompt and answer), with Timestamp,Request tokens,Response tokens (BurstGPT: seconds), or with an object that has "
    "timestamp, input_length and output_length (Mooncake: milliseconds; Qwen-Bailian, with chat_id: seconds), as in "
    '"2023-11-16 18:15:46.68,374,44", "5.2,374,44" or {"timestamp": 5200, "input_length": 374, "output_length": 44}'
)
MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d{1,12})?(Z|[+-]\d\d:\d\d)?", re.ASCII)
UNITS = {"s": 1.0, "ms": units.ms(1.0), "us": units.us(1.0), "ns": units.ns(1.0)}  # seconds per unit of a timestamp


class Form(NamedTuple):
    """A public format: columns of time, prompt and answer tokens, the unit of time (None: dates), and tokens per
    block."""

    name: str
    columns: tuple[str, str, str]
    unit: str | None
    block: int | None = None


AZURE = Form("Azure", ("timestamp", "contexttokens", "generatedtokens"), None)
BURST = Form("BurstGPT", ("timestamp", "request tokens", "response tokens"), "s")
MOONCAKE = Form("Mooncake", ("timestamp", "input_length", "output_length"), "ms", block=512)
BAILIAN = Form("Qwen-Bailian", MOONCAKE.columns, "s", block=16)
SESSION, ELAPSED = "session id", "elapsed time"  # BurstGPT since release 2.0: conversation; seconds to the last token
IGNORED_COLUMNS = (SESSION, ELAPSED, "model", "total tokens", "log type", "numimages", "")  # in public logs
CHAT = {"chat_id", "parent_chat_id", "turn"}  # fields of Qwen-Bailian that Mooncake does not have
KNOWN_FIELDS = (*MOONCAKE.columns, "hash_ids", "type", *CHAT)
USUAL_RATES = 0.005, 10.0  # requests/s; public logs with numeric times have 0.03 (in their first minutes) to 7
SINCE_1970 = {"s": 10**9, "ms": 10**12, "us": 10**15, "ns": 10**18}  # timestamps of 2001; ten times that is 2286
BLOCKS = [2**power for power in range(21)]  # tokens per block that are tried


@dataclasses.dataclass(frozen=True)
class Requests:
    """R requests in the order of arrival.

    - `arrival_s` [R]: seconds since the first one; `prompt`, `answer` [R]: tokens; `fresh` [R]: prompt tokens that no
      cache holds.
    - `left_out`: failed requests of a log, without answer or prompt.
    - `turns`: which requests arrive after the answer of another instead of at `arrival_s`; None: no request does.
    """

    arrival_s: Float[np.ndarray, "R"]
    prompt: Float[np.ndarray, "R"]
    fresh: Float[np.ndarray, "R"]
    answer: Float[np.ndarray, "R"]
    left_out: int = 0
    turns: Turns | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    def select(self, which: np.ndarray) -> "Requests":
        """Return the requests that a mask or an index selects."""
        turns = None if self.turns is None else self.turns.select(which)
        columns = self.arrival_s[which], self.prompt[which], self.fresh[which], self.answer[which]
        return Requests(*columns, self.left_out, turns)

    @property
    def rate(self) -> float:
        """Mean requests per second; infinite if all arrive at once."""
        span = float(self.arrival_s.max())
        return (len(self) - 1) / span if span else math.inf


def poisson(rate: float, count: int, prompt: float, fresh: float, answer: float, seed: int) -> Requests:
    """Return equal requests with exponential gaps. Another `rate` only scales the gaps of the same `seed`."""
    gaps = np.random.default_rng(seed).exponential(size=count) / rate
    gaps[0] = 0.0
    tokens = np.outer((prompt, max(1, math.ceil(fresh)), answer), np.ones(count))
    return Requests(np.cumsum(gaps), tokens[0], tokens[1], tokens[2])


def stretch_to_rate(requests: Requests, rate: float) -> Requests:
    """Return the requests with arrival times, and the times that users think, scaled to a mean rate [requests/s]."""
    if not 0 < requests.rate < math.inf:
        raise InputError("serving.load.rate needs requests at two or more times to scale, and the trace has one.")
    factor = requests.rate / rate
    turns = None if requests.turns is None else requests.turns._replace(think_s=requests.turns.think_s * factor)
    return dataclasses.replace(requests, arrival_s=requests.arrival_s * factor, turns=turns)


def repeat_requests(requests: Requests, times: int) -> Requests:
    """Return the requests repeated `times` times. The mean gap between requests separates the runs; `fresh` tokens are
    those of the first run."""
    if times == 1:
        return requests
    run_s = float(requests.arrival_s[-1]) + (0.0 if math.isinf(requests.rate) else 1 / requests.rate)
    arrival_s = (run_s * np.arange(times)[:, None] + requests.arrival_s).ravel()
    prompt, fresh, answer = (np.tile(each, times) for each in (requests.prompt, requests.fresh, requests.answer))
    turns = None if requests.turns is None else requests.turns.repeat(times)
    return Requests(arrival_s, prompt, fresh, answer, times * requests.left_out, turns)


# -------------------------------------------------------------------------------------------------------------- readers
class LogRow(NamedTuple):
    """A line of a log: line number, time in the log's unit (for a date: seconds), prompt and answer tokens, and the
    names of the prompt's blocks.

    `name`: of the request or its conversation; `continued`: the name that it continues; `service`: how long its answer
    took. All three are as in the log, None where it lacks them.
    """

    line: int
    time: float
    prompt: int
    answer: int
    blocks: tuple = ()
    name: Any = None
    continued: Any = None
    service: Any = None


def read_arrivals(
    path: str | Path, most: int, unit: str | None = None, block: int | None = None, turns: str = "open"
) -> Requests:
    """Return the first `most` answered requests of a log.

    - `unit`: unit of its timestamps (s, ms, us, ns); `block`: tokens per block. None: as in the format, if the log
      agrees with that.
    - `turns`: open, or after: requests that continue a conversation have `Requests.turns`.

    Raise `InputError` for an unreadable file, an unknown format, a wrong value (with its line), a log without answered
    requests, a log whose unit or block size is ambiguous, or one that does not tell what continues what, if `turns` is
    after.
    """
    named = repr(str(path))
    rows: list[LogRow] = []
    left_out = 0
    unread: dict[str, None] = {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as opened:
            form, log_rows = _rows(opened, named, unread)
            for row in log_rows:
                if row.prompt and row.answer:
                    rows.append(row)
                else:
                    left_out += 1
                if len(rows) == most:
                    break
    except UnicodeDecodeError:
        raise InputError(f"{named} is not text in UTF-8; {GIVE}.") from None
    except (csv.Error, RecursionError) as error:
        raise InputError(f"{named} cannot be read ({error}); {GIVE}.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise unreadable(path, error, GIVE) from None
    if not rows:
        raise InputError(f"{named} has no answered request; {GIVE}.")
    name_unread(named, "columns", unread)
    rows.sort(key=lambda row: row.time)
    time, prompt, answer = (np.array([row[column] for row in rows], float) for column in (1, 2, 3))
    arrival_s = (time - time[0]) * _second_of(time, form, unit, named)
    fresh = _fresh(rows, form, block, named)
    linked = _turns(rows, arrival_s, form, block, named) if turns == "after" else None
    return Requests(arrival_s, prompt, fresh, answer, left_out, linked)


def _rows(lines: Iterator[str], named: str, unread: dict[str, None]) -> tuple[Form, Iterator[LogRow]]:
    """The format of a log and its rows; other columns are added to `unread`."""
    first = next(lines, "")
    if first.lstrip().startswith("{"):
        form = BAILIAN if any(f'"{name}"' in first for name in CHAT) else MOONCAKE
        return form, _objects(itertools.chain([first], lines), named, form, unread)
    header = [name.strip() for name in next(csv.reader([first]), [])]
    columns = [name.lower() for name in header]
    for form, moment in ((AZURE, _moment), (BURST, _second)):
        if set(form.columns) <= set(columns):
            if twice := [name for name in form.columns if columns.count(name) > 1]:
                raise InputError(
                    f"{named} must have the column {twice[0]!r} once, got it {columns.count(twice[0])} times."
                )
            known = (*form.columns, *IGNORED_COLUMNS)
            unread.update(dict.fromkeys(name for name in header if name.lower() not in known))
            return form, _table(lines, named, columns, form.columns, moment)
    raise InputError(f"{GIVE}; {named} begins with {first.strip()!r:.60}.")


def _table(
    lines: Iterator[str], named: str, columns: list[str], names: tuple[str, ...], moment: Callable[[str, str], float]
) -> Iterator[LogRow]:
    places = [columns.index(name) for name in names]
    session, elapsed = (columns.index(name) if name in columns else None for name in (SESSION, ELAPSED))
    for number, cells in enumerate(csv.reader(lines), start=2):
        if not cells:
            continue
        where = f"{named}, line {number}"
        if len(cells) != len(columns):
            raise InputError(f"{where} must have {len(columns)} columns, like its header, got {len(cells)}.")
        when, prompt, answer = (cells[index].strip() for index in places)
        yield LogRow(
            number,
            moment(f"{where}: {names[0]}", when),
            _tokens(f"{where}: {names[1]}", prompt),
            _tokens(f"{where}: {names[2]}", answer),
            name=(cells[session].strip() or None) if session is not None else None,
            continued=(cells[session].strip() or None) if session is not None else None,
            service=(cells[elapsed].strip() or None) if elapsed is not None else None,
        )


def _objects(lines: Iterator[str], named: str, form: Form, unread: dict[str, None]) -> Iterator[LogRow]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{named}, line {number}"
        try:
            table = parse_json(line)
        except ValueError as error:
            raise InputError(f"{where} is not JSON ({error}); {GIVE}.") from None
        if not isinstance(table, dict) or not set(form.columns) <= set(table):
            raise InputError(f"{where} must be an object with {', '.join(form.columns)}, got {line.strip()!r:.80}.")
        if bool(CHAT & set(table)) != (form is BAILIAN):
            wanted, other = ("none of", "has some") if form is BAILIAN else ("one of", "has none")
            raise InputError(f"{where} has {wanted} {', '.join(sorted(CHAT))}, line 1 {other}: separate the two logs.")
        unread.update(dict.fromkeys(name for name in table if name not in KNOWN_FIELDS))
        when, prompt, answer = (table[name] for name in form.columns)
        blocks = table.get("hash_ids", [])
        if not isinstance(blocks, list) or not all(isinstance(block, int | str) for block in blocks):
            raise InputError(f"{where}: hash_ids must be a list of names of blocks, got {blocks!r:.80}.")
        yield LogRow(
            number,
            _seconds(f"{where}: timestamp", when),
            whole(f"{where}: input_length", prompt, at_least=0),
            whole(f"{where}: output_length", answer, at_least=0),
            tuple(blocks),
            name=table.get("chat_id"),
            continued=table.get("parent_chat_id"),
        )


def _seconds(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{field} must be a number, got {value!r:.80}.")
    return float(not_negative(field, value))


def _second(field: str, text: str) -> float:
    try:
        return _seconds(field, float(text))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{field} must be a number of seconds, got {text!r:.80}.") from None


def _moment(field: str, text: str) -> float:
    """Seconds since 1970 of a date and time, in UTC unless it states a zone."""
    parts = MOMENT.fullmatch(text)
    try:
        if parts is None:
            raise ValueError
        moment = datetime.datetime.fromisoformat(parts[1] + (parts[3] or "Z").replace("Z", "+00:00"))
        return moment.timestamp() + float(parts[2] or 0)
    except ValueError:
        raise InputError(
            f"{field} must be a date and a time, as in 2023-11-16 18:15:46.68, got {text!r:.80}."
        ) from None


def _tokens(field: str, text: str) -> int:
    try:
        value = float(text)
        tokens = int(value) if value == math.floor(value) else text
    except (ValueError, OverflowError):
        tokens = text
    return whole(field, tokens, at_least=0)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------- units and block sizes
def _second_of(time: Float[np.ndarray, "R"], form: Form, stated: str | None, named: str) -> float:
    """Seconds per unit of the timestamps. Raise `InputError` if a unit other than the format's is as likely."""
    if form.unit is None:
        if stated is not None:
            raise InputError(f"{named} has dates, which need no unit; leave out serving.load.unit, got {stated!r}.")
        return 1.0
    if stated is not None:
        return UNITS[one_of("serving.load.unit", stated, UNITS)]
    other = _other_unit(time, form)
    if other is not None:
        first, two = (f"in {unit} ({_rate(time, unit):.3g} requests/s)" for unit in (form.unit, other))
        raise InputError(
            f"timestamps of {named} may be {first}, as in logs of {form.name}, or {two}; state serving.load.unit, "
            f"{form.unit} or {other}."
        )
    return UNITS[form.unit]


def _other_unit(time: Float[np.ndarray, "R"], form: Form) -> str | None:
    """Another likely unit, if the format's own gives a date or a rate that no public log has; else None."""
    assert form.unit is not None, "times are numbers"
    if time[0] == time[-1]:
        return None  # the same in every unit
    for unit, least in SINCE_1970.items():
        if least <= time[0] < 10 * least:
            return None if unit == form.unit else unit
    rate = _rate(time, form.unit)
    if rate < USUAL_RATES[0]:
        return {"s": "ms", "ms": "us"}[form.unit]
    if form is MOONCAKE and (rate > USUAL_RATES[1] or (time % 1).any()):  # Mooncake's are whole
        return "s"
    return None


def _rate(time: Float[np.ndarray, "R"], unit: str) -> float:
    return (len(time) - 1) / (float(time[-1] - time[0]) * UNITS[unit])


def _fresh(rows: list[LogRow], form: Form, stated: int | None, named: str) -> Float[np.ndarray, "R"]:
    """Tokens of each prompt that no cache holds, at least 1: the last token is always computed."""
    seen: set[Any] = set()
    cached = []
    for row in rows:
        cached.append(sum(1 for _ in itertools.takewhile(seen.__contains__, row.blocks)))
        seen.update(row.blocks)
    prompt = np.array([row.prompt for row in rows], float)
    if not seen:
        if stated is not None:
            raise InputError(f"{named} has no hash_ids; leave out serving.load.block, got {stated}.")
        return prompt
    every = {size: np.maximum(1.0, prompt - size * np.array(cached)) for size in _blocks(rows, form, stated, named)}
    first, *others = every
    for other in others:
        if (every[other] != every[first]).any():
            raise InputError(
                f"hash_ids of {named} may stand for blocks of {first:,} or {other:,} tokens; state serving.load.block."
            )
    return every[first]


def _blocks(rows: list[LogRow], form: Form, stated: int | None, named: str) -> list[int]:
    """Block sizes that agree with every prompt's number of blocks, counting an incomplete last block or not."""
    having = [row for row in rows if row.blocks]
    prompt, count = (np.array(each) for each in zip(*((row.prompt, len(row.blocks)) for row in having), strict=True))

    def agrees(size: int) -> np.ndarray:
        with_last, whole_ones = (each == count for each in (-(-prompt // size), prompt // size))
        return max(with_last, whole_ones, key=np.sum)

    if stated is not None:
        if not agrees(stated).all():
            row = having[int(np.argmin(agrees(stated)))]
            raise InputError(
                f"{named}, line {row.line}: {row.prompt} tokens have {len(row.blocks)} hash_ids; serving.load.block "
                f"must agree with them, got {stated}."
            )
        return [stated]
    if form.block is not None and (-(-prompt // form.block) == count).all():
        return [form.block]
    sizes = [size for size in BLOCKS if agrees(size).all()]
    if not sizes:
        ends = (having[int(np.argmax(each))] for each in (prompt / count, (count - 1) / prompt))
        lines = ", and line ".join(
            f"{row.line}: {row.prompt} tokens have {len(row.blocks)} hash_ids"
            for row in sorted(ends, key=lambda row: row.line)
        )
        raise InputError(
            f"{named}, line {lines}: no power of 2 tokens per block agrees; state serving.load.block, or correct the "
            "lines."
        )
    return sizes


# ---------------------------------------------------------------------------------------------- turns of conversations
def _turns(rows: list[LogRow], arrival_s: Float[np.ndarray, "R"], form: Form, block: int | None, named: str) -> Turns:
    """What continues what: by chat_id and parent_chat_id, by the session, or else by the blocks of prompts."""
    if any(row.name is not None for row in rows):
        for row in rows:
            for value in (row.name, row.continued):
                if isinstance(value, bool) or not isinstance(value, int | str | None):
                    raise InputError(
                        f"{named}, line {row.line}: chat_id must be a number or a name, got {value!r:.80}."
                    )
        previous = previous_by_name([row.name for row in rows], [row.continued for row in rows])
    elif any(row.blocks for row in rows):
        size = _blocks(rows, form, block, named)[0]
        texts, prompt, answer = ([getattr(row, field) for row in rows] for field in ("blocks", "prompt", "answer"))
        previous = previous_by_blocks(texts, prompt, answer, size)
    else:
        raise InputError(
            f"{named} does not tell which request continues another, as serving.load.turns after needs: by chat_id and "
            "parent_chat_id (Qwen-Bailian), Session ID (BurstGPT) or hash_ids (Mooncake); state open."
        )
    if max(previous) < 0:
        raise InputError(f"no request of {named} continues another; state serving.load.turns open.")
    service = [
        0.0 if row.service is None else _second(f"{named}, line {row.line}: {ELAPSED}", row.service) for row in rows
    ]
    return turns_of(previous, arrival_s, np.array(service))
