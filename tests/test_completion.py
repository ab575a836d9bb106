"""Completion of command lines: what the schema knows is offered, and a shell gets it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mfabric_jax.case.paths import settings
from mfabric_jax.case.policies import NAMES as POLICIES
from mfabric_jax.commands import COMMANDS, OF_CASES
from mfabric_jax.commands.completion import SCRIPTS, completions
from mfabric_jax.commands.words import flags_of_cases
from mfabric_jax.workload import NAMES as MODELS


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mfabric comp", ["compare", "completion"]),
        ("mfabric compare --fab", ["--fabric"]),
        ("mfabric compare --fabric fat-tree,mf", ["fat-tree,mfabric", "fat-tree,mfabric-cpo"]),
        ("mfabric compare --fabric=aco", ["--fabric=acos"]),
        ("mfabric compare --model ", list(MODELS)),
        ("mfabric compare --policy ", list(POLICIES)),
        ("mfabric compare --set network.fab", ["network.fabric="]),
        ("mfabric compare --set circuits.reconfigure=p", ["circuits.reconfigure=predict", "circuits.reconfigure=pays"]),
        ("mfabric compare --set job.schedule=zb", ["job.schedule=zb-h1", "job.schedule=zb-v"]),
        ("mfabric compare --set circuits.schedule=sol", ["circuits.schedule=solstice"]),
        ("mfabric compare --set run.sample=", []),
        ("mfabric compare --help network.fab", ["network.fabric"]),
        ("mfabric validate t", ["training"]),
        ("mfabric traces s", ["study"]),
        ("mfabric draw mfab", ["mfabric", "mfabric-cpo"]),
        ("mfabric compare cas", []),  # a file: the shell's own completion
        ("mfabric nonsense --fab", []),
    ],
)
def test_words_that_may_follow(line, words):
    assert list(completions(line)) == words


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_offered(command):
    offered = completions(f"mfabric {command} --")
    assert "--help" in offered
    if command in OF_CASES:
        assert set(flags_of_cases(command)) <= set(offered)


def test_every_setting_is_offered():
    assert {path + "=" for path in settings()} == set(completions("mfabric show --set "))


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("mfabric compare --fabric fat-tree,mfabric-", ["fat-tree,mfabric-cpo"]),
        ("mfabric compare --set network.fabric=mfabric-", ["mfabric-cpo"]),  # bash has cut the word at "="
        ("mfabric rer", ["rerun"]),
    ],
)
def test_bash_replaces_the_word_before_the_cursor(line, replies):
    bin_folder = Path(sys.executable).parent
    words = line.replace("=", " = ").split(" ")
    script = (
        f"compopt() {{ :; }}\n{SCRIPTS['bash']}\nCOMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}\n"
        f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}; _mfabric\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.split("\n")[:-1] == replies, done.stderr
