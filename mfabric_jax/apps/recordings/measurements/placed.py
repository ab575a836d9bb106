"""Assign measured times to a tier of the network, with the bytes over its busiest port."""

from collections.abc import Sequence
from typing import NamedTuple

from mfabric_jax.apps.recordings.measurements.ports import PAIRS, port_share
from mfabric_jax.apps.recordings.measurements.times import Report
from mfabric_jax.checks import InputError, one_of, whole

SERVER, LEAF, ACROSS = "server", "leaf", "across"
TIERS = {  # from the narrowest on
    SERVER: "inside one server",
    LEAF: "between servers under one leaf switch",
    ACROSS: "between servers of several leaf switches",
}


class UserFacts(NamedTuple):
    """What the user states about a file; None: the file states it."""

    tier: str | None = None
    ranks: int | None = None
    gpus_per_server: int | None = None


NOTHING = UserFacts()


class Point(NamedTuple):
    """One measured time: bytes over the busiest port of a tier, and seconds. `per_server`: ranks per server."""

    tier: str
    kind: str
    ranks: int | None
    bytes: float
    seconds: float
    program: str = ""
    per_server: int | None = None


def points_of(reports: Sequence[Report], facts: UserFacts = NOTHING) -> list[Point]:
    """Return the times of a file's runs, with bytes over the busiest port of a tier.

    If only some runs are inside one server, the tier that the user states applies to the other runs.

    Raise `InputError` if neither file nor user states the tier, ranks or GPUs per server that are needed, or if they
    contradict each other: a time inside a server is never one between servers.
    """
    between = [report for report in reports if not _inside(report, facts)]
    points = []
    for report in reports:
        of_others = bool(between) and report not in between
        points += _points_of(report, facts._replace(tier=None) if of_others else facts)
    return points


def _inside(report: Report, facts: UserFacts) -> bool:
    """Whether a run is known to be inside one server."""
    ranks = report.ranks or facts.ranks
    each = _per_server(report, facts, ranks)
    return not report.nics and (report.servers == 1 or (ranks is not None and each is not None and ranks <= each))


def _points_of(report: Report, facts: UserFacts) -> list[Point]:
    ranks = report.ranks or facts.ranks
    per_server = _per_server(report, facts, ranks)
    tier = _tier(report, facts, ranks, per_server)
    beyond = tier != SERVER
    points = []
    for time in report.times:
        share = port_share(time.kind, *_rank_counts(report, time.kind, ranks, per_server, beyond), beyond=beyond)
        if share <= 0:
            raise InputError(f"{report.file}: {ranks} ranks send nothing {TIERS[tier]}; more ranks must take part.")
        each = per_server if beyond and not report.nics else None
        points.append(Point(tier, time.kind, ranks, time.bytes * share, time.seconds, report.program, each))
    return points


def _per_server(report: Report, facts: UserFacts, ranks: int | None) -> int | None:
    reported = ranks // report.servers if ranks and report.servers else None
    if facts.gpus_per_server is None:
        return reported
    whole("gpus_per_server", facts.gpus_per_server)
    if reported is not None and report.servers != 1 and reported != facts.gpus_per_server:
        raise InputError(
            f"{report.file} has {reported} ranks per server; omit or correct --gpus-per-server, got "
            f"{facts.gpus_per_server}."
        )
    return facts.gpus_per_server


def _tier(report: Report, facts: UserFacts, ranks: int | None, per_server: int | None) -> str:
    if facts.tier is not None:
        one_of("tier", facts.tier, TIERS)
    inside = _inside(report, facts)
    known = report.servers is not None or (ranks is not None and per_server is not None)
    if report.nics and facts.tier == SERVER:
        raise InputError(
            f"{report.file} is output of {report.tool}, which measures NICs; tier must be leaf or across, got 'server'."
        )
    if known and not report.nics:
        if inside and facts.tier not in (None, SERVER):
            raise InputError(f"{report.file} was measured inside one server; tier must be server, got {facts.tier!r}.")
        if inside:
            return SERVER
        if facts.tier == SERVER:
            raise InputError(f"{report.file} was measured between servers; tier must be leaf or across, got 'server'.")
    if facts.tier is None:
        allowed = [tier for tier in TIERS if tier != SERVER or not (known or report.nics)]
        raise InputError(f"{report.file} does not state where it was measured; give --tier {' or '.join(allowed)}.")
    return facts.tier


def _rank_counts(report: Report, kind: str, ranks: int | None, per_server: int | None, beyond: bool) -> tuple[int, int]:
    """Ranks and ranks per server, as far as the kind needs them."""
    if kind in PAIRS:
        return 2, 1
    if ranks is None:
        raise InputError(f"{report.file} does not state the number of ranks; give --ranks.")
    if beyond and per_server is None:
        raise InputError(f"{report.file} does not state how many ranks share a server; give --gpus-per-server.")
    if beyond and per_server is not None and ranks % per_server:
        raise InputError(f"gpus_per_server must divide the {ranks} ranks of {report.file}, got {per_server}.")
    return ranks, per_server or ranks
