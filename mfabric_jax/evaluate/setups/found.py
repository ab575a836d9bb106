"""Set-ups that searches found, kept on disk by the digest of their cases: the same question is searched once."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mfabric_jax.case import Case, CaseBlock, Cases
from mfabric_jax.case.paths import file_settings, flat
from mfabric_jax.case.policies import file_of
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.resolving.resolve import GLOBAL, SEARCHED, TP_REDUCES, is_open, resolve_without_jax
from mfabric_jax.evaluate.setups.blocks import statement_of as statement_of
from mfabric_jax.evaluate.setups.search import SearchResult, SetUpSearch
from mfabric_jax.fabric.parts_list import Ocs, get_ocs
from mfabric_jax.support import programs
from mfabric_jax.support.atomic import replacing
from mfabric_jax.workload.kernels import USUAL_DISPATCHER
from mfabric_jax.workload.schedules import SCHEDULES
from mfabric_jax.workload.space import OPEN, OpenJob, SetUp

ONE_FABRIC = "fat-tree"  # where the set-up of `job.search = one` is found: no link is shared
OF_NICS = (
    *("network.nic_gbps", "network.rails.speeds", "network.nics", "network.nic_use"),
    *("network.alpha_s", "network.link_delay_s"),
)
UNREAD = ("serving.", "failures.", "network.prices", "job.training_tokens", "job.search")
FOLDER = "setups"


def find(base: Case, job: OpenJob, search: str, recipe: Mapping[str, Any]) -> SearchResult:
    """Return the best set-ups of a case whose other values are all stated.

    - `search`: "each", on the fabric of the case, or "one", on a non-blocking fat-tree.
    - `recipe`: fields of the makers' set-up; it is timed beside those that are found.

    Raise `Misfit` if no set-up is legal, fits the memory and runs.
    """
    there, seed = on_one_fabric(base), _seed(job, recipe)
    of_one = _find(there, job, None, seed)
    if search == "one" or _key(there, job) == _key(base, job):
        return msgspec.structs.replace(of_one, one_s=of_one.seconds)
    return _find(base, job, of_one.best, seed)


def _seed(job: OpenJob, recipe: Mapping[str, Any]) -> SetUp | None:
    """Return the set-up of a recipe; None if it does not state degrees that suit the job."""
    own = {"cp": 1, "micro_batch": 1, "schedule": "1f1b", "dispatch": "per-expert", "recompute": OPEN} | dict(recipe)
    if not {"tp", "ep", "pp"} <= own.keys():
        return None
    own.setdefault("etp", own["tp"])
    order = SCHEDULES[own["schedule"]]
    own.setdefault("chunks", order.chunks or 2)
    own.setdefault("overlap", "passes" if order.overlap else "none")
    own.setdefault("dispatcher", job.stated.get("dispatcher", USUAL_DISPATCHER[own["dispatch"]]))
    dp, remainder = divmod(job.gpus, own["etp"] * own["ep"] * own["pp"])
    shared = own["cp"] * (own["tp"] // own["etp"])
    if remainder or job.batch is None or job.batch * shared % (own["micro_batch"] * own["ep"] * dp):
        return None
    own |= {"dp": dp, "micro_batches": job.batch * shared // (own["micro_batch"] * own["ep"] * dp)}
    return SetUp(**own)


def on_one_fabric(base: Case) -> Case:
    """Return the case on a non-blocking fat-tree with the same NICs."""
    kept = {path: value for path, value in flat(base).items() if path in OF_NICS and value is not None}
    usual = msgspec.structs.replace(base, network=Case().network, circuits=Case().circuits)
    return usual.with_(kept | {"network.fabric": ONE_FABRIC})


BANDWIDTH = "network.nic_gbps"


def settle(every: Cases, progress: Callable[[str], None] = lambda words: None) -> Cases:
    """Return the cases with the set-ups that searches find stated; each NIC bandwidth has its own.

    `progress`: called with words before each search.
    """
    if not any(is_open(block.case) for block in every.blocks):
        return every
    blocks, sources = [], dict(every.sources)
    for block in itertools.chain.from_iterable(map(_by_bandwidth, every.blocks)):
        network = block.case.network
        if is_open(block.case):
            progress(f"{block.case.model.name} on {network.fabric} {network.nic_gbps:g} Gbps, {block.case.gpu.name}")
        try:
            resolved = resolve_without_jax(block.case)
        except Misfit:  # whoever evaluates it says so, or leaves it out
            resolved = None
        if resolved is None or resolved.searched is None:
            blocks.append(block)
            continue
        values = flat(resolved.case)
        stated = {path: values[path] for path in (*SEARCHED, TP_REDUCES) if values.get(path) is not None}
        del stated["job.parallel.dp"]
        stated |= {"job.parallel.gpus": resolved.job.gpus, GLOBAL: values[GLOBAL], "job.search": "recipe"}
        sources |= {path: "search" for path in stated if flat(block.case).get(path) in (None, "fit")}
        blocks.append(dataclasses.replace(block, case=block.case.with_(stated)))
    return dataclasses.replace(every, blocks=tuple(blocks), sources=sources)


def findings(every: Cases) -> Iterator[tuple[Case, SearchResult]]:
    """Yield what searches found for cases whose set-up is open, by NIC bandwidth."""
    for block in itertools.chain.from_iterable(map(_by_bandwidth, every.blocks)):
        searched = resolve_without_jax(block.case).searched
        if searched is not None:
            yield block.case, searched


def _by_bandwidth(block: CaseBlock) -> Iterator[CaseBlock]:
    """Yield the cases of a block by NIC bandwidth, if a search depends on it."""
    column = block.columns.get(BANDWIDTH)
    if column is None or not is_open(block.case):
        yield block
        return
    for gbps in dict.fromkeys(column):
        rows = [row for row, value in enumerate(column) if value == gbps]
        columns = {path: tuple(values[row] for row in rows) for path, values in block.columns.items()}
        yield dataclasses.replace(block, case=block.case.with_({BANDWIDTH: gbps}), columns=columns)


_memory: dict[str, SearchResult] = {}


def _find(base: Case, job: OpenJob, of_one: SetUp | None, recipe: SetUp | None) -> SearchResult:
    key = _key(base, job)
    if key not in _memory:
        kept = _read(key)
        if kept is None:
            kept = SetUpSearch(base, job).find(of_one, recipe)
            _write(key, kept)
        _memory[key] = kept
    return _memory[key]


def _key(base: Case, job: OpenJob) -> str:
    """A digest of everything that decides a search."""
    values = {path: value for path, value in flat(base).items() if not path.startswith(UNREAD)}
    named = (value for path, value in values.items() if path in file_settings() and isinstance(value, str))
    files = {name: _digest(Path(file_of(name))) for name in sorted(named)}
    open_job = sorted(job.stated.items()), job.gpus, job.batch, job.frameworks
    decided = values, open_job, files, _switch(base), programs.sources_digest()
    return hashlib.sha256(repr(decided).encode()).hexdigest()


def _switch(base: Case) -> Ocs | None:
    """Return the optical switch of a case without its dollars and watts: all that a search reads of a price file."""
    if base.circuits.ocs is None:
        return None
    switch = get_ocs(base.circuits.ocs, base.network.prices)
    return dataclasses.replace(switch, usd=None, usd_per_port=None, watts=None, watts_per_port=None, source="")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def folder() -> Path | None:
    """Return the folder of found set-ups, in that of programs; None: they are not kept."""
    where = programs.usual_folder()
    return where and where / FOLDER


def _read(key: str) -> SearchResult | None:
    where = folder()
    try:
        return where and msgspec.json.decode((where / f"{key}.json").read_bytes(), type=SearchResult)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(key: str, searched: SearchResult) -> None:
    where = folder()
    if where is None:
        return
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(where / f"{key}.json") as (part,):
            part.write_bytes(msgspec.json.encode(searched))
    except OSError:
        return
