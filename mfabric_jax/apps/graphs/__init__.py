"""Graphs of tasks: read, written, replayed, exported from an iteration, several jobs on one network."""
