"""What a program is once it is compiled for a GPU: launches and loops, registers, memory, bytes that it moves.

    python compiled.py TARGET PATH SERVERS BATCH FOLDER [--commands]

One program a process, for XLA is told where to leave its files before it starts. Prints JSON, a `Found`.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

CONTROL = {"kWhile", "kConditional", "kSequential", "kDynamicSliceFusion", "kCommandBuffer"}  # what launches nothing


@dataclasses.dataclass
class Loop:
    """A while loop: launches of its body and condition, without those of loops within.

    - `moved`: bytes that these read and write.   - `trips`: 0 where the number is not known before it runs.
    - `recorded`: inside a command buffer, where no predicate goes to the host.
    """

    launches: int = 0
    moved: int = 0
    trips: int = 0
    recorded: bool = False
    loops: list["Loop"] = dataclasses.field(default_factory=list)

    def all(self) -> Iterator["Loop"]:
        """It and the loops within."""
        yield self
        for loop in self.loops:
            yield from loop.all()


@dataclasses.dataclass
class Found:
    """A compiled program.

    - `entry`: outside of loops, and the loops there.   - `compile_s`: CPU seconds.   - `device_bytes`: arguments,
      results and temporaries.   - `registers`, `spilled_bytes`, `shared_bytes`: most of a kernel.   - `kernels`:
      registers, spilled and shared bytes, instructions of fused ones, by name.   - `doubles`: arrays of float64.
    """

    entry: Loop
    compile_s: float
    device_bytes: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    doubles: int
    kernels: dict[str, dict[str, int]]


def found_in(text: str) -> Found:
    """From JSON."""

    def loop(value: dict) -> Loop:
        return Loop(**value | {"loops": [loop(one) for one in value["loops"]]})

    value = json.loads(text)
    return Found(**value | {"entry": loop(value["entry"])})


def launches_in(text: str) -> Loop:
    """The loops of a dumped sequence of thunks, by its indents."""
    root = Loop()
    stack: list[tuple[int, Loop, bool]] = [(-1, root, False)]
    for line in text.splitlines():
        match = re.match(r"(\s*)\d+: (k\w+)", line)
        if not match:
            continue
        indent, kind = len(match[1]), match[2]
        while stack[-1][0] >= indent:
            stack.pop()
        _, at, recorded = stack[-1]
        if kind == "kWhile":
            loop = Loop(recorded=recorded)
            at.loops.append(loop)
            stack.append((indent, loop, recorded))
        elif kind == "kCommandBuffer":
            stack.append((indent, at, True))
        elif kind not in CONTROL:
            at.launches += 1
    return root


FREE = {"parameter", "tuple", "get-tuple-element", "bitcast", "constant", "after-all"}
BYTES = {"pred": 1, "s8": 1, "u8": 1, "f16": 2, "bf16": 2, "s16": 2, "u16": 2, "s64": 8, "u64": 8, "f64": 8, "c64": 8}
SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=([^,\s]+)|to_apply=([^,\s]+)")
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?(\S+) = (.*?) ([\w-]+)\((.*)")


def _size(shapes: str) -> int:
    """Bytes of all arrays in a shape."""
    total = 0
    for kind, dims in SHAPE.findall(shapes):
        total += BYTES.get(kind, 4) * math.prod(int(dim) for dim in dims.split(",") if dim)
    return total


def moved_in(text: str) -> Loop:
    """The loops of optimised HLO with the bytes that their kernels read and write, each operand once and whole."""
    bodies: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith("{"):
            name = "ENTRY" if line.startswith("ENTRY") else line.split()[0].lstrip("%")
            bodies[name] = []
        elif bodies:
            bodies[next(reversed(bodies))].append(line)

    def loop_of(*names: str) -> Loop:
        loop = Loop()
        for name in names:
            sizes: dict[str, int] = {}
            for match in filter(None, map(INSTRUCTION.match, bodies[name])):
                result, shape, kind, rest = match.groups()
                sizes[result] = _size(shape)
                if kind == "while":
                    inner = re.search(r"condition=%?([\w.-]+), body=%?([\w.-]+)", rest)
                    assert inner
                    trips = re.search(r'known_trip_count":{"n":"(\d+)', rest)
                    loop.loops.append(loop_of(inner[2], inner[1]))
                    loop.loops[-1].trips = int(trips[1]) if trips else 0
                elif kind in ("conditional", "call"):
                    named = BRANCHES.findall(rest)
                    branches = re.findall(r"[\w.-]+", " ".join(" ".join(part) for part in named))
                    inner = loop_of(*(branch for branch in branches if branch in bodies))
                    loop.moved, loop.loops = loop.moved + inner.moved, loop.loops + inner.loops
                elif kind not in FREE:
                    operands = re.findall(r"%([\w.-]+)", rest.split("), ")[0])
                    loop.moved += sizes[result] + sum(sizes.get(operand, 0) for operand in operands)
        return loop

    return loop_of("ENTRY")


def _join(launched: Loop, moved: Loop) -> None:
    """Bytes and known numbers of trips into the loops of the launches, which come in the same order."""
    launched.moved, launched.trips = moved.moved, moved.trips
    for one, other in zip(launched.loops, moved.loops, strict=True):
        _join(one, other)


def _resources(ptx: pathlib.Path, architecture: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Of every kernel of a file, by the assembler's own report."""
    cubin = ptx.with_suffix(".cubin")
    command = [_tool("ptxas"), "-v", f"-arch={architecture}", str(ptx), "-o", str(cubin)]
    report = subprocess.run(command, capture_output=True, text=True).stderr
    lengths = _lengths(cubin) if "star_" in report and cubin.exists() else {}
    for name, text in re.findall(r"Compiling entry function '(\S+)'(.*?)(?=Compiling entry|\Z)", report, re.S):
        spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
        registers, shared = re.search(r"Used (\d+) registers", text), re.search(r"(\d+) bytes smem", text)
        yield (
            name,
            {
                "registers": int(registers[1]) if registers else 0,
                "spilled": sum(int(part) for part in spilled.groups()) if spilled else 0,
                "shared": int(shared[1]) if shared else 0,
                **lengths.get(name, {}),
            },
        )


def _lengths(cubin: pathlib.Path) -> dict[str, dict[str, int]]:
    """Instructions of an event (its loop without that of filling) and of a step of filling, of each fused kernel."""
    text = subprocess.run([_tool("nvdisasm"), str(cubin)], capture_output=True, text=True).stdout
    parts = re.split(r"\.section\s+\.text\.(\S+?),", text)
    found = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        loops = _loops(body)
        event = max(loops, key=lambda loop: loop[1] - loop[0], default=(0, 0))
        inside = [loop for loop in loops if loop != event and event[0] <= loop[0] and loop[1] <= event[1]]
        fill = max(inside, key=lambda loop: loop[1] - loop[0], default=(0, 0))
        steps = fill[1] - fill[0]
        found[name] = {"event": event[1] - event[0] - steps, "fill": steps}
    return found


def _loops(body: str) -> list[tuple[int, int]]:
    """Places of first and last instructions of what branches back, in disassembled code; what is behind its end is for
    threads that have come apart, and branches back to where they did."""
    at, labels, loops = 0, {}, []
    for line in body.splitlines():
        label = re.match(r"\s*(\.L_\w+):", line)
        if label:
            labels[label[1]] = at
        instruction = re.search(r"/\*[0-9a-f]{4,}\*/\s*(.*)", line)
        if instruction:
            at += 1
            to = re.search(r"\bBRA\b.*\((\.L_\w+)\)", line)
            if to and to[1] in labels:
                loops.append((labels[to[1]], at))
            if instruction[1].startswith("EXIT"):
                break
    return loops


def _tool(name: str) -> str:
    """A program of the CUDA wheels."""
    for folder in sorted(pathlib.Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/bin")):
        if (folder / name).exists():
            return str(folder / name)
    raise SystemExit(f"{name} is not there: make gpu-check installs it.")


def measured(target: str, case, folder: pathlib.Path) -> Found:
    """Compiles it; XLA_FLAGS name the folder already."""
    import paths
    import targets

    from mfabric_jax.support.platforms import compiling_for

    device = targets.device(target)
    began = time.process_time()
    with compiling_for("gpu"):
        program = paths.lowered(case, device).compile()
    spent = time.process_time() - began
    memory = program.memory_analysis()
    (sequence,) = _largest(folder.glob("*thunk_sequence_after_thunk_passes.txt"))
    kernels: dict[str, dict[str, int]] = {}
    for ptx in sorted(folder.glob("*.ptx")):
        for name, cost in _resources(ptx, targets.ARCHITECTURE[target]):
            kernels[name] = cost
    sizes = memory.temp_size_in_bytes, memory.argument_size_in_bytes, memory.output_size_in_bytes
    most = {key: max((cost[key] for cost in kernels.values()), default=0) for key in ("registers", "spilled", "shared")}
    heavy = {name: cost for name, cost in kernels.items() if name.startswith("star") or cost["spilled"]}
    for name, threads in re.findall(r"(star\w*) grid: .* threads: \[(\d+)", sequence.read_text()):
        heavy[name]["threads"] = int(threads)
    entry = launches_in(sequence.read_text())
    (optimised,) = _largest(folder.glob("*gpu_after_optimizations.txt"))
    program_text = optimised.read_text()
    _join(entry, moved_in(program_text))
    return Found(
        entry, spent, sum(sizes), most["registers"], most["spilled"], most["shared"], program_text.count(" f64["), heavy
    )


def _largest(files) -> list[pathlib.Path]:
    return sorted(files, key=lambda file: file.stat().st_size)[-1:]


def main() -> None:
    """One program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in (("target", str), ("path", str), ("servers", int), ("batch", int), ("folder", pathlib.Path)):
        parser.add_argument(name, type=kind)
    parser.add_argument(
        "--commands", action="store_true", help="loops inside command buffers, as the command line has them"
    )
    asked = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"  # before anything imports JAX
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
    from mfabric_jax.support.platforms import RECORDED

    shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True)
    flags = [f"--xla_dump_to={asked.folder}", "--xla_dump_hlo_as_text", RECORDED if asked.commands else ""]
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags])
    import paths

    found = measured(asked.target, paths.Case(asked.path, asked.servers, asked.batch), asked.folder)
    print(json.dumps(dataclasses.asdict(found)))


if __name__ == "__main__":
    main()
