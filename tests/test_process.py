"""A command as a process: standard streams that are full or closed, names that are not text, interrupts."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

from mfabric_jax.report import read_rows
from tests.interrupts import interrupts_of

WORDS = "--preset paper --model llama-moe --micro-batches 1 --dp 1 --pp 4 --gpus 64 --nic-gbps 100 --fabric fat-tree"
ODD = os.fsdecode(b"no \xff text")


def python(code, **more):
    """What a process of this code gave: status, standard output, standard error."""
    words = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False, **more)
    return ended.returncode, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")


def mfabric(*words, **more):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    words = [sys.executable, "-m", "mfabric_jax.cli", *words]
    return subprocess.run(words, stdin=subprocess.DEVNULL, timeout=300, check=False, **streams)


def lines_of(error):
    """Lines of standard error, without the progress that a busy machine prints after 3 s."""
    return [line for line in error.splitlines() if b": at work for " not in line]


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("words", ["--help", "--version", "compare --help", "show --model llama-moe"])
def test_a_full_standard_output_is_a_sentence(words):
    with open("/dev/full", "wb") as full:
        ended = mfabric(*words.split(), stdout=full)
    said = [b"mfabric: a file or standard output cannot be used (No space left on device)."]
    assert (ended.returncode, lines_of(ended.stderr)) == (2, said)
    with open("/dev/full", "wb") as full:
        assert mfabric("compar", stderr=full).returncode == 2


def test_closed_streams_are_no_fault(tmp_path):
    words = [sys.executable, "-m", "mfabric_jax.cli", "query", "none.csv"]
    for closed in ((1,), (2,), (1, 2)):
        ended = subprocess.run(
            ["/bin/sh", "-c", " ".join([*words, *(f"{number}>&-" for number in closed)])],
            capture_output=True,
            check=False,
            cwd=tmp_path,
        )
        assert (ended.returncode, ended.stdout) == (2, b"")
        assert ended.stderr.startswith(b"mfabric: cannot read 'none.csv'") == (2 not in closed)


@pytest.mark.parametrize("extension", [".csv", ".parquet"])
def test_rows_are_written_to_a_folder_whose_name_is_no_text(extension, tmp_path):
    folder = tmp_path / ODD
    folder.mkdir()
    code = f"""
        from mfabric_jax.report import read_rows, write_rows
        file = {ODD!r} + "/rows{extension}"
        rows = [{{"policy": file, "gpus": 8}}]
        write_rows(rows, file, {{"out": 1}})
        assert read_rows(file)[0][0]["gpus"] == 8
    """
    assert python(code, cwd=tmp_path) == (0, "", "")
    ended = mfabric("query", f"rows{extension}", "--out", str(folder / "again.parquet"), cwd=folder)
    assert (ended.returncode, len(lines_of(ended.stderr))) == (0, 1)
    assert read_rows(folder / "again.parquet")[0] == [{"policy": rf"no \udcff text/rows{extension}", "gpus": 8}]


# A command whose work is that of the test: `work()` runs instead of a command.
COMMAND = """
import os, signal, sys, time
import mfabric_jax.support.interrupts as interrupts
from mfabric_jax import cli

interrupts.SOON_S = 0.01
interrupts.AGAIN_S = interrupts.PATIENCE_S = 0.2
interrupts.LAST_S = 1.0

def press():
    os.kill(os.getpid(), signal.SIGINT)

{work}

cli._run = lambda command, words: work()
sys.argv = ["mfabric", "doctor"]
cli.main()
"""
WORK = {
    "at once": "def work():\n    press()\n    time.sleep(60)",
    "dropped by a callback of the collector": """
import gc

def drop(phase, info):
    if not gc.pressed:
        gc.pressed = True
        press()
        time.sleep(0)

def work():
    gc.pressed = False
    gc.callbacks.append(drop)
    gc.collect()
    time.sleep(60)
""",
    "dropped as an object goes": """
class Goes:
    def __del__(self):
        press()
        time.sleep(0)

def work():
    Goes()
    time.sleep(60)
""",
    "made an error of a library's own": """
def work():
    try:
        press()
        time.sleep(60)
    except KeyboardInterrupt:
        raise RuntimeError("INTERNAL: a callback failed") from None
""",
    "swallowed": """
def work():
    try:
        press()
        time.sleep(60)
    except BaseException:
        pass
    time.sleep(60)
""",
    "swallowed for good": """
def work():
    while True:
        try:
            press() if not work.pressed else None
            work.pressed = True
            time.sleep(60)
        except BaseException:
            pass

work.pressed = False
""",
    "swallowed at the end": """
def work():
    try:
        press()
        time.sleep(60)
    except KeyboardInterrupt:
        return 0
""",
    "as the command is over": """
import atexit

atexit.register(press)

def work():
    return 0
""",
    "under a library that it would abort, which returns": """
library = {"__name__": "jax._src.inside", "press": press, "time": time}
code = "try:\\n    press()\\n    time.sleep(0.1)\\nexcept KeyboardInterrupt:\\n    print('raised')\\n"

def work():
    exec(code, library)
    time.sleep(60)
""",
    "under a library that it would abort, which does not": """
library = {"__name__": "importlib._bootstrap", "press": press, "time": time}

def work():
    exec("press()\\ntime.sleep(60)", library)
""",
    "twice": """
def work():
    try:
        press()
        time.sleep(60)
    finally:
        press()
        time.sleep(60)
""",
    "beside a thread that goes on": """
import concurrent.futures

def work():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 60)
        press()
        time.sleep(60)
""",
}


@pytest.mark.parametrize("way", WORK)
def test_an_interrupt_is_one_sentence_and_its_status(way):
    assert python(COMMAND.format(work=WORK[way])) == (130, "", "mfabric: interrupted.\n")


def test_an_interrupt_that_is_ignored_stays_so():
    """As in the background of a shell that is no terminal."""
    work = "def work():\n    press()\n    time.sleep(0.01)\n    print('done')"
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + COMMAND.format(work=work)
    assert python(code) == (0, "done\n", "")


@pytest.mark.parametrize("end", ["sys.exit()", "sys.exit(0)", "raise SystemExit"])
def test_code_that_ends_the_program_is_named(end):
    status, out, said = python(COMMAND.format(work=f"def work():\n    {end}"))
    assert (status, out) == (2, "")
    assert said == "mfabric: code that this command ran, such as your own policy, ended the process (SystemExit).\n"


def test_a_fault_is_told_with_all_of_it():
    status, _, said = python(COMMAND.format(work="def work():\n    1 / 0"))
    assert status == 1
    assert said.startswith("Traceback")
    assert said.endswith("ZeroDivisionError: division by zero\n")


def test_what_was_registered_for_the_end_is_done():
    work = "import atexit\natexit.register(print, 'the end')\n\ndef work():\n    print('done')\n    return 1"
    assert python(COMMAND.format(work=work)) == (1, "done\nthe end\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["compare", "train"])
def test_interrupts_at_random_moments(command):
    """More of them, of more commands: `python -m tests.interrupts`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        found = interrupts_of(command, 5, seed=1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == {"good": 5}
