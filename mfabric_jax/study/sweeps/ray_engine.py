"""A sweep on Ray: every worker is a process that makes shards; what a lost one was making, others make again."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from mfabric_jax.checks import InputError
from mfabric_jax.extras import extra
from mfabric_jax.study.sweeps.config import Shard, Sweep
from mfabric_jax.study.sweeps.run import Maker

MOST_LOST = 3  # workers lost over one shard: then it is the shard


class Worker:
    """One process; JAX is set up in it as in the one that asks."""

    def __init__(self, config: Sweep, folder: str, settings: dict[str, Any]):
        for name, value in settings.items():
            jax.config.update(name, value)
        self.maker = Maker(config, Path(folder))
        self.shards = config.shards

    def make(self, number: int) -> int:
        """Compute and write one shard; returns its number."""
        self.maker.make(self.shards[number])
        return number

    def process(self) -> int:
        """Its number."""
        return os.getpid()


def run_on_ray(
    config: Sweep, folder: Path, todo: Sequence[Shard], workers: int | None, finished: Callable[[Shard], None]
) -> None:
    """Make these shards. `InputError` where one takes several workers with it, or cannot be written."""
    with extra("cluster", "engine 'ray'"):
        import ray
    if not todo:
        return
    ours = not ray.is_initialized()
    if ours:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, num_cpus=workers)
    try:
        _Pool(ray, config, folder, workers).run({one.number: one for one in todo}, finished)
    finally:
        if ours:
            ray.shutdown()


class _Pool:
    def __init__(self, ray: Any, config: Sweep, folder: Path, workers: int | None):
        self.ray, self.lost = ray, {}
        names = ("jax_enable_x64", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
        settings = {name: jax.config.values[name] for name in names}
        if (asked := jax.config.values["jax_default_device"]) is not None:
            settings["jax_default_device"] = asked if isinstance(asked, str) else asked.platform
        gpus = int(ray.cluster_resources().get("GPU", 0))
        each = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        self.workers = workers or gpus or int(ray.cluster_resources()["CPU"])
        made = ray.remote(**each)(Worker)
        self.start = lambda: made.remote(config, str(folder.resolve()), settings)

    def run(self, todo: dict[int, Shard], finished: Callable[[Shard], None]) -> None:
        """Every worker has one shard at a time; a lost one is replaced."""
        waiting, running = list(todo), {}
        idle = [self.start() for _ in range(min(self.workers, len(todo)))]
        while waiting or running:
            while waiting and idle:
                worker, number = idle.pop(), waiting.pop(0)
                running[worker.make.remote(number)] = worker, number
            (ready,), _ = self.ray.wait(list(running), num_returns=1)
            worker, number = running.pop(ready)
            try:
                self.ray.get(ready)
            except self.ray.exceptions.RayActorError as error:
                self._lose(number, error)
                waiting.insert(0, number)
                idle.append(self.start())
            except self.ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, InputError) else error) from None
            else:
                idle.append(worker)
                finished(todo[number])

    def _lose(self, number: int, error: Exception) -> None:
        self.lost[number] = self.lost.get(number, 0) + 1
        if self.lost[number] >= MOST_LOST:
            why = str(error).splitlines()[0]
            raise InputError(f"shard {number} lost {MOST_LOST} workers one after the other ({why}).") from error
