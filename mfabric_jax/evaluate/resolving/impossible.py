"""Sentences that refuse degrees which no set-up has: the rule that they break, and changes of one value that pass."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.quick import (
    legal_degrees,
    near,
    plain_degrees,
    whatever_the_batch,
)
from mfabric_jax.workload.space import MOST_STAGES, OpenJob, SetUp, divisors

DEGREES = ("tp", "etp", "ep", "dp", "pp")
NEAR_SERVERS = (0, 1, -1, 2, -2, 4, -4, 8, -8)  # servers to add in suggestions
TIMES = (1, 2, 4, 8)  # factors of the stated GPUs in suggestions


def refusal(job: OpenJob, *, sized: bool = True) -> InputError:
    """Return the error for a job that no set-up has. `sized`: whether its number of GPUs is stated."""
    stated = _is_stated(job, sized)
    words = ", ".join(f"{name} {value}" for name, value in stated.items()) or "such degrees"
    every = list(plain_degrees(whatever_the_batch(job)))
    steps = {
        candidate.micro_batch * candidate.ep * candidate.dp * candidate.etp // (candidate.cp * candidate.tp)
        for candidate in every
    }
    if job.batch is not None and every and all(job.batch % step for step in steps):
        down = job.batch // min(steps)
        instead = " or ".join(str(times * min(steps)) for times in (down, down + 1) if times)
        return InputError(f"no set-up with {words} divides global_batch {job.batch}; {instead} would do.")
    mistakes = [mistake for candidate in plain_degrees(job) if (mistake := _mistake(job, candidate))]
    if len(every) == 1 and mistakes:
        return InputError(mistakes[0])
    why = max(mistakes, key=mistakes.count).rstrip(".") if mistakes else _broken_rule(job, stated)
    passing = " or ".join(_passing(job, stated))
    return InputError(f"no set-up has {words}: {why}{f'; {passing} would do' if passing else ''}.")


def _is_stated(job: OpenJob, sized: bool) -> dict[str, int]:
    stated = {name: job.stated[name] for name in DEGREES if name in job.stated}
    if stated.get("etp") == stated.get("tp"):
        stated.pop("etp", None)
    return stated | ({"gpus": job.gpus} if sized else {})


def _mistake(job: OpenJob, degrees: SetUp) -> str:
    """The error of a workload with these degrees; empty if it is valid."""
    kind = {name: value for name, value in job.stated.items() if name not in DEGREES}
    try:
        job.workload(degrees._replace(**kind))
    except InputError as mistake:
        return str(mistake)
    return ""


def _broken_rule(job: OpenJob, stated: Mapping[str, int]) -> str:
    """The first rule of degrees that the stated ones break."""
    per_server, gpus, model = job.gpu.gpus_per_server, stated.get("gpus"), job.architecture
    tp, ep, pp, dp = (stated.get(name) for name in ("tp", "ep", "pp", "dp"))
    cp, etp_name = job.stated.get("cp", 1), "etp" if "etp" in stated else "tp"
    shared = cp * (tp // stated["etp"] if tp and "etp" in stated else 1)
    if tp is not None and per_server % tp:
        return f"tp must divide the {per_server} GPUs of a server"
    if ep is not None and model.experts % ep:
        return f"ep must divide the {model.experts} experts"
    eps = [ep for ep in job.some("ep", divisors(model.experts)) if ep % shared == 0]
    if not eps or job.fields["sequence"] % shared:
        what = f"cp {cp}" if shared == cp else f"cp x tp / etp = {shared}"
        return f"{what} must divide ep and the {job.fields['sequence']} tokens of a sequence"
    splits = [stated["etp"]] if "etp" in stated else job.some("tp", divisors(per_server))
    groups = [etp * ep for etp in splits for ep in eps]
    groups = [group for group in groups if group % per_server == 0 or per_server % group == 0]
    if not groups:
        return f"{etp_name} x ep must be a multiple or a divisor of the {per_server} GPUs of a server"
    if gpus is not None and gpus % per_server:
        return f"gpus must fill whole servers of {per_server}"
    if gpus is not None and not any(gpus % (group * (pp or 1) * (dp or 1)) == 0 for group in groups):
        return f"gpus must be a multiple of {etp_name} x ep x pp x dp"
    if dp is not None and not any(dp * group % per_server == 0 for group in groups):
        whole = f"{etp_name} x ep x dp must be a multiple of {per_server} GPUs"
        return f"a pipeline stage fills whole servers, so {whole}"
    if gpus is not None and pp is not None and gpus % (pp * per_server):
        return (
            f"a pipeline stage fills whole servers of {per_server} GPUs, so gpus must be a multiple of "
            f"pp x {per_server} = {pp * per_server}"
        )
    product = f"gpus must be {etp_name} x ep x dp x pp"
    if gpus is not None and pp is not None and dp is not None and all(gpus != pp * dp * group for group in groups):
        return product
    return f"{product}, of stages that fill whole servers of {per_server} GPUs and at most {_deepest(job)} stages"


def _deepest(job: OpenJob) -> int:
    return min(job.architecture.blocks // job.stated.get("chunks", 1), MOST_STAGES)


def _passing(job: OpenJob, stated: Mapping[str, int]) -> Iterator[str]:
    """Yield near values that pass if only one stated value changes, such as "pp 1" and "gpus 32 or 64"."""
    for name, values in _changes(job, stated).items():
        if name in stated:
            closest = sorted(values, key=lambda value, name=name: abs(math.log(value / stated[name])))
            passes = (value for value in closest if _is_possible(job, stated, {name: value}))
            some = sorted(itertools.islice(passes, 2 if name == "gpus" else 1))
            if some:
                yield f"{name} {' or '.join(map(str, some))}"


def _changes(job: OpenJob, stated: Mapping[str, int]) -> dict[str, Sequence[int]]:
    per_server, gpus = job.gpu.gpus_per_server, stated.get("gpus", 0)
    steps = per_server, per_server * stated.get("pp", 1)
    sizes = {(gpus // step + more) * step for step in steps for more in NEAR_SERVERS}
    return {
        "tp": divisors(per_server),
        "etp": divisors(stated.get("tp", per_server)),
        "ep": divisors(job.architecture.experts),
        "pp": range(1, _deepest(job) + 1),
        "dp": range(1, 2 * stated.get("dp", 1) + per_server + 1),
        "gpus": sorted(size for size in sizes | {gpus * times for times in TIMES} if size > 0),
    }


def _is_possible(job: OpenJob, stated: Mapping[str, int], changed: Mapping[str, int]) -> bool:
    own = {**job.stated, **{name: value for name, value in changed.items() if name != "gpus"}}
    if "etp" in own and "etp" not in stated:
        own["etp"] = own["tp"]
    job = dataclasses.replace(job, stated=own, gpus=changed.get("gpus", job.gpus))
    job = job if "gpus" in stated else near(job)
    return not all(_mistake(job, set_up) for set_up in legal_degrees(job))
