"""Resolves a case: open values, limits, and the engine's input; exported by `evaluate`."""
