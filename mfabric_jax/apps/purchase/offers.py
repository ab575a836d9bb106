"""Offers: networks that are for sale, with what every job costs on each of them.

A job is a combination of values that say what is trained; a network, one of values that say on what. All jobs count
alike: of each job, dollars are divided by those of its best network, and an offer's number is the mean over jobs.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mfabric_jax.case import Case, Cases
from mfabric_jax.case.grid import reads_setting
from mfabric_jax.case.paths import flat
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.resolve import model_of, resolve
from mfabric_jax.evaluate.rows.costs import MILLION, SECONDS_AN_HOUR, bill_by_part

Row = dict[str, Any]
OF_NETWORKS = ("network.", "circuits.", "gpu.")  # settings of what is bought
USD = "usd_per_million_tokens"
ELECTRICITY = "electricity"


class Offer(NamedTuple):
    """A network that every job can use, the jobs in one order.

    - `network`: in words; `rows`: of each job.
    - `usd`, `usd_failing`: dollars of a million tokens of each job, without and with failures (None: unknown).
    - `usd_of`: dollars of a million tokens by part of the bill, of each job.
    - `over`: mean over jobs of dollars over those of the best network of the job.
    - `over_failing`: mean over jobs of dollars with failures, over the same.
    """

    network: str
    rows: tuple[Row, ...]
    usd: tuple[float, ...]
    usd_of: tuple[Mapping[str, float], ...]
    usd_failing: tuple[float, ...] | None
    over: float = 1.0
    over_failing: float | None = None


def jobs_and_networks(cases: Cases) -> list[tuple[str, str]]:
    """Return the job and the network of every case, in words.

    A variant that every network has is a job of its name; variants that share no network name theirs.
    """
    each = [(block.variant, case, cases.differences(case)) for block in cases.blocks for case in block]
    networks = [_of_network(case, own) for _, case, own in each]
    of_variant: dict[str, list[int]] = {}
    for number, (variant, _, _) in enumerate(each):
        of_variant.setdefault(variant, []).append(number)
    sold = [{str(networks[number]) for number in numbers} for numbers in of_variant.values()]
    named = len(sold) > 1 and all(own == sold[0] for own in sold)
    name_networks = len(sold) > 1 and sum(map(len, sold)) == len(set().union(*sold))
    words = []
    for (variant, case, values), network in zip(each, networks, strict=True):
        numbers = of_variant[variant] if named else range(len(each))
        varied = [path for path in values if not path.startswith(OF_NETWORKS) and path != "model.name"]
        varied = [path for path in varied if _differ([each[number][2] for number in numbers], path)]
        job = [variant if named else model_of(case).label, *(_words(path, values[path]) for path in varied)]
        own = [networks[number] for number in of_variant[variant]] if name_networks else []
        bought = [path for path in network if path != "network.fabric" and (not own or _differ(own, path))]
        bought_words = [variant if own else case.network.fabric, *(_words(path, network[path]) for path in bought)]
        words.append((", ".join(filter(None, job)), ", ".join(filter(None, bought_words))))
    return words


def _differ(several: Sequence[Mapping[str, Any]], path: str) -> bool:
    return len({str(values.get(path)) for values in several}) > 1


def _of_network(case: Case, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of what is bought that the case reads: a tree has no policy."""
    statement = flat(case)
    return {
        path: value for path, value in values.items() if path.startswith(OF_NETWORKS) and reads_setting(path, statement)
    }


def _words(path: str, value: Any) -> str:
    if value is None:
        return ""
    forms = {"network.nic_gbps": "{:g} Gbps", "gpu.name": "{}"}
    return forms.get(path, f"{path.rpartition('.')[2].replace('_', ' ')} {{}}").format(value)


def usd_by_part(case: Case, row: Row) -> dict[str, float]:
    """Return the dollars of a million tokens of a row by part of the bill; together they are its column.

    Parts are those of `bill_by_part`, GPUs by their name, and electricity.
    """
    settings = resolve(case)
    job, running = settings.job, settings.parts.running
    tokens = job.iteration_tokens / MILLION
    parts = bill_by_part(settings, job, float(row["nic_gbps"]))
    parts[settings.server.name] = parts.pop("gpus", 0.0)
    usd = {part: each * row["iteration_s"] / running.seconds / tokens for part, each in parts.items()}
    return usd | {ELECTRICITY: row["joules_per_million_tokens"] / (1000 * SECONDS_AN_HOUR) * running.usd_per_kwh}


def offers_of(
    named: Sequence[tuple[str, str]],
    settled: Sequence[Case],
    rows: Sequence[Row | None],
    failing: Sequence[float | None] = (),
) -> tuple[list[str], list[Offer], list[str]]:
    """Return the jobs, the offers (the least `over` first), and networks that some job cannot use.

    - `named`: of `jobs_and_networks`; `settled`: the same cases with their set-ups stated.
    - `rows`: of `simulate`, one a case; None: impossible.
    - `failing`: dollars of a million tokens with failures, one a case; empty: unknown.

    Raise `InputError` if no network is possible for all jobs, or if dollars are unknown.
    """
    if not len(named) == len(settled) == len(rows) or len(failing) not in (0, len(rows)):
        raise InputError(f"a purchase needs a row of every case, got {len(rows)} of {len(named)}.")
    jobs, every = list(dict.fromkeys(job for job, _ in named)), list(dict.fromkeys(network for _, network in named))
    number_of = {name: number for number, name in enumerate(named)}
    offers, others = [], []
    for network in every:
        numbers = [number_of[job, network] for job in jobs if (job, network) in number_of]
        known_rows = [row for row in (rows[number] for number in numbers) if row is not None and row[USD] is not None]
        if len(known_rows) < len(jobs):
            others.append(network)
            continue
        known = tuple(usd for usd in (failing[number] for number in numbers if failing) if usd is not None)
        offers.append(
            Offer(
                network,
                tuple(known_rows),
                tuple(row[USD] for row in known_rows),
                tuple(usd_by_part(settled[number], row) for number, row in zip(numbers, known_rows, strict=True)),
                known if len(known) == len(jobs) else None,
            )
        )
    if not offers:
        raise InputError("no network has dollars and memory for every job; compare shows what each case lacks.")
    return jobs, sorted(map(_relative_to(offers), offers), key=lambda offer: offer.over), others


def _relative_to(offers: Sequence[Offer]) -> Any:
    best = [min(usd) for usd in zip(*(offer.usd for offer in offers), strict=True)]

    def relative(offer: Offer) -> Offer:
        def mean(usd: Sequence[float]) -> float:
            return statistics.fmean(own / least for own, least in zip(usd, best, strict=True))

        failing = None if offer.usd_failing is None else mean(offer.usd_failing)
        return offer._replace(over=mean(offer.usd), over_failing=failing)

    return relative
