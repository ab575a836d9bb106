"""What is public is the committed list: whoever changes it decides so."""

import dataclasses
import pathlib
import re

import pytest

from mfabric_jax import Case, InputError, cases
from mfabric_jax.apps.recordings.statistics import TITLES
from mfabric_jax.apps.serving.columns import SERVED
from mfabric_jax.apps.serving.rows import cached_deployment, row_of
from mfabric_jax.case import paths
from mfabric_jax.evaluate import simulate
from mfabric_jax.evaluate.rows.results import provenance
from mfabric_jax.report import read_rows, write_rows
from mfabric_jax.report.kinds import KINDS
from mfabric_jax.support import columns
from mfabric_jax.support.columns import DRAW
from tests.command_line import header, status
from tests.small import small
from tests.surface import LIST, surface

JOB = pathlib.Path(__file__).parent / "golden" / "job.json"
ACCEPT = "python -m tests.surface --write"
SAID = "The public surface is not tests/surface.txt"
MOST = 5  # that a sentence names


def change(before, after):
    """A sentence on what went, came and changed; None: nothing did."""
    old, new = (dict(line.partition(": ")[::2] for line in lines) for lines in (before, after))
    gone, came = [name for name in old if name not in new], [name for name in new if name not in old]
    other = [f"{name} ({old[name]} -> {new[name]})" for name in old if name in new and old[name] != new[name]]
    parts = {"went": gone, "came": came, "changed": other}
    said = [f"{len(some)} {what}: {'; '.join(some[:MOST])}" for what, some in parts.items() if some]
    return (
        f"The public surface is not tests/surface.txt ({', and '.join(said)}); {ACCEPT} accepts it." if said else None
    )


@pytest.fixture(params=[".csv", ".parquet"])
def extension(request):
    return request.param


def committed():
    return LIST.read_text(encoding="utf-8").splitlines()


def test_what_is_public_is_the_committed_list():
    said = change(committed(), surface())
    assert said is None, said


def test_a_removed_column_is_told(monkeypatch):
    assert surface()  # loads all tables of columns, some of which copy from this one
    monkeypatch.setattr("mfabric_jax.evaluate.rows.rows.CASES", KINDS["cases"].without("ep_share"))
    said = change(committed(), surface())
    assert said == f"{SAID} (1 went: column cases, ep_share); {ACCEPT} accepts it."


def test_a_renamed_path_is_told(monkeypatch):
    """One name went, another came."""
    usual = dict(paths.settings())
    renamed = dataclasses.replace(usual.pop("network.alpha_s"), path="network.startup_s")
    monkeypatch.setattr(paths, "settings", lambda: usual | {renamed.path: renamed})
    said = change(committed(), surface())
    assert "(1 went: setting network.alpha_s, and 1 came: setting network.startup_s);" in said


def test_a_changed_default_is_told(monkeypatch):
    usual = paths.settings()
    changed = dataclasses.replace(usual["run.seed"], default=7)
    monkeypatch.setattr(paths, "settings", lambda: usual | {"run.seed": changed})
    said = change(committed(), surface())
    assert re.search(r"\(1 changed: setting run.seed \(.*; default 0 -> .*; default 7\)\);", said)


# ------------------------------------------------------------------------------------------------------ columns of rows
def check_columns(kind, found):
    declared = KINDS[kind]
    further = {name for name in found if "." not in name and not DRAW.fullmatch(name)} - set(declared)
    always = {name for name, column in declared.items() if not column.only_some}
    assert (further, always - set(found)) == (set(), set()), kind


def test_columns_of_cases_are_those_of_rows():
    found = simulate(cases(small({}), {"network.fabric": ["fat-tree", "mfabric"]})).rows()
    for row in found:
        check_columns("cases", row)


def test_columns_of_serving_are_those_of_its_parts():
    case = Case().with_({"model.name": "deepseek-v3", "network.fabric": "fat-tree"})
    row = row_of(cached_deployment(case))
    assert set(row) == set(SERVED)


def test_columns_of_traces_are_the_statistics():
    assert set(TITLES) < set(KINDS["traces info"])


def test_columns_of_commands_are_those_of_their_rows(tmp_path, command_line):
    """Rows of the commands that are done in a second."""
    names = ("rows", "links", "flows", "ranks", "steps")
    out = {name: tmp_path / f"{name}.csv" for name in names}
    words = (
        "--fabric",
        "fat-tree",
        "--nic-gbps",
        "100",
        "--out",
        out["rows"],
        "--links",
        out["links"],
        "--all-columns",
    )
    assert status("replay", JOB, *words, "--per-rank", out["ranks"], "--steps", out["steps"]) == 0
    kinds = {"replay": "rows", "replay --links": "links", "replay --per-rank": "ranks", "replay --steps": "steps"}
    for kind, name in kinds.items():
        check_columns(kind, header(out[name]))
    words = ("--model", "llama-moe", "--gpus", "16", "--fabric", "fat-tree", "--all-columns", "--out", out["rows"])
    assert status("cluster", *words, "--links", out["links"], "--flows", out["flows"]) == 0
    for kind, name in {"cluster": "rows", "cluster --links": "links", "cluster --flows": "flows"}.items():
        check_columns(kind, header(out[name]))
    assert status("validate", "serving", "--all-columns", "--out", out["rows"]) == 0
    check_columns("validate serving", header(out["rows"]))


# ------------------------------------------------------------------------------------------------------- rows of others
def test_rows_of_a_later_schema_are_refused_by_name(tmp_path, extension):
    file = write_rows([{"iteration_s": 1.0}], tmp_path / f"rows{extension}", {"schema": 2, "version": "3.1"})
    with pytest.raises(InputError, match=r"schema 2, written by mfabric_jax 3.1; this version reads schemas up to 1"):
        read_rows(file)


def test_rows_of_0_x_are_read_where_their_columns_are_known(tmp_path, extension):
    config = {"version": "0.1.0", "resolved": {}}
    known = {"iteration_s": 1.0, "circuits.delay_s": 0.1, "draw_2_s": 2.0}
    file = write_rows([known], tmp_path / f"rows{extension}", config)
    assert read_rows(file) == ([known], config)
    file = write_rows([known | {"speed": 3.0}], file, config)
    with pytest.raises(
        InputError, match=r"rows of mfabric_jax 0.1.0 with columns that no longer mean anything \(speed\)"
    ):
        read_rows(file)
    for own in ({"version": "0.1.0"}, config | {"command": "query"}, {}):  # an experiment, a query, anybody's table
        assert read_rows(write_rows([{"speed": 3.0}], file, own))[0] == [{"speed": 3.0}]


def test_every_result_says_its_schema():
    assert provenance("float32")["schema"] == columns.SCHEMA


def test_files_leave_details_out(tmp_path, command_line):
    """At most 265 names by default, over all commands; details under `--all-columns`, with the same values."""
    brief = {name for kind in KINDS for name, column in KINDS[kind].items() if not column.detail}
    assert len(brief) <= 265
    words = ("compare", "--model", "llama-moe", "--gpus", "16", "--fabric", "fat-tree", "--nic-gbps", "100")
    words += ("--efficiency", "0.5", "--micro-batches", "1")
    for name, more in {"brief": (), "whole": ("--all-columns",)}.items():
        assert status(*words, *more, "--out", tmp_path / f"{name}.csv") == 0
    (some,), (every,) = (read_rows(tmp_path / f"{name}.csv")[0] for name in ("brief", "whole"))
    assert set(every) - set(some) == {name for name, column in KINDS["cases"].items() if column.detail}
    assert some == {name: every[name] for name in some}
