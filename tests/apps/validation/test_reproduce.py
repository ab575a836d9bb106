"""`mfabric reproduce` on made-up experiments: what runs, what is kept, what fails alone, and where experiments are."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import mfabric_jax
from mfabric_jax import report
from mfabric_jax.commands import reproduction as paper
from mfabric_jax.commands.reproduction import with_earlier
from tests.command_line import mistake, status
from tests.mistakes import check_refused

HERE = pathlib.Path(mfabric_jax.__file__).parent
SCRIPT = '''"""How many {name} are there?"""
import dataclasses, pathlib
from mfabric_jax.checks import InputError
from .script import Script, against

@dataclasses.dataclass(frozen=True)
class Config:
    many: int = 4
    {field}

def run(config):
    {fault}
    return [{{"n": n, "trace": getattr(config, "trace", None)}} for n in range(config.many)]

def draw(rows, path):
    path.write_bytes(b"picture")
    return path

SCRIPT = Script(
    name="{module}", question="Count.", config=Config, run=run, table=lambda rows: f"{{len(rows)}} rows", draw=draw,
    verdicts=lambda rows: [against("how many", len(rows), 4, form=".0f")], quick={{"many": 2}},
)
'''
FIGURES = {"sheep": "many_sheep", "wolves": "many_wolves", "ghosts": "no_ghosts"}


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """The package, and beside it experiments of our own, which this process and those it starts find."""
    root = tmp_path / "checkout"
    folder = root / "experiments"
    folder.mkdir(parents=True)
    (root / "mfabric_jax").symlink_to(HERE)
    (folder / "__init__.py").touch()
    for name in ("script.py", "pictures.py"):
        shutil.copy(f"{paper.package().__path__[0]}/{name}", folder)
    for module, field, fault in (
        ("many_sheep", "trace: str | None = None", ""),
        ("many_wolves", "", "raise InputError('wolves must be seen, got none.')"),
        ("lost_bees", "", "[].pop()"),
        ("dead_birds", "", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    ):
        text = SCRIPT.format(module=module, name=module.split("_")[1], field=field, fault=fault)
        (folder / f"{module}.py").write_text(text)
    monkeypatch.setattr(paper, "ROOT", root / "mfabric_jax")
    monkeypatch.setattr(paper, "FIGURES", FIGURES)
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.chdir(root)
    experiments = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith(paper.PACKAGE)}
    yield
    for name in [name for name in sys.modules if name.startswith(paper.PACKAGE)]:
        del sys.modules[name]
    sys.modules.update(experiments)


def last_lines(text):
    return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


def test_a_figure_that_fails_does_not_stop_the_others_and_what_is_done_is_kept(ours, tmp_path, capsys):
    out, trace = tmp_path / "made", tmp_path / "trace.npy"
    trace.touch()
    everything = ("reproduce", "all", "dead-birds", "lost_bees", "--out", out, "--jobs", 1)
    assert status(*everything, "--trace", trace) == 1
    said = capsys.readouterr()
    ends = last_lines(said.err)
    assert ends["wolves"] == "failed: wolves must be seen, got none."
    assert ends["ghosts"] == "failed: there is no script no_ghosts.py among the experiments."
    assert ends["dead-birds"] == "failed: its process ended by SIGKILL."
    assert ends["lost-bees"] == f"failed: IndexError: pop from empty list ({out / 'lost_bees.log'})"
    assert ends["sheep"].endswith(" s")
    assert said.out.splitlines()[2].split() == ["sheep", "how", "many", "4", "4", "reproduced"]
    rows, config = report.read_rows(out / "many_sheep.csv")
    assert [row["trace"] for row in rows] == [str(trace)] * 4
    assert (config["many"], config["trace"], config["complete"]) == (4, str(trace), True)
    assert (out / "many_sheep.txt").read_text().startswith("4 rows\n")
    assert (out / "many_sheep.png").read_bytes() == b"picture"
    assert not (out / "many_sheep.log").exists()
    (verdict,), config = report.read_rows(out / "verdicts.csv")
    assert verdict.items() >= {"figure": "sheep", "claim": "how many", "verdict": "reproduced", "off": 0}.items()
    assert config["failed"] == ["ghosts", "wolves", "dead-birds", "lost-bees"]

    for words, kept in ((("--trace", trace), True), (("--trace", trace, "--again"), False), (("--quick",), False)):
        assert status("reproduce", "sheep", "--out", out, *words) == 0
        said = capsys.readouterr()
        assert (last_lines(said.err)["sheep"] == "kept") is kept, words
    assert "differs by -50%" in said.out
    (verdict,), _ = report.read_rows(out / "verdicts.csv")
    assert (verdict["found"], verdict["quick"]) == (2, True)


def test_verdicts_on_other_figures_stay(ours, tmp_path):
    file = tmp_path / "verdicts.csv"
    now = [{"figure": "sheep", "found": "4"}]
    assert with_earlier(now, file, ["sheep"]) == now
    earlier = [{"figure": name, "found": f"{n}.40"} for n, name in enumerate(["lost-bees", "sheep", "wolves", "cows"])]
    report.write_rows(earlier, file, {})
    found = with_earlier(now, file, ["sheep", "ghosts"])
    want = [("sheep", "4"), ("wolves", "2.40"), ("lost-bees", "0.40")]
    assert [(row["figure"], row["found"]) for row in found] == want
    file.write_text("a,b\n1\n")
    assert with_earlier(now, file, ["sheep"]) == now


def test_which_figures_there_are_and_are_asked_for(ours, capsys):
    assert list(paper.choose_figures([])) == list(paper.choose_figures(["all"])) == list(FIGURES)
    assert paper.choose_figures(["wolves", "sheep", "wolves"]) == {"sheep": "many_sheep", "wolves": "many_wolves"}
    assert paper.choose_figures(["many_sheep", "lost-bees"]) == {"sheep": "many_sheep", "lost-bees": "lost_bees"}
    assert list(paper.choose_figures(["all", "lost_bees"])) == [*FIGURES, "lost-bees"]
    assert status("reproduce", "--list") == 0
    all_of_them, by_name = (part.splitlines()[1:] for part in capsys.readouterr().out.split("\n\n"))
    assert [line.split()[0] for line in (*all_of_them, *by_name)] == [*FIGURES, "dead-birds", "lost-bees"]
    assert [line.split(maxsplit=1)[1] for line in all_of_them[1:]] == ["How many wolves are there?", "(missing)"]


def test_mistakes_are_sentences_before_anything_runs(capsys, monkeypatch):
    monkeypatch.setattr(paper, "run_each", None)
    for words, sentence in (
        ("cots", "figure 'cots' is unknown (did you mean 'cost'?); allowed: traffic-shares, block-timeline,"),
        ("cost --trace nowhere", "trace must be an existing file or folder, got nowhere."),
        ("cost --jobs 100000", f"jobs must be at most the {os.cpu_count()} cores of this machine, got 100000."),
    ):
        assert mistake(capsys, "reproduce", *words.split()).startswith(sentence)


@pytest.mark.slow
def test_a_wheel_holds_the_experiments(tmp_path):
    package = tmp_path / "mfabric_jax"
    package.mkdir()
    for part in HERE.iterdir():
        (package / part.name).symlink_to(part)
    (package / "experiments").symlink_to(paper.package().__path__[0])
    load = "from mfabric_jax.commands.reproduction import load; load('cost_by_cluster_size')"
    code = f"import sys; {load}.main(['--servers', '8', '--out', 'made'])"
    settings = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(tmp_path)}}
    done = subprocess.run([sys.executable, "-c", code], **settings, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "made" / "cost_by_cluster_size.png").exists()


def test_processes_at_once_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "cores", lambda: 8)
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "mine")
    said = "os.environ.get('NPROC'), os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'], os.getpgrp() == os.getpid()"
    for jobs, share in ((1, None), (3, "2"), (8, "1")):
        commands = {f"n{number}": [sys.executable, "-Sc", f"import os; print({said})"] for number in range(jobs)}
        ends = list(paper.run_each(commands, lambda name: tmp_path / name, 8))  # eight could run at once
        assert {end.status for end in ends} == {0}
        assert {(tmp_path / f"{name}.txt").read_text() for name in commands} == {f"{share} mine True\n"}


def test_an_installation_without_experiments_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "ROOT", tmp_path / "mfabric_jax")
    monkeypatch.delitem(sys.modules, paper.PACKAGE, raising=False)
    check_refused(f"neither in {tmp_path}/mfabric_jax/experiments nor in {tmp_path}/experiments", paper.package)


@pytest.mark.parametrize(
    ("interrupts", "terminated"),
    [(signal.SIG_DFL, True), (signal.SIG_IGN, False)],  # in the foreground; where a script runs it in the background
)
def test_processes_that_are_left_are_interrupted(tmp_path, interrupts, terminated):
    started, ended, out = tmp_path / "started", tmp_path / "ended", tmp_path / "out"
    out.mkdir()
    code = f"""
        import pathlib, time
        try:
            pathlib.Path({str(started)!r}).touch()
            time.sleep(60)
        except KeyboardInterrupt:
            pathlib.Path({str(ended)!r}).touch()
        """
    after = f"import os, time\nwhile not os.path.exists({str(started)!r}): time.sleep(0.01)\nprint(1)"
    commands = {"a": [sys.executable, "-c", after], "b": [sys.executable, "-c", textwrap.dedent(code)]}
    kept, before = signal.signal(signal.SIGINT, interrupts), signal.getsignal(signal.SIGTERM)
    try:
        ends = paper.run_each(commands, lambda name: out / name, 2)
        assert next(ends)[:2] == ("a", 0)
        if terminated:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
            with pytest.raises(SystemExit) as end:
                next(ends)
            assert end.value.code == 128 + signal.SIGTERM
        ends.close()
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == (before, interrupts)
    finally:
        signal.signal(signal.SIGINT, kept)
    assert ended.exists()
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("a.txt", "1\n")]
