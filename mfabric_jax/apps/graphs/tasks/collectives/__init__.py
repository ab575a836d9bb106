"""Algorithms of collectives as patterns of messages."""
