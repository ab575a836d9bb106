"""Compiles every hot path for GPUs that are not there, and compares what comes out with committed ceilings.

    make gpu-check
    python benchmarks/gpu_check/check.py [--targets H100 A100] [--paths star greedy] [--keep]

As the command line runs them, with loops inside command buffers. Launches over all loops, loops whose predicate the
host reads, registers, spilled and shared bytes, memory, CPU seconds of compiling, arrays of float64. The last line: N
paths compiled, M over their ceilings, K skipped. Exit 1 where one is over, 3 where one was skipped, for that is no
pass. `--keep` writes what was seen as the ceilings.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
CEILINGS = HERE / "ceilings.json"
SLACK = {"device_mib": 1.1}  # over what was seen; the rest exactly
COMPILE_S = 60.0  # of CPU, at most
Seen = dict[str, float]


def main() -> int:
    """Prints a line for each program."""
    import paths
    import targets

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(targets.FIGURES), choices=list(targets.FIGURES))
    parser.add_argument("--paths", nargs="+", default=list(paths.PATHS), choices=list(paths.PATHS))
    parser.add_argument("--keep", action="store_true", help="write what was seen as the ceilings")
    asked = parser.parse_args()
    chosen = [(name, case) for name in asked.targets for case in paths.CASES if case.path in asked.paths]
    ceilings = json.loads(CEILINGS.read_text()) if CEILINGS.exists() else {}
    over, skipped = 0, 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool, tempfile.TemporaryDirectory() as folder:
        jobs = [
            pool.submit(_seen, name, case, pathlib.Path(folder) / f"{at}") for at, (name, case) in enumerate(chosen)
        ]
        for (name, case), job in zip(chosen, jobs, strict=True):
            seen, key = job.result(), f"{name}, {case}"
            if isinstance(seen, str):
                skipped += 1
                print(f"{key}: skipped, {seen}", flush=True)
                continue
            if asked.keep:
                ceilings[key] = {field: _ceiling(field, value) for field, value in seen.items()}
            above = [
                f"{field} {value:g} over {ceilings.get(key, {}).get(field, 'none')}"
                for field, value in seen.items()
                if value > ceilings.get(key, {}).get(field, -1)
            ]
            over += bool(above)
            words = ", ".join(f"{field} {value:g}" for field, value in seen.items())
            print(f"{key}: {words}{'; OVER: ' + ', '.join(above) if above else ''}", flush=True)
    if asked.keep:
        CEILINGS.write_text(json.dumps(ceilings, indent=1) + "\n")
    print(f"{len(chosen) - skipped} paths compiled, {over} over their ceilings, {skipped} skipped")
    return 1 if over else 3 if skipped else 0


def _ceiling(field: str, value: float) -> float:
    if field == "compile_s":
        return COMPILE_S
    return round(value * SLACK.get(field, 1), 1)


def _seen(target: str, case, folder: pathlib.Path) -> Seen | str:
    """What is compared, or why there is nothing."""
    import compiled

    words = [
        sys.executable,
        str(HERE / "compiled.py"),
        target,
        case.path,
        str(case.servers),
        str(case.batch),
        str(folder),
        "--commands",
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no reason given"])[-1][:300]
    found = compiled.found_in(done.stdout.splitlines()[-1])
    loops = list(found.entry.all())[1:]
    return {
        "launches": found.entry.launches,
        "launches_in_loops": sum(loop.launches for loop in loops),
        "loops": len(loops),
        "host_predicates": sum(not loop.recorded and not loop.trips for loop in loops),
        "serial_chunks": found.entry.loops[0].trips if len(found.entry.loops) == 1 else 0,
        "registers": found.registers,
        "spilled": found.spilled_bytes,
        "shared": found.shared_bytes,
        "device_mib": round(found.device_bytes / 2**20, 1),
        "doubles": found.doubles,
        "compile_s": round(found.compile_s, 1),
    }


if __name__ == "__main__":
    raise SystemExit(main())
