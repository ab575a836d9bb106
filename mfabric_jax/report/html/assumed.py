"""What the rows of a page assume, in ten lines, and the command that makes the page again."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from mfabric_jax.report import numerals
from mfabric_jax.report.grid import TOKEN_USD, Rows, group_rows, setting_name, values_in
from mfabric_jax.report.html.headline import gpus_of
from mfabric_jax.report.html.markup import tag, words
from mfabric_jax.report.numerals import join_names, number
from mfabric_jax.report.query import RUNS
from mfabric_jax.report.ranking import FAILURE
from mfabric_jax.report.row_remarks import job_words
from mfabric_jax.report.served import is_replica, is_served

_MADE = {
    "command": "by mfabric {}",
    "version": " with mfabric_jax {}",
    "commit": " (commit {})",
    "jax": ", JAX {}",
    "device": ", on {}",
    "dtype": ", in {}",
}
_MOST_PRICES = 12  # a sentence names at most this many
_MOST_JOBS = 3  # more share a line


def assumed_section(rows: Rows, effective: Mapping[str, Any], command: str | None) -> str:
    """Return the lines as HTML: jobs, GPUs, traffic, network, circuits, prices, failures, and how rows were made."""
    resolved = effective.get("resolved", {})
    lines = [*_jobs(rows), ("GPUs", _gpus(rows, effective)), *_from(rows, resolved)]
    lines += [("Prices", sentence) for sentence in _own_prices(effective)]
    of_serving = is_served(rows[0])
    if of_serving:
        unread = ("Traffic", "Experts", "Network") if is_replica(rows[0]) else ("Traffic",)
        lines = [("Requests", _requests(resolved)), *(line for line in lines if line[0] not in unread)]
        lines += [("Network", "without a network: a replica lies inside a server")] if is_replica(rows[0]) else []
    if (
        not of_serving
        and any(row.get(TOKEN_USD) is not None for row in rows)
        and "failures.rates" in resolved
        and FAILURE not in rows[0]
    ):
        lines.append(("Failures", _failures(resolved, effective) or "Nothing fails in these rows."))
    lines += [("Files", _files(effective))]
    lines += [("Rows", f"{_contents(rows)} {_provenance(rows, effective)}")]
    pairs = (tag("div", tag("dt", words(name)), tag("dd", words(text))) for name, text in lines if text)
    again = tag("p", "This page again: ", tag("code", words(command)), class_="command") if command else ""
    return tag("dl", *pairs, class_="assumed") + again


def _jobs(rows: Rows) -> list[tuple[str, str]]:
    if "model" not in rows[0]:
        return []
    by_model = group_rows([row for row in rows if row["model"] is not None], "model")
    jobs = {str(model): job_words(own) for (model,), own in by_model.items()}
    if len(jobs) > _MOST_JOBS:  # their set-ups are above
        return [("Jobs", "; ".join(f"{model}, {job[0]}" if job else model for model, job in jobs.items()))]
    return [(model, ", ".join(job)) for model, job in jobs.items() if job]


def _gpus(rows: Rows, effective: Mapping[str, Any]) -> str:
    gpus = join_names(gpus_of(rows, effective)) if gpus_of(rows, effective) else ""
    sources = values_in(rows, "compute_source") if "compute_source" in rows[0] else []
    known = "; ".join(map(str, sources))
    return known if known and (not gpus or known.startswith(gpus)) else ", ".join(filter(None, [gpus, known]))


def _from(rows: Rows, resolved: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines of columns of rows, or else of resolved settings."""

    def words_of(column: str, path: str, form: str = "{}") -> str:
        values = values_in(rows, column) if column in rows[0] else resolved.get(path)
        some = values if isinstance(values, list) else [values]
        texts = [number(value) for value in dict.fromkeys(map(_plain, some)) if value not in (None, "none")]
        return form.format(join_names(texts)) if texts else ""

    join = lambda *parts: ", ".join(filter(None, parts))  # noqa: E731
    circuits = (
        words_of("policy", "circuits.policy", "chosen by {}"),
        words_of("", "circuits.reconfigure", "reconfigured {}"),
    )
    delay = resolved.get("network.link_delay_s")
    links = f"{_in_unit(delay)} a link" if isinstance(delay, float) and delay else ""
    nics = words_of("nic_gbps", "network.nic_gbps", "NICs of {} Gbps")
    turned = resolved.get("circuits.delay_s")
    delays = f"{_in_unit(turned)} each" if isinstance(turned, float) and turned else ""
    experts = (
        words_of("placement", "placement.rule", "placed {}"),
        words_of("dispatch", "job.dispatch", "dispatched {}"),
    )
    return [
        (
            "Traffic",
            join(words_of("traffic", "traffic.source"), words_of("", "run.draws", "{} more drawn for the band")),
        ),
        ("Experts", join(words_of("expert_load", "compute.experts", "load: {}"), *experts)),
        ("Network", join(nics, words_of("", "network.paths", "paths: {}"), links)),
        *([("Circuits", join(*circuits, delays))] if circuits[0] else []),
    ]


def _requests(resolved: Mapping[str, Any]) -> str:
    """The load that settings state."""
    form = {
        "serving.prompt": "prompts of {} tokens",
        "serving.answer": "answers of {} tokens",
        "serving.load.rate": "{} a second",
        "serving.load.arrivals": "arrivals of {}",
    }
    logged = resolved.get("serving.load.arrivals") is not None  # a log has its own prompts and answers
    known = {name: None if logged and name == "serving.answer" else resolved.get(name) for name in form}
    every = {name: value if isinstance(value, list) else [value] for name, value in known.items()}
    texts = {name: [number(value) for value in values if value is not None] for name, values in every.items()}
    return ", ".join(form[name].format(join_names(own)) for name, own in texts.items() if own)


def _files(effective: Mapping[str, Any]) -> str:
    """The settings in which files differ, by file."""
    each = []
    for file, own in effective.get(RUNS, {}).items():
        texts = {path: value if isinstance(value, list) else [value] for path, value in own.items()}
        named = (
            f"{setting_name(path)} {join_names([number(_plain(value)) for value in some])}"
            for path, some in texts.items()
        )
        each.append(f"{PurePath(file).name}: {', '.join(named)}")
    return "; ".join(each)


def _in_unit(seconds: float) -> str:
    unit, factor = numerals.time_unit(seconds)
    return f"{number(seconds * factor)} {unit}"


def _plain(value: Any) -> Any:
    value = numerals.plain_scalar(value)
    return str(value) if isinstance(value, list | dict | bool) else value


def _own_prices(effective: Mapping[str, Any]) -> list[str]:
    """Return a sentence per price file: its values that differ from the usual prices."""
    sentences = []
    for file, values in (effective.get("own_prices") or {}).items():
        each = [f"{name} {own} (usually {usual})" for name, (own, usual) in values.items()]
        more = f" and {len(each) - _MOST_PRICES} more" if len(each) > _MOST_PRICES else ""
        usual = "the usual prices"
        sentences.append(f"Prices of {PurePath(file).name}: {', '.join(each[:_MOST_PRICES]) or usual}{more}.")
    return sentences


def _failures(resolved: Mapping[str, Any], effective: Mapping[str, Any]) -> str:
    """Return the rates of each file of failures, and what a stop costs; empty if nothing fails."""
    stop = {"checkpoint_interval_s": "checkpoint every {} min", "restart_s": "restart {} min"}
    known = {words: resolved.get(f"failures.{name}") for name, words in stop.items()}
    minutes = [words.format(number(each / 60)) for words, each in known.items() if isinstance(each, float | int)]
    files = []
    for file, per_million_hours in (effective.get("rates") or {}).items():
        rates = ", ".join(f"{kind} {number(rate)}" for kind, rate in per_million_hours.items())
        files.append(f"{PurePath(file).name}, per million hours of a part: {rates}")
    if not files:
        return f"at the rates of {rates}" if (rates := resolved["failures.rates"]) else ""
    return "; ".join([*files, ", ".join(minutes)])


def _contents(rows: Rows) -> str:
    return f"{numerals.count_phrase(len(rows), 'row')} of {len(rows[0])} columns."


def _provenance(rows: Rows, effective: Mapping[str, Any]) -> str:
    known = {name: effective.get(name) for name in _MADE}
    known["dtype"] = known["dtype"] or rows[0].get("dtype")
    commit, plus, changes = str(known["commit"]).partition("+")
    known["commit"] = known["commit"] and commit[:12] + plus + changes
    parts = [form.format(known[name]) for name, form in _MADE.items() if known[name]]
    made = "Computed" + (" " if known["command"] else "") + "".join(parts)
    if not parts:
        made = "Where these rows were computed is unknown"
    stopped = " The run was stopped: some rows are missing." if effective.get("complete") is False else ""
    return f"{made}.{stopped}"


def warnings_and_remarks(sentences: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the sentences that warn, and the others."""
    warn = [sentence for sentence in sentences if sentence.startswith("Warning:")]
    return warn, [sentence for sentence in sentences if sentence not in warn]
