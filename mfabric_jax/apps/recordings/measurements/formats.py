"""Find the runs of measuring tools in a file."""

from collections import Counter
from pathlib import Path

from mfabric_jax.apps.recordings.measurements import deepep, nccl_tests, osu, perftest
from mfabric_jax.apps.recordings.measurements.prefixes import without_prefixes
from mfabric_jax.apps.recordings.measurements.times import LARGEST, Report
from mfabric_jax.checks import InputError, whole
from mfabric_jax.support.text_files import read_text

FORMATS = (
    "nccl-tests as text or JSON (all_reduce, all_gather, reduce_scatter, alltoall, alltoallv, sendrecv), osu_alltoall "
    "and osu_alltoallv, perftest (ib_write_bw, ib_write_lat) as text or JSON, DeepEP's tests"
)


def read_times(path: str | Path, ranks: int | None = None) -> list[Report]:
    """Return the runs of measuring tools in a file. `ranks`: the user's number, for runs that do not state it.

    Raise `InputError` for a file of an unknown tool, a malformed file, or ranks that contradict the file.
    """
    text = read_text(path, f"give output of {FORMATS}", LARGEST)
    reports = _read(text, str(path), None if ranks is None else whole("ranks", ranks))
    _check_ranks(reports, ranks)
    return reports


def _read(text: str, file: str, ranks: int | None) -> list[Report]:
    if text.lstrip().startswith("{"):
        return [(perftest if '"test_info"' in text else nccl_tests).read_json(text, file)]
    lines = without_prefixes(text)
    tools = [tool for tool in (nccl_tests, osu, perftest, deepep) if tool.looks_like(lines)]
    if not tools:
        raise InputError(f"{file} must be output of a known tool; allowed: {FORMATS}.")
    return [report for tool in tools for report in tool.read_text(lines, file, ranks)]


def _check_ranks(reports: list[Report], ranks: int | None) -> None:
    """Check the user's ranks. They hold for every run that states none, so a program may have only one such run."""
    unknown = [report for report in reports if report.ranks is None]
    for report in reports:
        if ranks is not None and not unknown and not report.nics and report.ranks != ranks:
            raise InputError(
                f"{report.file} was measured with {report.ranks} ranks; omit or correct --ranks, got {ranks}."
            )
    for program, runs in Counter(report.program for report in unknown).items():
        if runs > 1:
            raise InputError(
                f"{unknown[0].file} holds {runs} runs of {program} and does not state the ranks of each; give one file "
                "per run, each with its --ranks."
            )
