"""What `mfabric buy` says: the verdict, the table of all jobs together, and the prices that would change the answer."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.case.grid import reads_setting
from mfabric_jax.case.paths import POLICY, flat
from mfabric_jax.case.policies import NO_SCHEDULE
from mfabric_jax.commands.failures import kinds_words
from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax
from mfabric_jax.evaluate.resolving.set_up import switch_words, tier_words
from mfabric_jax.report.numerals import join_names, millions, number, percent, usable
from mfabric_jax.report.row_remarks import KEPT, errors_words
from mfabric_jax.support.measured_errors import ratio_errors

DAYS, DAYS_BAND = "training_days", ("training_low_days", "training_high_days")
FASTER, TRY_FASTER = ("joint", "relay"), "--policy greedy,joint --routing relay"  # docs/policies.md
_MEAN = "mean of jobs"
SAME = 0.001  # dollars within this fraction are equal
MANY = 0.1  # of the hours that failures take
WORDS = {  # of parts of a bill
    **{"servers": "servers", "nic": "NICs", "transceiver": "transceivers", "fibre": "fibres"},
    **{"switch_port": "switch ports", "ocs_port": "optical ports", "ocs": "optical switches"},
    **{"panel_port": "patch panels", "rack_switch_per_server": "rack switches"},
    "sharp_port": "SHARP of switch ports",
}
Months = Mapping[str, Sequence[Any]]  # of a network: the month of each job, with failures


# --------------------------------------------------------------------------------------------------------------- tables
def together(offers: Sequence[Any], jobs: Sequence[str], months: Months) -> list[dict[str, Any]]:
    """Return a line for every network: its dollars over the best, with failures, and on each job."""
    best = offers[0]
    failing = [offer.over_failing for offer in offers if offer.over_failing is not None]
    lines = []
    for offer in offers:
        line: dict[str, Any] = {"network": offer.network}
        line["over best"] = percent(offer.over / best.over - 1, signed=True)
        if failing and offer.over_failing is not None:
            line["with failures"] = percent(offer.over_failing / min(failing) - 1, signed=True)
        line |= _lost(months.get(offer.network, ()))
        line |= {f"$/Mtok, {job}": usd for job, usd in zip(jobs, offer.usd, strict=True)}
        if offer.usd_failing is not None:
            line |= {f"{job} with failures": usd for job, usd in zip(jobs, offer.usd_failing, strict=True)}
        line |= {"network M$": _millions(offer, "network_cost_usd"), "cluster M$": _millions(offer, "cluster_cost_usd")}
        lines.append(line)
    return lines


def _lost(months: Sequence[Any]) -> dict[str, Any]:
    """Return the hours that failures take of a month, the mean over jobs, and the kind that takes most of them."""
    if not months:
        return {}
    lines = {f"lost h/month, {_MEAN}" if len(months) > 1 else "lost h/month": _lost_h(months)}
    ((kind, lost_h),) = _of_kinds(months, "lost_hours_per_month").most_common(1)
    return lines | ({"worst failure": kind} if lost_h else {})


def _lost_h(months: Sequence[Any]) -> float:
    return sum(month.lost_h for month in months) / len(months)


def _of_kinds(months: Sequence[Any], column: str) -> Counter[str]:
    """Return a column of the failures of a month by kind, the mean over jobs."""
    of_kind: Counter[str] = Counter()
    for month in months:
        for row in month.rows:
            of_kind[row["failure"]] += row[column] / len(months)
    return of_kind


def _millions(offer: Any, column: str) -> str:
    """Return a cost in millions of dollars; a range if jobs differ in it."""
    return _range(offer, column, lambda usd: number(millions(usd)))


def _range(offer: Any, column: str, written: Callable[[Any], str]) -> str:
    """Return a column of an offer's rows as `written`; a range if jobs differ in it."""
    values = [row[column] for row in offer.rows]
    return " to ".join(dict.fromkeys(map(written, (min(values), max(values)))))


def price_lines(turnings: Sequence[Any], quotes: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a line for every part that is priced: its share, and the prices from which another network is the best.

    `quotes`: prices of GPUs; a threshold of a GPU with a single price is also in dollars.
    """
    names = Counter(quote.name for quote in quotes)
    usd = {quote.name: quote.usd for quote in quotes if names[quote.name] == 1}
    lines = []
    for turning in turnings:
        line: dict[str, Any] = {"price of": WORDS.get(turning.part, turning.part), "share": percent(turning.share)}
        for name, point in (("cheaper", turning.below), ("dearer", turning.above)):
            line[name] = "no other" if point is None else _threshold(point, usd.get(turning.part))
        lines.append(line)
    return lines


def _threshold(point: tuple[float, Any], usd: float | None) -> str:
    factor, offer = point
    price = "" if usd is None else f" ({float(f'{factor * usd:.3g}'):,.0f} $)"
    return f"from {number(factor)} x{price}: {offer.network}"


# ------------------------------------------------------------------------------------------------------------ sentences
def sentences(
    offers: Sequence[Any],
    others: Sequence[str],
    unknown: Mapping[str, str],
    months: Months,
    is_found: bool,
    gpus: Sequence[str],
) -> Iterator[str]:
    """Yield remarks on all jobs together.

    - `unknown`: why a network's dollars with failures are unknown; `months`: see `together`.
    - `is_found`: searches found the set-ups; `gpus`: GPUs that are for sale.
    """
    yield f"{verdict(offers)}."
    yield from cheapest_of_equal(offers)
    yield errors_words(gpus, [row for offer in offers for row in offer.rows])
    if is_found:
        yield "Times and dollars are those of the set-ups found, not of the maker's."
    if others:
        lacks = "some job lacks memory, a price or a switch that is fast enough"
        yield f"Not ranked, because {lacks}: {', '.join(others)}."
    yield from _on_failures(offers, unknown)
    yield from on_lost_hours(months)
    yield from on_slow_switches(months)
    if len(offers[0].rows) > 1:
        yield "Over best: the mean over jobs of each job's dollars over those of its cheapest network."


def _on_failures(offers: Sequence[Any], unknown: Mapping[str, str]) -> Iterator[str]:
    best, known = offers[0], [offer for offer in offers if offer.over_failing is not None]
    for offer in offers:
        if offer.network in unknown:
            yield f"{offer.network} has no dollars with failures: {unknown[offer.network]}"
    if best.over_failing is not None:
        failing = min(known, key=lambda own: own.over_failing)
        worth = percent(best.over_failing / best.over - 1)
        tied = best.over_failing <= (1 + SAME) * failing.over_failing
        same = "it stays the best" if tied else f"{failing.network} costs least then"
        yield f"Failures and spares add {worth} to {best.network}; {same}."
    elif not known and not unknown:
        yield "Nothing fails here; --set failures.rates=FILE adds the dollars of failures and spares."


def on_lost_hours(months: Months) -> Iterator[str]:
    """Yield why one network loses more hours to failures than another: the kind in which they differ most."""
    lost = {network: _lost_h(own) for network, own in months.items() if own}
    if len(lost) < 2 or number(max(lost.values())) == number(min(lost.values())):
        return
    most, least = max(lost, key=lambda name: lost[name]), min(lost, key=lambda name: lost[name])
    more = _of_kinds(months[most], "lost_hours_per_month")
    more.subtract(_of_kinds(months[least], "lost_hours_per_month"))
    ((kind, _),) = more.most_common(1)
    mean = f" ({_MEAN})" if len(months[most]) > 1 else ""
    hours = f"{most} loses {number(lost[most])} h a month to failures, {least} {number(lost[least])} h{mean}"
    why = _why_more(kind, months[most], months[least], most, least)
    yield f"{hours}. The difference is mainly {kind} failures: {why}."


def _why_more(kind: str, own: Sequence[Any], other: Sequence[Any], most: str, least: str) -> str:
    """Return why a kind of failure takes more hours of `own` months: more parts, longer stops or slower steps."""

    def of(months: Sequence[Any]) -> tuple[float, float, float]:
        fails, *hours = (
            _of_kinds(months, f"{name}_per_month")[kind] for name in ("failures", "stopped_hours", "slower_hours")
        )
        return fails, hours[0] / (fails or 1), hours[1] / (fails or 1)

    (fails, stops, slows), (fails_there, stops_there, slows_there) = of(own), of(other)
    if not fails_there:
        return f"{most} has {number(fails)} a month, {least} none"
    often, longer, slower = fails - fails_there, stops - stops_there, slows - slows_there
    there = f", on {least} {number(slows_there)} h" if slows_there else ""
    hours = {  # that each reason adds
        f"{most} has {number(fails)} a month, {least} {number(fails_there)}": often * (stops_there + slows_there),
        f"each stops the job for {number(stops)} h, on {least} for {number(stops_there)} h": fails * longer,
        f"after each the job runs slower until the repair, which costs {number(slows)} h{there}": fails * slower,
    }
    return max(hours, key=lambda reason: hours[reason])


def on_slow_switches(months: Months) -> Iterator[str]:
    """Yield a warning for every network that loses many hours to reconfigurations while a part is broken."""
    from mfabric_jax import fabric

    for network, own in months.items():
        rows = [row for month in own if fabric.get(month.first["fabric"]).reconfigures for row in month.rows]
        kinds = dict.fromkeys(row["failure"] for row in rows if _reconfiguration_h(row) > 0)
        hours = sum(map(_reconfiguration_h, rows)) / len(own)
        if hours > MANY * _lost_h(own):
            yield (
                f"Warning: {network} loses {number(hours)} of its {number(_lost_h(own))} hours a month to "
                f"reconfigurations while {' or '.join(kinds)} is broken; keep circuits ({KEPT})."
            )


def _reconfiguration_h(row: Mapping[str, Any]) -> float:
    """Return the slower hours of a failure times the part of its slow-down that is reconfiguration."""
    if row["failed_s"] is None or row["failed_s"] <= row["healthy_s"]:
        return 0.0
    more_s = max(0.0, row["reconfig_s"] - row["healthy_reconfig_s"])
    return row["slower_hours_per_month"] * min(1.0, more_s / (row["failed_s"] - row["healthy_s"]))


def purchase(best: Any, gpu: str) -> str:
    """Return what is bought and what it costs, in a sentence. `gpu`: the GPUs of the best network."""
    gpus, an_hour = _range(best, "gpus", "{:,}".format), _range(best, "usd_per_gpu_hour", number)
    return f"{best.network}: {gpus} {gpu}, {_millions(best, 'cluster_cost_usd')} M$ to buy, {an_hour} $/GPU-hour."


def trainings(best: Any, jobs: Sequence[str], months: Months) -> Iterator[str]:
    """Yield how long each job takes on the best network and what it costs, without failures and with them."""
    for job, row, month in itertools.zip_longest(jobs, best.rows, months.get(best.network, ())):
        days, usd, *ends = (usable(row.get(name)) for name in (DAYS, "training_usd", *DAYS_BAND))
        if days is None:
            continue
        band = "" if None in ends or ends[0] == ends[1] else f" ({' to '.join(map(number, ends))})"
        costs = "" if usd is None else f", {number(millions(usd))} M$"
        failing = "" if month is None else _with_failures(days, usd, month)
        yield f"{job}: {number(days)} days{band}{costs} if nothing fails{failing}."


def _with_failures(days: float, usd: float | None, month: Any) -> str:
    """Return the days and dollars of a training with failures, and what its spares cost to buy."""
    if month.usd_with is None:
        return ""
    takes = f"; with failures {number(days / month.working_share)} days"
    costs = "" if usd is None else f", {number(millions(usd * month.usd_with / month.usd))} M$"
    spares = month.spares_to_buy_usd
    return takes + costs + (f"; spares {number(millions(spares))} M$ to buy" if spares else "")


def facts(best: Any, jobs: Sequence[str], makers: Mapping[str, float]) -> Iterator[str]:
    """Yield how long jobs take on the best network with the maker's set-up.

    `makers`: by job, seconds with the maker's set-up over those with the set-up found.
    """
    for job, row in zip(jobs, best.rows, strict=True):
        if ratio := makers.get(job):
            days = usable(row[DAYS])
            longer = "" if days is None else f": {number(ratio * days)} days"
            yield f"{job}: with the maker's set-up {number(ratio)} times as long{longer}."


def on_circuits(cases: Cases) -> Iterator[str]:
    """Yield the policy that chooses circuits, unless policies are compared."""
    every = [block.case for block in cases.blocks if reads_setting(POLICY, flat(block.case))]
    by_policy = [case for case in every if case.circuits.schedule == NO_SCHEDULE]
    if POLICY in cases.varied or not by_policy:
        return
    if all((case.circuits.policy, case.circuits.routing) == FASTER for case in by_policy):
        return
    fabrics = dict.fromkeys(case.network.fabric for case in by_policy)
    policies = dict.fromkeys(resolve_without_jax(case).policy_name for case in by_policy)
    usual = "" if POLICY in cases.stated else " (the default)"
    chosen = f"{' and '.join(policies)}{usual} chooses the circuits of {' and '.join(fabrics)}"
    yield f"{chosen}; {FASTER[0]} with {FASTER[1]} routing is often faster: add {TRY_FASTER}."


def left_out(cases: Cases, unrated: Sequence[str], larger: Sequence[str]) -> Iterator[str]:
    """Yield what the dollars of failures leave out, and the switches that trees are made of."""
    if unrated:
        yield f"No rate is given for {kinds_words(unrated)}; dollars with failures leave them out."
    words_of = tier_words if larger else switch_words  # the order with larger switches is already said
    if words := words_of([resolve_without_jax(block.case) for block in cases.blocks]):
        yield words


def on_larger_switches(ports: int, offers: Sequence[Any], usual: Sequence[Any]) -> str:
    """Return the answer with switches of twice the ports. `usual`: the offers without them."""
    same = {offer.network for offer in _equal(offers)} == {offer.network for offer in _equal(usual)}
    decides = f"Switch ports {'do not ' if same else ''}decide"
    with_more = f"with {ports} a switch at the same dollars a port, {verdict(offers)}"
    return f"{decides}: {with_more}. State network.radix as your vendor's switches have it."


def on_gpu_prices(quotes: Sequence[Any]) -> Iterator[str]:
    """Yield whose price that of each GPU is."""
    for quote in quotes:
        whose = "yours" if quote.source is None else f"the catalogue's, not yours ({quote.source})"
        yield f"{quote.name}: {quote.usd:,.0f} $ is {whose}."


def on_prices(offers: Sequence[Any]) -> Iterator[str]:
    yield (
        f"Share: part of the dollars of {offers[0].network}. Cheaper, dearer: the multiple of today's price from which "
        "another network costs least, other prices unchanged and without failures."
    )


def verdict(offers: Sequence[Any]) -> str:
    """Return the headline of the page: the best network and its lead, or the networks inside the error of the best."""
    best, *others = offers
    _, *near = _equal(offers)
    behind = others[len(near) :]
    leads = f"{best.network} costs least"
    if near:
        names = join_names([offer.network for offer in (best, *near)], most=len(offers))
        apart = percent(near[-1].over / best.over - 1)
        leads = f"{names} are equal inside the error (they differ by {apart})"
    return leads + (f"; {behind[0].network} costs {percent(behind[0].over / best.over - 1)} more" if behind else "")


def _equal(offers: Sequence[Any]) -> list[Any]:
    """Return the best network and those inside the error of it."""
    most = offers[0].over * (1 + ratio_errors().eight_in_ten)
    return [offer for offer in offers if offer is offers[0] or offer.over <= most]


def cheapest_of_equal(offers: Sequence[Any]) -> Iterator[str]:
    """Yield which of the equal networks costs least to buy, if they differ in that."""
    equal = _equal(offers)
    prices = [max(row["cluster_cost_usd"] for row in offer.rows) for offer in equal]
    if max(prices) > (1 + SAME) * min(prices):
        least = equal[prices.index(min(prices))]
        yield f"Of the equal networks, {least.network} costs least to buy: {_millions(least, 'cluster_cost_usd')} M$."
