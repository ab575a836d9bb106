"""What is read from programs compiled for a GPU: launches and loops, bytes, loops of disassembled kernels, seconds."""

import importlib
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "benchmarks" / "gpu_check"


@pytest.fixture
def script(monkeypatch):
    """A module of that folder by its name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("compiled", "estimate", "check"):
        sys.modules.pop(name, None)


THUNKS = """001: kCopy         [source | next=002] kCopy
002: kWhile        [prev=001]
condition:
    003: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1] threads: [1, 1, 1]
  body:
    004: kCommandBuffer [source | sink]
        005: kCustomKernel [source] fusion_1 grid: [1, 1, 1] threads: [1, 1, 1]
        006: kWhile [prev=005]
condition:
            007: kCustomKernel [source | sink] fusion_2 grid: [1, 1, 1] threads: [1, 1, 1]
          body:
            008: kCopy [source | sink] kCopy
009: kCustomKernel [prev=002] fusion_3 grid: [1, 1, 1] threads: [1, 1, 1]
"""

HLO = """HloModule jit_f
%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %y = f32[4,8]{1,0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%p, %y)
}

%test (q: (s32[], f32[4,8])) -> pred[] {
  %q = (s32[], f32[4,8]{1,0}) parameter(0)
  ROOT %less = pred[] fusion(%q), kind=kLoop, calls=%fused_less
}

ENTRY %main (a: f32[4,8]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  %b = bf16[16]{0} custom-call(%a), custom_call_target="f"
  %w = (s32[], f32[4,8]{1,0}) while(%a), condition=%test, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  %c = f32[] conditional(%b, %w, %w), true_computation=%body, false_computation=%test, metadata={}
  ROOT %r = f32[4,8]{1,0} get-tuple-element(%w), index=1
}
"""

SASS = """.L_x_0:
        /*0000*/ MOV R1, R2 ;
.L_x_1:
        /*0010*/ FADD R1, R1, R2 ;
        /*0020*/ @P0 BRA `(.L_x_1) ;
        /*0030*/ FMUL R1, R1, R2 ;
        /*0040*/ @P1 BRA `(.L_x_0) ;
        /*0050*/ BRA `(.L_x_2) ;
.L_x_2:
        /*0060*/ EXIT ;
        /*0070*/ BRA `(.L_x_0) ;
"""


def test_launches_are_counted_in_their_loops(script):
    entry = script("compiled").launches_in(THUNKS)
    (outer,) = entry.loops
    (inner,) = outer.loops
    assert [loop.launches for loop in (entry, outer, inner)] == [2, 2, 2]
    assert [outer.recorded, inner.recorded] == [False, True]  # the inner one's predicate stays on the device


def test_bytes_are_those_of_operands_and_results(script):
    entry = script("compiled").moved_in(HLO)
    (loop,) = entry.loops
    assert loop.trips == 12
    body, condition = 2 * 128, 1 + 4 + 128
    assert loop.moved == body + condition
    assert entry.moved == (128 + 32) + body + condition  # the branches of a conditional are counted where it stands


def test_loops_of_a_kernel_are_what_branches_back(script):
    assert script("compiled")._loops(SASS) == [(1, 3), (0, 5)]


def test_seconds_of_a_program_by_hand(script):
    estimate, Loop = script("estimate"), script("compiled").Loop
    fills, chunks = Loop(launches=5, recorded=True), Loop(launches=1, trips=4)
    events = Loop(launches=3, moved=1000, loops=[fills])
    chunks.loops = [events]
    entry = Loop(launches=2, loops=[chunks])
    # 4 chunks of 10 events of 7 steps: the loop of events is left 4 times, too.
    launches = 2 + 4 * (1 + 10 * (3 + 7 * 5))
    expected = launches * estimate.LAUNCH_S + 4 * 10 * 1000 / estimate.MEMORY_BPS + 4 * 11 * estimate.PREDICATE_S
    assert estimate.seconds_of(entry, [10, 7]) == pytest.approx(expected, rel=1e-12)


def test_a_program_above_its_ceilings_is_told(script, monkeypatch, capsys, tmp_path):
    check = script("check")
    seen = {"launches": 3.0, "registers": 40}
    monkeypatch.setattr(check, "CEILINGS", tmp_path / "ceilings.json")
    monkeypatch.setattr(check, "_seen", lambda *given: dict(seen))
    words = ["check.py", "--targets", "H100", "--paths", "policy-greedy"]

    def run(*more):
        monkeypatch.setattr(sys, "argv", [*words, *more])
        return check.main(), capsys.readouterr().out.splitlines()[-1]

    assert run()[0] == 1  # no ceilings yet
    assert run("--keep") == (0, "1 paths compiled, 0 over their ceilings, 0 skipped")
    seen["registers"] = 41
    assert run() == (1, "1 paths compiled, 1 over their ceilings, 0 skipped")
    monkeypatch.setattr(check, "_seen", lambda *given: "no CUDA here")
    assert run() == (3, "0 paths compiled, 0 over their ceilings, 1 skipped")
