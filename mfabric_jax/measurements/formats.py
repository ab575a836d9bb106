"""Detects which tool wrote a file of measured times."""

from pathlib import Path

from mfabric_jax.checks import InputError, whole
from mfabric_jax.measurements import deepep, nccl_tests, osu, perftest
from mfabric_jax.measurements.times import LARGEST, Report
from mfabric_jax.text_files import read_text

FORMATS = (
    "nccl-tests as text or JSON (all_reduce, all_gather, reduce_scatter, alltoall, alltoallv, sendrecv), osu_alltoall "
    "and osu_alltoallv, perftest (ib_write_bw, ib_write_lat) as text or JSON, DeepEP's tests"
)


def read_times(path: str | Path, ranks: int | None = None) -> Report:
    """The times in a file of a measuring tool; `ranks`: as the user says.

    `InputError` for a file of no known tool, a broken one, and ranks that the file says otherwise.
    """
    text = read_text(path, f"give output of {FORMATS}", LARGEST)
    report = _read(text, str(path), None if ranks is None else whole("ranks", ranks))
    if ranks is not None and report.ranks not in (None, ranks):
        raise InputError(f"{path} is of {report.ranks} ranks; leave out --ranks, or correct it, got {ranks}.")
    return report


def _read(text: str, file: str, ranks: int | None) -> Report:
    if text.lstrip().startswith("{"):
        return (perftest if '"test_info"' in text else nccl_tests).read_json(text, file)
    if nccl_tests.looks_like_text(text):
        return nccl_tests.read_text(text, file)
    if osu.looks_like(text):
        return osu.read_text(text, file, ranks)
    if perftest.looks_like(text):
        return perftest.read_text(text, file)
    if deepep.looks_like(text):
        return deepep.read_text(text, file)
    raise InputError(f"{file} is of no tool that is known; allowed: {FORMATS}.")
