"""Graphs of tasks on fabrics."""

from mfabric_jax.replay._replay import replay
from mfabric_jax.replay.replay_settings import Replay
from mfabric_jax.replay.replayed import replay_row

__all__ = ["Replay", "replay", "replay_row"]
