"""What a notebook shows: short words for objects, tables, data frames, bars; the notebooks run."""

import io
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import Case, Circuits, InputError, Plan, cases, fabric, load, resolve, simulate
from mfabric_jax.apps.serving import deployment
from mfabric_jax.circuit_schedules import CircuitSchedule
from mfabric_jax.support import progress
from mfabric_jax.support.notebooks import LEFT, MOST, Rows, frame, html_table
from tests.small import small

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
ROWS = [{"fabric": "fat-tree", "gpus": 8, "s": 1.23456}, {"fabric": "a<b", "gpus": 8, "s": None, "further": 1}]


# ---------------------------------------------------------------------------------------------------------------- words
def test_a_case_says_what_is_no_default_and_reads_back():
    assert repr(Case()) == "Case()"
    case = Case().with_({"network.nic_gbps": 200, "traffic.source": "generated", "traffic.generated.skew": 0.7})
    assert "network.nic_gbps" in repr(case)
    assert "run.seed" not in repr(case)
    for one in (Case(), case, small({}), load(preset="paper")):
        assert eval(repr(one), {"Case": Case}) == one
    assert f"<td{LEFT}>network.nic_gbps</td><td{LEFT}>200.0</td>" in case._repr_html_()


def test_cases_and_results_say_their_axes_and_compute_nothing(never_computes):
    asked = cases(Case(), {"network.fabric": ["fat-tree", "mfabric"], "network.nic_gbps": [100, 200, 400]})
    assert repr(asked) == "<6 cases: network.fabric fat-tree, mfabric; network.nic_gbps 100, 200, 400>"
    assert repr(cases(Case())) == "<1 case>"
    assert asked._repr_html_().count("<tr>") == 1 + 6
    many = cases(Case(), {"network.alpha_s": [number / 1000 for number in range(99)]})
    assert repr(many).endswith(", ...>")
    assert "and 39 more" in html_table([{"at": at} for at in range(99)])
    results = simulate(asked)
    assert repr(results) == f"<Results of {repr(asked)[1:-1]}; .rows() or .frame() computes them>"
    assert ".frame()" in results._repr_html_()


def test_circuits_plans_and_fabrics_are_a_line():
    count = np.array([[0, 2, 0], [2, 0, 1], [0, 1, 0]])
    assert repr(Circuits(count)) == f"<Circuits: 3 between 2 pairs of 3 servers: {count.tolist()}>"
    assert repr(Circuits(np.zeros((9, 9)))) == "<Circuits: 0 between 0 pairs of 9 servers>"
    assert repr(Plan(Circuits(count))) == f"<Plan: {repr(Circuits(count))[1:-1]}>"
    schedule = CircuitSchedule(np.eye(3)[None], [0.5])
    assert repr(Plan.of_schedule(schedule)) == "<Plan: Schedule: 1 configurations of 3 servers on 1 switches for 0.5 s>"
    told = []
    jax.jit(lambda x: told.append(repr(Plan(Circuits(x)))) or x)(jnp.zeros((3, 3)))
    assert told == ["<Plan: Circuits (3, 3)>"]
    assert repr(jax.vmap(lambda x: Circuits(x))(jnp.zeros((5, 3, 3)))) == "<Circuits (5, 3, 3)>"
    assert all(repr(fabric.get(name)).startswith(f"<Fabric {name}: ") for name in fabric.NAMES)


def test_what_was_open_and_what_serves_are_a_line():
    found = resolve(Case().with_({"model.name": "llama-moe", "job.parallel.gpus": 64}))
    assert repr(found).startswith("<Resolved: llama-moe on 64 GPUs, ")
    assert "'job.parallel.ep': " in repr(found)
    assert f"<td{LEFT}>job.parallel.ep</td>" in found._repr_html_()
    served = deployment(Case().with_({"model.name": "deepseek-v3", "serving.ep": 32, "serving.batch": 64.0}))
    assert repr(served).startswith("<Deployment: deepseek-v3 on ")
    assert "; batch 64 tokens per GPU, context " in repr(served)


# ----------------------------------------------------------------------------------------------------------------- rows
def test_a_table_escapes_and_names_once_what_is_alike():
    shown = Rows(ROWS)._repr_html_()
    assert shown.startswith("<p>gpus 8</p><table><tr><th>fabric</th><th>s</th><th>further</th></tr>")
    assert f"<td{LEFT}>fat-tree</td><td>1.235</td><td></td>" in shown
    assert f"<td{LEFT}>a&lt;b</td>" in shown
    assert html_table([]) == "<table><tr></tr></table>"
    assert html_table([{"at": at} for at in range(MOST + 1)]).count("<tr>") == MOST + 1


def test_rows_become_a_data_frame_in_one_call():
    pandas = pytest.importorskip("pandas")
    results = simulate(cases(small({}), {"network.fabric": ["fat-tree", "mfabric"]}))
    found = results.frame()
    assert isinstance(found, pandas.DataFrame)
    assert found["iteration_s"].tolist() == [row["iteration_s"] for row in results.rows()]
    assert list(frame(ROWS).columns) == ["fabric", "gpus", "s", "further"]
    assert frame(iter(ROWS))["further"].isna().tolist() == [True, False]


def test_without_pandas_a_sentence_names_the_extra_before_anything_is_computed(monkeypatch, never_computes):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for ask in (simulate(Case()).frame, lambda: frame(ROWS), Rows(ROWS).frame):
        with pytest.raises(InputError, match=r"a data frame needs pandas, .* 'mfabric-jax\[notebook\]'"):
            ask()


# ----------------------------------------------------------------------------------------------------------------- bars
class Shell:
    config: dict = {"IPKernelApp": {}}  # noqa: RUF012


def test_bars_are_shown_in_notebooks_and_terminals_alone(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(progress.bar("what", "it", 3), progress.ProgressLines)
    monkeypatch.setitem(sys.modules, "IPython", type("IPython", (), {"get_ipython": Shell}))
    with progress.bar("what", "it", 3) as shown:
        assert not shown.disable
    assert "what" in sys.stderr.getvalue()


def test_rows_with_progress_count_what_is_solved(monkeypatch):
    counted = []
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    asked = cases(small({}), {"network.fabric": ["fat-tree", "mfabric"]})
    rows = simulate(asked).rows(progress=True)
    assert "2/2" in sys.stderr.getvalue()
    assert rows == simulate(asked).rows(counted.append)
    assert len(counted) == 2


# ------------------------------------------------------------------------------------------------------------- notebook
def code_of(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_notebooks_hold_no_outputs():
    assert len(NOTEBOOKS) == 3
    for notebook in NOTEBOOKS:
        cells = code_of(notebook)
        assert len(cells) > 3
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


def test_a_fabric_and_a_policy_of_one_s_own_are_40_lines():
    (own,) = [notebook for notebook in NOTEBOOKS if notebook.stem == "own_fabric_and_policy"]
    lines = [line for cell in code_of(own) for line in cell["source"] if line.strip()]
    assert len(lines) <= 40 + 10  # and ten to run them


FOUND = {
    "many_configurations": lambda names: len(names["rows"]) == 10_000 and names["rows"]["iteration_s"].min() > 0,
    "gradients_and_policies": lambda names: names["by_gbps"] < 0 and names["gaps"].loc["clairvoyant"].max() == 0,
    "own_fabric_and_policy": lambda names: names["rows"].groupby("policy")["reconfig_s"].max()["uniform"] == 0,
}


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, command_line, monkeypatch, tmp_path):
    """As Python: the last line of a cell is what it shows."""
    pytest.importorskip("pandas")
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell in code_of(notebook):
        exec(compile("".join(cell["source"]), str(notebook), "exec"), names)
    assert FOUND[notebook.stem](names)
