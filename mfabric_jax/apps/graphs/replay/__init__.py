"""Replay task graphs on fabrics."""

from mfabric_jax.apps.graphs.replay.replay_settings import Replay
from mfabric_jax.apps.graphs.replay.replayed import replay_row
from mfabric_jax.apps.graphs.replay.run import replay

__all__ = ["Replay", "replay", "replay_row"]
