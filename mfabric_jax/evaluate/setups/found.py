"""Set-ups that searches found, kept on disk by the digest of their cases: the same question is searched once."""

import hashlib
import os
from pathlib import Path

import msgspec

from mfabric_jax.case import Case
from mfabric_jax.case.paths import file_values, flat
from mfabric_jax.case.policies import file_of
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.setups.search import Found, Search
from mfabric_jax.support import programs
from mfabric_jax.support.atomic import replacing
from mfabric_jax.workload.space import OpenJob, SetUp

ONE_FABRIC = "fat-tree"  # where the set-up of `job.search = one` is found: no link is shared
OF_NICS = ("network.nic_gbps", "network.nics", "network.nic_use", "network.alpha_s", "network.link_delay_s")
UNREAD = ("serving.", "failures.", "network.prices", "job.training_tokens", "job.search", "run.replicas")
FOLDER = "setups"


def find(base: Case, job: OpenJob, search: str, recipe: SetUp | None = None) -> Found:
    """Return the best set-ups of a case whose other values are all stated.

    `search`: "each", on the fabric of the case, or "one", on a non-blocking fat-tree; `recipe`: timed for comparison.
    """
    there = on_one_fabric(base)
    one = _find(there, job, None, recipe)
    if search == "one" or _key(there, job) == _key(base, job):
        return one
    return _find(base, job, one.best, recipe)


def on_one_fabric(base: Case) -> Case:
    """Return the case on a non-blocking fat-tree with the same NICs."""
    kept = {path: value for path, value in flat(base).items() if path in OF_NICS and value is not None}
    usual = msgspec.structs.replace(base, network=Case().network, circuits=Case().circuits)
    return usual.with_(kept | {"network.fabric": ONE_FABRIC})


_memory: dict[str, Found] = {}


def _find(base: Case, job: OpenJob, one: SetUp | None, recipe: SetUp | None) -> Found:
    key = _key(base, job)
    if key not in _memory:
        kept = _read(key)
        if kept is None:
            kept = Search(base, job).find(one, recipe)
            _write(key, kept)
        _memory[key] = kept
    return _memory[key]


def _key(base: Case, job: OpenJob) -> str:
    """A digest of everything that decides a search."""
    values = {path: value for path, value in flat(base).items() if not path.startswith(UNREAD)}
    files = {name: _digest(Path(file_of(name))) for name in sorted(file_values(base))}
    decided = values, sorted(job.stated.items()), job.gpus, job.batch, job.frameworks, files, programs.sources_digest()
    return hashlib.sha256(repr(decided).encode()).hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def folder() -> Path | None:
    """Return the folder of found set-ups, beside that of programs; None: they are not kept."""
    named = os.environ.get("MFABRIC_PROGRAMS")
    if named is not None and named.lower() == "off":
        return None
    try:
        return (Path(named) if named else programs.cache_folder() / "programs") / FOLDER
    except InputError:
        return None


def _read(key: str) -> Found | None:
    where = folder()
    try:
        return where and msgspec.json.decode((where / f"{key}.json").read_bytes(), type=Found)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(key: str, found: Found) -> None:
    where = folder()
    if where is None:
        return
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(where / f"{key}.json") as (part,):
            part.write_bytes(msgspec.json.encode(found))
    except OSError:
        return
