"""A file of one case, for other commands."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from mfabric_jax.case import Case, CaseBlock, Cases
from mfabric_jax.case.paths import differences, flat


def write_case(case: Case, sources: Mapping[str, str], out: str | Path, also: Iterable[str] = ()) -> None:
    """Write a case as `mfabric show --changed` prints it.

    - `sources`: of its values, by path; those of others are "search".
    - `also`: paths to state although their values are defaults.
    """
    from mfabric_jax.commands.show import as_toml
    from mfabric_jax.support.atomic import replacing

    values, every = differences(case), flat(case)
    values |= {path: every[path] for path in also if path in every}
    named = {path: sources.get(path, "search") for path in values} | {"job.search": "as a search found it"}
    whole = Cases((CaseBlock(case),), stated=values, sources=named)
    with replacing(Path(out)) as (part,):
        part.write_text("\n".join(as_toml(whole, changed=True)) + "\n", encoding="utf-8")
