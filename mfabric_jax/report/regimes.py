"""Gaps of policies to the clairvoyant trajectory, by regime and delay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.report.grid import group_rows
from mfabric_jax.report.numerals import count_phrase
from mfabric_jax.report.tables import TableColumn, plain, wrap

Rows = Sequence[dict[str, Any]]
REGIME = ("demand", "servers", "optical", "electrical", "memory", "pairs", "skew", "sigma", "routing")
LINES = ("renewal of greedy", "renewal", "learned", "tuned horizon", "next 4 known")  # beside `BEST`
BEST = "one all-to-all ahead, best"
PUBLISHED = "greedy always"  # the paper's; also one of those of `BEST`
UNSHOWN = ("clairvoyant", "next 1 known", "next 12 known")
AHEAD = ("always", "pays")  # last word of policies that weigh one all-to-all
POOLED = (
    "Lines renewal, renewal of ... and learned: `Renewal` pools losses over all chains of the regime, so seeds are not "
    "independent, and knows how many all-to-alls are left. Policies of --also know neither."
)


class Load(NamedTuple):
    """Bytes that a server sends in an all-to-all, and in drifting demand the share of those with `times` the bytes."""

    bytes_per_server: float
    burst: float = 0.0
    times: float = 1.0


def gaps_table(rows: Rows, load: Load, file: str | None = None) -> str:
    """Return the gap of the main policies in per cent with its interval: a table for each regime, a line for each
    policy, a column for each delay, and the names of the best policies of one all-to-all. Then name the other policies,
    which are in `file`, and say how long an all-to-all takes at least, to judge delays against it.
    """
    tables = [f"{_table(name, by)}\n{_best_words(by[BEST])}" for name, by in rows_by_regime(rows).items()]
    words = [
        "gap: time beyond the best trajectory for demand that is known in advance,",
        "+- half of the 95 % interval over seeds.",
    ]
    policies = {row["policy"] for row in rows}
    if "renewal" in policies:
        words.append(wrap(POOLED))
    if "learned" in policies:
        words.append("learned: network `ahead` with rule `renewal`; the policy `learned` is another.")
    words += [wrap(text) for text in (_hidden_words(rows, file), _load_words(rows, load)) if text]
    return "\n\n".join([*tables, "\n".join(words)])


def _best_words(best: dict[float, dict[str, Any]]) -> str:
    """A sentence on the policies behind `BEST`."""
    delays: dict[str, list[str]] = {}
    for delay, row in best.items():
        delays.setdefault(row["policy"], []).append(delay_words(delay))
    return wrap(f"{BEST}: " + "; ".join(f"{name} at {', '.join(those)}" for name, those in delays.items()) + ".")


def _hidden_words(rows: Rows, file: str | None) -> str:
    """A sentence on policies without a line."""
    shown = {policy for by in rows_by_regime(rows).values() for policy in by}
    hidden = [name for name in dict.fromkeys(row["policy"] for row in rows) if name not in shown]
    where = "--out FILE writes" if file is None else f"{file} holds"
    return (
        f"{where} {count_phrase(len(hidden), 'more policy', 'more policies')}: {', '.join(hidden)}." if hidden else ""
    )


def _load_words(rows: Rows, load: Load) -> str:
    """A server's bytes and their time on all its NICs, and the mean time that the busiest server's bytes take."""
    words = [f"A server sends {units.to_gigabytes(load.bytes_per_server):.3g} GB in an all-to-all"]
    if load.burst and any(row["demand"] == "drift" for row in rows):
        words.append(f"{load.times:g} times that in {load.burst:.0%} of them where demand drifts")
    times = []
    for (optical, electrical, gbps), own in group_rows(rows, "optical", "electrical", "nic_gbps").items():
        even = units.to_ms(load.bytes_per_server / units.gbps((optical + electrical) * gbps))
        bounds = [units.to_ms(row["bound_s"]) for row in own]
        least, most = f"{min(bounds):.3g}", f"{max(bounds):.3g}"
        busiest = least if least == most else f"{least} to {most}"
        times.append(
            f"On {optical} + {electrical} NICs it takes {even:.3g} ms evenly spread; the busiest server's bytes take "
            f"{busiest} ms on average."
        )
    return " ".join([f"{', '.join(words)}.", *times])


def _table(regime: str, by: dict[str, dict[float, dict[str, Any]]]) -> str:
    lines, columns = {policy: {"policy": policy} for policy in by}, [TableColumn("policy", f"{regime}: gap [%]")]
    for delay in dict.fromkeys(delay for own in by.values() for delay in own):
        rows = {policy: own[delay] for policy, own in by.items() if delay in own}
        wide = max(len(gap_words(row["gap"])) for row in rows.values())
        columns.append(TableColumn(str(delay), delay_words(delay).rjust(wide)))
        for policy, row in rows.items():
            lines[policy][str(delay)] = gap_words(row["gap"]).rjust(wide) + _half_words(row)
    return plain(list(lines.values()), columns, width=160)


def rows_by_regime(rows: Rows) -> dict[str, dict[str, dict[float, dict[str, Any]]]]:
    """Return rows by regime, policy and delay, those of all policies of one all-to-all reduced to the least gap.

    The published policy also has its own line."""
    regimes: dict[str, dict[str, dict[float, dict[str, Any]]]] = {}
    for regime, own in group_rows(rows, *REGIME).items():
        by: dict[str, dict[float, dict[str, Any]]] = {BEST: {}}
        for row in own:
            name, delay = row["policy"], row["delay_s"]
            if name == "uniform" or name.rsplit(" ", 1)[-1] in AHEAD:
                by[BEST][delay] = min(row, by[BEST].get(delay, row), key=lambda each: each["gap"])
                if name == PUBLISHED:
                    by.setdefault(name, {})[delay] = row
            elif name not in UNSHOWN:
                by.setdefault(name, {})[delay] = row
        order = [name for name in (PUBLISHED, BEST, *LINES) if name in by]
        regimes[_words(dict(zip(REGIME, regime, strict=True)))] = {
            name: by[name] for name in dict.fromkeys([*order, *by])
        }
    return regimes


def _words(regime: dict[str, Any]) -> str:
    words = [f"{regime['servers']} servers", f"{regime['optical']} + {regime['electrical']}"]
    if regime["demand"] == "drift":
        words += [f"{name} {regime[name]:g}" for name in ("memory", "pairs", "skew") if regime[name] != USUAL[name]]
    else:
        words.append(regime["demand"])
    if regime["sigma"] != USUAL["sigma"]:
        words.append("known" if float(regime["sigma"]) == 0 else f"sigma {regime['sigma']}")
    if regime["routing"] != USUAL["routing"]:
        words.append(regime["routing"])
    return ", ".join(words)


USUAL = {"memory": 0.98, "pairs": 0.5, "skew": 1.0, "sigma": "previous", "routing": "split"}  # left out of names


def delay_words(seconds: float) -> str:
    if seconds < units.ms(1):
        return f"{units.to_us(seconds):g} us" if seconds else "0"
    return f"{units.to_ms(seconds):g} ms"


def gap_words(gap: float) -> str:
    return f"{gap:z.0f}" if abs(gap) >= 99.5 else f"{gap:z.1f}"


def _half_words(row: dict[str, Any]) -> str:
    """Return half of the interval; nothing if it rounds to 0."""
    half = (row["gap_high"] - row["gap_low"]) / 2
    words = f"{half:.0f}" if half >= 9.5 else f"{half:.1f}"
    return f"+-{words}" if words != "0.0" else ""
