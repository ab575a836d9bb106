"""A sweep on Ray: every worker is a process that makes parts; what a lost one was making, others make again."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mfabric_jax.checks import InputError
from mfabric_jax.extras import extra

MOST_LOST = 3  # workers lost over one part: then it is the part
OF_JAX = ("jax_enable_x64", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


class Worker:
    """One process; JAX is set up in it as in the one that asks."""

    def __init__(self, maker: Any, settings: dict[str, Any]):
        for name, value in settings.items():
            jax.config.update(name, value)
        self.maker = maker

    def make(self, number: int) -> None:
        """Compute and write one part."""
        self.maker.make(self.maker.config.parts[number])


def run_on_ray(maker: Any, todo: Sequence[Any], workers: int | None, finished: Callable[[Any], None]) -> None:
    """Make these parts. `InputError` where one takes several workers with it, or cannot be written."""
    with extra("cluster", "engine 'ray'"):
        import ray  # pyright: ignore[reportMissingImports]
    if not todo:
        return
    ours = not ray.is_initialized()
    if ours:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, num_cpus=workers)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        remote = ray.remote(num_gpus=1)(Worker) if gpus else ray.remote(num_cpus=1)(Worker)
        many = min(workers or gpus or int(ray.cluster_resources()["CPU"]), len(todo))
        settings = {name: jax.config.values[name] for name in OF_JAX}
        if (asked := jax.config.values["jax_default_device"]) is not None:
            settings["jax_default_device"] = asked if isinstance(asked, str) else asked.platform
        _run(ray, lambda: remote.remote(maker, settings), many, todo, finished)
    finally:
        if ours:
            ray.shutdown()


def _run(ray: Any, start: Callable[[], Any], workers: int, todo: Sequence[Any], finished: Callable) -> None:
    """Every worker has one part at a time; a lost one is replaced."""
    waiting, running, lost = list(todo), {}, dict.fromkeys((part.number for part in todo), 0)
    idle = [start() for _ in range(workers)]
    while waiting or running:
        while waiting and idle:
            worker, part = idle.pop(), waiting.pop(0)
            running[worker.make.remote(part.number)] = worker, part
        (ready,), _ = ray.wait(list(running), num_returns=1)
        worker, part = running.pop(ready)
        try:
            ray.get(ready)
        except ray.exceptions.RayActorError as error:
            lost[part.number] += 1
            if lost[part.number] >= MOST_LOST:
                why = str(error).splitlines()[0]
                raise InputError(f"file {part.number} lost {MOST_LOST} workers one after the other ({why}).") from error
            waiting.insert(0, part)
            idle.append(start())
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, InputError) else error) from None
        else:
            idle.append(worker)
            finished(part)
