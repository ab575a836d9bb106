"""Requests that arrive: drawn, or read from a trace in one of the public formats.

Azure (Azure/AzurePublicDataset, LLM inference of 2023 and 2024, LMM of 2025), BurstGPT (HPMLL/BurstGPT) and Mooncake
(kvcache-ai/Mooncake, FAST25 traces). Mooncake names blocks of 512 tokens by what they and all before them hold: those
at the start of a prompt that an earlier prompt had are cached, in a store that forgets nothing.
"""

import csv
import dataclasses
import datetime
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mfabric_jax import units
from mfabric_jax.checks import InputError, not_negative, whole

BLOCK = 512  # tokens of a Mooncake block
GIVE = (
    "give a log of requests that begins with TIMESTAMP,ContextTokens,GeneratedTokens (Azure: date and time, tokens of "
    "prompt and answer), with Timestamp,Request tokens,Response tokens (BurstGPT: seconds), or with an object that has "
    'timestamp, input_length and output_length (Mooncake: milliseconds), as in "2023-11-16 18:15:46.68,374,44", '
    '"5.2,374,44" or {"timestamp": 5200, "input_length": 374, "output_length": 44}'
)
AZURE = "timestamp", "contexttokens", "generatedtokens"
BURST = "timestamp", "request tokens", "response tokens"
MOONCAKE = "timestamp", "input_length", "output_length"
MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d{1,12})?(Z|[+-]\d\d:\d\d)?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Requests:
    """Of R requests in the order of arrival [R]: seconds from the first one, tokens of the prompt, those of them that
    no cache has, tokens of the answer. `left_out`: failed ones of a trace, which have no answer (or no prompt)."""

    arrival_s: Float[np.ndarray, "R"]
    prompt: Float[np.ndarray, "R"]
    fresh: Float[np.ndarray, "R"]
    answer: Float[np.ndarray, "R"]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.arrival_s)

    def kept(self, which: np.ndarray) -> "Requests":
        """Some of them."""
        return Requests(self.arrival_s[which], self.prompt[which], self.fresh[which], self.answer[which], self.left_out)

    @property
    def rate(self) -> float:
        """Requests a second, on average; infinite where all arrive at once."""
        span = float(self.arrival_s[-1])
        return (len(self) - 1) / span if span else math.inf


def poisson(rate: float, count: int, prompt: float, fresh: float, answer: float, seed: int) -> Requests:
    """Equal requests with exponential gaps; another rate has the same gaps in its own unit of time."""
    gaps = np.random.default_rng(seed).exponential(size=count) / rate
    gaps[0] = 0.0
    tokens = np.outer((prompt, max(1, math.ceil(fresh)), answer), np.ones(count))
    return Requests(np.cumsum(gaps), tokens[0], tokens[1], tokens[2])


def stretched(requests: Requests, rate: float) -> Requests:
    """With times scaled so that so many requests arrive a second on average."""
    if not 0 < requests.rate < math.inf:
        raise InputError("serving.load.rate needs requests at two times or more to stretch, and the trace has one.")
    return dataclasses.replace(requests, arrival_s=requests.arrival_s * (requests.rate / rate))


def repeated(requests: Requests, times: int) -> Requests:
    """So many runs, one after the other, as far apart as requests are on average; caches as in the first run."""
    if times == 1:
        return requests
    run_s = float(requests.arrival_s[-1]) + (0.0 if math.isinf(requests.rate) else 1 / requests.rate)
    arrival_s = (run_s * np.arange(times)[:, None] + requests.arrival_s).ravel()
    prompt, fresh, answer = (np.tile(each, times) for each in (requests.prompt, requests.fresh, requests.answer))
    return Requests(arrival_s, prompt, fresh, answer, times * requests.left_out)


# -------------------------------------------------------------------------------------------------------------- readers
class Row(NamedTuple):
    """A line of a trace: seconds, tokens of prompt and answer, blocks of the prompt."""

    second: float
    prompt: int
    answer: int
    blocks: tuple = ()


def read_arrivals(path: str | Path, most: int) -> Requests:
    """The first `most` answered requests of a trace. `InputError` for a file that cannot be read, is in none of the
    formats, has a wrong value (with its line) or no answered request."""
    named = repr(str(path))
    rows: list[Row] = []
    left_out = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as opened:
            for row in _rows(opened, named):
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
        raise InputError(f"cannot read {named} ({getattr(error, 'strerror', None) or error}); {GIVE}.") from None
    if not rows:
        raise InputError(f"{named} has no answered request; {GIVE}.")
    return _requests(sorted(rows, key=lambda row: row.second), left_out)


def _requests(rows: list[Row], left_out: int) -> Requests:
    seen: set[Any] = set()
    fresh = []
    for row in rows:
        cached = sum(1 for _ in itertools.takewhile(seen.__contains__, row.blocks))
        fresh.append(max(1.0, float(row.prompt - BLOCK * cached)))
        seen.update(row.blocks)
    second, prompt, answer = (np.array([row[column] for row in rows], float) for column in range(3))
    return Requests(second - second[0], prompt, np.array(fresh), answer, left_out)


def _rows(lines: Iterator[str], named: str) -> Iterator[Row]:
    first = next(lines, "")
    if first.lstrip().startswith("{"):
        yield from _mooncake(itertools.chain([first], lines), named)
        return
    columns = [name.strip().lower() for name in next(csv.reader([first]), [])]
    for needed, moment in ((AZURE, _moment), (BURST, _second)):
        if set(needed) <= set(columns):
            yield from _table(lines, named, [columns.index(name) for name in needed], needed, moment)
            return
    begins = f"{named} begins with neither the columns of Azure or BurstGPT nor an object of Mooncake"
    raise InputError(f"{begins}, got {first.strip()!r:.60}; {GIVE}.")


def _table(
    lines: Iterator[str], named: str, columns: list[int], names: tuple[str, ...], moment: Callable[[str, str], float]
) -> Iterator[Row]:
    for number, cells in enumerate(csv.reader(lines), start=2):
        if not cells:
            continue
        where = f"{named}, line {number}"
        if len(cells) <= max(columns):
            raise InputError(f"{where} must have the column {names[-1]!r}, got {len(cells)} columns.")
        when, prompt, answer = (cells[column].strip() for column in columns)
        yield Row(
            moment(f"{where}: {names[0]}", when),
            _tokens(f"{where}: {names[1]}", prompt),
            _tokens(f"{where}: {names[2]}", answer),
        )


def _mooncake(lines: Iterator[str], named: str) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{named}, line {number}"
        try:
            table = json.loads(line)
        except ValueError:
            raise InputError(f"{where} is not JSON; {GIVE}.") from None
        if not isinstance(table, dict) or not set(MOONCAKE) <= set(table):
            raise InputError(f"{where} must be an object with {', '.join(MOONCAKE)}, got {line.strip()!r:.80}.")
        when, prompt, answer = (table[name] for name in MOONCAKE)
        blocks = table.get("hash_ids", [])
        if not isinstance(blocks, list) or not all(isinstance(block, int | str) for block in blocks):
            raise InputError(f"{where}: hash_ids must be a list of names of blocks, got {blocks!r:.80}.")
        yield Row(
            units.ms(_seconds(f"{where}: timestamp", when)),
            whole(f"{where}: input_length", prompt, at_least=0),
            whole(f"{where}: output_length", answer, at_least=0),
            tuple(blocks),
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
    """Seconds of a date and time, which count from 1970 unless it states a zone."""
    found = MOMENT.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        moment = datetime.datetime.fromisoformat(found[1] + (found[3] or "Z").replace("Z", "+00:00"))
        return moment.timestamp() + float(found[2] or 0)
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
