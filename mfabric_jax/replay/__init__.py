"""Replay graphs of tasks on fabrics."""

from mfabric_jax.replay.replay_settings import Replay
from mfabric_jax.replay.replayed import replay_row
from mfabric_jax.replay.run import replay

__all__ = ["Replay", "replay", "replay_row"]
