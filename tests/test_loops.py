"""Loops of the host are compiled once, whatever threads and folders do."""

import threading

import numpy as np
from numba.core.caching import FunctionCache

from mfabric_jax.support.loops import compile_loop, make_once

MADE = []


def added(x):
    return x + 1.0


@make_once
def slowly():
    MADE.append(1)
    threading.Event().wait(0.05)
    return object()


def test_threads_that_ask_at_once_make_it_once():
    found, start = [], threading.Barrier(4)

    def ask():
        start.wait()
        found.append(slowly())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(MADE) == 1
    assert len(set(map(id, found))) == 1


def test_a_loop_has_one_name_however_often_it_is_compiled():
    names = {compile_loop(added).__qualname__ for _ in range(3)}
    assert len(names) == 1
    assert names.pop().startswith("added_")


def test_without_a_folder_loops_are_compiled_in_each_process(monkeypatch):
    def nowhere(self, py_func):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(FunctionCache, "__init__", nowhere)
    assert compile_loop(added)(np.float64(1.0)) == 2.0


def test_a_full_disk_costs_time_alone(monkeypatch):
    def full(self, sig, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FunctionCache, "save_overload", full)
    monkeypatch.setattr(FunctionCache, "load_overload", lambda self, sig, target: None)
    loop = compile_loop(added)
    assert loop(np.float64(1.0)) == 2.0
    assert loop(np.float64(2.0)) == 3.0
